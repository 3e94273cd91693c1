"""From a request body to what the engine gets (SamplingParams) and what becomes of its tokens (TextOptions)."""

from __future__ import annotations

from typing import Any

from forearm.api.generation.request_bodies import CompletionRequest, GenerationBody
from forearm.api.generation.serving_context import Served
from forearm.errors import InvalidRequest
from forearm.text.tokenizer.bad_words import bad_words_token_ids
from forearm.text.tokenizer.detokenizer import TextOptions
from forearm.wire import RepetitionDetection, SamplingParams

_LOGIT_BIAS_LIMIT = 100.0  # OpenAI's bounds
# The model's authors (generation_config.json) or the operator may have a default for these.
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


def sampling_params(
    body: GenerationBody, served: Served, prompt_tokens: int, prompt_logprobs: int | None, grammar: str | None
) -> SamplingParams:
    """How the engine goes on from a prompt of this length. `grammar`: of answer_grammar().

    Raises: InvalidRequest naming the field and the numbers.
    """
    chosen: dict[str, Any] = {name: served.defaults[name] for name in _DEFAULTED if name in served.defaults}
    chosen.update({name: value for name in _DEFAULTED if (value := getattr(body, name)) is not None})
    return SamplingParams(
        **chosen,
        max_tokens=max_tokens(body, served, prompt_tokens),
        seed=None if body.seed == -1 else body.seed,
        stop_token_ids=body.stop_token_ids,
        ignore_eos=body.ignore_eos,
        logprobs=body.logprob_count,
        prompt_logprobs=prompt_logprobs,
        logit_bias=_clamped(body.logit_bias),
        allowed_token_ids=body.allowed_token_ids,
        bad_words_token_ids=bad_words_token_ids(served.tokenizer, body.bad_words or ()),
        grammar=grammar,
        logprob_token_ids=body.logprob_token_ids,
        repetition_detection=_repetition(body),
    )


def text_options(body: GenerationBody) -> TextOptions:
    """How tokens become text."""
    return TextOptions(
        stop=body.stops,
        include_stop_str_in_output=body.include_stop_str_in_output,
        min_tokens=body.min_tokens or 0,
        skip_special_tokens=body.skip_special_tokens,
        spaces_between_special_tokens=body.spaces_between_special_tokens,
    )


def max_tokens(body: GenerationBody, served: Served, prompt_tokens: int) -> int | None:
    """What was asked for, at most the operator's or the model's limit; None: what the context leaves.

    Raises: InvalidRequest.
    """
    context = served.engine.state.max_model_len
    if prompt_tokens >= context:
        raise InvalidRequest(
            f"This model's maximum context length is {context} tokens. However, your request has {prompt_tokens} "
            "input tokens. Please reduce the length of the input messages.",
            "prompt" if isinstance(body, CompletionRequest) else "messages",
        )
    asked, limit = body.asked_max_tokens, served.defaults.get("max_tokens")
    named = {"max_tokens", "max_completion_tokens"} & body.model_fields_set
    if not any(getattr(body, name) is not None for name in named):
        wanted = [tokens for tokens in (asked, limit) if tokens is not None]
        return min(*wanted, context - prompt_tokens, context) if wanted else None
    assert asked is not None
    if prompt_tokens + asked > context:
        raise InvalidRequest(
            f"'max_tokens' or 'max_completion_tokens' is too large: {asked}. This model's maximum context length is "
            f"{context} tokens and your request has {prompt_tokens} input tokens "
            f"({asked} > {context} - {prompt_tokens}).",
            "max_completion_tokens" if "max_completion_tokens" in body.model_fields_set else "max_tokens",
        )
    if asked == 0 and isinstance(body, CompletionRequest):
        asked = 1  # only the prompt is wanted (echo); it takes a step all the same, whose token is dropped
    return asked if limit is None else min(asked, limit)


def _repetition(body: GenerationBody) -> RepetitionDetection | None:
    asked = body.repetition_detection
    return None if asked is None else RepetitionDetection(**asked.model_dump())


def _clamped(bias: dict[int, float] | None) -> dict[int, float] | None:
    if bias is None:
        return None
    return {token: min(max(value, -_LOGIT_BIAS_LIMIT), _LOGIT_BIAS_LIMIT) for token, value in bias.items()}
