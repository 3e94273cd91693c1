"""Usage and metrics of chat and completion answers, and whole answers as HTTP responses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from msgspec import UNSET, UnsetType
from starlette.responses import Response

from forearm.api.generation.logprobs import TokenNames
from forearm.api.generation.output_stream import Tally
from forearm.api.generation.request_bodies import GenerationBody
from forearm.api.generation.response_bodies import (
    AnswerMetrics,
    CachedTokens,
    DraftMetrics,
    ReasoningTokens,
    Usage,
    encoder,
)
from forearm.config.api_config import ApiConfig
from forearm.text.outputs import Choice
from forearm.text.tokenizer.tokenizer import Tokenizer

Written = TypeVar("Written")
_SCORED_AT_ONCE = 1000  # positions whose log-probabilities are encoded on the event loop: about 40 ms with five each


@dataclass(frozen=True)
class UsagePlan:
    """The plan of a stream's usage: at the end, or with every chunk too; with or without cached tokens."""

    at_end: bool
    always: bool
    cached: bool
    reasoning: bool  # whether reasoning tokens are counted

    def usage(self, tally: Tally) -> Usage:
        """Return the usage of the answer so far, in tokens."""
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
        """Return the usage that a chunk has; None if only the end of the stream reports it."""
        return self.usage(tally) if self.always else None


def usage_plan(body: GenerationBody, config: ApiConfig, reasoning: bool) -> UsagePlan:
    """Return the plan by stream_options and the server's flags. `reasoning`: whether reasoning tokens are counted."""
    options = body.stream_options
    asked = options is not None and options.include_usage
    return UsagePlan(
        at_end=asked or config.force_include_usage,
        always=config.force_include_usage
        or (options is not None and options.include_usage and options.continuous_usage_stats),
        cached=config.prompt_tokens_details,
        reasoning=reasoning,
    )


def request_metrics(tally: Tally, choices: int, config: ApiConfig) -> AnswerMetrics | UnsetType:
    """Return times and draft metrics of an answer with one choice, if the server reports them."""
    drafts = DraftMetrics.of(tally.drafts) if config.per_request_spec_decode_metrics == "summary" else None
    if choices != 1 or tally.first_s is None or tally.last_s is None:
        return UNSET
    if not config.per_request_metrics:
        return UNSET if drafts is None else AnswerMetrics(speculative_decoding=drafts)
    generation_s, later = tally.last_s - tally.first_s, tally.completion_tokens - 1
    computed_s = tally.last_s - tally.begun_s - tally.queue_s  # includes the prompt's time, as in vLLM
    return AnswerMetrics(
        time_to_first_token_ms=1e3 * (tally.first_s - tally.begun_s),
        generation_time_ms=1e3 * generation_s,
        queue_time_ms=1e3 * tally.queue_s,
        mean_itl_ms=1e3 * generation_s / later if later > 0 else UNSET,
        tokens_per_second=tally.completion_tokens / computed_s if computed_s > 0 else UNSET,
        speculative_decoding=drafts,
    )


def token_names(body: GenerationBody, tokenizer: Tokenizer, config: ApiConfig) -> TokenNames:
    """Return the names of tokens for this request's log-probabilities."""
    asked = body.return_tokens_as_token_ids
    return TokenNames(tokenizer, config.tokens_as_token_ids if asked is None else asked)


def json_response(reply: object) -> Response:
    """Return a whole answer as an HTTP response."""
    return Response(encoder.encode(reply), media_type="application/json")


async def scored_response(write: Callable[[], object], choices: Sequence[Choice], tally: Tally) -> Response:
    """Return the answer that `write` makes, on a thread if its log-probabilities would delay other requests."""
    scored = sum(map(len, tally.prompt_logprobs.values())) + sum(len(choice.logprobs) for choice in choices)
    return await written(lambda: json_response(write()), scored)


async def written(write: Callable[[], Written], scored: int) -> Written:
    """Return what `write` makes, on a thread if `scored` positions' log-probabilities would delay other requests."""
    return write() if scored < _SCORED_AT_ONCE else await asyncio.to_thread(write)
