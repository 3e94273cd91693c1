"""POST /v1/responses, and the endpoints of stored responses: GET, POST …/cancel, DELETE, GET …/input_items."""

from __future__ import annotations

import json
import re
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Request
from starlette.datastructures import QueryParams
from starlette.responses import JSONResponse, Response

from forearm.api.generation.dependencies import AppChat, AppConfig, AppModel, AppPrompts, path_part, service
from forearm.api.generation.response_bodies import ErrorBody, encoder
from forearm.api.generation.sse import KEEP_ALIVE, EventStream, StreamFraming, unless_gone
from forearm.api.generation.translation import complaining, owner_of
from forearm.api.generation.usage import json_response, written
from forearm.api.http.caller import caller_of
from forearm.api.http.request_body import BodyDescription, json_body
from forearm.api.responses.background import Background, followed, told, whole
from forearm.api.responses.input_items import pack_reasoning
from forearm.api.responses.request_bodies import ENCRYPTED, LOGPROBS, ResponsesRequest, check_include, check_responses
from forearm.api.responses.serving_responses import ServingResponses
from forearm.api.responses.store import ResponseStore
from forearm.api.responses.to_chat import NAMES, asked, chat_of
from forearm.config.api_config import ApiConfig
from forearm.errors import InvalidRequest, ResponseNotFound
from forearm.json_types import Json

router = APIRouter()
_MOST_LISTED = 100


def _broken(error: ErrorBody) -> bytes:
    event = {"type": "error", "code": str(error.code), "message": error.message, "param": error.param}
    return b"event: error\ndata: " + encoder.encode({**event, "sequence_number": 0}) + b"\n\n"


EVENTS = StreamFraming(KEEP_ALIVE, _broken, b"")


def open_store(app: FastAPI, config: ApiConfig) -> None:
    """Open the store, before workers are forked, so that all share it."""
    app.state.responses = ResponseStore(config) if config.responses_store else None
    app.state.background = Background(app.state.responses)


async def close(app: FastAPI) -> None:
    """End the background jobs of this worker and close the store."""
    await app.state.background.close()
    if app.state.responses is not None:
        await app.state.responses.close()


def _kept(request: Request) -> ResponseStore | None:
    store: ResponseStore | None = request.app.state.responses
    return store


def _stored(request: Request) -> ResponseStore:
    """Return the store. Raises: ResponseNotFound if nothing is stored."""
    store = _kept(request)
    if store is None:
        raise ResponseNotFound("this server stores no responses (VLLM_ENABLE_RESPONSES_API_STORE=0)")
    return store


ResponsesBody = Annotated[ResponsesRequest, Depends(json_body(ResponsesRequest))]
Kept = Annotated[ResponseStore | None, Depends(_kept)]
Store = Annotated[ResponseStore, Depends(_stored)]
Owner = Annotated[str, Depends(owner_of)]
ResponseId = Annotated[str, path_part("response_id")]
Serving = Annotated[ServingResponses, service("responses")]


@router.post("/v1/responses", openapi_extra=BodyDescription(ResponsesRequest))
async def create_response(
    request: Request, body: ResponsesBody, serving: Serving, config: AppConfig, kept: Kept, owner: Owner
) -> Response:
    """Answer, whole or as a stream of events; or in the background, to be fetched later.

    Raises: InvalidRequest (400), ModelNotFound or ResponseNotFound (404), Overloaded (429), EngineUnavailable (503),
    all before the first byte.
    """
    check_responses(body, kept is not None)
    question = await asked(body, kept, owner, config.max_body_bytes)
    store = kept if body.store in (None, True) else None
    job = await serving.begin(question, caller_of(request.scope), store, owner)
    keep_alive_s = config.sse_keep_alive_interval_s
    if body.background:
        assert job.store is not None
        background: Background = request.app.state.background
        queued = encoder.encode(job.progress.reply)
        await background.start(job)
        if body.stream:
            return EventStream(followed(job.store, job.id, owner, -1), _nothing, keep_alive_s, EVENTS)
        return Response(queued, media_type="application/json")
    if body.stream:
        return EventStream(told(job), job.turn.close, keep_alive_s, EVENTS)
    try:
        reply = await unless_gone(request, whole(job))
        return await written(lambda: json_response(reply), job.scored)
    finally:
        job.turn.close()


@router.post("/v1/responses/input_tokens", openapi_extra=BodyDescription(ResponsesRequest))
async def count_input_tokens(
    body: ResponsesBody,
    model: AppModel,
    chat: AppChat,
    prompts: AppPrompts,
    config: AppConfig,
    kept: Kept,
    owner: Owner,
) -> Response:
    """Return how many tokens the input of a request has.

    Raises: InvalidRequest, ModelNotFound, ResponseNotFound, EngineUnavailable.
    """
    check_responses(body, kept is not None)
    question = await asked(body, kept, owner, config.max_body_bytes)
    model.name(body.model)
    prompt = await complaining(chat.prompt(await chat_of(question, chat, prompts)), NAMES)
    return JSONResponse({"object": "response.input_tokens", "input_tokens": len(prompt)})


@router.get("/v1/responses/{response_id}")
async def retrieve_response(
    request: Request, response_id: ResponseId, config: AppConfig, store: Store, owner: Owner
) -> Response:
    """Return a stored response in its present state; with `stream`, its events after `starting_after`, as they come.

    Raises: ResponseNotFound, InvalidRequest.
    """
    query = request.query_params
    check_include(_several(query, "include"))
    stream = _flag(query, "stream")
    after = _number(query, "starting_after", -1, 1 << 53)
    if _flag(query, "include_obfuscation"):
        raise InvalidRequest("include_obfuscation: set it when the response is created", "include_obfuscation")
    one = await store.get(response_id, owner)
    if not stream:
        if after is not None:
            raise InvalidRequest("starting_after is for streams; set stream=true", "starting_after")
        reply, include = json.loads(one.reply), _several(query, "include")
        for item in reply["output"]:
            if ENCRYPTED in include and item["type"] == "reasoning" and "encrypted_content" not in item:
                parts = item.get("content") or item["summary"]
                item["encrypted_content"] = pack_reasoning("".join(part["text"] for part in parts))
            texts = item["content"] if LOGPROBS in include and item["type"] == "message" else []
            if any(part["text"] and not part["logprobs"] for part in texts):
                raise InvalidRequest(f"include: {LOGPROBS} was not included when the response was created", "include")
        return json_response(reply)
    if not (await store.events(response_id, owner, -1))[0]:
        raise InvalidRequest(
            "stream: this response was created without stream or background, and has no events", "stream"
        )
    events = followed(store, response_id, owner, -1 if after is None else after)
    return EventStream(events, _nothing, config.sse_keep_alive_interval_s, EVENTS)


@router.post("/v1/responses/{response_id}/cancel")
async def cancel_response(response_id: ResponseId, store: Store, owner: Owner) -> Response:
    """End a background response; one that has ended stays as it is.

    Raises: ResponseNotFound, InvalidRequest.
    """
    if not json.loads((await store.get(response_id, owner)).reply)["background"]:
        raise InvalidRequest("only background responses can be cancelled; to cancel another one, close its connection")
    return json_response(json.loads((await store.cancel(response_id, owner)).reply))


@router.delete("/v1/responses/{response_id}")
async def delete_response(response_id: ResponseId, store: Store, owner: Owner) -> Response:
    """Delete a response; the worker that still computes it cancels it.

    Raises: ResponseNotFound.
    """
    await store.delete(response_id, owner)
    return JSONResponse({"id": response_id, "object": "response", "deleted": True})


@router.get("/v1/responses/{response_id}/input_items")
async def list_input_items(request: Request, response_id: ResponseId, store: Store, owner: Owner) -> Response:
    """List the request's own items, newest first unless `order=asc`: at most `limit`, beginning after item `after`.

    Raises: ResponseNotFound, InvalidRequest.
    """
    query = request.query_params
    check_include(_several(query, "include"))
    limit = _number(query, "limit", 1, _MOST_LISTED) or 20
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest(f"order: {order[:100]!r} is neither asc nor desc", "order")
    items: list[Json] = json.loads((await store.get(response_id, owner)).items)
    if order == "desc":
        items.reverse()
    ids = [item["id"] for item in items]
    after = query.get("after")
    if after is not None and after not in ids:
        raise InvalidRequest(f"after: no item has the id {after[:100]!r}", "after")
    first = 0 if after is None else ids.index(after) + 1
    page = items[first : first + limit]
    reply = {"object": "list", "data": page, "has_more": first + limit < len(items)}
    ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
    return json_response({**reply, **ends})


def _several(query: QueryParams, name: str) -> list[str]:
    return [*query.getlist(name), *query.getlist(f"{name}[]")]


def _flag(query: QueryParams, name: str) -> bool:
    """Return a flag of the query, false by default. Raises: InvalidRequest."""
    value = query.get(name, "false").lower()
    if value not in ("true", "false", "1", "0"):
        raise InvalidRequest(f"{name}: {value[:100]!r} is neither true nor false", name)
    return value in ("true", "1")


def _number(query: QueryParams, name: str, low: int, high: int) -> int | None:
    """Return a number of the query, None if it is absent. Raises: InvalidRequest."""
    value = query.get(name)
    if value is None:
        return None
    if not re.fullmatch(r"-?[0-9]{1,18}", value) or not low <= int(value) <= high:
        raise InvalidRequest(f"{name}: {value[:100]!r} is not a whole number from {low} to {high}", name)
    return int(value)


def _nothing() -> None:
    """Do nothing when a client that follows a stored response disconnects: the response goes on."""
