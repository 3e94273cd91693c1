"""Refusals by admission, which name field, value and remedy."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.unit.engine.client import Client

from forearm.engine.scheduler import StepLimits
from forearm.wire import RepetitionDetection


def test_a_prompt_that_can_never_fit_is_refused_with_the_numbers() -> None:
    client = Client()

    client.submit("long", [1] * 250, max_tokens=10)
    client.submit("longer", [1] * 256, max_tokens=None)
    client.submit("fits", [1] * 250, max_tokens=None, temperature=0)
    client.finish()

    assert client.refused["long"].message == (
        "prompt has 250 tokens; max_tokens is 10; together 260; the context is 256"
    )
    assert client.refused["long"].error == "InvalidRequest"
    assert client.refused["longer"].message.startswith("prompt has 256 tokens; the context is 256")
    assert len(client.tokens("fits")) == 6


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": math.nan}, "temperature is nan; it must be between 0.0 and 2.0"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": 2.1}, "temperature is 2.1; it must be between 0.0 and 2.0"),
        ({"top_p": 0.0}, "top_p is 0; it must be above 0"),
        ({"top_k": -2}, "top_k is -2; it must be -1 or more"),
        ({"min_p": 1.5}, "min_p is 1.5; it must be between 0.0 and 1.0"),
        ({"presence_penalty": 3.0}, "presence_penalty is 3.0"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0"),
        ({"temperature": 1e300}, "temperature is 1e+300"),
        ({"logit_bias": {5: math.nan}}, "logit_bias has a value that is not a number"),
        ({"n": 0}, "n is 0; it must be between 1 and 16384"),
        ({"n": 2, "temperature": 0.0}, "n is 2 with temperature 0"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens is 9; max_tokens is 8"),
        ({"allowed_token_ids": []}, "allowed_token_ids is empty"),
        (
            {"allowed_token_ids": [3, 4], "bad_words_token_ids": ((3,),), "stop_token_ids": [4], "min_tokens": 1},
            "allowed_token_ids leaves nothing to choose",
        ),
        ({"logit_bias": {50: 1.0}}, "logit_bias has token id 50; the vocabulary has 50 tokens"),
        ({"stop_token_ids": [-1]}, "stop_token_ids has token id -1"),
        ({"logprobs": -2}, "logprobs is -2"),
        ({"logprobs": -1}, "logprobs is -1; at most 20 alternatives may be asked for"),
        ({"prompt_logprobs": 21}, "prompt_logprobs is 21; at most 20 alternatives may be asked for"),
        ({"logprob_token_ids": [1]}, "logprob_token_ids needs logprobs"),
        ({"logprob_token_ids": [], "logprobs": 0}, "logprob_token_ids has 0 ids; it must have 1 to 128"),
        ({"logprob_token_ids": [50], "logprobs": 0}, "logprob_token_ids has token id 50"),
        (
            {"repetition_detection": RepetitionDetection(max_pattern_size=2000)},
            "repetition_detection.max_pattern_size is 2000; it must be between 1 and 1024",
        ),
        (
            {"repetition_detection": RepetitionDetection(max_pattern_size=2, min_pattern_size=3)},
            "repetition_detection.min_pattern_size is 3; it must be between 0 and 2",
        ),
        (
            {"repetition_detection": RepetitionDetection(max_pattern_size=2, min_count=1)},
            "repetition_detection.min_count is 1; it must be between 2 and 1048576",
        ),
        (
            {"repetition_detection": RepetitionDetection(max_pattern_size=1000, min_count=1 << 60)},
            "repetition_detection.min_count is 1152921504606846976; it must be between 2 and 1048576",
        ),
        ({"grammar_after": (1,)}, "grammar_after needs grammar"),
        ({"grammar_after": (50,), "grammar": "start: /a/"}, "grammar_after has token id 50"),
        ({"thinking_end": (1,)}, "thinking_end needs thinking_token_budget"),
        ({"thinking_end": (), "thinking_token_budget": 1}, "thinking_end has 0 tokens; it must have 1 to 64"),
        ({"thinking_token_budget": 5}, "thinking_token_budget needs a model with a known reasoning format"),
        ({"thinking_token_budget": -1}, "thinking_token_budget is -1; it must be 0 or more"),
    ],
)
def test_a_field_out_of_range_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    client = Client()

    client.submit("a", [1], **fields)

    refused = client.refused["a"]
    assert refused.error == "InvalidRequest"
    assert refused.message.startswith(message)
    assert refused.param == next(iter(fields))
    assert not client.loop.busy


def test_the_whole_vocabulary_may_be_asked_for_where_so_many_alternatives_may() -> None:
    client = Client(alternatives=50)

    client.submit("a", [1], logprobs=-1, max_tokens=1)
    client.finish()

    assert client.outputs["a", 0].finish_reason == "length"


def test_the_chosen_token_is_among_the_alternatives_that_are_named() -> None:
    client = Client()

    client.submit(
        "a", [1], logprobs=0, logprob_token_ids=[9, 4], allowed_token_ids=[4, 7], logit_bias={7: 50.0}, max_tokens=1
    )
    client.submit("b", [1], logprobs=0, logprob_token_ids=[9, 4], allowed_token_ids=[4], max_tokens=1)
    client.finish()

    def ids(name: str) -> list[int]:
        (message,) = client.outputs[name, 0].messages
        return [one.token_id for one in message.logprobs[0]]

    assert ids("a") == [7, 7, 9, 4]
    assert ids("b") == [4, 4, 9], "once"


@pytest.mark.parametrize("prompt", [[], [50], [3, -1]])
def test_a_prompt_without_tokens_or_with_unknown_ones_is_refused(prompt: list[int]) -> None:
    client = Client()

    client.submit("a", prompt)

    assert client.refused["a"].param == "prompt"


def test_a_full_queue_refuses_the_next_request_and_says_when_to_come_back() -> None:
    client = Client(limits=StepLimits(8, 2, 2), queued=1)
    for name in "abc":
        client.submit(name, [1], max_tokens=20)
    client.step()

    client.submit("d", [1])

    assert client.refused.keys() == {"d"}
    refused = client.refused["d"]
    assert (refused.error, refused.message) == ("Overloaded", "1 requests are waiting; the limit is 1")
    assert refused.retry_after_s >= 1


def test_outputs_that_wait_have_an_end_too() -> None:
    client = Client(limits=StepLimits(8, 2, 2), queued=16000)
    client.submit("a", [1], n=16000)

    client.submit("b", [1], n=1000)

    assert client.refused.keys() == {"b"}
    assert client.refused["b"].message == "16000 outputs are waiting, 1000 more are asked for; the limit is 16384"


def test_more_outputs_of_one_request_than_can_run_and_wait_are_its_own_mistake() -> None:
    client = Client(limits=StepLimits(8, 2, 2), queued=100)

    client.submit("a", [1], n=103)
    client.submit("b", [1], n=102)

    refused = client.refused["a"]
    assert (refused.error, refused.param) == ("InvalidRequest", "n")
    assert refused.message == (
        "n is 103; at most 102 outputs can run and wait (--max-num-seqs 2, --max-num-queued-reqs 100)"
    )
    assert client.refused.keys() == {"a"}


def test_priority_needs_its_policy() -> None:
    client = Client()

    client.submit("a", [1], priority=1)

    assert client.refused["a"].message == "priority is 1; it needs --scheduling-policy priority"
