"""Server-sent events: framing, keep-alive comments, errors within a stream, [DONE], and clients that disconnect."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from forearm.api.generation.response_bodies import ChunkHead, ErrorBody, Usage, encoder
from forearm.api.http.caller import caller_of, openai_error
from forearm.api.http.errors import error_body
from forearm.errors import EngineUnavailable

Result = TypeVar("Result")
KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class StreamFraming:
    """The framing of an API's streams besides their events: keep-alive, the event of an error, and the end."""

    keep_alive: bytes
    broken: Callable[[ErrorBody], bytes]
    end: bytes


CHUNKS = StreamFraming(KEEP_ALIVE, lambda error: b"data: " + openai_error(error, "") + b"\n\n", DONE)


class Chunks:
    """Encodes the chunks of one stream. Their common head is encoded once, so each token costs only its choice."""

    def __init__(self, head: ChunkHead) -> None:
        self._head = b"data: " + encoder.encode(head)[:-1] + b',"choices":['

    def chunk(self, choice: msgspec.Struct | None, usage: Usage | None = None, extra: bytes = b"") -> bytes:
        """Return one event. `extra`: JSON members appended at its end, each with a leading comma."""
        shown = b"" if choice is None else encoder.encode(choice)
        if usage is not None:
            extra += b',"usage":' + encoder.encode(usage)
        return self._head + shown + b"]" + extra + b"}\n\n"


class EventStream(Response):
    """Sends events until they end or the client disconnects; `close` is called in any case."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes],
        close: Callable[[], None],
        keep_alive_s: float,
        framing: StreamFraming = CHUNKS,
    ) -> None:
        # nginx would buffer small events; a cache must not store them.
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._framing = framing
        self._close = close
        self._keep_alive_s = keep_alive_s
        self._sent_s = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            tasks = [self._send_events(send, caller_of(scope).request_id), _until_gone(receive)]
            if self._keep_alive_s:
                tasks.append(self._send_keep_alives(send))
            await _first_of(tasks)
        except asyncio.CancelledError:  # by DrainingServer
            error = error_body(EngineUnavailable("the server is shutting down"))
            last = self._framing.broken(error) + self._framing.end
            await send({"type": "http.response.body", "body": last, "more_body": False})
        finally:
            self._close()

    async def _send_events(self, send: Send, request_id: str) -> None:
        """Send the events, an error event if they break off, and the end of the stream."""
        last = self._framing.end
        try:
            async for event in self._events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
                self._sent_s = time.monotonic()
        except Exception as error:  # the status line has been sent: the error can only be reported here
            last = self._framing.broken(error_body(error, request_id)) + last
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _send_keep_alives(self, send: Send) -> None:
        while True:
            silent_s = time.monotonic() - self._sent_s
            if silent_s >= self._keep_alive_s:
                await send({"type": "http.response.body", "body": self._framing.keep_alive, "more_body": True})
                self._sent_s = time.monotonic()
            else:
                await asyncio.sleep(self._keep_alive_s - silent_s)


async def unless_gone(request: Request, work: Awaitable[Result]) -> Result:
    """Return the result of `work`, which is cancelled if the client disconnects before.

    Raises: what `work` raises; ClientDisconnect.
    """
    if isinstance(work, asyncio.Future) and work.done():
        return cast("Result", work.result())
    result: Result | None = await _first_of([work, _until_gone(request.receive)])
    if result is None:
        raise ClientDisconnect
    return result


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _first_of(work: Sequence[Awaitable[Any]]) -> Any:
    """Return the result of the work that ends first; the rest is cancelled and has ended by then."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return next(task for task in tasks if task in done).result()
