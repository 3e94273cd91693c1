"""What stands before every route: tidy paths, request ids, numbers, the access log, and the last net for errors."""

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
    """Whether there is a line for every request, and the paths that have none."""

    on: bool = False
    without: frozenset[str] = frozenset()

    def write(self, scope: Scope, answer: _Answer, seconds: float) -> None:
        """One line, after the answer. No query: it may have secrets in it."""
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


class Edge:
    """Outermost of all: what it does holds for every answer, a 500 too.

    root_path: where a proxy offers this server: routes are found with it before the path and without.
    apis: of paths that begin so, the API's conventions; OpenAI's of all others.
    """

    def __init__(
        self,
        app: ASGIApp,
        meter: HttpMeter,
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
        caller = self._caller(scope, headers)
        scope["caller"] = caller
        answer = _Answer(send, caller, headers.get(orca.ASK), self._engine)
        works = scope["method"] == "POST"
        begun_s = time.monotonic()
        self._meter.in_flight(works)
        try:
            await self._app(scope, receive, answer.send)
        except (Exception, asyncio.CancelledError) as error:
            if answer.status:
                raise  # half an answer is out: only uvicorn can break the connection off
            if isinstance(error, asyncio.CancelledError):  # by DrainingServer
                error = EngineUnavailable("the server is shutting down")
            await error_response(error, caller)(scope, receive, answer.send)
        finally:
            self._meter.in_flight(-works)
            route = getattr(scope.get("route"), "path", "none")
            length = headers.get("content-length", "0")
            request_bytes = int(length) if length.isdecimal() else 0
            seconds = time.monotonic() - begun_s
            self._meter.answered(scope["method"], answer.status or 499, route, seconds, request_bytes, answer.bytes)
            self._access.write(scope, answer, seconds)

    def _caller(self, scope: Scope, headers: Headers) -> Caller:
        request_id = plain_id(headers.get("x-request-id", ""))
        path = scope["path"].removeprefix(self._root_path) + "/"
        return Caller(
            request_id,
            address=(scope.get("client") or ("",))[0],
            observers=self._observe(headers, request_id),
            api=next((api for begin, api in self._apis.items() if path.startswith(f"{begin}/")), ApiConventions()),
        )


class _Answer:
    """Passes an answer on, with its request id and the engines' load, and takes down its status and size."""

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


def plain_id(given: str) -> str:
    """The client's request id, fit for logs and headers, or one of our own."""
    return "".join(c for c in given if "!" <= c <= "~")[:_LONGEST_ID] or uuid.uuid4().hex


def tidy_path(path: str) -> str:
    """One slash between parts and none at the end: base URLs come as `host/`, `host/v1/`, `host//v1`."""
    while "//" in path:
        path = path.replace("//", "/")
    return path.rstrip("/") or "/"
