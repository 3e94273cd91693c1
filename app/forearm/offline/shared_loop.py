"""An engine loop that several threads of this process share, each for its own requests.

It has no thread: a thread that waits for an answer computes the next step, for all of them, and the others wait for
its messages. A single thread thus computes itself, without a switch to another core.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from forearm import wire
from forearm.engine.inbox import Disconnected, Inward, Profiling, Received
from forearm.engine.loop import EngineLoop
from forearm.errors import EngineFailed, EngineUnavailable


class SharedLoop:
    """The loop and the mailboxes of its connections.

    The lock guards all but the loop itself, which belongs to the thread that is stepping.
    """

    def __init__(self, loop: EngineLoop) -> None:
        self._loop: EngineLoop | None = loop
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._stepping = False
        self._inbox: deque[Inward] = deque()
        self._mail: dict[int, list[wire.FromEngine]] = {}
        self._numbers = itertools.count()

    @property
    def loop(self) -> EngineLoop:
        """The loop.

        Raises: EngineUnavailable when it is closed, or in a fork of the process that loaded it.
        """
        if os.getpid() != self._process:
            raise EngineUnavailable(
                f"this LLM was loaded in process {self._process}; process {os.getpid()} is its fork, which has none of "
                "its threads. Load the model in the process that uses it; with multiprocessing, start processes by "
                "'spawn' (multiprocessing.get_context('spawn'))"
            )
        if self._loop is None:
            raise EngineUnavailable("this LLM is closed; load the model again")
        return self._loop

    def check_open(self) -> None:
        """Check that the loop can be used. Raises: EngineUnavailable if not."""
        _ = self.loop

    @contextmanager
    def connection(self) -> Iterator[LoopConnection]:
        """Connect a caller. Requests that are open when it leaves are aborted.

        Raises: EngineUnavailable.
        """
        self.check_open()
        number = next(self._numbers)
        with self._changed:
            self._mail[number] = []
        try:
            yield LoopConnection(self, number)
        finally:
            if os.getpid() == self._process:  # else a fork drops a stream of its parent's, whose lock may be held
                with self._changed:
                    del self._mail[number]
                    self._inbox.append(Disconnected(number))
                    if not self._stepping and self._loop is not None:
                        self._take()  # else its requests would stay until the next step

    def close(self) -> None:
        """Free the weights and the KV cache. Threads that still wait for answers get an EngineUnavailable."""
        if os.getpid() != self._process:
            return
        with self._changed:
            while self._stepping:
                self._changed.wait()
            if self._loop is not None:
                self._loop.trace.close()
            self._loop = None
            self._changed.notify_all()

    def put(self, inward: Inward) -> None:
        """Hand a message to the loop, which takes it before the next step. Raises: EngineUnavailable."""
        self.check_open()
        self._inbox.append(inward)

    def profile(self, *, start: bool) -> None:
        """Begin to record the loop's steps, or end it. Raises: EngineUnavailable, EngineFailed."""
        with self.connection() as connection:
            self.put(Profiling(connection.number, wire.Profile(start)))
            for message in connection.messages():
                if isinstance(message, wire.Profiled) and message.error:
                    raise EngineFailed(message.error)

    def messages(self, number: int) -> list[wire.FromEngine]:
        """Return what has come for a connection, after a step of this thread or of another where there was nothing.

        Raises: EngineUnavailable, EngineFailed.
        """
        mine = False
        try:
            with self._changed:
                while self._stepping and not self._mail[number]:
                    self._changed.wait()
                if self._mail[number]:
                    return self._opened(number)
                loop = self.loop
                self._stepping = mine = True
            while self._inbox:
                loop.take(self._inbox.popleft())
            if not loop.outbox:  # a refusal is told before a step that may be long
                loop.step()
        finally:
            if mine:
                with self._changed:
                    self._deliver(loop)
                    self._stepping = False
                    self._changed.notify_all()
        with self._changed:
            return self._opened(number)

    def _opened(self, number: int) -> list[wire.FromEngine]:
        mail, self._mail[number] = self._mail[number], []
        return mail

    def _take(self) -> None:
        while self._inbox:
            self.loop.take(self._inbox.popleft())
        self._deliver(self.loop)

    def _deliver(self, loop: EngineLoop) -> None:
        outbox, loop.outbox = loop.outbox, []
        for number, message in outbox:
            if number in self._mail:  # else it has left
                self._mail[number].append(message)


class LoopConnection:
    """One caller's requests and the engine's messages about them."""

    def __init__(self, shared: SharedLoop, number: int) -> None:
        self._shared = shared
        self.number = number

    def submit(self, message: wire.Submit | wire.Embed) -> None:
        """Submit a request."""
        self._shared.put(Received(self.number, message))

    def abort(self, request_id: str, index: int | None = None) -> None:
        """End a request, or one of its outputs."""
        self._shared.put(Received(self.number, wire.Abort(request_id=request_id, index=index)))

    def messages(self) -> list[wire.FromEngine]:
        """Return what has come since the last call. Raises: EngineUnavailable, EngineFailed."""
        return self._shared.messages(self.number)
