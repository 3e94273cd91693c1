"""A worker's connections to the engines: submit() sends prompts, and the Generation it returns yields their tokens."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from forearm import wire
from forearm.api.engine_client.connection import EngineConnection, OpenRequest
from forearm.api.http.caller import Observer
from forearm.api.http.errors import error_of
from forearm.errors import EngineFailed, EngineUnavailable, ForearmError, InvalidRequest
from forearm.routing import TOKEN_PIECE_BYTES, PrefixRouter, chain
from forearm.timeouts import within

Opened = TypeVar("Opened", bound=OpenRequest)
_FIRST_STATE_S = 5.0
_REACH_S = 1.0  # for an engine that listens and sends nothing
_NONE_RUNS = "no engine is running; it is starting, or being restarted"
Event = tuple[int, wire.Tokens]  # number of the prompt within its request, and its new tokens


class Generation:
    """The open outputs of one HTTP request: iterate for (number of the prompt, new tokens) until all have ended.

    `close` (or `stop` for single outputs) aborts them in the engine. Only one task may iterate.
    """

    def __init__(
        self, connection: EngineConnection, requests: Sequence[wire.Submit], observers: Sequence[Observer]
    ) -> None:
        self._connection = connection
        self._numbers = {request.request_id: number for number, request in enumerate(requests)}
        self._open = {request.request_id: set(range(request.params.n)) for request in requests}
        self._ids = [request.request_id for request in requests]
        self._requests: Sequence[wire.Submit] = requests
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unaccepted = len(requests)
        self._events: asyncio.Queue[wire.Tokens | ForearmError] = asyncio.Queue()
        self._observers = observers

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> Event:
        """Return the next event. Raises: EngineFailed, EngineUnavailable if the request or its engine failed."""
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
        """Receive a message from the engine."""
        if isinstance(message, wire.Accepted):
            self._unaccepted -= 1
            if not self._unaccepted:
                if not self.accepted.done():
                    self.accepted.set_result(None)
                # At once, not when the submitting task runs again: the connection has just counted the request as the
                # engine's, so the count of requests in front of the engine must not include it any more.
                requests, self._requests = self._requests, ()  # a long prompt is not kept while the answer grows
                for observer in self._observers:
                    observer.submitted([one.prompt_token_ids for one in requests], requests[0].params)
        elif isinstance(message, wire.Refused):
            self.fail(error_of(message))
        elif isinstance(message, wire.Tokens):
            for observer in self._observers:
                observer.tokens(message)
            self._events.put_nowait(message)

    def fail(self, error: ForearmError) -> None:
        """Raise this error in the task that waits for acceptance or for tokens."""
        if not self.accepted.done():
            self.accepted.set_exception(error)
        self._events.put_nowait(error)

    def _end(self, request_id: str, index: int) -> None:
        self._open[request_id].discard(index)
        if not self._open[request_id]:
            del self._open[request_id]
            self._connection.open.pop(request_id, None)
            if not self._open:
                self._over()

    def _over(self) -> None:
        observers, self._observers = self._observers, ()
        for observer in observers:
            observer.over()


class EngineClient:
    """All engines of this server, seen from one worker. accept_s: the longest time an engine may take to accept."""

    def __init__(self, sockets: Sequence[str], accept_s: float = 300.0) -> None:
        self._accept_s = accept_s
        self.connections = [EngineConnection(path) for path in sockets]
        self._router: PrefixRouter[int] = PrefixRouter()
        for index, connection in enumerate(self.connections):
            connection.on_lost = partial(self._router.forget, index)

    async def start(self) -> None:
        """Connect to every engine that listens; the others are tried again and again from then on.

        A worker that accepted requests before its first engine has sent its state would refuse them, while other
        workers answer. An engine that listens and sends nothing delays the start by five seconds; one second was too
        short on an overloaded machine (three times the work that it can do).
        """
        for connection in self.connections:
            connection.start()
        attempts = [asyncio.create_task(connection.attempted.wait()) for connection in self.connections]
        _, silent = await asyncio.wait(attempts, timeout=_FIRST_STATE_S)
        for attempt in silent:
            attempt.cancel()

    async def reach(self) -> None:
        """Try to connect now if no engine is connected, so that what comes just after its start is not refused."""
        if self.connections and all(connection.state is None for connection in self.connections):
            attempts = [asyncio.create_task(connection.attempt()) for connection in self.connections]
            _, silent = await asyncio.wait(attempts, timeout=_REACH_S)
            for attempt in silent:
                attempt.cancel()

    async def close(self) -> None:
        """Disconnect from all engines."""
        for connection in self.connections:
            await connection.close()

    @property
    def state(self) -> wire.State:
        """Return the last state of a running engine.

        Raises: EngineUnavailable if none runs.
        """
        state = self.least_loaded().state
        assert state is not None
        return state

    @property
    def load(self) -> wire.Load | None:
        """Return the load of all engines together; None until each has sent its own.

        Raises: EngineUnavailable if none runs.
        """
        loads = [connection.load for connection in self.connections if connection.state is not None]
        if not loads:
            raise EngineUnavailable(_NONE_RUNS)
        known = [load for load in loads if load is not None]
        if len(known) < len(loads):
            return None
        return wire.Load(sum(max(load.room, 0) for load in known), min(load.retry_after_s for load in known))

    async def profile(self, start: bool) -> None:
        """Start or stop recording the steps of every running engine.

        Raises: EngineUnavailable; EngineFailed if one of them cannot.
        """
        running = [connection for connection in self.connections if connection.state is not None]
        if not running:
            raise EngineUnavailable(_NONE_RUNS)
        errors = await asyncio.gather(*(connection.profile(start, self._accept_s) for connection in running))
        if any(errors):
            raise EngineFailed("; ".join(filter(None, errors)))

    async def submit(self, requests: Sequence[wire.Submit], observers: Sequence[Observer] = ()) -> Generation:
        """Submit prompts to one engine; returns when it has accepted all of them. If it refuses one, all are aborted.

        Raises: InvalidRequest, Overloaded, EngineUnavailable.
        """
        choose = partial(self._chosen, requests[0])
        return await self.hand(choose, lambda one: Generation(one, requests, observers), requests)

    async def hand(
        self,
        choose: Callable[[], EngineConnection],
        make: Callable[[EngineConnection], Opened],
        messages: Sequence[wire.Submit | wire.Embed],
    ) -> Opened:
        """Send the messages of one request to the chosen engine, and return it, opened by `make`, once it is accepted.

        If the engine dies before that, no answer has begun, and the request goes to another running engine.

        Raises: EngineUnavailable, InvalidRequest for more than the engine has memory for, and as `choose` and the
        request's `accepted`.
        """
        frames = b"".join(map(wire.frame, messages))
        while True:
            connection = choose()
            if connection.state is not None and len(frames) > connection.state.max_request_bytes:
                raise InvalidRequest(
                    f"the request's tokens and parameters take {len(frames)} bytes; the engine has memory for "
                    f"{connection.state.max_request_bytes} of one request: send several requests"
                )
            opened = make(connection)
            try:
                connection.open.update((message.request_id, opened) for message in messages)
                connection.write(frames)
                await within(opened.accepted, self._accept_s)
            except BaseException as error:
                opened.close()
                if isinstance(error, asyncio.TimeoutError):
                    late = f"the engine has not accepted the request within {self._accept_s:g} s"
                    raise EngineUnavailable(late) from None
                others = any(one.state is not None for one in self.connections)
                if not (isinstance(error, EngineUnavailable) and connection.state is None and others):
                    raise
            else:
                return opened

    def _chosen(self, request: wire.Submit) -> EngineConnection:
        """Return the engine that has the longest prefix of the prompt in its cache, as far as load allows.

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

    def least_loaded(self) -> EngineConnection:
        """Return the engine with the fewest open requests.

        Raises: EngineUnavailable if none runs.
        """
        running = [connection for connection in self.connections if connection.state is not None]
        if not running:
            raise EngineUnavailable(_NONE_RUNS)
        return min(running, key=lambda connection: len(connection.open))
