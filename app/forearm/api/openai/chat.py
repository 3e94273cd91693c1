"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from fastapi import APIRouter, Request
from msgspec import UNSET
from starlette.responses import Response

from forearm.api.generation.chat_turn import ServingChat, Turn
from forearm.api.generation.dependencies import AppChat, AppConfig, AppPrompts, ChatBody
from forearm.api.generation.logprobs import TokenNames, chat_logprobs, prompt_logprobs
from forearm.api.generation.output_stream import Tally, spaced
from forearm.api.generation.request_bodies import ChatRequest
from forearm.api.generation.response_bodies import (
    CallDelta,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatMessage,
    Delta,
    FunctionDelta,
    FunctionReply,
    ToolCallReply,
    encoder,
)
from forearm.api.generation.sse import Chunks, EventStream, unless_gone
from forearm.api.generation.usage import UsagePlan, request_metrics, scored_response, token_names, usage_plan
from forearm.api.http.caller import caller_of
from forearm.api.http.request_body import BodyDescription
from forearm.config.api_config import ApiConfig
from forearm.text.outputs import Choice, Piece
from forearm.text.tokenizer.tokenizer import Tokenizer
from forearm.text.tool_parsers.parts import CallBegin, ReasoningPart, TextPart

router = APIRouter()


@dataclass(frozen=True)
class ChatForm:
    """The parameters by which one request's answer is written."""

    names: TokenNames
    usage: UsagePlan
    role: str
    echoed: str  # the text of the last message that the answer repeats
    config: ApiConfig


@router.post("/v1/chat/completions", openapi_extra=BodyDescription(ChatRequest))
async def create_chat_completion(
    request: Request, body: ChatBody, chat: AppChat, prompts: AppPrompts, config: AppConfig
) -> Response:
    """Answer one chat turn, whole or as a stream of server-sent events.

    Raises: InvalidRequest (400), ModelNotFound (404), Overloaded (429) or EngineUnavailable (503), all before the
    first byte.
    """
    turn = await chat.begin(body, caller_of(request.scope), "chat_completions")
    form = form_of(body, chat, prompts.tokenizer, config)
    if body.stream:
        return EventStream(_events(turn, form), turn.close, config.sse_keep_alive_interval_s)
    try:
        return await unless_gone(request, _whole(turn, form))
    finally:
        turn.close()


def form_of(body: ChatRequest, chat: ServingChat, tokenizer: Tokenizer, config: ApiConfig) -> ChatForm:
    """Return the parameters by which this request's answer is written."""
    role, last = config.response_role, body.messages[-1]
    echoed = last.content if body.echo and last.role == role and isinstance(last.content, str) else ""
    usage = usage_plan(body, config, chat.reads_reasoning)
    return ChatForm(token_names(body, tokenizer, config), usage, role, echoed, config)


async def _events(turn: Turn, form: ChatForm) -> AsyncIterator[bytes]:
    """Yield the stream's events: each choice begins with its role, then its pieces; usage comes last, if wanted."""
    chunks, tally = Chunks(turn.head.of_chunks("chat.completion.chunk")), turn.tally
    begun: set[int] = set()  # choices whose role has been sent
    async for piece in spaced(turn.pieces(), turn.body.stream_interval):
        if piece.choice not in begun:
            # No token has been sent before the first choice's role, though the first one is counted.
            told = tally if begun else Tally(tally.prompt_tokens, cached_tokens=tally.cached_tokens)
            begun.add(piece.choice)
            first = ChatChunkChoice(index=piece.choice, delta=Delta(role=form.role, content=""))
            ids = b',"prompt_token_ids":' + encoder.encode(turn.prompt) if turn.body.return_token_ids else b""
            yield chunks.chunk(first, form.usage.with_chunk(told), ids)
            if form.echoed:
                echo = ChatChunkChoice(index=piece.choice, delta=Delta(content=form.echoed))
                yield chunks.chunk(echo, form.usage.with_chunk(told))
        # A piece makes no chunk if all of its text is withheld (half a character, a possible stop string).
        if piece.parts or piece.finish_reason or piece.logprobs or turn.body.return_token_ids:
            for choice in _chunk_choices(piece, turn.body, form):
                yield chunks.chunk(choice, form.usage.with_chunk(tally))
    if form.usage.at_end:
        metrics = request_metrics(tally, len(begun), form.config)
        extra = b"" if metrics is UNSET else b',"metrics":' + encoder.encode(metrics)
        yield chunks.chunk(None, form.usage.usage(tally), extra)


def _chunk_choices(piece: Piece, body: ChatRequest, form: ChatForm) -> list[ChatChunkChoice]:
    """Return the chunks of a piece: one, unless the order of its parts does not fit into one delta."""
    deltas, rank = [Delta()], 0
    for part in piece.parts:
        # Within a delta, reasoning comes before text and text before calls.
        before, rank = rank, 1 if isinstance(part, ReasoningPart) else 2 if isinstance(part, TextPart) else 3
        if rank < before or (rank == before and rank < 3):
            deltas.append(Delta())
        delta = deltas[-1]
        if isinstance(part, TextPart):
            delta.content = part.text
        elif isinstance(part, ReasoningPart):
            delta.reasoning = delta.reasoning_content = part.text
        else:
            delta.tool_calls = calls = [] if delta.tool_calls is UNSET else delta.tool_calls
            if isinstance(part, CallBegin):
                function = FunctionDelta(name=part.name, arguments="")
                calls.append(CallDelta(index=part.index, id=part.id, type="function", function=function))
            elif calls and calls[-1].index == part.index:
                calls[-1].function.arguments += part.text
            else:
                calls.append(CallDelta(index=part.index, function=FunctionDelta(arguments=part.text)))
    if rank == 0:
        deltas[0].content = ""
    choices = [ChatChunkChoice(index=piece.choice, delta=delta) for delta in deltas]
    last = choices[-1]
    last.logprobs = chat_logprobs(piece.logprobs, form.names) if piece.logprobs else None
    last.finish_reason = piece.finish_reason
    last.stop_reason = piece.stop_reason if piece.finish_reason else UNSET
    last.token_ids = piece.token_ids if body.return_token_ids else UNSET
    return choices


async def _whole(turn: Turn, form: ChatForm) -> Response:
    """Return the answer once every choice has ended."""
    choices = await turn.whole()
    return await scored_response(lambda: _completion(choices, turn, form), choices, turn.tally)


def _completion(choices: list[Choice], turn: Turn, form: ChatForm) -> ChatCompletion:
    scored = turn.tally.prompt_logprobs.get(0)
    return ChatCompletion(
        id=turn.head.id,
        created=turn.head.created,
        model=turn.head.model,
        system_fingerprint=turn.head.system_fingerprint,
        choices=[chat_choice(index, choice, turn.body, form) for index, choice in enumerate(choices)],
        usage=form.usage.usage(turn.tally),
        prompt_logprobs=None if scored is None else prompt_logprobs(scored, form.names),
        prompt_token_ids=turn.prompt if turn.body.return_token_ids else None,
        prompt_text=turn.prompt_text if turn.body.return_prompt_text else UNSET,
        metrics=request_metrics(turn.tally, len(choices), form.config),
        warnings=turn.head.warnings,
    )


def chat_choice(index: int, choice: Choice, body: ChatRequest, form: ChatForm) -> ChatChoice:
    """Return one choice of a whole answer."""
    content = form.echoed + choice.text
    calls = [
        ToolCallReply(id=call.id, function=FunctionReply(name=call.name, arguments=call.arguments))
        for call in choice.calls
    ]
    return ChatChoice(
        index=index,
        message=ChatMessage(
            role=form.role,
            content=content if content or not (choice.calls or choice.reasoning) else None,
            tool_calls=calls if calls or form.config.include_empty_tool_calls else UNSET,
            reasoning=choice.reasoning or None,
            reasoning_content=choice.reasoning or None,
        ),
        logprobs=chat_logprobs(choice.logprobs, form.names) if body.logprobs else None,
        finish_reason=choice.finish_reason,
        stop_reason=choice.stop_reason,
        token_ids=choice.token_ids if body.return_token_ids else None,
    )
