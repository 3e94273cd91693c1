"""Messages to and from the loop's thread, and the inbox: bounded in messages and in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from queue import SimpleQueue

from forearm import wire

# Messages that may wait for the end of a step; beyond them requests are refused at once.
MAX_UNTAKEN = 4096
# A token id has 1 to 5 bytes in a frame and up to 36 as an object in a list.
_BYTES_A_BYTE = 12


@dataclass(frozen=True)
class From:
    """A message of a connection."""

    connection: int
    message: wire.Submit | wire.Embed | wire.Abort | wire.ForgetPrefixes


@dataclass(frozen=True)
class Profiling:
    """A connection asks to start or to stop recording steps."""

    connection: int
    message: wire.Profile


@dataclass(frozen=True)
class Gone:
    """A connection has closed: its requests are aborted."""

    connection: int


@dataclass(frozen=True)
class Drain:
    """Take nothing new, finish what is there, end."""


@dataclass(frozen=True)
class Stop:
    """End now; what is open is aborted."""


Inward = From | Profiling | Gone | Drain | Stop
Outward = tuple[int, wire.FromEngine]  # to this connection


@dataclass(frozen=True)
class Snapshot:
    """The loop's state for other threads. `step_s`: when a step last ended; None while there is nothing to do."""

    running: int
    waiting: int
    load: wire.Load
    kv_usage: float
    step_s: float | None
    draining: bool


class Inbox:
    """most_bytes: of messages that wait, about, as objects; a message alone may have more.

    One thread puts requests in, one takes them out; what has no size may come from any.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._queue: SimpleQueue[tuple[Inward, int]] = SimpleQueue()
        self._put_bytes = self._got_bytes = 0  # so far; each written by one thread

    def put(self, inward: Inward, frame_bytes: int = 0) -> None:
        """Put a message in, without waiting."""
        self._put_bytes += _BYTES_A_BYTE * frame_bytes
        self._queue.put((inward, frame_bytes))

    def get(self) -> Inward:
        """Return the next message, as soon as there is one."""
        inward, frame_bytes = self._queue.get()
        self._got_bytes += _BYTES_A_BYTE * frame_bytes
        return inward

    def empty(self) -> bool:
        """Return whether `get` would wait."""
        return self._queue.empty()

    def too_much(self, frame_bytes: int) -> str:
        """Return why a message of this size must be refused now; "": it may come in."""
        if self._queue.qsize() >= MAX_UNTAKEN:
            return f"{MAX_UNTAKEN} messages wait for the end of a step"
        held = self._put_bytes - self._got_bytes
        if held and held + _BYTES_A_BYTE * frame_bytes > self._most_bytes:
            return f"requests that wait for the end of a step take {held} of {self._most_bytes} bytes"
        return ""
