"""Answer HEAD wherever there is GET, and list a path's methods in answers with status 405."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send


class HeadAsGet:
    """Answers HEAD as GET; the server omits the body, because it looks at the original request's method."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        asked = {**scope, "method": "GET"}
        await self._app(asked, receive, send)
        if "route" in asked:
            scope["route"] = asked["route"]  # the metrics' label


def with_allow(error: Exception, app: FastAPI, scope: Scope) -> Exception:
    """Return a 405 with all methods of its path; the router only knows those of one route."""
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
