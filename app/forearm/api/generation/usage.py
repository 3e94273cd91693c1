"""What chat and completion answers have in common: their id and names, usage, and how a stream ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from msgspec import UNSET, UnsetType
from starlette.responses import Response

from forearm import wire
from forearm.api.generation.logprobs import TokenNames
from forearm.api.generation.output_stream import Tally
from forearm.api.generation.request_bodies import ChatRequest, GenerationBody
from forearm.api.generation.response_bodies import (
    CachedTokens,
    ChunkHead,
    DraftMetrics,
    ReasoningTokens,
    RequestMetrics,
    Usage,
    encoder,
)
from forearm.api.generation.serving_context import Served
from forearm.api.http.caller import Caller
from forearm.text.grammars.lark import warnings_of

_SCORED_AT_ONCE = 1000  # positions whose log-probabilities are written on the event loop: some 40 ms with five each


@dataclass(frozen=True)
class Heading:
    """Stands over an answer. The id is the client's own, where it (or its header) brought one.

    warnings: what was asked of the answer and is imposed in part, or not at all.
    """

    id: str
    created: int
    model: str
    system_fingerprint: str | None
    warnings: list[str] | UnsetType = UNSET

    def under(self, grammar: str | None) -> Heading:
        """The same over an answer that follows this grammar."""
        return replace(self, warnings=warnings_of(grammar) or UNSET)

    def of_chunks(self, kind: str) -> ChunkHead:
        """The same over every chunk of a stream."""
        return ChunkHead(
            id=self.id,
            object=kind,
            created=self.created,
            model=self.model,
            system_fingerprint=self.system_fingerprint,
            warnings=self.warnings,
        )


def heading(prefix: str, body: GenerationBody, caller: Caller, served: Served) -> Heading:
    """Raises: ModelNotFound."""
    model = served.model_name(body.model)
    return Heading(f"{prefix}-{body.request_id or caller.request_id}", int(time.time()), model, served.fingerprint)


@dataclass(frozen=True)
class UsagePlan:
    """When a stream tells its usage: at the end, or with every chunk too; and whether cached tokens are told."""

    at_end: bool
    always: bool
    cached: bool
    reasoning: bool  # whether its tokens are counted

    def usage(self, tally: Tally) -> Usage:
        """What the answer has taken so far, in tokens."""
        return Usage(
            prompt_tokens=tally.prompt_tokens,
            total_tokens=tally.prompt_tokens + tally.completion_tokens,
            completion_tokens=tally.completion_tokens,
            prompt_tokens_details=CachedTokens(cached_tokens=tally.cached_tokens) if self.cached else None,
            completion_tokens_details=ReasoningTokens(reasoning_tokens=tally.reasoning_tokens)
            if self.reasoning
            else UNSET,
        )

    def with_chunk(self, tally: Tally) -> Usage | None:
        """What goes into a chunk."""
        return self.usage(tally) if self.always else None


def usage_plan(body: GenerationBody, served: Served) -> UsagePlan:
    """As the request's stream_options and the server's flags have it."""
    options, config = body.stream_options, served.config
    asked = options is not None and options.include_usage
    return UsagePlan(
        at_end=asked or config.force_include_usage,
        always=config.force_include_usage
        or (options is not None and options.include_usage and options.continuous_usage_stats),
        cached=config.prompt_tokens_details,
        reasoning=isinstance(body, ChatRequest) and served.dialect.reasoning is not None,
    )


def request_metrics(tally: Tally, choices: int, served: Served) -> RequestMetrics | UnsetType:
    """The answer's times, and what was guessed ahead, where the server tells them: of answers with one choice."""
    config = served.config
    drafts = DraftMetrics.of(tally.drafts) if config.per_request_spec_decode_metrics == "summary" else None
    if choices != 1 or tally.first_s is None or tally.last_s is None:
        return UNSET
    if not config.per_request_metrics:
        return UNSET if drafts is None else RequestMetrics(speculative_decoding=drafts)
    generation_s, later = tally.last_s - tally.first_s, tally.completion_tokens - 1
    computed_s = tally.last_s - tally.begun_s - tally.queue_s  # the prompt's time is in it, as in vLLM
    return RequestMetrics(
        time_to_first_token_ms=1e3 * (tally.first_s - tally.begun_s),
        generation_time_ms=1e3 * generation_s,
        queue_time_ms=1e3 * tally.queue_s,
        mean_itl_ms=1e3 * generation_s / later if later > 0 else UNSET,
        tokens_per_second=tally.completion_tokens / computed_s if computed_s > 0 else UNSET,
        speculative_decoding=drafts,
    )


def token_names(body: GenerationBody, served: Served) -> TokenNames:
    """How this request's log-probabilities write tokens."""
    asked = body.return_tokens_as_token_ids
    return TokenNames(served.tokenizer, served.config.tokens_as_token_ids if asked is None else asked)


def json_response(reply: object) -> Response:
    """A whole answer."""
    return Response(encoder.encode(reply), media_type="application/json")


class Scored(Protocol):
    """A choice with the log-probabilities of its tokens."""

    logprobs: list[wire.PositionLogprobs]


async def scored_response(write: Callable[[], object], choices: Sequence[Scored], tally: Tally) -> Response:
    """A whole answer, as `write` makes it: on a thread if so many log-probabilities would hold up other requests."""
    scored = sum(map(len, tally.prompt_logprobs.values())) + sum(len(choice.logprobs) for choice in choices)
    if scored < _SCORED_AT_ONCE:
        return json_response(write())
    return await asyncio.to_thread(lambda: json_response(write()))
