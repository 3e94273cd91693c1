"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from fastapi import APIRouter, Request
from msgspec import UNSET
from starlette.responses import Response

from forearm.api.answer import Heading, UsagePlan, heading, json_response, token_names, usage_plan
from forearm.api.body import describes
from forearm.api.dependencies import ChatBody, Served
from forearm.api.logprobs import TokenNames, chat_logprobs, prompt_logprobs
from forearm.api.output import Answer, Choice, Piece, spaced, submit
from forearm.api.params import sampling_params, text_options
from forearm.api.refusals import check_chat
from forearm.api.replies import ChatChoice, ChatChunkChoice, ChatCompletion, ChatMessage, Delta, encoder
from forearm.api.schema import ChatRequest
from forearm.api.served import Served as ServedState
from forearm.api.sse import Chunks, EventStream, unless_gone

router = APIRouter()


@dataclass(frozen=True)
class ChatTurn:
    """One request, rendered and on its way."""

    body: ChatRequest
    head: Heading
    prompt: list[int]
    prompt_text: str
    names: TokenNames
    usage: UsagePlan
    role: str
    echoed: str  # what the answer repeats of the last message


@router.post("/v1/chat/completions", openapi_extra=describes(ChatRequest))
async def create_chat_completion(request: Request, body: ChatBody, served: Served) -> Response:
    """Answer one chat turn, whole or as a stream of server-sent events.

    Raises: InvalidRequest (400), ModelNotFound (404), Overloaded (429) or EngineUnavailable (503), all before the
    first byte, because `submit` returns only once the engine has taken the request.
    """
    check_chat(body, served.config)
    served.note_unknown_fields(body.model_extra)
    head = heading("chatcmpl", body, request.headers.get("x-request-id"), served)
    turn = await _turn(body, head, served)
    params = sampling_params(body, served, len(turn.prompt), body.prompt_logprobs)
    generation = await submit(served, body, [turn.prompt], [params])
    answer = Answer(served, generation, [turn.prompt], params.n, text_options(body))
    if body.stream:
        keep_alive_s = served.config.sse_keep_alive_interval_s
        return EventStream(_events(turn, answer), generation.close, keep_alive_s)
    try:
        return json_response(await unless_gone(request, _whole(turn, answer)))
    finally:
        generation.close()


async def _turn(body: ChatRequest, head: Heading, served: ServedState) -> ChatTurn:
    """Raises: InvalidRequest."""
    text = served.render(
        body.messages,
        chat_template=body.chat_template,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        kwargs=_template_kwargs(body),
        tools=body.tools or None,
        documents=[one.model_dump() for one in body.documents] if body.documents else None,
    )
    prompt = served.truncated(await served.encode(text, body.add_special_tokens), body)
    last, role = body.messages[-1], served.config.response_role
    continued = last.role == role
    echoed = last.content if body.echo and continued and isinstance(last.content, str) else ""
    return ChatTurn(body, head, prompt, text, token_names(body, served), usage_plan(body, served), role, echoed)


def _template_kwargs(body: ChatRequest) -> dict[str, object]:
    """The request's variables for the template; reasoning_effort none switches off thinking where models have that."""
    kwargs = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        kwargs.setdefault("reasoning_effort", body.reasoning_effort)
        kwargs.setdefault("enable_thinking", body.reasoning_effort != "none")
    return kwargs


async def _events(turn: ChatTurn, answer: Answer) -> AsyncIterator[bytes]:
    """Each choice begins with its role; then come its pieces; usage comes last, where it is wanted."""
    chunks, tally, begun = Chunks(turn.head.of_chunks("chat.completion.chunk")), answer.tally, set()
    async for piece in spaced(answer.pieces(), turn.body.stream_interval):
        if piece.choice not in begun:
            begun.add(piece.choice)
            first = ChatChunkChoice(index=piece.choice, delta=Delta(role=turn.role, content=""))
            ids = b',"prompt_token_ids":' + encoder.encode(turn.prompt) if turn.body.return_token_ids else b""
            yield chunks.chunk(first, turn.usage.with_chunk(tally), ids)
            if turn.echoed:
                echo = ChatChunkChoice(index=piece.choice, delta=Delta(content=turn.echoed))
                yield chunks.chunk(echo, turn.usage.with_chunk(tally))
        if _says_something(piece, turn.body):
            yield chunks.chunk(_chunk_choice(piece, turn), turn.usage.with_chunk(tally))
    if turn.usage.at_end:
        yield chunks.chunk(None, turn.usage.usage(tally))


def _says_something(piece: Piece, body: ChatRequest) -> bool:
    """A token whose text is held back (half a character, the beginning of a stop string) makes no chunk."""
    return bool(piece.text or piece.finish_reason or piece.logprobs or body.return_token_ids)


def _chunk_choice(piece: Piece, turn: ChatTurn) -> ChatChunkChoice:
    return ChatChunkChoice(
        index=piece.choice,
        delta=Delta(content=piece.text),
        logprobs=chat_logprobs(piece.logprobs, turn.names) if piece.logprobs else None,
        finish_reason=piece.finish_reason,
        stop_reason=piece.stop_reason if piece.finish_reason else UNSET,
        token_ids=piece.token_ids if turn.body.return_token_ids else UNSET,
    )


async def _whole(turn: ChatTurn, answer: Answer) -> ChatCompletion:
    """The answer once every choice has ended."""
    choices = await answer.choices()
    scored = answer.tally.prompt_logprobs.get(0)
    return ChatCompletion(
        id=turn.head.id,
        created=turn.head.created,
        model=turn.head.model,
        system_fingerprint=turn.head.system_fingerprint,
        choices=[_choice(index, choice, turn) for index, choice in enumerate(choices)],
        usage=turn.usage.usage(answer.tally),
        prompt_logprobs=None if scored is None else prompt_logprobs(scored, turn.names),
        prompt_token_ids=turn.prompt if turn.body.return_token_ids else None,
        prompt_text=turn.prompt_text if turn.body.return_prompt_text else UNSET,
    )


def _choice(index: int, choice: Choice, turn: ChatTurn) -> ChatChoice:
    return ChatChoice(
        index=index,
        message=ChatMessage(role=turn.role, content=turn.echoed + choice.text),
        logprobs=chat_logprobs(choice.logprobs, turn.names) if turn.body.logprobs else None,
        finish_reason=choice.finish_reason,
        stop_reason=choice.stop_reason,
        token_ids=choice.token_ids if turn.body.return_token_ids else None,
    )
