"""The tables of the response store, and the rows of one response in them."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass

RUNNING = ("queued", "in_progress")
RUNS = "status IN ('queued', 'in_progress')"
_ROW_BYTES = 500  # about the size of a row and its indices
SCHEMA = """
CREATE TABLE responses (
  id TEXT PRIMARY KEY, owner TEXT NOT NULL, previous TEXT, status TEXT NOT NULL, used REAL NOT NULL,
  beat REAL NOT NULL, bytes INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE contents (
  id TEXT PRIMARY KEY REFERENCES responses ON DELETE CASCADE, reply BLOB NOT NULL, items BLOB NOT NULL);
CREATE INDEX used ON responses (used, status, beat, bytes);
CREATE TABLE output (
  id TEXT, response TEXT REFERENCES responses ON DELETE CASCADE, PRIMARY KEY (id, response)) WITHOUT ROWID;
CREATE INDEX output_of ON output (response);
CREATE TABLE events (
  response TEXT REFERENCES responses ON DELETE CASCADE, last INTEGER, events BLOB NOT NULL,
  PRIMARY KEY (response, last)) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class StoredResponse:
    """A response: the object and its own input items, both as JSON, and the id of the previous response."""

    id: str
    status: str
    reply: bytes
    items: bytes
    previous: str | None

    @property
    def bytes(self) -> int:
        """Return the size that counts towards the store's limit."""
        return len(self.reply) + len(self.items) + _ROW_BYTES


@dataclass(frozen=True)
class ResponseUpdate:
    """The changes of a response in progress: new events, numbered from `first`; and, if its status has changed, the
    status and the whole reply."""

    id: str
    first: int
    events: Sequence[bytes] = ()
    status: str | None = None
    reply: bytes = b""


def write_update(store: sqlite3.Connection, update: ResponseUpdate) -> bool:
    """Write the changes of a response. Returns: False, and nothing written, if it is no longer in progress."""
    now, size = time.monotonic(), sum(map(len, update.events)) + len(update.reply)
    row = store.execute(
        f"UPDATE responses SET beat = ?, used = ?, bytes = bytes + ? WHERE id = ? AND {RUNS}",
        (now, now, size, update.id),
    )
    if not row.rowcount:
        return False
    add_events(store, update.id, update.first, update.events)
    if update.status is not None:
        set_status(store, update.id, update.status, update.reply)
    return True


def fail(store: sqlite3.Connection, one: StoredResponse, message: str) -> StoredResponse:
    """Set a response to failed, add the last event for clients that follow it, and return it."""
    response = {**json.loads(one.reply), "status": "failed", "error": {"code": "server_error", "message": message}}
    reply = json.dumps(response).encode()
    set_status(store, one.id, "failed", reply)
    (last,) = store.execute("SELECT coalesce(max(last), -1) FROM events WHERE response = ?", (one.id,)).fetchone()
    event = {"type": "response.failed", "response": response, "sequence_number": last + 1}
    add_events(store, one.id, last + 1, [b"event: response.failed\ndata: " + json.dumps(event).encode() + b"\n\n"])
    return StoredResponse(one.id, "failed", reply, one.items, one.previous)


def set_status(store: sqlite3.Connection, response_id: str, status: str, reply: bytes) -> None:
    store.execute("UPDATE responses SET status = ? WHERE id = ?", (status, response_id))
    store.execute("UPDATE contents SET reply = ? WHERE id = ?", (reply, response_id))
    add_output(store, response_id, reply)


def add_output(store: sqlite3.Connection, response_id: str, reply: bytes) -> None:
    ids = [(item["id"], response_id) for item in json.loads(reply)["output"]]
    store.executemany("INSERT OR IGNORE INTO output VALUES (?, ?)", ids)


def add_events(store: sqlite3.Connection, response_id: str, first: int, events: Sequence[bytes]) -> None:
    if events:
        last = first + len(events) - 1
        store.execute("INSERT INTO events VALUES (?, ?, ?)", (response_id, last, b"".join(events)))
