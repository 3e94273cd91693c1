"""The outermost middleware: tidy paths, request ids, HTTP metrics, the access log, and answers to unforeseen errors."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forearm.api.engine_client.engine_client import EngineClient
from forearm.api.http.body_memory import BodyMemory
from forearm.api.http.caller import ApiConventions, Caller, Observer
from forearm.api.http.errors import error_response
from forearm.api.http.http_metrics import HttpMeter
from forearm.api.ops import orca
from forearm.errors import EngineUnavailable

_LONGEST_ID = 128

log = logging.getLogger("forearm.access")

# Returns the observers of a request with these headers and this id.
Observe = Callable[[Headers, str], tuple[Observer, ...]]


@dataclass(frozen=True)
class AccessLog:
    """The setting whether each request gets a line in the access log, and the paths without one."""

    on: bool = False
    without: frozenset[str] = frozenset()

    def write(self, scope: Scope, answer: _Answer, seconds: float) -> None:
        """Write one line after the answer. The query is left out, because it may contain secrets."""
        if not self.on or scope["path"] in self.without:
            return
        client = scope.get("client")
        fields = {
            "method": scope["method"],
            "path": quote(scope["path"][:200], safe="/:@"),
            "status": answer.status or 499,
            "seconds": round(seconds, 4),
            "bytes": answer.bytes,
            "client": client[0] if client else "",
            "key": answer.caller.key_name,
        }
        log.info(
            "%(client)s %(key)s %(method)s %(path)s %(status)d %(seconds).3f s %(bytes)d bytes",
            {**fields, "client": fields["client"] or "-", "key": fields["key"] or "-"},
            extra={"fields": fields, "request_id": answer.caller.request_id},
        )


class AccessMiddleware:
    """The outermost middleware, so that it covers every answer, even a 500.

    root_path: the path at which a proxy offers this server; routes are found with and without it before the path.
    apis: the API's conventions for paths that begin this way; all others have OpenAI's.
    """

    def __init__(
        self,
        app: ASGIApp,
        meter: HttpMeter,
        body_memory: BodyMemory,
        engine: EngineClient,
        root_path: str,
        access: AccessLog,
        observe: Observe,
        apis: Mapping[str, ApiConventions],
    ) -> None:
        self._app = app
        self._observe = observe
        self._apis = apis
        self._meter = meter
        self._body_memory = body_memory
        self._engine = engine
        self._root_path = root_path
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = tidy_path(scope["path"])
        scope["path"] = f"{path}/" if path == self._root_path else path
        scope["root_path"] = self._root_path
        headers = Headers(scope=scope)
        # The client's request id, restricted to characters that are safe in logs and headers, or a new one.
        given = headers.get("x-request-id", "")
        request_id = "".join(c for c in given if "!" <= c <= "~")[:_LONGEST_ID] or uuid.uuid4().hex
        route_path = scope["path"].removeprefix(self._root_path) + "/"
        caller = scope["caller"] = Caller(
            request_id,
            address=(scope.get("client") or ("",))[0],
            observers=self._observe(headers, request_id),
            api=next(
                (api for start, api in self._apis.items() if route_path.startswith(f"{start}/")), ApiConventions()
            ),
        )
        answer = _Answer(send, caller, headers.get(orca.ASK), self._engine)
        works = scope["method"] == "POST"
        begun_s = time.monotonic()
        self._meter.count("forearm:http_requests_in_flight", by=works)
        try:
            await self._app(scope, receive, answer.send)
        except (Exception, asyncio.CancelledError) as error:
            if answer.status:
                raise  # part of the answer was sent: only uvicorn can close the connection
            if isinstance(error, asyncio.CancelledError):  # by DrainingServer
                error = EngineUnavailable("the server is shutting down")
            await error_response(error, caller)(scope, receive, answer.send)
        finally:
            self._body_memory.release(caller)
            self._meter.count("forearm:http_requests_in_flight", by=-works)
            route = getattr(scope.get("route"), "path", "none")
            length = headers.get("content-length", "0")
            request_bytes = int(length) if length.isdecimal() else 0
            seconds = time.monotonic() - begun_s
            self._meter.answered(scope["method"], answer.status or 499, route, seconds, request_bytes, answer.bytes)
            self._access.write(scope, answer, seconds)


class _Answer:
    """Sends an answer with its request id and the engines' load in the headers, and records its status and size."""

    def __init__(self, send: Send, caller: Caller, load_format: str | None, engine: EngineClient) -> None:
        self._send = send
        self._load_format = load_format
        self._engine = engine
        self.caller = caller
        self.status = 0
        self.bytes = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-Id"] = headers[self.caller.api.id_header] = self.caller.request_id
            if self._load_format and (load := await orca.load_header(self._load_format, self._engine)):
                headers[orca.TELL] = load
        else:
            self.bytes += len(message.get("body", b""))
        await self._send(message)


def tidy_path(path: str) -> str:
    """Return the path with single slashes and none at the end: base URLs are given as `host/`, `host/v1/`,
    `host//v1`.
    """
    while "//" in path:
        path = path.replace("//", "/")
    return path.rstrip("/") or "/"
