"""The worker's connections to the engines: submit() takes prompts in, the Generation it returns gives their tokens."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

import msgspec

from forearm import wire
from forearm.api.faults import error_of
from forearm.api.watching import priority_of, watchers
from forearm.errors import EngineUnavailable, ForearmError
from forearm.routing import TOKEN_PIECE_BYTES, PrefixRouter, chain

log = logging.getLogger(__name__)

_FIRST_RETRY_S, _LAST_RETRY_S = 0.02, 0.2  # of a Unix socket on this machine: it costs next to nothing
_ANSWER_TIMEOUT_S = 5.0  # an engine answers questions between steps on a thread of its own: at once, or it is stuck
_HEAD_BYTES = 4

Answer = TypeVar("Answer")
Event = tuple[int, wire.Tokens]  # number of the prompt within its request, and its new tokens


class Open(Protocol):
    """What one HTTP request has open in an engine."""

    def take(self, message: wire.Accepted | wire.Refused | wire.Tokens | wire.Embedded) -> None:
        """A message from the engine."""

    def fail(self, error: ForearmError) -> None:
        """The engine is gone."""


class Generation:
    """The open outputs of one HTTP request: iterate for (number of the prompt, new tokens) until all have ended.

    `close` (or `stop` of single outputs) tells the engine that nobody waits any more. One task iterates.
    """

    def __init__(self, connection: Connection, requests: Sequence[wire.Submit]) -> None:
        self._connection = connection
        self._numbers = {request.request_id: number for number, request in enumerate(requests)}
        self._open = {request.request_id: set(range(request.params.n)) for request in requests}
        self._ids = [request.request_id for request in requests]
        self._accepted: asyncio.Queue[ForearmError | None] = asyncio.Queue()
        self._events: asyncio.Queue[wire.Tokens | ForearmError] = asyncio.Queue()
        self._watchers = watchers.get()

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> Event:
        """Raises: EngineFailed, EngineUnavailable where the request broke, or the engine under it."""
        while self._open:
            event = await self._events.get()
            if isinstance(event, ForearmError):
                self.close()
                raise event
            if event.index not in self._open.get(event.request_id, ()):
                continue  # stopped meanwhile
            if event.finish_reason is not None:
                self._end(event.request_id, event.index)
            return self._numbers[event.request_id], event
        raise StopAsyncIteration

    async def accepted(self) -> None:
        """Returns when the engine has taken every prompt.

        Raises: why it did not.
        """
        for _ in self._ids:
            error = await self._accepted.get()
            if error is not None:
                raise error

    def stop(self, number: int, index: int) -> None:
        """End one output here and in the engine (a stop string was met)."""
        request_id = self._ids[number]
        if index in self._open.get(request_id, ()):
            self._connection.send(wire.Abort(request_id=request_id, index=index))
            self._end(request_id, index)

    def close(self) -> None:
        """End what is still open. May be called at any time, and again."""
        self._over()
        for request_id in self._open:
            self._connection.send(wire.Abort(request_id=request_id))
            self._connection.open.pop(request_id, None)
        self._open.clear()

    def take(self, message: wire.Accepted | wire.Refused | wire.Tokens | wire.Embedded) -> None:
        """A message from the engine."""
        if isinstance(message, wire.Accepted):
            self._accepted.put_nowait(None)
        elif isinstance(message, wire.Refused):
            self.fail(error_of(message))
        elif isinstance(message, wire.Tokens):
            for watcher in self._watchers:
                watcher.tokens(message)
            self._events.put_nowait(message)

    def fail(self, error: ForearmError) -> None:
        """Whoever waits, for acceptance or for tokens, gets this error."""
        self._accepted.put_nowait(error)
        self._events.put_nowait(error)

    def _end(self, request_id: str, index: int) -> None:
        self._open[request_id].discard(index)
        if not self._open[request_id]:
            del self._open[request_id]
            self._connection.open.pop(request_id, None)
            if not self._open:
                self._over()

    def _over(self) -> None:
        watching, self._watchers = self._watchers, ()
        for watcher in watching:
            watcher.over()


class Connection:
    """One engine's socket, opened again whenever it breaks. `state` is None while there is no engine."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.state: wire.State | None = None
        self.was_there = False  # an engine has been, since this worker's start
        self.open: dict[str, Open] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._states: deque[asyncio.Future[wire.State]] = deque()
        self._metrics: deque[asyncio.Future[str]] = deque()
        self.on_lost: Callable[[], None] = lambda: None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to connect."""
        self._task = asyncio.create_task(self._stay_connected())

    async def close(self) -> None:
        """Disconnect; the engine aborts what is open."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def send(self, message: wire.ToEngine) -> None:
        """Queue a message; without an engine there is nobody to tell."""
        if self._writer is not None:
            self._writer.write(wire.frame(message))

    async def drained(self) -> None:
        """Wait while the engine has much unread (long prompts)."""
        if self._writer is not None:
            with contextlib.suppress(ConnectionError):  # the reader sees it too, and tells everyone
                await self._writer.drain()

    async def ask_state(self) -> wire.State:
        """Raises: EngineUnavailable."""
        return await self._ask(wire.AskState(), self._states)

    async def ask_metrics(self) -> str:
        """Raises: EngineUnavailable."""
        return await self._ask(wire.AskMetrics(), self._metrics)

    async def _ask(self, question: wire.ToEngine, waiting: deque[asyncio.Future[Answer]]) -> Answer:
        if self.state is None:
            raise EngineUnavailable("the engine is not running")
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        waiting.append(answer)
        self.send(question)
        try:
            # shield: a question given up keeps its place in line, so that its answer is not taken for the next one's
            return await asyncio.wait_for(asyncio.shield(answer), _ANSWER_TIMEOUT_S)
        except asyncio.TimeoutError:
            raise EngineUnavailable(f"the engine has not answered for {_ANSWER_TIMEOUT_S:g} s") from None

    async def _stay_connected(self) -> None:
        retry_s = _FIRST_RETRY_S
        while True:
            try:
                reader, self._writer = await asyncio.open_unix_connection(self.path)
            except OSError:
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, _LAST_RETRY_S)
                continue
            try:
                await self._read(reader)
            except (OSError, EOFError, ValueError) as error:  # ValueError: what came is not our protocol
                log.warning("connection to the engine at %s is lost: %r", self.path, error)
            finally:
                self._disconnected()
            retry_s = _FIRST_RETRY_S

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while True:
            length = wire.body_length(await reader.readexactly(_HEAD_BYTES))
            self._take(wire.from_engine.decode(await reader.readexactly(length)))

    def _take(self, message: wire.FromEngine) -> None:
        if isinstance(message, wire.State):
            self.state, self.was_there = message, True
            _answer(self._states, message)
        elif isinstance(message, wire.Metrics):
            _answer(self._metrics, message.text)
        elif (generation := self.open.get(message.request_id)) is not None:
            generation.take(message)

    def _disconnected(self) -> None:
        gone = EngineUnavailable("the engine stopped; it is being restarted")
        self.state = None
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        for generation in list(self.open.values()):
            generation.fail(gone)
        self.open.clear()
        self.on_lost()
        _answer_none(self._states, gone)
        _answer_none(self._metrics, gone)


def _answer(waiting: deque[asyncio.Future[Answer]], answer: Answer) -> None:
    """The first in line gets it; the engine's greeting answers nobody."""
    if waiting:
        question = waiting.popleft()
        if not question.done():
            question.set_result(answer)


def _answer_none(waiting: deque[asyncio.Future[Answer]], error: ForearmError) -> None:
    while waiting:
        question = waiting.popleft()
        if not question.done():
            question.set_exception(error)
            question.exception()  # taken note of, should nobody wait any more


class EngineClient:
    """All engines of this server, seen from one worker."""

    def __init__(self, sockets: Sequence[str]) -> None:
        self.connections = [Connection(path) for path in sockets]
        self._router: PrefixRouter[int] = PrefixRouter()
        for index, connection in enumerate(self.connections):
            connection.on_lost = partial(self._router.forget, index)

    def start(self) -> None:
        """Begin to connect to every engine."""
        for connection in self.connections:
            connection.start()

    async def close(self) -> None:
        """Disconnect from all."""
        for connection in self.connections:
            await connection.close()

    @property
    def state(self) -> wire.State:
        """What a running engine said last.

        Raises: EngineUnavailable if none runs.
        """
        state = self.least_loaded().state
        assert state is not None
        return state

    async def submit(self, requests: Sequence[wire.Submit]) -> Generation:
        """Hand prompts to one engine; returns when it has taken them all, or withdraws those it took.

        An engine that dies before that has begun no answer: while another one runs, the prompts go there.

        Raises: InvalidRequest, Overloaded, EngineUnavailable.
        """
        while True:
            connection = self._chosen(requests[0])
            try:
                generation = await self._handed(connection, requests)
                break
            except EngineUnavailable:
                if connection.state is not None or all(one.state is None for one in self.connections):
                    raise
        for watcher in watchers.get():
            watcher.submitted([request.prompt_token_ids for request in requests], requests[0].params)
        return generation

    async def _handed(self, connection: Connection, requests: Sequence[wire.Submit]) -> Generation:
        """Raises: as `submit`."""
        generation = Generation(connection, requests)
        try:
            for request in requests:
                connection.open[request.request_id] = generation
                connection.send(msgspec.structs.replace(request, priority=priority_of(request.priority)))
            await connection.drained()
            await generation.accepted()
        except BaseException:
            generation.close()
            raise
        return generation

    def _chosen(self, request: wire.Submit) -> Connection:
        """Of several engines one that has computed the prompt's beginning, as far as load allows.

        Raises: EngineUnavailable if none runs.
        """
        load = {n: len(one.open) for n, one in enumerate(self.connections) if one.state is not None}
        if len(self.connections) == 1 or not load:
            return self.least_loaded()
        tokens = array("i", request.prompt_token_ids).tobytes()
        pieces = chain(tokens, TOKEN_PIECE_BYTES, request.cache_salt or "")
        index = self._router.choose(pieces, load)
        self._router.remember(pieces, index)
        return self.connections[index]

    def least_loaded(self) -> Connection:
        """The engine with the fewest open requests.

        Raises: EngineUnavailable if none runs.
        """
        running = [connection for connection in self.connections if connection.state is not None]
        if not running:
            raise EngineUnavailable("no engine is running; it is starting, or being restarted")
        return min(running, key=lambda connection: len(connection.open))
