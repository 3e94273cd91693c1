"""Validation of SamplingParams: a parameter out of range is refused with its name, value and range."""

from __future__ import annotations

import math

from forearm.errors import InvalidRequest
from forearm.wire import SAMPLING_RANGES, SamplingParams, range_missed

MAX_LOGPROB_TOKEN_IDS = 128  # vLLM's limit
MAX_PATTERN_TOKENS = 1024  # searched for at every token
MAX_PATTERN_COUNT = 1 << 20  # longer than any context
MAX_GRAMMAR_CHARACTERS = 1 << 20
MAX_MARK_TOKENS = 64  # length of grammar_after and thinking_end


def check(params: SamplingParams, vocab_size: int) -> None:
    """Check all parameters. Raises: InvalidRequest naming the first that is out of range, its value and its range."""
    check_ranges(params)
    if not all(params.bad_words_token_ids):
        raise InvalidRequest("bad_words has an empty word", "bad_words")
    for name, ids in (
        ("logit_bias", params.logit_bias),
        ("allowed_token_ids", params.allowed_token_ids),
        ("stop_token_ids", params.stop_token_ids),
        ("logprob_token_ids", params.logprob_token_ids),
        ("grammar_after", params.grammar_after),
        ("thinking_end", params.thinking_end),
        *(("bad_words", word) for word in params.bad_words_token_ids),
    ):
        for token in ids or ():
            if not 0 <= token < vocab_size:
                raise InvalidRequest(f"{name} has token id {token}; the vocabulary has {vocab_size} tokens", name)


def check_ranges(params: SamplingParams) -> None:
    """Check the parameters that need no knowledge of the model: one after the other, each on its own.

    Raises: InvalidRequest.
    """
    for name in SAMPLING_RANGES:
        value = getattr(params, name)
        if value is not None and (remedy := range_missed(name, value)):
            raise InvalidRequest(f"{name} is {value}; it must be {remedy}", name)
    if params.top_p == 0:
        raise InvalidRequest("top_p is 0; it must be above 0", "top_p")
    if params.n > 1 and params.temperature == 0:
        raise InvalidRequest(f"n is {params.n} with temperature 0; greedy outputs would all be equal", "n")
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise InvalidRequest(f"min_tokens is {params.min_tokens}; max_tokens is {params.max_tokens}", "min_tokens")
    if params.logit_bias and not all(math.isfinite(bias) for bias in params.logit_bias.values()):
        raise InvalidRequest("logit_bias has a value that is not a number", "logit_bias")
    if params.allowed_token_ids is not None and not params.allowed_token_ids:
        raise InvalidRequest("allowed_token_ids is empty; nothing could be generated", "allowed_token_ids")
    if params.logprob_token_ids is not None:
        count, name = len(params.logprob_token_ids), "logprob_token_ids"
        if params.logprobs is None:
            raise InvalidRequest(f"{name} needs logprobs", name)
        if not 1 <= count <= MAX_LOGPROB_TOKEN_IDS:
            raise InvalidRequest(f"{name} has {count} ids; it must have 1 to {MAX_LOGPROB_TOKEN_IDS}", name)
    if (sought := params.repetition_detection) is not None:
        for name, low, high in (
            ("max_pattern_size", 1, MAX_PATTERN_TOKENS),
            ("min_pattern_size", 0, sought.max_pattern_size),
            ("min_count", 2, MAX_PATTERN_COUNT),
        ):
            value = getattr(sought, name)
            if not low <= value <= high:
                raise InvalidRequest(
                    f"repetition_detection.{name} is {value}; it must be between {low} and {high}",
                    "repetition_detection",
                )
    _check_constraints(params)


def _check_constraints(params: SamplingParams) -> None:
    if params.grammar is not None and not 1 <= len(params.grammar) <= MAX_GRAMMAR_CHARACTERS:
        raise InvalidRequest(
            f"the grammar has {len(params.grammar)} characters; it must have 1 to {MAX_GRAMMAR_CHARACTERS}",
            "structured_outputs",
        )
    for name, needs in (("grammar_after", "grammar"), ("thinking_end", "thinking_token_budget")):
        mark = getattr(params, name)
        if mark is None:
            continue
        if getattr(params, needs) is None:
            raise InvalidRequest(f"{name} needs {needs}", name)
        if not 1 <= len(mark) <= MAX_MARK_TOKENS:
            raise InvalidRequest(f"{name} has {len(mark)} tokens; it must have 1 to {MAX_MARK_TOKENS}", name)
    if params.thinking_token_budget is not None and params.thinking_end is None:
        raise InvalidRequest(
            "thinking_token_budget needs a model with a known reasoning format (--reasoning-parser)",
            "thinking_token_budget",
        )
