"""HEAD where there is GET, and the methods of a path for those that are not there."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send


class HeadAsGet:
    """Answers HEAD as GET; the server leaves the body out, for it goes by the request's own method."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        asked = {**scope, "method": "GET"}
        await self._app(asked, receive, send)
        if "route" in asked:
            scope["route"] = asked["route"]  # what the metrics call it


def with_allow(error: Exception, app: FastAPI, scope: Scope) -> Exception:
    """A 405 with all methods of its path; the router knows those of one route."""
    if not isinstance(error, HTTPException) or error.status_code != 405:
        return error
    found = {
        method
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
        for route in app.router.routes
        if route.matches({**scope, "method": method})[0] == Match.FULL
    }
    found |= {"HEAD"} if "GET" in found else set()
    return HTTPException(405, error.detail, {"Allow": ", ".join(sorted(found))}) if found else error
