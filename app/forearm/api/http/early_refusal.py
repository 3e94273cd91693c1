"""Refuse requests that the engines have no room for before their bodies are parsed.

Parsing, rendering and tokenizing a request takes milliseconds of a core, a refusal tenths of a millisecond: under heavy
overload the server stays responsive only if refused requests cost next to nothing.
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

# POST requests to these paths are work for the engines.
PATHS = frozenset(
    (
        *("/v1/chat/completions", "/v1/chat/completions/batch", "/v1/completions", "/v1/responses", "/v1/messages"),
        *("/v1/embeddings", "/pooling", "/classify", "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"),
        "/invocations",
    )
)


class EarlyRefusal:
    """Admits as many requests as the engines have room for, by their last report.

    An admitted request that no engine has accepted yet takes up room from the moment its body is complete, so that
    slow senders do not block others.
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
        await self._engine.reach()
        try:
            self._check()
        except ForearmError as error:
            scope["route"] = SimpleNamespace(path=path)  # the router would have set it: the metrics' label
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
        """Refuse a request if the engines have no room.

        Raises: Overloaded, EngineUnavailable.
        """
        load = self._engine.load
        if load is not None and load.room <= len(self._in_front):
            self._meter.count("forearm:requests_refused_early")
            raise Overloaded("the queue is full: as many requests are waiting as the server allows", load.retry_after_s)


class _Place:
    """A request's place before the engines' queue, until an engine accepts it."""

    def __init__(self, others: set[_Place]) -> None:
        self._others = others
        self.taken = False

    def take(self) -> None:
        """Count the request, now that its body is complete."""
        self.taken = True
        self._others.add(self)

    def leave(self) -> None:
        """Stop counting the request; may be called again."""
        self._others.discard(self)

    def submitted(self, prompts: Sequence[Sequence[int]], params: wire.SamplingParams | None) -> None:
        """Stop counting the request: the engine counts it from now on."""
        self.leave()

    def tokens(self, message: wire.Tokens) -> None:
        """Do nothing: the engine counts the request."""

    def over(self) -> None:
        """Do nothing: the request does not count any more."""
