"""POST /v1/chat/completions/batch: several conversations in one request, each answered with one choice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from pydantic import ValidationError
from starlette.responses import Response

from forearm.api.generation.chat_turn import Turn
from forearm.api.generation.dependencies import AppChat, AppConfig, AppPrompts
from forearm.api.generation.output_stream import Tally
from forearm.api.generation.request_bodies import ChatBatchRequest, ChatRequest
from forearm.api.generation.response_bodies import ChatCompletion
from forearm.api.generation.sse import unless_gone
from forearm.api.generation.usage import scored_response
from forearm.api.http.caller import caller_of
from forearm.api.http.json_size import json_size
from forearm.api.http.request_body import BodyDescription, invalid, json_body
from forearm.api.openai.chat import ChatForm, chat_choice, form_of
from forearm.errors import InvalidRequest
from forearm.text.outputs import Choice

router = APIRouter()
# Rendering and tokenizing one conversation may block the event loop for 10 ms, and all begin in one of its turns.
_AT_ONCE = 8
MOST_SHARED = 16 << 20  # characters of the shared fields, which are copied for each conversation
BatchBody = Annotated[ChatBatchRequest, Depends(json_body(ChatBatchRequest))]


@router.post("/v1/chat/completions/batch", openapi_extra=BodyDescription(ChatBatchRequest))
async def create_chat_batch(
    request: Request, body: BatchBody, chat: AppChat, prompts: AppPrompts, config: AppConfig
) -> Response:
    """Answer every conversation; the choices come in their order.

    Raises: InvalidRequest (400), ModelNotFound (404), Overloaded (429) or EngineUnavailable (503).
    """
    chats, caller = _chats(body, config.max_completion_prompts), caller_of(request.scope)
    turns: list[Turn] = []
    try:
        for at in range(0, len(chats), _AT_ONCE):
            some = (chat.begin(one, caller, "chat_completions") for one in chats[at : at + _AT_ONCE])
            found = await asyncio.gather(*some, return_exceptions=True)
            turns += [one for one in found if isinstance(one, Turn)]
            for error in found:
                if isinstance(error, BaseException):
                    raise error  # the first one; the chats that have begun are withdrawn
        return await unless_gone(request, _whole(turns, form_of(chats[0], chat, prompts.tokenizer, config)))
    finally:
        for turn in turns:
            turn.close()


def _chats(body: ChatBatchRequest, limit: int) -> list[ChatRequest]:
    """Return a request for each conversation. Raises: InvalidRequest."""
    others = body.model_extra or {}
    for name in ("stream", "tools", "echo", "prompt_logprobs", "return_prompt_text"):
        if others.get(name) is not None and others[name] is not False and others[name] != []:
            raise InvalidRequest(f"{name} is not offered for batches; leave it out", name)
    if others.get("n") not in (None, 1):
        raise InvalidRequest("n must be 1: each conversation has one choice", "n")
    if len(body.messages) > limit:
        raise InvalidRequest(f"messages has {len(body.messages)} conversations; the limit is {limit}", "messages")
    if json_size(others, MOST_SHARED // len(body.messages)) > MOST_SHARED // len(body.messages):
        raise InvalidRequest(
            f"the other fields are too long for {len(body.messages)} conversations; {MOST_SHARED} characters may come "
            "for all of them together",
            "messages",
        )
    try:
        return [
            ChatRequest.model_validate({**others, "model": body.model, "messages": one, "n": 1})
            for one in body.messages
        ]
    except ValidationError as error:
        raise invalid(error) from None


async def _whole(turns: Sequence[Turn], form: ChatForm) -> Response:
    """Return the answer once every conversation has ended."""
    choices = [answer[0] for answer in await asyncio.gather(*(turn.whole() for turn in turns))]
    return await scored_response(lambda: _completion(choices, turns, form), choices, turns[0].tally)


def _completion(choices: Sequence[Choice], turns: Sequence[Turn], form: ChatForm) -> ChatCompletion:
    tallies = [turn.tally for turn in turns]
    total = Tally(
        prompt_tokens=sum(tally.prompt_tokens for tally in tallies),
        completion_tokens=sum(tally.completion_tokens for tally in tallies),
        cached_tokens=sum(tally.cached_tokens for tally in tallies),
        reasoning_tokens=sum(tally.reasoning_tokens for tally in tallies),
    )
    head = turns[0].head
    return ChatCompletion(
        id=head.id,
        created=head.created,
        model=head.model,
        system_fingerprint=head.system_fingerprint,
        choices=[chat_choice(index, choice, turns[index].body, form) for index, choice in enumerate(choices)],
        usage=form.usage.usage(total),
        warnings=head.warnings,
    )
