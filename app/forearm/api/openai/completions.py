"""POST /v1/completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

from fastapi import APIRouter, Request
from msgspec import UNSET
from msgspec.structs import replace as replace_params
from starlette.responses import Response

from forearm import wire
from forearm.api.generation.dependencies import CompletionBody, service
from forearm.api.generation.logprobs import TokenNames, completion_logprobs, prompt_logprobs
from forearm.api.generation.output_stream import OutputStream, OutputStreams, spaced
from forearm.api.generation.prompt import PromptRenderer, check_total
from forearm.api.generation.reasoning_constraints import AnswerConstraints
from forearm.api.generation.request_bodies import CompletionRequest
from forearm.api.generation.response_bodies import Completion, CompletionChoice, CompletionLogprobs, encoder
from forearm.api.generation.sampling_params import max_tokens, sampling_params, text_options
from forearm.api.generation.served_model import Heading, ServedModel
from forearm.api.generation.sse import Chunks, EventStream, unless_gone
from forearm.api.generation.unsupported import ClientWarnings, check_completion
from forearm.api.generation.usage import (
    UsagePlan,
    request_metrics,
    scored_response,
    token_names,
    usage_plan,
)
from forearm.api.http.caller import Caller, caller_of
from forearm.api.http.request_body import BodyDescription
from forearm.config.api_config import ApiConfig
from forearm.errors import InvalidRequest
from forearm.text.outputs import Choice, OutputReader
from forearm.text.tokenizer.fill_in_middle import Infill, infill_of

router = APIRouter()


@dataclass(frozen=True)
class CompletionPrompt:
    """One prompt of a request; `text` is set only if it is echoed. is_whole: `text` is the request's own."""

    token_ids: list[int]
    max_tokens: int | None
    text: str = ""
    is_whole: bool = False


@dataclass(frozen=True)
class OpenCompletion:
    """One request that is tokenized and submitted."""

    body: CompletionRequest
    head: Heading
    prompts: list[CompletionPrompt]
    n: int
    names: TokenNames
    usage: UsagePlan
    config: ApiConfig

    @property
    def echo_only(self) -> bool:
        """Return whether max_tokens is 0: the one token that a step must generate is not shown."""
        return self.body.max_tokens == 0


class ServingCompletion:
    """Submits completions to the engine."""

    def __init__(
        self,
        config: ApiConfig,
        model: ServedModel,
        prompts: PromptRenderer,
        constraints: AnswerConstraints,
        defaults: Mapping[str, Any],
        streams: OutputStreams,
        warnings: ClientWarnings,
    ) -> None:
        self._config = config
        self._model = model
        self._prompts = prompts
        self._constraints = constraints
        self._defaults = defaults
        self._streams = streams
        self._warnings = warnings

    async def begin(self, body: CompletionRequest, caller: Caller) -> tuple[OpenCompletion, OutputStream]:
        """Check a request, tokenize its prompts and submit them to the engine.

        Raises: InvalidRequest, ModelNotFound, Overloaded, EngineUnavailable.
        """
        config, tokenizer = self._config, self._prompts.tokenizer
        check_completion(body, config, tokenizer.vocab_size)
        self._warnings.unknown_fields(body.model_extra)
        head = self._model.heading("cmpl", body, caller)
        infill = None if body.suffix is None else self._fill_in_middle
        if body.suffix is not None and infill is None:
            raise InvalidRequest(
                "suffix is only supported for models with FIM completion; this model's tokenizer has no tokens for it",
                "suffix",
            )
        given = _prompts(body)
        characters = sum(len(prompt) for prompt in given if isinstance(prompt, str))
        prompts, tokens = list[CompletionPrompt](), 0
        for prompt in given:
            prompts.append(await self._prompt(prompt, characters, body, infill))
            tokens += len(prompts[-1].token_ids)
            check_total(tokens)
        constraint = await self._constraints.of_format(body)
        scores = body.logprobs if body.echo and body.logprobs is not None else body.prompt_logprobs
        # A middle ends where the model would begin another file.
        stops = () if infill is None else infill.stops
        first = sampling_params(body, prompts[0].max_tokens, self._defaults, tokenizer, constraint, scores, stops)
        params = [replace_params(first, max_tokens=prompt.max_tokens) for prompt in prompts]
        token_ids = [prompt.token_ids for prompt in prompts]
        texts = text_options(body)
        readers = [OutputReader(tokenizer, prompt, texts) for prompt in token_ids for _ in range(first.n)]
        answer = await self._streams.open(body, token_ids, params, readers, caller)
        names, usage = token_names(body, tokenizer, config), usage_plan(body, config, reasoning=False)
        return OpenCompletion(body, head.under(constraint.grammar), prompts, first.n, names, usage, config), answer

    async def _prompt(
        self, prompt: str | list[int], characters: int, body: CompletionRequest, infill: Infill | None
    ) -> CompletionPrompt:
        """Return a prompt as token ids. `characters`: of all prompts of the request.

        Raises: InvalidRequest; a prompt that does not fit is refused before the next one is tokenized.
        """
        prompts = self._prompts
        asked = await prompts.encode(prompt, body.add_special_tokens, characters) if isinstance(prompt, str) else prompt
        if infill is not None and body.suffix is not None:
            prompts.check_length(body.suffix)
            asked = await asyncio.to_thread(infill.prompt, asked, body.suffix)
        token_ids = prompts.truncated(asked, body)
        if not token_ids:
            raise InvalidRequest("prompt has no tokens; write at least one", "prompt")
        limit = max_tokens(body, len(token_ids), prompts.context, self._defaults.get("max_tokens"))
        if not body.echo:
            return CompletionPrompt(token_ids, limit)
        if isinstance(prompt, str) and len(token_ids) == len(asked):
            return CompletionPrompt(token_ids, limit, prompt, is_whole=True)
        return CompletionPrompt(token_ids, limit, prompts.tokenizer.decode(token_ids, body.skip_special_tokens))

    @cached_property
    def _fill_in_middle(self) -> Infill | None:
        return infill_of(self._prompts.tokenizer)


@router.post("/v1/completions", openapi_extra=BodyDescription(CompletionRequest))
async def create_completion(
    request: Request, body: CompletionBody, completion: Annotated[ServingCompletion, service("completion")]
) -> Response:
    """Go on from one or more prompts, whole or as a stream of server-sent events.

    Raises: InvalidRequest (400), ModelNotFound (404), Overloaded (429) or EngineUnavailable (503), all before the
    first byte.
    """
    work, answer = await completion.begin(body, caller_of(request.scope))
    if body.stream:
        return EventStream(_events(work, answer), answer.close, work.config.sse_keep_alive_interval_s)
    try:
        return await unless_gone(request, _whole(work, answer))
    finally:
        answer.close()


def _prompts(body: CompletionRequest) -> list[str] | list[list[int]]:
    """Return the prompts: texts, or token ids. Raises: InvalidRequest."""
    prompt = body.prompt
    if prompt is None or (not prompt and isinstance(prompt, list)):
        raise InvalidRequest("prompt is required and must not be empty", "prompt")
    if isinstance(prompt, str):
        return [prompt]
    return [prompt] if isinstance(prompt[0], int) else prompt


async def _events(work: OpenCompletion, answer: OutputStream) -> AsyncIterator[bytes]:
    """Yield the stream's events: an echo comes with a choice's first piece, usage comes last, if wanted."""
    chunks, tally = Chunks(work.head.of_chunks("text_completion")), answer.tally
    ends: dict[int, int] = {}  # by choice: length of its text so far, in characters
    async for piece in spaced(answer.pieces(), work.body.stream_interval):
        shown = replace(piece, parts=[], token_ids=[], logprobs=None) if work.echo_only else piece
        first = piece.choice not in ends
        if first:
            ends[piece.choice] = 0
        told = shown.text or shown.finish_reason or shown.logprobs or work.body.return_token_ids
        if told or (first and work.body.echo):
            number, part = piece.choice // work.n, Choice(token_ids=shown.token_ids, logprobs=shown.logprobs or [])
            prompt, with_ids, echo = work.prompts[number], work.body.return_token_ids, first and work.body.echo
            choice = CompletionChoice(
                index=piece.choice,
                text=(prompt.text if first else "") + piece.text,
                logprobs=_logprobs(part, number, work, answer, echo=echo, offset=ends[piece.choice]),
                finish_reason=piece.finish_reason,
                stop_reason=piece.stop_reason,
                token_ids=shown.token_ids if with_ids else UNSET,
                prompt_token_ids=prompt.token_ids if first and with_ids else UNSET,
            )
            yield chunks.chunk(choice, work.usage.with_chunk(tally))
            if choice.logprobs is not None:
                ends[piece.choice] += sum(_lengths(shown.token_ids, number, work, first))
    if work.echo_only:
        tally.completion_tokens = 0
    if work.usage.at_end:
        metrics = request_metrics(tally, len(ends), work.config)
        extra = b"" if metrics is UNSET else b',"metrics":' + encoder.encode(metrics)
        yield chunks.chunk(None, work.usage.usage(tally), extra)


def _lengths(token_ids: list[int], number: int, work: OpenCompletion, first: bool) -> list[int]:
    """Return the characters of each token in the text, after those of prompt `number` if it is echoed."""
    skips, prompt = work.body.skip_special_tokens, work.prompts[number]
    generated = work.names.lengths(token_ids, skips)
    if not (first and work.body.echo):
        return generated
    return [*work.names.lengths(prompt.token_ids, skips, prompt.text if prompt.is_whole else None), *generated]


async def _whole(work: OpenCompletion, answer: OutputStream) -> Response:
    """Return the answer once every choice has ended."""
    choices = await answer.choices()
    if work.echo_only:
        choices = [Choice(finish_reason=choice.finish_reason) for choice in choices]
        answer.tally.completion_tokens = 0
    return await scored_response(lambda: _completion(choices, work, answer), choices, answer.tally)


def _completion(choices: list[Choice], work: OpenCompletion, answer: OutputStream) -> Completion:
    return Completion(
        id=work.head.id,
        created=work.head.created,
        model=work.head.model,
        system_fingerprint=work.head.system_fingerprint,
        choices=[_choice(index, choice, work, answer) for index, choice in enumerate(choices)],
        usage=work.usage.usage(answer.tally),
        metrics=request_metrics(answer.tally, len(choices), work.config),
        warnings=work.head.warnings,
    )


def _choice(index: int, choice: Choice, work: OpenCompletion, answer: OutputStream) -> CompletionChoice:
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
    told: Choice, number: int, work: OpenCompletion, answer: OutputStream, echo: bool, offset: int
) -> CompletionLogprobs | None:
    """Return the log-probabilities of a choice or piece, after those of prompt `number` if it is echoed."""
    if work.body.logprobs is None:
        return None
    positions: list[wire.PositionLogprobs | None] = list(told.logprobs)
    token_ids, lengths = told.token_ids, _lengths(told.token_ids, number, work, echo)
    if echo:
        positions = [*answer.tally.prompt_logprobs.get(number, ()), *positions]
        token_ids = [*work.prompts[number].token_ids, *token_ids]
    return completion_logprobs(token_ids, positions, work.names, offset, lengths)
