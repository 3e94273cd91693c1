"""Errors as Anthropic's clients know them, on the paths that are Anthropic's, whoever has answered."""

from __future__ import annotations

import json
import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forearm.api.generation.response_bodies import encoder
from forearm.api.http.access import tidy_path
from forearm.api.http.errors import error_reply

_PATH = re.compile("/v1/messages(/.*)?", re.DOTALL)
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class MessagesErrors:
    """Outermost of all: rewrites errors, and adds the header from which Anthropic's clients read a request's id."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _PATH.fullmatch(self._route(scope)):
            await self._app(scope, receive, _Rewriter(send).send)
        else:
            await self._app(scope, receive, send)

    def _route(self, scope: Scope) -> str:
        return tidy_path(scope["path"]).removeprefix(self._root_path)


class _Rewriter:
    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None  # of an error, while its body is waited for
        self._body = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["request-id"] = headers.get("x-request-id", "")
            if message["status"] >= 400:
                self._start = message
                return
        elif self._start is not None:
            self._body += message.get("body", b"")
            if message.get("more_body"):
                return
            message = {**message, "body": self._rewritten(self._start)}
            await self._send(self._start)
        await self._send(message)

    def _rewritten(self, start: Message) -> bytes:
        try:
            said = json.loads(self._body)["error"]["message"]
        except (ValueError, KeyError, TypeError):
            return self._body  # nobody is there any more to read it
        body = _error(start["status"], str(said), Headers(raw=start["headers"]).get("x-request-id"))
        MutableHeaders(scope=start)["content-length"] = str(len(body))
        return body


def broken(error: Exception) -> bytes:
    """The event that ends a stream."""
    said = error_reply(error).error
    return b"event: error\ndata: " + _error(said.code, said.message, None) + b"\n\n"


def _error(status: int, text: str, request_id: str | None) -> bytes:
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    told = {} if request_id is None else {"request_id": request_id}
    return encoder.encode({"type": "error", "error": {"type": kind, "message": text}, **told})
