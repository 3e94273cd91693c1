"""Refuses what the engines have no room for, before its body is parsed.

Parsing, rendering and tokenising a request takes milliseconds of a core, a refusal tenths of one: a server that is
asked for many times what it can do stays quick only if what it will refuse costs it next to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forearm import wire
from forearm.api.engine_client.engine_client import EngineClient
from forearm.api.http.caller import caller_of
from forearm.api.http.errors import error_response
from forearm.api.http.http_metrics import HttpMeter
from forearm.errors import ForearmError, Overloaded

# POST there gives the engines work.
PATHS = frozenset(
    (
        *("/v1/chat/completions", "/v1/chat/completions/batch", "/v1/completions", "/v1/responses", "/v1/messages"),
        *("/v1/embeddings", "/pooling", "/classify", "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"),
        "/invocations",
    )
)


class Gate:
    """Lets through as many requests as the engines have room for, as they said last.

    A request that was let through and that no engine has accepted yet takes a place of that room from the moment its
    body is there: one whose body dribbles keeps nobody out.
    """

    def __init__(self, app: ASGIApp, engine: EngineClient, meter: HttpMeter) -> None:
        self._app = app
        self._engine = engine
        self._meter = meter
        self._in_front: set[_Place] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", "")) if scope["type"] == "http" else ""
        if path not in PATHS or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        caller = caller_of(scope)
        try:
            self._check()
        except ForearmError as error:
            scope["route"] = SimpleNamespace(path=path)  # as the router would have: what the metrics call it
            await error_response(error, caller)(scope, receive, send)
            return
        place = _Place(self._in_front)
        caller.observers = (*caller.observers, place)

        async def received() -> Message:
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body") and not place.taken:
                self._check()
                place.take()
            return message

        try:
            await self._app(scope, received, send)
        finally:
            place.leave()

    def _check(self) -> None:
        """Raises: Overloaded, EngineUnavailable."""
        load = self._engine.load
        if load is not None and load.room <= len(self._in_front):
            self._meter.refused_early()
            raise Overloaded("the queue is full: more requests wait than the server takes", load.retry_after_s)


class _Place:
    """A request's place in front of the engines' queue, until the engine accepts it."""

    def __init__(self, others: set[_Place]) -> None:
        self._others = others
        self.taken = False

    def take(self) -> None:
        """Count the request, now that its body is there."""
        self.taken = True
        self._others.add(self)

    def leave(self) -> None:
        """May be called again."""
        self._others.discard(self)

    def submitted(self, prompts: Sequence[Sequence[int]], params: wire.SamplingParams | None) -> None:
        """From now on the engine counts it."""
        self.leave()

    def tokens(self, message: wire.Tokens) -> None:
        """Nothing to do."""

    def over(self) -> None:
        """Nothing to do."""
