"""What stands before every route: tidy paths, request ids, numbers, the API key, and the last net for errors."""

from __future__ import annotations

import hmac
import time
import uuid
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forearm.api.faults import error_response
from forearm.api.http_meter import HttpMeter
from forearm.errors import Unauthorized

# Everything else needs a key, where there are keys: a route that is added is guarded until it is named here.
OPEN_PATHS = frozenset(
    ("/health", "/livez", "/readyz", "/ping", "/version", "/metrics", "/docs", "/redoc", "/openapi.json")
)


class Edge:
    """Outermost of all: what it does holds for every answer, a 500 too.

    `root_path` is where a proxy offers this server: routes are found with it before the path and without.
    """

    def __init__(self, app: ASGIApp, meter: HttpMeter, root_path: str) -> None:
        self._app = app
        self._meter = meter
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["path"] = tidy_path(scope["path"])
        scope["root_path"] = self._root_path
        answer = _Answer(send, Headers(scope=scope).get("x-request-id") or uuid.uuid4().hex)
        begun_s = time.monotonic()
        try:
            await self._app(scope, receive, answer.send)
        except Exception as error:
            if answer.status:
                raise  # half an answer is out: only uvicorn can break the connection off
            await error_response(error)(scope, receive, answer.send)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            length = Headers(scope=scope).get("content-length", "0")
            request_bytes = int(length) if length.isdecimal() else 0
            seconds = time.monotonic() - begun_s
            self._meter.answered(scope["method"], answer.status or 499, route, seconds, request_bytes, answer.bytes)


class _Answer:
    """Passes an answer on, with its request id, and takes down its status and size."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self.status = 0
        self.bytes = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            MutableHeaders(scope=message)["X-Request-Id"] = self._request_id
        else:
            self.bytes += len(message.get("body", b""))
        await self._send(message)


class KeyGuard:
    """Lets through who brings one of the keys (`Authorization: Bearer …`), and who asks for an open path."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] == "OPTIONS" or self._open(scope) or self._known(scope):
            await self._app(scope, receive, send)
        else:
            await error_response(Unauthorized("Unauthorized: send a valid API key as a Bearer token"))(
                scope, receive, send
            )

    def _open(self, scope: Scope) -> bool:
        return scope["path"].removeprefix(scope.get("root_path", "")) in OPEN_PATHS

    def _known(self, scope: Scope) -> bool:
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        given = key.encode("latin-1").strip()  # the bytes as they came
        # Every key is compared, each in constant time: how long it takes says nothing about any of them.
        matches = [hmac.compare_digest(given, known) for known in self._keys]
        return scheme.lower() == "bearer" and any(matches)


def tidy_path(path: str) -> str:
    """One slash between parts and none at the end: base URLs come as `host/`, `host/v1/`, `host//v1`."""
    while "//" in path:
        path = path.replace("//", "/")
    return path.rstrip("/") or "/"
