"""Authentication by API key, and the rate limits of each key."""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forearm.api.http.api_keys import KeyRing
from forearm.api.http.caller import caller_of
from forearm.api.http.errors import error_response
from forearm.api.http.http_metrics import HttpMeter
from forearm.api.http.quota import KeyQuota, rate_headers
from forearm.api.http.rate_limit import RateTable
from forearm.api.ops import playground
from forearm.errors import RateLimited, Unauthorized

# All other paths need a key if the server has keys: a new route is protected unless it is listed here.
OPEN_PATHS = frozenset(
    (
        *("/health", "/livez", "/readyz", "/startupz", "/ping", "/version", "/load", "/metrics"),
        *("/docs", "/redoc", "/openapi.json"),
        *playground.PATHS,
    )
)


def open_paths(guard_metrics: bool) -> frozenset[str]:
    """Return the paths that need no key. `guard_metrics`: /metrics, which names the keys' owners, needs one."""
    return OPEN_PATHS - {"/metrics"} if guard_metrics else OPEN_PATHS


class AuthenticationMiddleware:
    """Admits requests that have a valid key (`Authorization: Bearer …`, or Anthropic's `x-api-key`) within the key's
    limits, and requests for open paths.
    """

    def __init__(
        self, app: ASGIApp, open_paths: frozenset[str], keys: KeyRing, table: RateTable, meter: HttpMeter
    ) -> None:
        self._app = app
        self._open_paths = open_paths
        self._keys = keys
        self._table = table
        self._meter = meter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", "")) or "/" if scope["type"] == "http" else ""
        if scope["type"] != "http" or scope["method"] == "OPTIONS" or path in self._open_paths:
            await self._app(scope, receive, send)
            return
        key, caller = self._keys.find(given_key(Headers(scope=scope))), caller_of(scope)
        if key is None:
            error = Unauthorized("Unauthorized: send a valid API key as a Bearer token")
            await error_response(error, caller)(scope, receive, send)
            return
        caller.key_name, caller.priority = key.name, key.priority
        if scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        quota = KeyQuota(key, self._table, self._meter)
        try:
            headers = rate_headers(key, quota.enter())
        except RateLimited as error:
            await error_response(error, caller)(scope, receive, send)
            return
        caller.observers = (*caller.observers, quota)

        async def send_with_headers(message: Message) -> None:
            if headers and message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(headers)
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        finally:
            quota.leave()


def given_key(headers: Headers) -> bytes:
    """Return the key in the headers as bytes; b"" where there is none."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    key = bearer if scheme.lower() == "bearer" else headers.get("x-api-key", "") if not scheme else ""
    return key.encode("latin-1").strip()
