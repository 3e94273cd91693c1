"""Responses kept for later: one SQLite file that all workers of a server share, bounded by count, bytes and age.

A response belongs to whoever made it (`owner`, of an API key); to everybody else it is not there. Of those that are
done the one used longest ago goes first. The file lies in the server's run folder, which only its user can enter and
which goes when the server stops; nothing is flushed to the disk on purpose.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from forearm.config import ApiConfig
from forearm.errors import InvalidRequest, ResponseNotFound

Result = TypeVar("Result")
RUNNING = ("queued", "in_progress")
# A worker says so several times a second that it still computes a response; one that has not for so long is dead.
_DEAD_S = 30.0
_BUSY_S = 10.0  # the longest wait for other workers' writes, which take milliseconds
_ROW_BYTES = 500  # of a row and its indices, about
_BATCHES = 64  # of events that are read at a time
_SCHEMA = """
PRAGMA journal_mode = WAL;
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
_RUNS = "status IN ('queued', 'in_progress')"


@dataclass(frozen=True)
class Stored:
    """A response: the object itself and its own input items, both as JSON, and the response it goes on from."""

    id: str
    status: str
    reply: bytes
    items: bytes
    previous: str | None

    @property
    def bytes(self) -> int:
        """What it takes."""
        return len(self.reply) + len(self.items) + _ROW_BYTES


class ResponseStore:
    """Made before workers are forked; each opens it for itself. Methods run on a thread of their own."""

    def __init__(self, config: ApiConfig) -> None:
        self._count = config.responses_store_count
        self._bytes = config.responses_store_bytes
        self._age_s = config.responses_store_age_s
        self._own_folder = "" if config.run_folder else tempfile.mkdtemp(prefix="forearm-")
        self._path = Path(config.run_folder or self._own_folder) / "responses.sqlite"
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="responses")
        self._connection: sqlite3.Connection | None = None
        if not self._path.exists():
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL, 0o600))  # SQLite's other files get the same rights
            made = sqlite3.connect(self._path)
            made.executescript(_SCHEMA)
            made.close()

    async def close(self) -> None:
        """A folder of its own goes; that of a server is the server's."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._disconnect)
        self._thread.shutdown()
        if self._own_folder:
            shutil.rmtree(self._own_folder, ignore_errors=True)

    async def add(self, one: Stored, owner: str, events: Sequence[bytes] = ()) -> None:
        """Keep it, and let go what is too much then.

        Raises: InvalidRequest if it is larger than the whole store.
        """
        self.check(one.bytes)

        def write(store: sqlite3.Connection) -> None:
            now = time.time()
            row = (one.id, owner, one.previous, one.status, now, now, one.bytes)
            store.execute("INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            store.execute("INSERT INTO contents VALUES (?, ?, ?)", (one.id, one.reply, one.items))
            _add_events(store, one.id, 0, events)
            _add_output(store, one.id, one.reply)
            self._let_go(store)

        await self._within(write)

    def check(self, size: int) -> None:
        """Raises: InvalidRequest if so many bytes can never be stored."""
        if size > self._bytes:
            raise InvalidRequest(
                f"the response takes {size} bytes and the store holds {self._bytes} (FOREARM_RESPONSES_STORE_BYTES); "
                "send store: false",
                "store",
            )

    async def get(self, response_id: str, owner: str) -> Stored:
        """Raises: ResponseNotFound."""
        return await self._within(lambda store: self._one(store, response_id, owner))

    async def chain(self, response_id: str, owner: str, most_bytes: int) -> list[Stored]:
        """The conversation that ends with this response, the first one first.

        Raises: ResponseNotFound if one of it is not there; InvalidRequest if it is longer than `most_bytes`.
        """

        def read(store: sqlite3.Connection) -> list[Stored]:
            found: list[Stored] = []
            size = 0
            following: str | None = response_id
            while following is not None:
                found.append(self._one(store, following, owner))
                following, size = found[-1].previous, size + found[-1].bytes
                if size > most_bytes:
                    raise InvalidRequest(
                        f"the conversation that ends with {response_id!r} is longer than {most_bytes} bytes",
                        "previous_response_id",
                    )
            return found[::-1]

        return await self._within(read)

    async def output_item(self, item_id: str, owner: str) -> dict[str, Any]:
        """An item that some response has put out.

        Raises: ResponseNotFound.
        """

        def read(store: sqlite3.Connection) -> dict[str, Any]:
            rows = store.execute("SELECT response FROM output WHERE id = ?", (item_id,)).fetchall()
            for (response_id,) in rows:
                for item in json.loads(self._one(store, response_id, owner).reply)["output"]:
                    if item["id"] == item_id:
                        return dict(item)
            raise ResponseNotFound(f"Item with id {item_id[:100]!r} not found.")

        return await self._within(read)

    async def update(
        self, response_id: str, first: int, events: Sequence[bytes], status: str | None = None, reply: bytes = b""
    ) -> bool:
        """The worker that computes it says that it lives, adds its events (the first one's number is `first`) and
        perhaps where it stands now. Returns: whether it is still wanted: not cancelled, not deleted."""

        def write(store: sqlite3.Connection) -> bool:
            size = sum(map(len, events)) + len(reply)
            now = time.time()
            row = store.execute(
                f"UPDATE responses SET beat = ?, used = ?, bytes = bytes + ? WHERE id = ? AND {_RUNS}",
                (now, now, size, response_id),
            )
            if not row.rowcount:
                return False
            _add_events(store, response_id, first, events)
            if status is not None:
                _set_status(store, response_id, status, reply)
                self._let_go(store)
            return True

        return await self._within(write)

    async def cancel(self, response_id: str, owner: str) -> Stored:
        """Nobody computes it any more; what has ended stays as it is.

        Raises: ResponseNotFound.
        """

        def write(store: sqlite3.Connection) -> Stored:
            one = self._one(store, response_id, owner)
            if one.status not in RUNNING:
                return one
            reply = json.dumps({**json.loads(one.reply), "status": "cancelled"}).encode()
            _set_status(store, response_id, "cancelled", reply)
            return Stored(one.id, "cancelled", reply, one.items, one.previous)

        return await self._within(write)

    async def delete(self, response_id: str, owner: str) -> None:
        """Raises: ResponseNotFound."""

        def write(store: sqlite3.Connection) -> None:
            self._one(store, response_id, owner)
            store.execute("DELETE FROM responses WHERE id = ?", (response_id,))

        await self._within(write)

    async def events(self, response_id: str, owner: str, after: int) -> tuple[list[bytes], bool]:
        """Some of the events whose numbers are greater than `after`, and whether more may come.

        Raises: ResponseNotFound.
        """

        def read(store: sqlite3.Connection) -> tuple[list[bytes], bool]:
            status = self._one(store, response_id, owner).status
            rows = store.execute(
                "SELECT last, events FROM events WHERE response = ? AND last > ? ORDER BY last LIMIT ?",
                (response_id, after, _BATCHES),
            ).fetchall()
            found = []
            for last, blob in rows:
                several = blob.split(b"\n\n")[:-1]
                found += [event + b"\n\n" for event in several[max(0, after - last + len(several)) :]]
            return found, status in RUNNING or len(rows) == _BATCHES

        return await self._within(read)

    # --- on the thread

    async def _within(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """What `work` returns; all it does is done together or not at all."""

        def run() -> Result:
            store = self._connected()
            store.execute("BEGIN IMMEDIATE")
            try:
                result = work(store)
            except BaseException:
                store.execute("ROLLBACK")
                raise
            store.execute("COMMIT")
            return result

        return await asyncio.get_running_loop().run_in_executor(self._thread, run)

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None)
            self._connection.execute("PRAGMA synchronous = OFF")  # the file dies with the server anyway
            self._connection.execute("PRAGMA foreign_keys = ON")
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _one(self, store: sqlite3.Connection, response_id: str, owner: str) -> Stored:
        """Reading is use. What a dead worker has left is found to have failed.

        Raises: ResponseNotFound.
        """
        now = time.time()
        row = store.execute(
            "SELECT id, status, reply, items, previous, beat FROM responses JOIN contents USING (id) "
            f"WHERE id = ? AND owner = ? AND (used > ? OR {_RUNS})",
            (response_id, owner, now - self._age_s),
        ).fetchone()
        if row is None:
            raise ResponseNotFound(f"Response with id {response_id[:100]!r} not found.")
        *fields, beat = row
        one = Stored(*fields)
        if one.status in RUNNING and beat < now - _DEAD_S:
            error = {"code": "server_error", "message": "the process that computed this response has ended"}
            reply = json.dumps({**json.loads(one.reply), "status": "failed", "error": error}).encode()
            _set_status(store, one.id, "failed", reply)
            one = Stored(one.id, "failed", reply, one.items, one.previous)
        store.execute("UPDATE responses SET used = ? WHERE id = ?", (now, one.id))
        return one

    def _let_go(self, store: sqlite3.Connection) -> None:
        """Of what is done: all that is too old; then, while there is too much, the one used longest ago."""
        now = time.time()
        done = f"(NOT {_RUNS} OR beat < ?)"
        store.execute(f"DELETE FROM responses WHERE used < ? AND {done}", (now - self._age_s, now - _DEAD_S))
        count, size = store.execute("SELECT count(*), coalesce(sum(bytes), 0) FROM responses").fetchone()
        too_much = []
        for response_id, its_bytes in store.execute(
            f"SELECT id, bytes FROM responses WHERE {done} ORDER BY used", (now - _DEAD_S,)
        ):
            if count <= self._count and size <= self._bytes:
                break
            count, size = count - 1, size - its_bytes
            too_much.append((response_id,))
        store.executemany("DELETE FROM responses WHERE id = ?", too_much)


def _set_status(store: sqlite3.Connection, response_id: str, status: str, reply: bytes) -> None:
    store.execute("UPDATE responses SET status = ? WHERE id = ?", (status, response_id))
    store.execute("UPDATE contents SET reply = ? WHERE id = ?", (reply, response_id))
    _add_output(store, response_id, reply)


def _add_output(store: sqlite3.Connection, response_id: str, reply: bytes) -> None:
    ids = [(item["id"], response_id) for item in json.loads(reply)["output"]]
    store.executemany("INSERT OR IGNORE INTO output VALUES (?, ?)", ids)


def _add_events(store: sqlite3.Connection, response_id: str, first: int, events: Sequence[bytes]) -> None:
    if events:
        last = first + len(events) - 1
        store.execute("INSERT INTO events VALUES (?, ?, ?)", (response_id, last, b"".join(events)))
