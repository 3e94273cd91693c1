"""A worker's connection to one engine: sends messages, passes replies to open requests, asks for state and metrics."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from forearm import wire
from forearm.errors import EngineUnavailable, ForearmError
from forearm.timeouts import within

log = logging.getLogger(__name__)

# Short, because connecting to a Unix socket costs little. The pause grows slowly: an engine that becomes ready a moment
# after its workers waits for them a quarter of that moment at most.
_FIRST_RETRY_S, _LAST_RETRY_S, _RETRY_GROWTH = 0.02, 0.2, 1.25
_ANSWER_TIMEOUT_S = 5.0  # a thread of the engine answers queries at once, even during a step, unless it hangs
_HEAD_BYTES = 4

Answer = TypeVar("Answer")


class OpenRequest(Protocol):
    """The part of one HTTP request that is open in an engine.

    accepted: done once the engine has accepted it, or refused it with an error.
    """

    accepted: asyncio.Future[None]

    def take(self, message: wire.Accepted | wire.Refused | wire.Tokens | wire.Embedded) -> None:
        """Receive a message from the engine."""

    def fail(self, error: ForearmError) -> None:
        """End with this error: the engine is gone."""

    def close(self) -> None:
        """Abort it in the engine. May be called at any time, and again."""


class EngineConnection:
    """The socket of one engine, opened again whenever it breaks. `state` is None while no engine runs."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.state: wire.State | None = None
        self.was_there = False  # an engine was connected since this worker's start
        self.attempted = asyncio.Event()  # the last attempt to connect has ended, with a state or without
        self._wanted = asyncio.Event()  # the next attempt need not wait for its time
        self.open: dict[str, OpenRequest] = {}
        self._load: wire.Load | None = None
        self._accepted = 0  # requests accepted since the engine's last load message
        self._writer: asyncio.StreamWriter | None = None
        self._states: deque[asyncio.Future[wire.State]] = deque()
        self._metrics: deque[asyncio.Future[str]] = deque()
        self._profiled: deque[asyncio.Future[str]] = deque()
        self.on_lost: Callable[[], None] = lambda: None
        self._task: asyncio.Task[None] | None = None

    @property
    def load(self) -> wire.Load | None:
        """Return the engine's last load less the requests accepted since; None before its first load message."""
        if self._load is None or not self._accepted:
            return self._load
        return wire.Load(self._load.room - self._accepted, self._load.retry_after_s)

    def start(self) -> None:
        """Start connecting."""
        self._task = asyncio.create_task(self._stay_connected())

    async def attempt(self) -> None:
        """Try to connect now rather than after the pause; returns when that has ended, with a state or without."""
        self.attempted.clear()
        self._wanted.set()
        await self.attempted.wait()

    async def close(self) -> None:
        """Disconnect; the engine aborts open requests."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def send(self, message: wire.ToEngine) -> None:
        """Queue a message; dropped while no engine is connected."""
        self.write(wire.frame(message))

    def write(self, frames: bytes) -> None:
        """Queue messages as frames; dropped while no engine is connected.

        A broken connection's transport closes before the reader learns it, and uvloop's raises RuntimeError on a write.
        """
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(frames)

    async def ask_state(self) -> wire.State:
        """Return the engine's state. Raises: EngineUnavailable."""
        return await self._ask(wire.AskState(), self._states)

    async def ask_metrics(self) -> str:
        """Return the engine's metrics in Prometheus' text format. Raises: EngineUnavailable."""
        return await self._ask(wire.AskMetrics(), self._metrics)

    async def profile(self, start: bool, timeout_s: float) -> str:
        """Start or stop recording the engine's steps; it replies between two steps. Returns: an error text, "" if none.

        Raises: EngineUnavailable.
        """
        return await self._ask(wire.Profile(start), self._profiled, timeout_s)

    def fail_open(self, error: ForearmError) -> None:
        """Fail every open request with this error."""
        for generation in list(self.open.values()):
            generation.fail(error)

    async def _ask(
        self, question: wire.ToEngine, waiting: deque[asyncio.Future[Answer]], timeout_s: float = _ANSWER_TIMEOUT_S
    ) -> Answer:
        if self.state is None:
            raise EngineUnavailable("the engine is not running")
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        waiting.append(answer)
        self.send(question)
        try:
            # shield: a query that timed out keeps its place in line, so that the next one does not get its late answer
            return await within(asyncio.shield(answer), timeout_s)
        except asyncio.TimeoutError:
            raise EngineUnavailable(f"the engine has not answered for {timeout_s:g} s") from None

    async def _stay_connected(self) -> None:
        retry_s = _FIRST_RETRY_S
        while True:
            try:
                reader, self._writer = await asyncio.open_unix_connection(self.path)
            except OSError:
                self.attempted.set()
                await asyncio.sleep(_FIRST_RETRY_S)  # at least: many requests may want an engine that is not there
                with contextlib.suppress(asyncio.TimeoutError):
                    await within(self._wanted.wait(), retry_s - _FIRST_RETRY_S)
                self._wanted.clear()
                retry_s = min(_RETRY_GROWTH * retry_s, _LAST_RETRY_S)
                continue
            try:
                while True:
                    length = wire.body_length(await reader.readexactly(_HEAD_BYTES))
                    self._take(wire.from_engine.decode(await reader.readexactly(length)))
            except (OSError, EOFError, ValueError) as error:  # ValueError: the data does not follow the protocol
                log.warning("connection to the engine at %s is lost: %r", self.path, error)
            finally:
                gone = EngineUnavailable("the engine stopped; it is being restarted")
                self.state = self._load = None
                self.attempted.set()
                self._writer.close()
                self._writer = None
                self.fail_open(gone)
                self.open.clear()
                self.on_lost()
                queries: tuple[deque[asyncio.Future[Any]], ...] = (self._states, self._metrics, self._profiled)
                for waiting in queries:
                    for query in waiting:
                        if not query.done():
                            query.set_exception(gone)
                            query.exception()  # marks it as retrieved, in case no task awaits it
                    waiting.clear()
            retry_s = _FIRST_RETRY_S

    def _take(self, message: wire.FromEngine) -> None:
        if isinstance(message, wire.State):
            self.state, self.was_there = message, True
            self.attempted.set()
            _answer(self._states, message)
        elif isinstance(message, wire.Metrics):
            _answer(self._metrics, message.text)
        elif isinstance(message, wire.Profiled):
            _answer(self._profiled, message.error)
        elif isinstance(message, wire.Load):
            self._load, self._accepted = message, 0
        elif (generation := self.open.get(message.request_id)) is not None:
            self._accepted += isinstance(message, wire.Accepted)
            generation.take(message)


def _answer(waiting: deque[asyncio.Future[Answer]], answer: Answer) -> None:
    """Give the answer to the first query in line; the engine's greeting, which answers none, is dropped."""
    if waiting:
        question = waiting.popleft()
        if not question.done():
            question.set_result(answer)
