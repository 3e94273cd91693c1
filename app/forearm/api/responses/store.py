"""Responses kept for later: one SQLite file that all workers of a server share, bounded by count, bytes and age.

The limit in bytes is that of the file: SQLite takes no more pages than fit into it. The journal, a second file during a
write, holds the old pages of one transaction. (A write-ahead log would hold each new page twice, and gains nothing
where all transactions write.)

A response belongs to the API key that made it (`owner`); for other clients it does not exist. Of the completed
responses the least recently used is removed first. The file lies in the server's run folder, which only its user can
enter and which is removed when the server stops; therefore nothing is flushed to the disk.
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
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeVar

from forearm.api.responses.store_schema import (
    RUNNING,
    RUNS,
    SCHEMA,
    ResponseUpdate,
    StoredResponse,
    add_events,
    add_output,
    fail,
    set_status,
    write_update,
)
from forearm.config.api_config import ApiConfig
from forearm.errors import ConfigError, InvalidRequest, ResponseNotFound, StoreFull

Result = TypeVar("Result")
# A worker confirms several times a second that it still computes a response; after this silence it counts as dead.
_DEAD_S = 30.0
_BUSY_S = 10.0  # the longest wait for other workers' writes, which take milliseconds
_PAGE_BYTES, _LEAST_PAGES = 4096, 64  # page size; pages of an empty store, with room for a small response
_BESIDE_PAGES = 8  # pages of tables and indices that one response changes
_BATCHES = 64  # batches of events that are read at a time


class ResponseStore:
    """The store. It is made before workers are forked; each opens its own connection. Methods run on one thread.

    Raises: ConfigError if its file cannot be made.
    """

    def __init__(self, config: ApiConfig) -> None:
        self._count = config.responses_store_count
        self._bytes = config.held_response_bytes
        self._pages = max(self._bytes // _PAGE_BYTES, _LEAST_PAGES)
        self._age_s = config.responses_store_age_s
        self._own_folder = "" if config.run_folder else tempfile.mkdtemp(prefix="forearm-")
        self._path = Path(config.run_folder or self._own_folder) / "responses.sqlite"
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="responses")
        self._connection: sqlite3.Connection | None = None
        if not self._path.exists():
            try:
                os.close(os.open(self._path, os.O_CREAT | os.O_EXCL, 0o600))  # SQLite's other files get the same rights
                with closing(sqlite3.connect(self._path)) as made:
                    made.executescript(
                        f"PRAGMA synchronous = OFF; {SCHEMA}"
                    )  # otherwise each table waits for the disk, 0.2 s in all
            except (OSError, sqlite3.Error) as error:
                self._path.unlink(missing_ok=True)
                raise ConfigError(f"{self._path} for stored responses: {error}; free its disk, or set TMPDIR") from None

    async def close(self) -> None:
        """Close the connection, and remove the folder if the store made it; the server removes its own run folder."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._disconnect)
        self._thread.shutdown()
        if self._own_folder:
            shutil.rmtree(self._own_folder, ignore_errors=True)

    async def add(self, one: StoredResponse, owner: str, events: Sequence[bytes] = ()) -> None:
        """Store a response, and remove others beyond the limits.

        Raises: InvalidRequest if it is larger than the whole store; StoreFull.
        """
        self.check(one.bytes)

        def write(store: sqlite3.Connection) -> None:
            now, size = time.monotonic(), one.bytes + sum(map(len, events))
            # Responses in progress are never removed; an eighth stays free for them to grow and complete.
            most = self._pages * 7 // 8 if one.status in RUNNING else self._pages
            if not self._make_room(store, size, most):
                raise StoreFull("the responses that are being computed fill the store")
            row = (one.id, owner, one.previous, one.status, now, now, size)
            store.execute("INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            store.execute("INSERT INTO contents VALUES (?, ?, ?)", (one.id, one.reply, one.items))
            add_events(store, one.id, 0, events)
            add_output(store, one.id, one.reply)
            self._let_go(store)

        await self._within(write)

    def check(self, size: int) -> None:
        """Refuse a response of `size` bytes that can never be stored. Raises: InvalidRequest."""
        if size > self._bytes:
            raise InvalidRequest(
                f"the response takes {size} bytes and the store holds {self._bytes} (FOREARM_RESPONSES_STORE_BYTES); "
                "send store: false",
                "store",
            )

    async def get(self, response_id: str, owner: str) -> StoredResponse:
        """Return one of the owner's responses. Raises: ResponseNotFound."""
        return await self._within(lambda store: self._one(store, response_id, owner))

    async def chain(self, response_id: str, owner: str, most_bytes: int) -> list[StoredResponse]:
        """Return the conversation that ends with this response, oldest first.

        Raises: ResponseNotFound if one of its responses is missing; InvalidRequest if it is longer than `most_bytes`.
        """

        def read(store: sqlite3.Connection) -> list[StoredResponse]:
            found: list[StoredResponse] = []
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
        """Return an output item of any stored response.

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

    async def update(self, updates: Sequence[ResponseUpdate]) -> set[str]:
        """Write the progress of responses, and confirm that this worker still computes them.

        Returns: the ids of those still wanted, neither cancelled nor deleted.
        """

        def write(store: sqlite3.Connection) -> set[str]:
            size = sum(len(one.reply) + sum(map(len, one.events)) for one in updates)
            if size:
                self._make_room(store, size, self._pages)
            wanted = {one.id for one in updates if write_update(store, one)}
            if any(one.status is not None for one in updates):
                self._let_go(store)
            return wanted

        return await self._within(write)

    async def cancel(self, response_id: str, owner: str) -> StoredResponse:
        """Mark a response as cancelled, which ends its computation; one that has ended stays unchanged.

        Raises: ResponseNotFound.
        """

        def write(store: sqlite3.Connection) -> StoredResponse:
            one = self._one(store, response_id, owner)
            if one.status not in RUNNING:
                return one
            reply = json.dumps({**json.loads(one.reply), "status": "cancelled"}).encode()
            set_status(store, response_id, "cancelled", reply)
            return StoredResponse(one.id, "cancelled", reply, one.items, one.previous)

        return await self._within(write)

    async def delete(self, response_id: str, owner: str) -> None:
        """Delete one of the owner's responses. Raises: ResponseNotFound."""

        def write(store: sqlite3.Connection) -> None:
            self._one(store, response_id, owner)
            store.execute("DELETE FROM responses WHERE id = ?", (response_id,))

        await self._within(write)

    async def events(self, response_id: str, owner: str, after: int) -> tuple[list[bytes], bool]:
        """Return some of the events numbered above `after`, and whether more may come.

        Raises: ResponseNotFound.
        """

        def read(store: sqlite3.Connection) -> tuple[list[bytes], bool]:
            status = self._one(store, response_id, owner, touch=False).status  # polled often
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
        """Run `work` in one transaction on the store's thread and return its result.

        Raises: StoreFull, and as `work`.
        """

        def run() -> Result:
            try:
                store = self._connected()
                store.execute("BEGIN IMMEDIATE")
                try:
                    result = work(store)
                    if store.in_transaction:
                        store.execute("COMMIT")
                except BaseException:
                    if store.in_transaction:  # some errors have ended it
                        store.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise StoreFull(f"responses cannot be stored or read now: {error}") from error
            return result

        return await asyncio.get_running_loop().run_in_executor(self._thread, run)

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None)
            self._connection.execute("PRAGMA synchronous = OFF")  # the file does not outlive the server
            self._connection.execute("PRAGMA foreign_keys = ON")
            self._connection.execute("PRAGMA journal_mode = TRUNCATE")
            self._connection.execute(f"PRAGMA max_page_count = {self._pages}")
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _one(self, store: sqlite3.Connection, response_id: str, owner: str, touch: bool = True) -> StoredResponse:
        """Read a response, and mark it as used if `touch`. A response whose worker is dead is set to failed.

        Raises: ResponseNotFound.
        """
        now = time.monotonic()
        row = store.execute(
            "SELECT id, status, reply, items, previous, beat FROM responses JOIN contents USING (id) "
            f"WHERE id = ? AND owner = ? AND (used > ? OR {RUNS})",
            (response_id, owner, now - self._age_s),
        ).fetchone()
        if row is None:
            raise ResponseNotFound(f"Response with id {response_id[:100]!r} not found.")
        *fields, beat = row
        one = StoredResponse(*fields)
        if one.status in RUNNING and beat < now - _DEAD_S:
            one = fail(store, one, "the process that computed this response has ended")
        if touch:
            with suppress(sqlite3.OperationalError):  # on a full disk stored responses can still be read
                store.execute("UPDATE responses SET used = ? WHERE id = ?", (now, one.id))
        return one

    def _make_room(self, store: sqlite3.Connection, size: int, most: int) -> bool:
        """Make `size` more bytes fit into `most` pages by removing the least recently used completed responses.

        Returns: whether they fit.
        """
        wanted = size // (_PAGE_BYTES - 4) + _BESIDE_PAGES
        while True:
            (pages,), (free,) = (
                store.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "freelist_count")
            )
            if pages - free + wanted <= most:
                return True
            gone = store.execute(
                "DELETE FROM responses WHERE id = "
                f"(SELECT id FROM responses WHERE NOT {RUNS} OR beat < ? ORDER BY used LIMIT 1)",
                (time.monotonic() - _DEAD_S,),
            )
            if not gone.rowcount:
                return False

    def _let_go(self, store: sqlite3.Connection) -> None:
        """Remove completed responses that are too old; then, beyond the limits, the least recently used."""
        now = time.monotonic()
        done = f"(NOT {RUNS} OR beat < ?)"
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
