"""Anthropic's POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from forearm.api.anthropic.content_blocks import ContentBlocks, message, stop, usage
from forearm.api.anthropic.errors import broken
from forearm.api.anthropic.request_bodies import CountRequest, MessagesRequest, check_messages
from forearm.api.anthropic.to_chat import NAMES, chat_of
from forearm.api.generation.chat_turn import Turn
from forearm.api.generation.dependencies import AppChat, AppConfig, AppModel, AppPrompts, service
from forearm.api.generation.output_stream import spaced
from forearm.api.generation.response_bodies import encoder
from forearm.api.generation.sse import EventStream, StreamFraming, unless_gone
from forearm.api.generation.translation import complaining
from forearm.api.generation.unsupported import ClientWarnings
from forearm.api.http.caller import caller_of
from forearm.api.http.request_body import BodyDescription, json_body
from forearm.errors import EngineUnavailable
from forearm.json_types import Json
from forearm.text.outputs import Piece

router = APIRouter()
MessagesBody = Annotated[MessagesRequest, Depends(json_body(MessagesRequest))]
CountBody = Annotated[CountRequest, Depends(json_body(CountRequest))]
Warnings = Annotated[ClientWarnings, service("warnings")]
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
EVENTS = StreamFraming(PING, broken, b"")


@router.post("/v1/messages", openapi_extra=BodyDescription(MessagesRequest))
async def create_message(
    request: Request, body: MessagesBody, chat: AppChat, prompts: AppPrompts, warnings: Warnings, config: AppConfig
) -> Response:
    """Answer with a message, whole or as a stream of events. `anthropic-version` and the like are not read.

    Raises: InvalidRequest (400), ModelNotFound (404), Overloaded (429) or EngineUnavailable (503), all before the first
    byte.
    """
    check_messages(body)
    asked = chat_of(body, warnings, chat.reads_reasoning)
    turn = await complaining(chat.begin(asked, caller_of(request.scope), "other"), NAMES)
    writing = MessageWriter(turn, body, prompts.context)
    if body.stream:
        return EventStream(writing.events(), turn.close, config.sse_keep_alive_interval_s, EVENTS)
    try:
        # Python's json, because the model may write numbers of any length.
        return JSONResponse(await unless_gone(request, writing.whole()))
    finally:
        turn.close()


@router.post("/v1/messages/count_tokens", openapi_extra=BodyDescription(CountRequest))
async def count_tokens(body: CountBody, chat: AppChat, model: AppModel, warnings: Warnings) -> Response:
    """Return how many tokens the prompt of a request has.

    Raises: InvalidRequest, ModelNotFound, EngineUnavailable.
    """
    check_messages(body)
    model.name(body.model)
    prompt = await complaining(chat.prompt(chat_of(body, warnings, chat.reads_reasoning)), NAMES)
    return JSONResponse({"input_tokens": len(prompt)})


class MessageWriter:
    """Writes one message while its turn is generated."""

    def __init__(self, turn: Turn, body: MessagesRequest, context: int) -> None:
        self._turn = turn
        self._max_tokens = body.max_tokens
        self._context = context
        thinking = body.thinking
        self._blocks = ContentBlocks(omitted=thinking is not None and thinking.display == "omitted")

    async def whole(self) -> Json:
        """Return the message once it is complete.

        Raises: EngineFailed, EngineUnavailable.
        """
        last = None
        async for piece in self._turn.pieces():
            self._blocks.take(piece)
            last = piece
        self._blocks.end()
        reply = message(self._turn.head, self._turn.tally)
        return {**reply, "content": self._blocks.content, **self._stop(last)}

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the message's events. They begin with the first token, when the number of cached tokens is known.

        Raises: EngineFailed, EngineUnavailable.
        """
        last: Piece | None = None
        async for piece in spaced(self._turn.pieces(), self._turn.body.stream_interval):
            if last is None:
                yield (_event({"type": "message_start", "message": message(self._turn.head, self._turn.tally)}) + PING)
            told = self._blocks.take(piece)
            if told:
                yield b"".join(map(_event, told))
            last = piece
        delta = self._stop(last)
        ends = [*self._blocks.end(), {"type": "message_delta", "delta": delta, "usage": usage(self._turn.tally)}]
        yield b"".join(map(_event, [*ends, {"type": "message_stop"}]))

    def _stop(self, last: Piece | None) -> Json:
        if last is None or last.finish_reason == "abort":
            raise EngineUnavailable("the engine ended this request")
        return stop(last, self._turn.tally, self._max_tokens, self._context)


def _event(event: Json) -> bytes:
    return b"event: " + str(event["type"]).encode() + b"\ndata: " + encoder.encode(event) + b"\n\n"
