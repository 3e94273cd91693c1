"""Messages to and from the loop's thread, and the inbox: bounded in messages and in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from queue import SimpleQueue

from forearm import wire

# The most messages that may wait for the end of a step; further requests are refused at once.
MAX_UNTAKEN = 4096
# A token id has 1 to 5 bytes in a frame and up to 36 as an object in a list.
_BYTES_A_BYTE = 12


@dataclass(frozen=True)
class Received:
    """A message from a connection."""

    connection: int
    message: wire.Submit | wire.Embed | wire.Abort | wire.ForgetPrefixes


@dataclass(frozen=True)
class Profiling:
    """A connection's query to start or stop recording steps."""

    connection: int
    message: wire.Profile


@dataclass(frozen=True)
class Disconnected:
    """The end of a connection, whose requests are aborted."""

    connection: int


@dataclass(frozen=True)
class Drain:
    """The command to refuse new requests, finish open ones and end."""


@dataclass(frozen=True)
class Stop:
    """The command to abort open requests and end at once."""


Inward = Received | Profiling | Disconnected | Drain | Stop
Outward = tuple[int, wire.FromEngine]  # to this connection


@dataclass(frozen=True)
class Snapshot:
    """The loop's state for other threads. `step_s`: when the last step ended; None while there is nothing to do."""

    running: int
    waiting: int
    load: wire.Load
    kv_usage: float
    step_s: float | None
    draining: bool


class Inbox:
    """The queue of messages to the loop. most_bytes: bound on waiting messages, as objects.

    One thread puts requests in, one takes them out; messages without a size may come from any thread.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.most_frame_bytes = min(most_bytes // _BYTES_A_BYTE, wire.MAX_FRAME_BYTES)
        self._queue: SimpleQueue[tuple[Inward, int]] = SimpleQueue()
        self._put_bytes = self._got_bytes = 0  # totals; each is written by one thread

    def put(self, inward: Inward, frame_bytes: int = 0) -> None:
        """Put a message in, without waiting."""
        self._put_bytes += _BYTES_A_BYTE * frame_bytes
        self._queue.put((inward, frame_bytes))

    def get(self) -> Inward:
        """Wait for the next message and return it."""
        inward, frame_bytes = self._queue.get()
        self._got_bytes += _BYTES_A_BYTE * frame_bytes
        return inward

    def empty(self) -> bool:
        """Return whether `get` would wait."""
        return self._queue.empty()

    def too_much(self, frame_bytes: int) -> str:
        """Return the reason to refuse a message of this size now; "" if there is room."""
        if self._queue.qsize() >= MAX_UNTAKEN:
            return f"{MAX_UNTAKEN} messages wait for the end of a step"
        held = self._put_bytes - self._got_bytes
        if held + _BYTES_A_BYTE * frame_bytes > self._most_bytes:
            return f"requests that wait for the end of a step take {held} of {self._most_bytes} bytes"
        return ""
