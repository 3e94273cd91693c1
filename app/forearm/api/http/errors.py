"""Errors as clients see them: vLLM's error object, OpenAI's statuses, Retry-After where another try may succeed."""

from __future__ import annotations

import logging
from urllib.parse import quote

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Match

from forearm import errors, wire
from forearm.api.generation.response_bodies import ErrorBody
from forearm.api.http.caller import Caller, caller_of
from forearm.api.http.foreign_paths import COUNTERPARTS
from forearm.errors import (
    BodyMemoryFull,
    EngineUnavailable,
    ForearmError,
    Overloaded,
    RateLimited,
    StoreFull,
    Unauthorized,
)

log = logging.getLogger(__name__)

_KINDS = {404: "NotFoundError", 405: "MethodNotAllowedError"}


def error_body(error: Exception, request_id: str = "") -> ErrorBody:
    """Return the error object for the client; of an unforeseen error only its type, and it is logged."""
    if isinstance(error, ForearmError):
        return ErrorBody(message=str(error), type=error.kind, param=error.param, code=error.status)
    if isinstance(error, HTTPException):
        kind = _KINDS.get(error.status_code, "BadRequestError")
        return ErrorBody(message=str(error.detail), type=kind, param=None, code=error.status_code)
    log.error("a request failed on an unforeseen error", exc_info=error, extra={"request_id": request_id})
    message = f"internal error: {type(error).__name__}"
    return ErrorBody(message=message, type="InternalServerError", param=None, code=500)


def error_response(error: Exception, caller: Caller) -> Response:
    """Return the complete answer to a request that failed before its first byte, in the form of its API."""
    body = error_body(error, caller.request_id)
    headers = dict(error.headers or {}) if isinstance(error, HTTPException | RateLimited) else {}
    if isinstance(error, Overloaded | EngineUnavailable | BodyMemoryFull | StoreFull):
        headers["Retry-After"] = str(error.retry_after_s)
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    return Response(caller.api.error_body(body, caller.request_id), body.code, headers, media_type="application/json")


async def answer_error(request: Request, error: Exception) -> Response:
    """Answer an error of a handler; this is the app's only error handler."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=499)  # nginx's status for it, which metrics and access log show
    if isinstance(error, HTTPException) and error.status_code == 405:  # the router knows the methods of one route only
        found = [
            method
            for method in ("DELETE", "GET", "PATCH", "POST", "PUT")
            if _is_route(request, request.scope["path"], method)
        ]
        allowed = ", ".join(sorted([*found, *(["HEAD"] if "GET" in found else [])]))
        told = f"Method Not Allowed: {request.method} of {_shown(request.scope['path'])}; it takes {allowed}"
        error = HTTPException(405, told, {"Allow": allowed}) if found else error
    if isinstance(error, HTTPException) and error.status_code == 404 and "route" not in request.scope:
        error = HTTPException(404, _no_route(request))
    return error_response(error, caller_of(request.scope))


def _no_route(request: Request) -> str:
    """Return what is told of an unknown path: another server's counterpart, or where the base URL is wrong."""
    path, method = request.scope["path"], request.method
    shown = f"Not Found: there is no {method} {_shown(path)}"
    if path in COUNTERPARTS:
        return f"{shown} on this server; {COUNTERPARTS[path]}"
    ends = [f"/v1{path}", path.removeprefix("/v1"), path.removeprefix("/api")]
    near = next((end for end in ends if end != path and _is_route(request, end, method)), None)
    return f"{shown}; {near} is there: correct the client's base URL" if near else f"{shown} on this server"


def _shown(path: str) -> str:
    return quote(path[:100], safe="/:@")


def _is_route(request: Request, path: str, method: str) -> bool:
    scope = {**request.scope, "path": path, "method": method}
    return any(route.matches(scope)[0] == Match.FULL for route in request.app.router.routes)


def error_of(refused: wire.Refused) -> ForearmError:
    """Return the error of errors.py that the engine named."""
    if refused.error in ("InvalidRequest", "ConstraintFailed"):
        return errors.InvalidRequest(refused.message, refused.param)
    if refused.error == "Overloaded":
        return errors.Overloaded(refused.message, refused.retry_after_s)
    if refused.error == "EngineUnavailable":
        return errors.EngineUnavailable(refused.message, refused.retry_after_s)
    return errors.EngineFailed(refused.message)
