"""POST /v1/completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from fastapi import APIRouter, Request
from msgspec import UNSET
from msgspec.structs import replace as replace_params
from starlette.responses import Response

from forearm import wire
from forearm.api.generation.dependencies import CompletionBody, Served
from forearm.api.generation.logprobs import TokenNames, completion_logprobs, prompt_logprobs
from forearm.api.generation.output_stream import Answer, Choice, Piece, spaced, submit
from forearm.api.generation.request_bodies import CompletionRequest
from forearm.api.generation.response_bodies import Completion, CompletionChoice, CompletionLogprobs, encoder
from forearm.api.generation.response_format import answer_grammar
from forearm.api.generation.sampling_params import max_tokens, sampling_params, text_options
from forearm.api.generation.serving_context import Served as ServedState
from forearm.api.generation.sse import Chunks, EventStream, unless_gone
from forearm.api.generation.unsupported import check_completion
from forearm.api.generation.usage import (
    Heading,
    UsagePlan,
    heading,
    request_metrics,
    scored_response,
    token_names,
    usage_plan,
)
from forearm.api.http.caller import caller_of
from forearm.api.http.request_body import describes
from forearm.errors import InvalidRequest

router = APIRouter()


@dataclass(frozen=True)
class Prompt:
    """One prompt of a request; `text` only where it is echoed. is_whole: the tokens were made of all of the text."""

    token_ids: list[int]
    text: str
    is_whole: bool = False


@dataclass(frozen=True)
class Work:
    """One request, tokenised and on its way."""

    body: CompletionRequest
    head: Heading
    prompts: list[Prompt]
    n: int
    names: TokenNames
    usage: UsagePlan

    @property
    def echo_only(self) -> bool:
        """max_tokens 0: of what is generated (one token, the least a step can do) nothing is shown."""
        return self.body.max_tokens == 0

    @property
    def scores(self) -> int | None:
        """Alternatives wanted at each prompt token: for themselves, or to go with the echo."""
        return self.body.logprobs if self.body.echo and self.body.logprobs is not None else self.body.prompt_logprobs


@router.post("/v1/completions", openapi_extra=describes(CompletionRequest))
async def create_completion(request: Request, body: CompletionBody, served: Served) -> Response:
    """Go on from one or more prompts, whole or as a stream of server-sent events.

    Raises: InvalidRequest (400), ModelNotFound (404), Overloaded (429) or EngineUnavailable (503), all before the
    first byte.
    """
    caller = caller_of(request.scope)
    check_completion(body, served.config, served.tokenizer.vocab_size)
    served.note_unknown_fields(body.model_extra)
    head = heading("cmpl", body, caller, served)
    given = _prompts(body)
    characters = sum(len(prompt) for prompt in given if isinstance(prompt, str))
    prompts = [await _prompt(prompt, characters, body, served) for prompt in given]
    n = body.n or served.defaults.get("n", 1)
    grammar = await answer_grammar(body, served)
    names, usage = token_names(body, served), usage_plan(body, served)
    work = Work(body, head.under(grammar), prompts, n, names, usage)
    token_ids = [prompt.token_ids for prompt in prompts]
    first = _ending(sampling_params(body, served, len(token_ids[0]), work.scores, grammar), body, served)
    params = [replace_params(first, max_tokens=max_tokens(body, served, len(prompt))) for prompt in token_ids]
    generation = await submit(served, body, token_ids, params, caller)
    answer = Answer(served, generation, token_ids, n, text_options(body))
    if body.stream:
        return EventStream(_events(work, answer), generation.close, served.config.sse_keep_alive_interval_s)
    try:
        return await unless_gone(request, _whole(work, answer))
    finally:
        generation.close()


def _prompts(body: CompletionRequest) -> list[str] | list[list[int]]:
    """Raises: InvalidRequest."""
    prompt = body.prompt
    if prompt is None or (not prompt and isinstance(prompt, list)):
        raise InvalidRequest("prompt is required and must not be empty", "prompt")
    if isinstance(prompt, str):
        return [prompt]
    return [prompt] if isinstance(prompt[0], int) else prompt


async def _prompt(prompt: str | list[int], characters: int, body: CompletionRequest, served: ServedState) -> Prompt:
    """The prompt as the engine gets it. `characters`: of all prompts of the request.

    Raises: InvalidRequest.
    """
    asked = await served.encode(prompt, body.add_special_tokens, characters) if isinstance(prompt, str) else prompt
    if body.suffix is not None:
        asked = await _infilled(asked, body.suffix, served)
    token_ids = served.truncated(asked, body)
    if not token_ids:
        raise InvalidRequest("prompt has no tokens; write at least one", "prompt")
    max_tokens(body, served, len(token_ids))  # a prompt that does not fit is refused before the next one is read
    if not body.echo:
        return Prompt(token_ids, "")
    whole = isinstance(prompt, str) and len(token_ids) == len(asked)
    if isinstance(prompt, str) and whole:
        return Prompt(token_ids, prompt, is_whole=True)
    return Prompt(token_ids, served.tokenizer.decode(token_ids, body.skip_special_tokens))


def _ending(params: wire.SamplingParams, body: CompletionRequest, served: ServedState) -> wire.SamplingParams:
    """A middle ends where the model would go on to another file."""
    if body.suffix is None or served.infill is None or not served.infill.stops:
        return params
    return replace_params(params, stop_token_ids=[*(params.stop_token_ids or ()), *served.infill.stops])


async def _infilled(prefix: list[int], suffix: str, served: ServedState) -> list[int]:
    """A prompt for what stands between. Raises: InvalidRequest."""
    if served.infill is None:
        raise InvalidRequest(
            "suffix is only supported for models with FIM completion; this model's tokenizer has no tokens for it",
            "suffix",
        )
    served.check_length(suffix)
    return await asyncio.to_thread(served.infill.prompt, prefix, suffix)


async def _events(work: Work, answer: Answer) -> AsyncIterator[bytes]:
    """The echo comes with a choice's first piece; usage comes last, where it is wanted."""
    chunks, tally = Chunks(work.head.of_chunks("text_completion")), answer.tally
    ends: dict[int, int] = {}  # by choice: where its text ends, in characters
    async for piece in spaced(answer.pieces(), work.body.stream_interval):
        shown = replace(piece, texts=[], token_ids=[], logprobs=None) if work.echo_only else piece
        first = piece.choice not in ends
        if first:
            ends[piece.choice] = 0
        if (first and work.body.echo) or _says_something(shown, work.body):
            choice = _chunk_choice(shown, first, ends[piece.choice], work, answer)
            yield chunks.chunk(choice, work.usage.with_chunk(tally))
            if choice.logprobs is not None:
                ends[piece.choice] += sum(_lengths(shown.token_ids, piece.choice // work.n, work, first))
    if work.echo_only:
        tally.completion_tokens = 0
    if work.usage.at_end:
        metrics = request_metrics(tally, len(ends), answer.served)
        extra = b"" if metrics is UNSET else b',"metrics":' + encoder.encode(metrics)
        yield chunks.chunk(None, work.usage.usage(tally), extra)


def _says_something(piece: Piece, body: CompletionRequest) -> bool:
    return bool(piece.text or piece.finish_reason or piece.logprobs or body.return_token_ids)


def _lengths(token_ids: list[int], number: int, work: Work, first: bool) -> list[int]:
    """Characters that the tokens take in the text, after those of prompt `number` where it is echoed there."""
    skips, prompt = work.body.skip_special_tokens, work.prompts[number]
    generated = work.names.lengths(token_ids, skips)
    if not (first and work.body.echo):
        return generated
    return [*work.names.lengths(prompt.token_ids, skips, prompt.text if prompt.is_whole else None), *generated]


def _chunk_choice(piece: Piece, first: bool, offset: int, work: Work, answer: Answer) -> CompletionChoice:
    number = piece.choice // work.n
    prompt = work.prompts[number]
    told = Choice(token_ids=piece.token_ids, logprobs=piece.logprobs or [])
    return CompletionChoice(
        index=piece.choice,
        text=(prompt.text if first else "") + piece.text,
        logprobs=_logprobs(told, number, work, answer, echo=first and work.body.echo, offset=offset),
        finish_reason=piece.finish_reason,
        stop_reason=piece.stop_reason,
        token_ids=piece.token_ids if work.body.return_token_ids else UNSET,
        prompt_token_ids=prompt.token_ids if first and work.body.return_token_ids else UNSET,
    )


async def _whole(work: Work, answer: Answer) -> Response:
    """The answer once every choice has ended."""
    choices = await answer.choices()
    if work.echo_only:
        choices = [Choice(finish_reason=choice.finish_reason) for choice in choices]
        answer.tally.completion_tokens = 0
    return await scored_response(lambda: _completion(choices, work, answer), choices, answer.tally)


def _completion(choices: list[Choice], work: Work, answer: Answer) -> Completion:
    return Completion(
        id=work.head.id,
        created=work.head.created,
        model=work.head.model,
        system_fingerprint=work.head.system_fingerprint,
        choices=[_choice(index, choice, work, answer) for index, choice in enumerate(choices)],
        usage=work.usage.usage(answer.tally),
        metrics=request_metrics(answer.tally, len(choices), answer.served),
        warnings=work.head.warnings,
    )


def _choice(index: int, choice: Choice, work: Work, answer: Answer) -> CompletionChoice:
    number = index // work.n
    prompt, with_ids = work.prompts[number], work.body.return_token_ids
    scored = answer.tally.prompt_logprobs.get(number)
    asked = scored is not None and work.body.prompt_logprobs is not None
    return CompletionChoice(
        index=index,
        text=prompt.text + choice.text,
        logprobs=_logprobs(choice, number, work, answer, echo=work.body.echo, offset=0),
        finish_reason=choice.finish_reason,
        stop_reason=choice.stop_reason,
        token_ids=choice.token_ids if with_ids else None,
        prompt_logprobs=prompt_logprobs(scored or [], work.names) if asked else None,
        prompt_token_ids=prompt.token_ids if with_ids else None,
    )


def _logprobs(
    told: Choice, number: int, work: Work, answer: Answer, echo: bool, offset: int
) -> CompletionLogprobs | None:
    """Of the tokens told, after those of prompt `number` where it is echoed."""
    if work.body.logprobs is None:
        return None
    positions: list[wire.PositionLogprobs | None] = list(told.logprobs)
    token_ids, lengths = told.token_ids, _lengths(told.token_ids, number, work, echo)
    if echo:
        positions = [*answer.tally.prompt_logprobs.get(number, ()), *positions]
        token_ids = [*work.prompts[number].token_ids, *token_ids]
    return completion_logprobs(token_ids, positions, work.names, offset, lengths)
