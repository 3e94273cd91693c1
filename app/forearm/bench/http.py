"""HTTP/1.1 for a load generator: streamed POSTs over connections that are kept, each byte's time taken as it arrives.

httptools parses (C, as in uvicorn); there is no queue and no task between a socket's data and what counts tokens.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

import httptools

from forearm.errors import ConfigError, ForearmError
from forearm.timeouts import within

CONNECT_TIMEOUT_S = 30.0
TIMEOUT_S = 6 * 3600.0  # of one exchange, as in vLLM

Take = Callable[[bytes, float], None]  # a part of a body, and when it came (time.perf_counter())


@dataclass
class Reply:
    """A response. The body of a 200 went to `take`; other bodies are in `body`."""

    status: int
    reason: str
    body: bytes = b""


class Broken(ForearmError):
    """The error of a connection that ended before the response did. `untouched`: not a byte of it had come."""

    def __init__(self, message: str, untouched: bool) -> None:
        super().__init__(message)
        self.untouched = untouched


class HttpConnection(asyncio.Protocol):
    """A connection, which carries one exchange at a time."""

    def __init__(self) -> None:
        self.open = False
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._done: asyncio.Future[Reply] | None = None
        self._take: Take | None = None
        self._reply = Reply(0, "")
        self._received_s = 0.0
        self._framed = False

    async def exchange(self, request: bytes, take: Take) -> Reply:
        """Send a request; the body of a 200 goes to `take` as it comes.

        Raises: Broken.
        """
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._done = asyncio.get_running_loop().create_future()
        self._take, self._reply, self._framed = take, Reply(0, ""), False
        self._transport.write(request)
        try:
            return await self._done
        finally:
            if not self._done.done() or self._done.cancelled():
                self.close()
            self._done = self._take = None

    def close(self) -> None:
        """Close the connection."""
        self.open = False
        if self._transport is not None:
            self._transport.close()

    # --- asyncio's protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.open = cast(asyncio.Transport, transport), True  # uvloop's is none by inheritance

    def data_received(self, received: bytes) -> None:
        self._received_s = time.perf_counter()
        if self._parser is None or self._done is None:
            self.close()  # data without a request
            return
        try:
            self._parser.feed_data(received)
        except httptools.HttpParserError as error:
            self._break(f"what the server sends is not HTTP/1.1: {error}")
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        if self._reply.status and not self._framed and error is None:
            self._end()  # a body without length lasts until the server hangs up
        self._break(f"the connection was lost{f': {error}' if error else ''}")

    # --- httptools' callbacks ---

    def on_status(self, reason: bytes) -> None:
        self._reply.reason = reason.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._framed |= name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self._reply.status = self._parser.get_status_code()

    def on_body(self, part: bytes) -> None:
        if self._reply.status == 200 and self._take is not None:
            self._take(part, self._received_s)
        else:
            self._reply.body += part

    def on_message_complete(self) -> None:
        assert self._parser is not None
        self.open = self.open and self._parser.should_keep_alive()
        self._end()

    def _end(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(self._reply)

    def _break(self, message: str) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(Broken(message, untouched=not self._reply.status))


@dataclass
class Http:
    """A server, and the idle connections to it.

    address: http://host:port, https://…, or unix:/path/of/a/socket. insecure: certificates are not looked at.
    """

    address: str
    headers: Mapping[str, str] = field(default_factory=dict)
    insecure: bool = False
    _idle: list[HttpConnection] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Check the address. Raises: ConfigError."""
        url = urlsplit(self.address)
        if url.scheme not in ("http", "https", "unix") or not (url.hostname or url.scheme == "unix"):
            raise ConfigError(f"--base-url {self.address}: write http://host:port, https://host:port or unix:/path")
        self._unix = url.path if url.scheme == "unix" else ""
        self._host = url.hostname or "localhost"
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._ssl = ssl.create_default_context() if url.scheme == "https" else None
        self._prefix = "" if self._unix else url.path.rstrip("/")
        self._netloc = url.netloc or "localhost"
        if self._ssl is not None and self.insecure:
            self._ssl.check_hostname, self._ssl.verify_mode = False, ssl.CERT_NONE

    async def get(self, path: str) -> tuple[int, bytes]:
        """Return status and body of a GET.

        Raises: Broken, OSError.
        """
        parts: list[bytes] = []
        reply = await self._exchange(self._head("GET", path, {}), lambda part, _: parts.append(part))
        return reply.status, b"".join(parts) or reply.body

    async def post(self, path: str, body: bytes, headers: Mapping[str, str], take: Take) -> Reply:
        """Send `body`; the response's body goes to `take`, where its status is 200.

        A kept connection that the server has closed meanwhile is replaced once.
        Raises: Broken, OSError, asyncio.TimeoutError.
        """
        head = self._head("POST", path, {**headers, "Content-Length": str(len(body))})
        return await self._exchange(head + body, take)

    def close(self) -> None:
        """Close the idle connections."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def _head(self, method: str, path: str, headers: Mapping[str, str]) -> bytes:
        named = {"Host": self._netloc, "Accept": "*/*", "Content-Type": "application/json", **self.headers, **headers}
        lines = [f"{method} {self._prefix}{path} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items())]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    async def _exchange(self, request: bytes, take: Take) -> Reply:
        while self._idle:
            connection = self._idle.pop()
            if connection.open:
                try:
                    return await self._on(connection, request, take)
                except Broken as error:
                    if not error.untouched:
                        raise
                break  # replaced once
        loop = asyncio.get_running_loop()
        made: Any
        if self._unix:
            made = loop.create_unix_connection(HttpConnection, self._unix)
        else:
            made = loop.create_connection(HttpConnection, self._host, self._port, ssl=self._ssl)
        _, connection = await within(made, CONNECT_TIMEOUT_S)
        return await self._on(connection, request, take)

    async def _on(self, connection: HttpConnection, request: bytes, take: Take) -> Reply:
        reply = await within(connection.exchange(request, take), TIMEOUT_S)
        if connection.open:
            self._idle.append(connection)
        else:
            connection.close()
        return reply


def reason(reply: Reply) -> str:
    """Return the server's reason for a failure."""
    try:
        message = json.loads(reply.body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = reply.body[:300].decode(errors="replace") or reply.reason
    return f"HTTP {reply.status}: {message}"
