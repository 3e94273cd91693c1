"""The engine's SamplingParams and the output's TextOptions, made from a request body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forearm.api.generation.request_bodies import CompletionRequest, GenerationBody
from forearm.errors import InvalidRequest
from forearm.text.tokenizer.bad_words import bad_words_token_ids
from forearm.text.tokenizer.detokenizer import TextOptions
from forearm.text.tokenizer.tokenizer import Tokenizer
from forearm.wire import RepetitionDetection, SamplingParams

_LOGIT_BIAS_LIMIT = 100.0  # OpenAI's bounds
# Fields whose default the model's generation_config.json or the operator may set.
_DEFAULTED = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_tokens",
)


@dataclass(frozen=True)
class AnswerConstraint:
    """The constraint on an answer, in fields of SamplingParams: a grammar, and a limit on reasoning tokens."""

    grammar: str | None = None
    grammar_after: tuple[int, ...] | None = None
    thinking_token_budget: int | None = None
    thinking_end: tuple[int, ...] | None = None


def sampling_params(
    body: GenerationBody,
    max_tokens: int | None,
    defaults: Mapping[str, Any],
    tokenizer: Tokenizer,
    constraint: AnswerConstraint,
    prompt_logprobs: int | None,
    more_stops: Sequence[int] = (),
) -> SamplingParams:
    """Return the engine's sampling parameters for a request. `max_tokens`: the result of max_tokens(), which the caller
    replaces for prompts of other lengths. more_stops: tokens that end the answer besides the request's own.
    """
    chosen: dict[str, Any] = {name: defaults[name] for name in _DEFAULTED if name in defaults}
    chosen.update({name: value for name in _DEFAULTED if (value := getattr(body, name)) is not None})
    bias, repetition = body.logit_bias, body.repetition_detection
    return SamplingParams(
        **chosen,
        **vars(constraint),
        max_tokens=max_tokens,
        seed=None if body.seed == -1 else body.seed,
        stop_token_ids=[*(body.stop_token_ids or ()), *more_stops] if more_stops else body.stop_token_ids,
        ignore_eos=body.ignore_eos,
        logprobs=body.logprob_count,
        prompt_logprobs=prompt_logprobs,
        logit_bias=bias and {token: min(max(v, -_LOGIT_BIAS_LIMIT), _LOGIT_BIAS_LIMIT) for token, v in bias.items()},
        allowed_token_ids=body.allowed_token_ids,
        bad_words_token_ids=bad_words_token_ids(tokenizer, body.bad_words or ()),
        logprob_token_ids=body.logprob_token_ids,
        repetition_detection=None if repetition is None else RepetitionDetection(**repetition.model_dump()),
    )


def text_options(body: GenerationBody, shown: frozenset[int] = frozenset()) -> TextOptions:
    """Return the options by which tokens become text. `shown`: special tokens that are kept in it."""
    return TextOptions(
        stop=body.stops,
        include_stop_str_in_output=body.include_stop_str_in_output,
        min_tokens=body.min_tokens or 0,
        skip_special_tokens=body.skip_special_tokens,
        spaces_between_special_tokens=body.spaces_between_special_tokens,
        shown=shown,
    )


def max_tokens(body: GenerationBody, prompt_tokens: int, context: int, limit: int | None) -> int | None:
    """Return the requested max_tokens, at most the operator's or the model's `limit`; None: what the context leaves.

    Raises: InvalidRequest.
    """
    if prompt_tokens >= context:
        raise InvalidRequest(
            f"This model's maximum context length is {context} tokens. However, your request has {prompt_tokens} "
            "input tokens. Please reduce the length of the input messages.",
            "prompt" if isinstance(body, CompletionRequest) else "messages",
        )
    asked = body.asked_max_tokens
    named = {"max_tokens", "max_completion_tokens"} & body.model_fields_set
    if not any(getattr(body, name) is not None for name in named):
        wanted = [tokens for tokens in (asked, limit) if tokens is not None]
        return min(*wanted, context - prompt_tokens, context) if wanted else None
    assert asked is not None
    name = "max_tokens" if getattr(body, "max_completion_tokens", None) is None else "max_completion_tokens"
    if asked < 1 and name == "max_completion_tokens":  # which the engine knows by its other name alone
        raise InvalidRequest(f"{name} is {asked}; it must be 1 or more", name)
    if prompt_tokens + asked > context:
        raise InvalidRequest(
            f"'max_tokens' or 'max_completion_tokens' is too large: {asked}. This model's maximum context length is "
            f"{context} tokens and your request has {prompt_tokens} input tokens "
            f"({asked} > {context} - {prompt_tokens}).",
            name,
        )
    if asked == 0 and isinstance(body, CompletionRequest):
        asked = 1  # only the prompt is wanted (echo); a step still generates one token, which is dropped
    return asked if limit is None else min(asked, limit)
