"""POST /invocations, SageMaker's only path: pass the request to the route that the fields of its body indicate."""

from __future__ import annotations

import msgspec
from msgspec import UNSET
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from forearm.api.http.caller import caller_of
from forearm.api.http.errors import error_response
from forearm.api.http.request_body import content_of
from forearm.errors import ForearmError, InvalidRequest

# Fields that must all be present, and the path of such a body; the first match counts, as in vLLM.
_ROUTES = (
    (("messages",), "/v1/chat/completions"),
    (("prompt",), "/v1/completions"),
    (("input",), "/v1/embeddings"),
    (("query", "documents"), "/rerank"),
    (("text_1", "text_2"), "/score"),
    (("queries", "documents"), "/score"),
)


# Their values are parsed by the route: parsing them here would take as long again.
_Fields = msgspec.defstruct(
    "_Fields",
    [
        (name, msgspec.Raw | msgspec.UnsetType, UNSET)
        for name in sorted({name for fields, _ in _ROUTES for name in fields})
    ],
)


class Invocations:
    """An ASGI app that reads the body, chooses the route, and lets the router answer as if the request had come
    there.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.requests import Request

        request = Request(scope, receive)
        try:
            content = await content_of(request)
            path = route_of(content)
        except (ForearmError, HTTPException) as error:
            await error_response(error, caller_of(scope))(scope, receive, send)
            return
        request.app.state.services.body_memory.release(caller_of(scope))  # the route counts its bytes again
        told = False

        async def again() -> Message:
            nonlocal told
            if told:
                return await receive()
            told = True
            return {"type": "http.request", "body": content, "more_body": False}

        passed = {**scope, "path": f"{scope.get('root_path', '')}{path}", "raw_path": path.encode()}
        await request.app.router(passed, again, send)


def route_of(content: bytes | bytearray) -> str:
    """Return the path of the route for this body.

    Raises: InvalidRequest.
    """
    try:
        body = msgspec.json.decode(content, type=_Fields)
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise InvalidRequest("the body must be a JSON object") from None
    for fields, path in _ROUTES:
        if all(getattr(body, field) is not UNSET for field in fields):
            return path
    known = " or ".join("+".join(fields) for fields, _ in _ROUTES)
    raise InvalidRequest(f"the body has none of the fields that select an endpoint: {known}")


route = Route("/invocations", Invocations(), methods=["POST"], include_in_schema=False)
