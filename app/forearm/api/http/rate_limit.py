"""Limit requests and tokens per minute of each key over all workers: token buckets in shared memory.

gunicorn's master makes the table and its workers inherit it. A key's record is locked (by fcntl: the kernel unlocks it
if a worker dies) while it is updated: an admission takes 14 us, a charge 4 us, and a request with headers and metrics
55 us, on an EPYC (Zen 4; loops of 3000 calls, the best of several).

A bucket holds the amount of one minute and fills evenly. Tokens are charged as they arrive, those of answers too, so
that a bucket may go below zero: the key then waits until it is above zero again.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from forearm.errors import ConfigError

KEYS = 4096  # distinct keys between a server's start and end
WORKERS = 512  # more than gunicorn may have (256), because a new worker may start before an old one ends
_PID = struct.Struct("<i")
_PIDS = struct.Struct(f"<{WORKERS}i")
_HEAD = struct.Struct("<32sddd")  # digest, requests left, tokens left, time.monotonic() of both
_OPEN = struct.Struct("<H")  # open requests of one worker
_RECORD_BYTES = _HEAD.size + WORKERS * _OPEN.size


@dataclass(frozen=True)
class RateLimits:
    """The limits of one key. None: no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent: int | None = None


@dataclass(frozen=True)
class RateLimitState:
    """The state of a key: requests and tokens left, and the seconds until the buckets are full.

    refused: the limit that is exceeded (requests, tokens, concurrency), "" if none
    wait_s: seconds until it is not
    """

    refused: str
    wait_s: float
    requests: float
    requests_full_s: float
    tokens: float
    tokens_full_s: float


class RateTable:
    """The buckets of all keys, shared between this process and those that it forks."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("forearm-rates")
        os.ftruncate(self._fd, _PIDS.size + KEYS * _RECORD_BYTES)  # sparse: unused records take no memory
        self._memory = mmap.mmap(self._fd, 0)
        self._slots: dict[bytes, int] = {}
        self._row, self._pid = 0, 0

    def close(self) -> None:
        """Release the memory."""
        self._memory.close()
        os.close(self._fd)

    def admit(self, digest: bytes, limits: RateLimits) -> RateLimitState:
        """Admit one request if the limits allow it; `leave` must follow unless it is refused."""
        row = self._own_row()
        with self._locked(digest) as at:
            requests, tokens = self._filled(at, limits)
            refused, wait_s = "", 0.0
            if limits.max_concurrent is not None and self._open(at) >= limits.max_concurrent:
                refused, wait_s = "concurrency", 1.0
            elif limits.requests_per_minute is not None and requests < 1:
                refused, wait_s = "requests", (1 - requests) * 60 / limits.requests_per_minute
            elif limits.tokens_per_minute is not None and tokens <= 0:
                refused, wait_s = "tokens", (1 - tokens) * 60 / limits.tokens_per_minute
            else:
                requests -= 1
                place = at + _HEAD.size + row * _OPEN.size
                _OPEN.pack_into(self._memory, place, min(_OPEN.unpack_from(self._memory, place)[0] + 1, 0xFFFF))
            _HEAD.pack_into(self._memory, at, digest, requests, tokens, time.monotonic())
        most_requests, most_tokens = limits.requests_per_minute or 1, limits.tokens_per_minute or 1
        requests_full_s = max(most_requests - requests, 0.0) * 60 / most_requests
        tokens_full_s = max(most_tokens - tokens, 0.0) * 60 / most_tokens
        return RateLimitState(refused, wait_s, requests, requests_full_s, tokens, tokens_full_s)

    def charge(self, digest: bytes, limits: RateLimits, tokens: int) -> None:
        """Charge tokens that were read or generated."""
        with self._locked(digest) as at:
            requests, left = self._filled(at, limits)
            _HEAD.pack_into(self._memory, at, digest, requests, left - tokens, time.monotonic())

    def leave(self, digest: bytes) -> None:
        """Note that an admitted request is over."""
        row = self._own_row()
        with self._locked(digest) as at:
            place = at + _HEAD.size + row * _OPEN.size
            _OPEN.pack_into(self._memory, place, max(_OPEN.unpack_from(self._memory, place)[0] - 1, 0))

    def _filled(self, at: int, limits: RateLimits) -> tuple[float, float]:
        """Return the current content of the buckets."""
        _, requests, tokens, then_s = _HEAD.unpack_from(self._memory, at)
        minutes = (time.monotonic() - then_s) / 60
        most_requests, most_tokens = limits.requests_per_minute or 0, limits.tokens_per_minute or 0
        return (
            min(requests + minutes * most_requests, float(most_requests)),
            min(tokens + minutes * most_tokens, float(most_tokens)),
        )

    def _open(self, at: int) -> int:
        """Return the number of the key's open requests in live workers."""
        begin = at + _HEAD.size
        used = len(self._memory[begin : at + _RECORD_BYTES].rstrip(b"\0")) + 1  # workers take the first free rows
        counts = ((row, _OPEN.unpack_from(self._memory, begin + row * _OPEN.size)[0]) for row in range(used // 2))
        pids = _PIDS.unpack_from(self._memory, 0)
        return sum(int(count) for row, count in counts if count and _lives(pids[row]))

    def _own_row(self) -> int:
        """Return this worker's row of counts: a free one, or that of a dead worker."""
        pid = os.getpid()
        if self._pid == pid:
            return self._row
        fcntl.lockf(self._fd, fcntl.LOCK_EX, _PIDS.size, 0)
        try:
            pids = _PIDS.unpack_from(self._memory, 0)
            self._row = next(row for row in range(WORKERS) if pids[row] == 0 or not _lives(pids[row]))
            for slot in range(KEYS if pids[self._row] else 0):
                place = _PIDS.size + slot * _RECORD_BYTES + _HEAD.size + self._row * _OPEN.size
                _OPEN.pack_into(self._memory, place, 0)
            _PID.pack_into(self._memory, self._row * _PID.size, pid)
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, _PIDS.size, 0)
        self._pid = pid
        return self._row

    @contextmanager
    def _locked(self, digest: bytes) -> Iterator[int]:
        """Lock the key's record. Yields: its offset."""
        at = _PIDS.size + self._slot(digest) * _RECORD_BYTES
        fcntl.lockf(self._fd, fcntl.LOCK_EX, _RECORD_BYTES, at)
        try:
            yield at
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, _RECORD_BYTES, at)

    def _slot(self, digest: bytes) -> int:
        """Return the number of the key's record: from its digest's position on, the first that is its own or free.

        Raises: ConfigError if the table is full.
        """
        if digest in self._slots:
            return self._slots[digest]
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 0, 0)
        try:
            first = int.from_bytes(digest[:4], "little") % KEYS
            slots = [*range(first, KEYS), *range(first)]
            for slot in slots:
                at = _PIDS.size + slot * _RECORD_BYTES
                found = bytes(self._memory[at : at + 32])
                if found == bytes(32):
                    # A new record's time is long past, so that the first update fills its buckets.
                    _HEAD.pack_into(self._memory, at, digest, 0.0, 0.0, -1e9)
                if found in (digest, bytes(32)):
                    self._slots[digest] = slot
                    return self._slots[digest]
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 0, 0)
        raise ConfigError(f"more than {KEYS} different keys since the start; restart the server")


def _lives(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return pid > 0
    return False
