"""HTTP on one connection: uvicorn's protocol with limits for slow senders, long heads and clients that do not read.

uvicorn itself only limits the idle time between requests (`keep_alive_s`).
"""

from __future__ import annotations

import math
from asyncio import Transport
from asyncio.events import TimerHandle
from typing import Any, ClassVar, cast

import httptools
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from forearm.api.http.caller import openai_error
from forearm.api.http.errors import error_body
from forearm.api.http.refusals import RefusalLog

MOST_HEAD_BYTES = 64 << 10  # of a request's line and headers together; h11, uvicorn's other parser, has the same limit
_TLS = b"\x16\x03"  # the first bytes of a client that was told https://
_TOO_LONG = 431, f"the head of the request is longer than {MOST_HEAD_BYTES} bytes"
_LINGER_S = 2.0  # time in which the rest of an answered request's body is read and discarded
_LATE_S = 0.05  # the loop reads from sockets at least once before a timer of this length
BYTES_A_SECOND = 1000  # a body that arrives at least this fast gets more time; Apache's reqtimeout demands 500


class Protocol(HttpToolsProtocol):
    """receive_timeout_s: the time limit for a request's head, and then for its body. body_timeout_s: the limit for the
    whole body, however fast it arrives. send_timeout_s: the limit for a client that does not read.
    gunicorn_conf.py sets them.
    """

    receive_timeout_s: ClassVar[float] = 60.0
    body_timeout_s: ClassVar[float] = 120.0
    send_timeout_s: ClassVar[float] = 60.0
    refusals: ClassVar[RefusalLog] = RefusalLog()  # of the whole worker

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._late: TimerHandle | None = None  # set while a head or body is expected within a time limit
        self._unread: TimerHandle | None = None
        self._lingers = False
        self._head_bytes: int | None = 0  # None: the head is complete
        self._had_end = False  # a head or a body ended in the last bytes, which therefore do not all belong to a head
        self._named_bytes = 0  # of the head, as far as it is parsed
        self._body_bytes = 0  # since the current time limit was set
        self._hosts = 0  # number of Host headers
        self._wrong: tuple[int, str] | None = None  # status and reason of an error that a callback has raised
        self._body_end_s = math.inf  # when the body must be complete

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Start the time limit of the first request."""
        super().connection_made(transport)
        self._expect(self.receive_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all timers."""
        self._expect(None)
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the bytes of a head, because the parser only reports complete headers."""
        if self._lingers:
            return
        if self._late is None and (self.cycle is None or self.cycle.response_complete):
            self._expect(self.receive_timeout_s)  # the idle time is over, whether or not a request begins
        self._had_end = False
        self._parse(data)
        if self._head_bytes is not None and not self._had_end and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES:
                self._refuse(*_TOO_LONG)

    def _parse(self, data: bytes) -> None:
        """Parse bytes of the connection. The offer of another protocol is declined (RFC 9110, 7.8): the request is read
        again without it.

        Java's HttpClient offers HTTP/2 with every request. The parser ends at such a head: uvicorn would answer without
        the body, and take its bytes for the next request.
        """
        self._unset_keepalive_if_required()
        head, rest = b"", memoryview(data)
        while True:
            try:
                self.parser.feed_data(head)
                self.parser.feed_data(rest)
                break
            except httptools.HttpParserUpgrade as offer:
                rest = rest[int(offer.args[0]) :]
            except httptools.HttpParserError:
                tls = " It is TLS; this address speaks plain HTTP." if data.startswith(_TLS) else ""
                self.send_400_response(f"Invalid HTTP request received.{tls}")
                break
            line = b"%s %s HTTP/%s\r\n" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
            kept = (b"%s: %s\r\n" % one for one in self.headers if one[0] != b"upgrade")
            head = b"".join((line, *kept, b"\r\n"))
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's

    def on_message_begin(self) -> None:
        """Start the counters and the time limit of another head."""
        super().on_message_begin()
        self._head_bytes = self._named_bytes = self._body_bytes = 0
        self._body_end_s = math.inf
        self._hosts = 0
        self._expect(self.receive_timeout_s)

    def on_url(self, url: bytes) -> None:
        """Count the bytes of the URL.

        Raises: ValueError for a head that is too long, which the parser reports as malformed.
        """
        super().on_url(url)
        self._count(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count the bytes of the header.

        Raises: ValueError as `on_url`.
        """
        super().on_header(name, value)
        self._count(name + value)
        self._hosts += name.lower() == b"host"

    def on_headers_complete(self) -> None:
        """Start the time limit of the body.

        Raises: ValueError where HTTP/1.1 has no Host or several (RFC 9112, 3.2), and for a method that opens a tunnel;
        the parser reports them as a malformed head.
        """
        if self._hosts != 1 and self.parser.get_http_version() == "1.1":
            self._wrong = 400, f"Invalid HTTP request received. It has {self._hosts} Host headers; send one."
            raise ValueError("Host")
        if self.parser.get_method() == b"CONNECT":
            self._wrong = 405, "CONNECT is for proxies, and this server is none"
            raise ValueError("CONNECT")
        if self.parser.should_upgrade():
            return  # it is read again: see _parse
        self._head_bytes, self._had_end = None, True
        self._body_end_s = self.loop.time() + self.body_timeout_s
        self._expect(min(self.receive_timeout_s, self.body_timeout_s))
        super().on_headers_complete()
        if self.cycle is not None:
            self.cycle.transport = cast(Transport, _Unread(self))

    def timeout_keep_alive_handler(self) -> None:
        """Read once more before the connection is closed: a request may have arrived while this process was busy."""
        self.timeout_keep_alive_task = self.loop.call_later(_LATE_S, super().timeout_keep_alive_handler)

    def on_body(self, body: bytes) -> None:
        """Count the bytes of the body, which may extend its time limit."""
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the time limit of the body."""
        if self.parser.should_upgrade():
            return  # the head alone, which is read again
        self._expect(None)
        self._head_bytes, self._had_end = 0, True
        if self.cycle is not None:
            self.cycle.transport = cast(Transport, _HeadWithBody(self))
        super().on_message_complete()

    def pause_writing(self) -> None:
        """Start the time limit for a client that reads slowly, or not at all."""
        super().pause_writing()
        self._unread = self.loop.call_later(self.send_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """End the time limit, because the client reads again."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP, or a head that is too long."""
        self._refuse(*(self._wrong or (400, msg)))

    def linger(self) -> None:
        """Close the connection after the answer, once the client has closed it.

        If this end closed it with bytes of the body unread, the kernel would reset the connection, and the
        client would lose the answer that refuses it.
        """
        self._lingers = True
        self._expect(None)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_LINGER_S, self.transport.close)

    def _count(self, part: bytes) -> None:
        self._named_bytes += len(part)
        if self._named_bytes > MOST_HEAD_BYTES:
            self._wrong = _TOO_LONG
            raise ValueError(_TOO_LONG[1])

    def _expect(self, within_s: float | None) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = None if within_s is None else self.loop.call_later(within_s, self._check_time)

    def _check_time(self) -> None:
        """Refuse the request when its time is over, unless this process paused reading, or the body arrives fast
        enough.
        """
        came, self._body_bytes = self._body_bytes, 0
        left_s = self._body_end_s - self.loop.time()
        if self.flow.read_paused:
            self._expect(self.receive_timeout_s)
        elif came >= BYTES_A_SECOND * self.receive_timeout_s and left_s > 0:
            self._expect(min(self.receive_timeout_s, left_s))
        elif not self.transport.is_closing():
            limit_s = self.receive_timeout_s if left_s > 0 else self.body_timeout_s
            self._refuse(408, f"the request was not complete within {limit_s:g} s")

    def _refuse(self, status: int, message: str) -> None:
        """Answer with an error if no answer has begun, and close the connection."""
        self._expect(None)
        self.refusals.add(self.transport, status, message, self.loop)
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = openai_error(error_body(HTTPException(status, message)), "")
            head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()


class _Unread:
    """The transport that uvicorn's cycle uses while the request's body is incomplete."""

    def __init__(self, protocol: Protocol) -> None:
        self._protocol = protocol
        self.write, self.is_closing = protocol.transport.write, protocol.transport.is_closing

    def close(self) -> None:
        """Linger, because the answer is written and no other request may follow, or it was aborted."""
        self._protocol.linger()


class _HeadWithBody:
    """The transport of uvicorn's cycle, which writes an answer's head alone: it leaves together with a body that is
    there at once.

    Two writes wake the client twice, and where it shares cores with the server, the server may lose its core between
    them: for 0.3 ms in a timeline of one text after the other (`perf sched` on two cores).
    """

    def __init__(self, protocol: Protocol) -> None:
        self._transport, self._later = protocol.transport, protocol.loop.call_soon
        self._head: bytes | None = None
        self._begun = False
        self.is_closing = protocol.transport.is_closing

    def write(self, data: bytes) -> None:
        """Keep the head until the event loop's next round, and write all else with what is kept."""
        if not self._begun:
            self._begun, self._head = True, data
            self._later(self._flush)
        elif self._head is not None:
            head, self._head = self._head, None
            self._transport.writelines((head, data))
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection after what is kept has been written."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        head, self._head = self._head, None
        if head is not None and not self._transport.is_closing():
            self._transport.write(head)
