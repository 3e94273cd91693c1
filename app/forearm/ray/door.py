"""The door: takes HTTP requests, reads their prompt for the router, and forwards them to replicas."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from forearm.api.http.caller import Caller, openai_error
from forearm.api.http.errors import error_body, error_response
from forearm.errors import BodyTooLarge, EngineUnavailable, ForearmError
from forearm.ray.server import Head
from forearm.routing import TEXT_PIECE_BYTES, chain

TRIES = 3  # replicas that are asked until one has begun to answer
MOST_BYTES = 32 << 20  # of a body, as forearm serve has it
_PROMPTS = ("system", "instructions", "tools", "messages", "prompt", "input")  # of all the APIs, in a template's order

log = logging.getLogger(__name__)


class Door:
    """Ray's ingress. A request that a replica has not begun to answer is sent to another one."""

    def __init__(self, servers: DeploymentHandle) -> None:
        self._servers = servers.options(stream=True)

    async def __call__(self, request: Request) -> Response:
        """Forward a request with any path and method; the server checks it."""
        try:
            body = await _body(request)
            pieces = prompt_chain(body) if request.method == "POST" else ()
            query = f"?{request.url.query}" if request.url.query else ""
            head, rest = await self._begin(
                request.method, request.url.path + query, request.headers.items(), body, pieces
            )
        except ForearmError as error:
            return error_response(error, Caller())
        _, status, told = head
        streamed = dict(told).get("content-type", "").startswith("text/event-stream")
        reply = StreamingResponse(_passed_on(rest, streamed), status)
        reply.raw_headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in told]
        return reply

    async def _begin(
        self, method: str, target: str, headers: list[tuple[str, str]], body: bytes, pieces: tuple[bytes, ...]
    ) -> tuple[Head, Any]:
        """Return the first head that is no 503, else the last replica's, and the stream that follows it.

        Raises: EngineUnavailable.
        """
        avoid: tuple[str, ...] = ()
        why = "no replica has answered"
        for attempt in range(TRIES):
            rest = self._servers.answer.remote(method, target, list(headers), body, pieces=pieces, avoid=avoid)
            try:
                head = await rest.__anext__()
            except BackPressureError:
                raise EngineUnavailable("all replicas are busy and too many requests wait", 2) from None
            except (RayError, RayServeException, EngineUnavailable) as error:
                log.warning("a replica failed before it answered: %r", error)
                why = "the replica failed before it answered"
                continue
            if head[1] != 503 or attempt == TRIES - 1:
                return head, rest
            rest.cancel()
            avoid = (*avoid, head[0])
        raise EngineUnavailable(why)


def prompt_chain(body: bytes) -> tuple[bytes, ...]:
    """Return the hash chain of what the model reads first, from a canonical JSON; () where the body has no prompt."""
    try:
        given = json.loads(body)
        salt = given.get("cache_salt") or ""
        prompt = json.dumps([given[name] for name in _PROMPTS if name in given], ensure_ascii=False)
        return chain(prompt.encode("utf-8", "surrogatepass"), TEXT_PIECE_BYTES, str(salt))
    except (ValueError, AttributeError, RecursionError):
        return ()


async def _body(request: Request) -> bytes:
    """Read the body. Raises: BodyTooLarge."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MOST_BYTES:
            raise BodyTooLarge(f"the request's body has more than {MOST_BYTES} bytes, which is the limit")
        parts.append(part)
    return b"".join(parts)


async def _passed_on(rest: Any, streamed: bool) -> AsyncIterator[bytes]:
    """Yield the answer's bytes. If its replica dies, a stream ends with an error event, other answers are cut off."""
    try:
        async for chunk in rest:
            yield chunk
    except (RayError, RayServeException, EngineUnavailable) as error:
        log.warning("a replica failed while it answered: %r", error)
        if not streamed:
            raise
        told = openai_error(error_body(EngineUnavailable("the replica failed; it is being replaced")), "")
        yield b"data: " + told + b"\n\ndata: [DONE]\n\n"
    finally:
        rest.cancel()  # a client that left ends the request in the engine
