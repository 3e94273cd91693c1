"""Requests and tokens a minute of each key, over all workers: token buckets in memory that the workers share.

The table is memory that gunicorn's master makes and its workers inherit. A key's record is locked (fcntl, which the
kernel undoes should a worker die) for the microseconds that an update takes: 14 for an admission, 4 for a charge, and
with headers and metrics 55 for a request, on an EPYC (Zen 4; loops of 3000 calls, the best of several).

A bucket holds a minute's worth and fills evenly. Tokens are charged as they come, answers' too, so that a bucket may
go below zero: the key waits until it is above again.
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

KEYS = 4096  # different ones that a server may meet between start and end
WORKERS = 512  # more than gunicorn may have (256), for one may follow while another ends
_PID = struct.Struct("<i")
_PIDS = struct.Struct(f"<{WORKERS}i")
_HEAD = struct.Struct("<32sddd")  # digest, requests left, tokens left, time.monotonic() of both
_OPEN = struct.Struct("<H")  # requests of one worker
_RECORD_BYTES = _HEAD.size + WORKERS * _OPEN.size


@dataclass(frozen=True)
class Limits:
    """Of one key. None: no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent: int | None = None


@dataclass(frozen=True)
class Standing:
    """How a key stands: requests and tokens left, and the seconds until all are there again.

    refused: the limit that is used up (requests, tokens, concurrency), "" where none is
    wait_s: until it is not
    """

    refused: str
    wait_s: float
    requests: float
    requests_full_s: float
    tokens: float
    tokens_full_s: float


class RateTable:
    """Shared between this process and those that it forks."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("forearm-rates")
        os.ftruncate(self._fd, _PIDS.size + KEYS * _RECORD_BYTES)  # sparse: what is never used takes no memory
        self._memory = mmap.mmap(self._fd, 0)
        self._slots: dict[bytes, int] = {}
        self._row, self._pid = 0, 0

    def close(self) -> None:
        """Let go of the memory."""
        self._memory.close()
        os.close(self._fd)

    def admit(self, digest: bytes, limits: Limits) -> Standing:
        """Take one request in, if the limits allow it; `leave` follows for one that is not refused."""
        row = self._own_row()
        with self._locked(digest) as at:
            requests, tokens = self._filled(at, limits)
            refused, wait_s = self._refusal(at, requests, tokens, limits)
            if not refused:
                requests -= 1
                place = at + _HEAD.size + row * _OPEN.size
                _OPEN.pack_into(self._memory, place, min(_OPEN.unpack_from(self._memory, place)[0] + 1, 0xFFFF))
            _HEAD.pack_into(self._memory, at, digest, requests, tokens, time.monotonic())
        return _standing(refused, wait_s, requests, tokens, limits)

    def charge(self, digest: bytes, limits: Limits, tokens: int) -> None:
        """So many tokens were read or generated."""
        with self._locked(digest) as at:
            requests, left = self._filled(at, limits)
            _HEAD.pack_into(self._memory, at, digest, requests, left - tokens, time.monotonic())

    def leave(self, digest: bytes) -> None:
        """A request that was taken in is over."""
        row = self._own_row()
        with self._locked(digest) as at:
            place = at + _HEAD.size + row * _OPEN.size
            _OPEN.pack_into(self._memory, place, max(_OPEN.unpack_from(self._memory, place)[0] - 1, 0))

    def _filled(self, at: int, limits: Limits) -> tuple[float, float]:
        """What the buckets hold now."""
        _, requests, tokens, then_s = _HEAD.unpack_from(self._memory, at)
        minutes = (time.monotonic() - then_s) / 60
        most_requests, most_tokens = limits.requests_per_minute or 0, limits.tokens_per_minute or 0
        return (
            min(requests + minutes * most_requests, float(most_requests)),
            min(tokens + minutes * most_tokens, float(most_tokens)),
        )

    def _refusal(self, at: int, requests: float, tokens: float, limits: Limits) -> tuple[str, float]:
        if limits.max_concurrent is not None and self._open(at) >= limits.max_concurrent:
            return "concurrency", 1.0
        if limits.requests_per_minute is not None and requests < 1:
            return "requests", (1 - requests) * 60 / limits.requests_per_minute
        if limits.tokens_per_minute is not None and tokens <= 0:
            return "tokens", (1 - tokens) * 60 / limits.tokens_per_minute
        return "", 0.0

    def _open(self, at: int) -> int:
        """Open requests of the key in workers that live."""
        begin = at + _HEAD.size
        used = len(self._memory[begin : at + _RECORD_BYTES].rstrip(b"\0")) + 1  # workers take the first rows there are
        counts = ((row, _OPEN.unpack_from(self._memory, begin + row * _OPEN.size)[0]) for row in range(used // 2))
        return sum(int(count) for row, count in counts if count and _lives(self._pid_of(row)))

    def _pid_of(self, row: int) -> int:
        return int(_PID.unpack_from(self._memory, row * _PID.size)[0])

    def _own_row(self) -> int:
        """This worker's column of counts, taken over from one that is dead where there is none free."""
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
        """The key's record, for nobody else meanwhile. Yields: where it begins."""
        at = _PIDS.size + self._slot(digest) * _RECORD_BYTES
        fcntl.lockf(self._fd, fcntl.LOCK_EX, _RECORD_BYTES, at)
        try:
            yield at
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, _RECORD_BYTES, at)

    def _slot(self, digest: bytes) -> int:
        """The number of the key's record: the first from where its digest points that is its own, or free and then is.

        Raises: ConfigError when the table is full.
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
                    # Full to the brim: a time long ago, filled up to the limits at the first look.
                    _HEAD.pack_into(self._memory, at, digest, 0.0, 0.0, -1e9)
                if found in (digest, bytes(32)):
                    self._slots[digest] = slot
                    return self._slots[digest]
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 0, 0)
        raise ConfigError(f"more than {KEYS} different keys since the start; start the server again")


def _standing(refused: str, wait_s: float, requests: float, tokens: float, limits: Limits) -> Standing:
    most_requests, most_tokens = limits.requests_per_minute or 1, limits.tokens_per_minute or 1
    return Standing(
        refused,
        wait_s,
        requests,
        max(most_requests - requests, 0.0) * 60 / most_requests,
        tokens,
        max(most_tokens - tokens, 0.0) * 60 / most_tokens,
    )


def _lives(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return pid > 0
    return False
