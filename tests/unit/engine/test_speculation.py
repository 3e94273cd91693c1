"""Drafts make steps fewer and change nothing else; which of them are taken is learnt from what they bring."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest
from tests.history_executor import HistoryExecutor
from tests.unit.engine.client import Client, Output, expected
from tests.unit.engine.teller import told

from forearm.engine.metrics.step_times import StepTimes
from forearm.engine.scheduler import StepLimits
from forearm.engine.speculation.draft_length import DraftAccuracy, Gain
from forearm.engine.speculation.ngrams import Index, Ngrams
from forearm.engine.speculation.speculation import Speculation

PROMPT = [1, 2, 3]
WIDE = StepLimits(64, 8, 40)  # rows for drafts as well


def answers(speculation: Speculation | None, limits: StepLimits = WIDE, **fields: Any) -> tuple[Output, int, Client]:
    """Return the answer of a request, and the number of steps."""
    client = Client(limits=limits, speculation=speculation, eos_token_ids=fields.pop("eos_token_ids", ()))
    client.submit("a", PROMPT, **fields)
    client.finish()
    return client.outputs["a", 0], len(client.executor.steps), client


def test_drafts_that_are_right_make_one_step_of_several() -> None:
    output, steps, client = answers(told(1.0, tokens=4), temperature=0, max_tokens=21)

    assert output.token_ids == expected(PROMPT, 21)
    assert steps == 5  # the prompt's token and four drafts, four times; then one that completes 21
    assert [len(message.token_ids) for message in output.messages] == [5, 5, 5, 5, 1]
    assert client.metric("vllm:spec_decode_num_drafts_total{") == 4
    assert client.metric("vllm:spec_decode_num_draft_tokens_total{") == 16
    assert client.metric("vllm:spec_decode_num_accepted_tokens_total{") == 16
    assert (
        client.metric('vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="3"') == 4
    )


def test_drafts_that_are_wrong_cost_rows_and_change_nothing() -> None:
    output, steps, client = answers(told(0.0, tokens=4), temperature=0, max_tokens=21)

    assert output.token_ids == expected(PROMPT, 21)
    assert steps == 21
    assert client.metric("vllm:spec_decode_num_accepted_tokens_total{") == 0


@pytest.mark.parametrize("rightness", [0.0, 0.5, 0.8, 1.0])
@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0, "logprobs": 3},
        {"temperature": 1.0, "seed": 5, "logprobs": 0},
        {"temperature": 0, "min_tokens": 20, "stop_token_ids": list(range(25, 50))},
        {"temperature": 0, "bad_words_token_ids": ((17,), (4, 5), (10, 11, 12), (3, 8), (8, 3), (40, 41), (22, 5))},
        {"temperature": 0.7, "seed": 1, "logit_bias": {3: 4.0, 8: 4.0}, "bad_words_token_ids": ((3, 8), (8, 3, 3))},
        {"temperature": 0, "allowed_token_ids": [4, 5, 6], "logprobs": 1, "logprob_token_ids": [9, 4]},
        {"temperature": 1.0, "seed": 3, "eos_token_ids": tuple(range(8))},
    ],
    ids=lambda fields: "-".join(fields),
)
def test_an_output_is_the_same_with_drafts(rightness: float, fields: dict[str, Any]) -> None:
    plain, steps, _ = answers(None, max_tokens=60, **fields)
    drafted, fewer, _ = answers(told(rightness), max_tokens=60, **fields)

    assert drafted.token_ids == plain.token_ids
    assert (drafted.finish_reason, drafted.stop_reason) == (plain.finish_reason, plain.stop_reason)
    assert logprobs_of(drafted) == logprobs_of(plain)
    assert fewer <= steps


def test_an_end_among_the_drafts_ends_the_output_there() -> None:
    right = expected(PROMPT, 5)

    output, steps, _ = answers(told(1.0, tokens=8), temperature=0, max_tokens=30, stop_token_ids=[right[4]])

    assert (output.token_ids, output.stop_reason, steps) == (right, right[4], 1)


def test_tokens_that_were_accepted_and_computed_are_shared_when_the_output_ends() -> None:
    client = Client(limits=WIDE, speculation=told(1.0, tokens=8))
    client.submit("a", PROMPT, temperature=0, max_tokens=70)
    client.finish()

    client.submit("b", [*PROMPT, *client.tokens("a"), 5], temperature=0, max_tokens=3)
    client.finish()

    assert client.outputs["b", 0].messages[0].cached_tokens == 64
    assert client.tokens("b") == expected([*PROMPT, *client.tokens("a"), 5], 3)


def test_what_a_wrong_draft_left_is_never_found_in_the_cache() -> None:
    client = Client(limits=WIDE, speculation=told(0.5, tokens=8))
    for name, prompt in (("a", [7] * 31), ("b", [7] * 31)):
        client.submit(name, prompt, temperature=0, max_tokens=60)
        client.finish()
        prompt += client.tokens(name)
        client.submit(name + "2", prompt, temperature=0, max_tokens=20)
        client.finish()

        assert client.tokens(name + "2") == expected(prompt, 20)


def test_a_nan_after_a_wrong_draft_has_no_effect() -> None:
    right = expected(PROMPT, 20)
    executor = HistoryExecutor()
    executor.nan_after = next(t for t in range(50) if t not in right and t not in PROMPT and t - 1 in right)
    client = Client(executor, WIDE, speculation=told(0.0))
    client.submit("a", PROMPT, temperature=0, max_tokens=20)

    client.finish()

    assert (client.tokens("a"), client.refused) == (right, {})


def test_tokens_before_a_nan_are_told_before_the_refusal() -> None:
    right = expected(PROMPT, 5)
    executor = HistoryExecutor()
    executor.nan_after = right[2]
    client = Client(executor, WIDE, speculation=told(1.0, tokens=8))
    client.submit("a", PROMPT, temperature=0, max_tokens=20)

    client.finish()

    assert client.tokens("a") == right[:3]
    assert "have a NaN" in client.refused["a"].message


def test_drafts_preempt_no_sequence() -> None:
    client = Client(HistoryExecutor(blocks=8, max_model_len=96), WIDE, speculation=told(1.0, tokens=30))
    for name in "abcd":
        client.submit(name, [ord(name) % 7] * 30, temperature=0, max_tokens=20)

    client.finish()

    assert client.loop.scheduler.preemptions == 0
    for name in "abcd":
        assert client.tokens(name) == expected([ord(name) % 7] * 30, 20)


def test_a_text_that_repeats_is_drafted_from_itself() -> None:
    """The sampler is held to what it said before: an output that quotes itself."""
    index = Index(2, 4)
    tokens = array("i", [5, 6, 7, 8, 9, 1, 5, 6])
    index.extend(tokens)

    assert index.after(tokens, 3) == [7, 8, 9]
    assert index.after(tokens, 8) == [7, 8, 9, 1, 5, 6, 7, 8]  # a cycle
    tokens.append(3)
    index.extend(tokens)
    assert index.after(tokens, 3) == []


def test_of_several_places_the_one_with_the_longest_match_is_taken_and_of_equals_the_latest() -> None:
    index = Index(1, 3)
    tokens = array("i", [1, 2, 3, 40, 9, 2, 3, 41, 8, 3, 42, 1, 2, 3])
    index.extend(tokens)
    assert index.after(tokens, 1) == [40]

    index = Index(1, 1)
    index.extend(tokens)
    assert index.after(tokens, 1) == [42]


@pytest.mark.parametrize("piece", [1, 7, 100])
def test_an_index_is_the_same_however_the_text_came(piece: int) -> None:
    text = [(i * i) % 11 for i in range(300)]
    whole, parts, tokens = Index(3, 5), Index(3, 5), array("i")
    for begin in range(0, len(text), piece):
        tokens.extend(text[begin : begin + piece])
        parts.extend(tokens)
    whole.extend(tokens)

    assert parts.after(tokens, 9) == whole.after(tokens, 9) == [(i * i) % 11 for i in range(300, 309)]


def test_ngrams_draft_what_is_quoted_from_the_prompt() -> None:
    speculation = Speculation(Ngrams(2, 4), 6)
    allowed = [4, 5]  # an output over two tokens soon repeats itself

    plain, *_ = answers(None, temperature=0, max_tokens=100, allowed_token_ids=allowed)
    drafted, _, client = answers(speculation, temperature=0, max_tokens=100, allowed_token_ids=allowed)

    assert drafted.token_ids == plain.token_ids
    assert client.metric("vllm:spec_decode_num_drafts_total{") > 0


def test_a_share_goes_from_what_is_expected_to_what_is_seen_and_back() -> None:
    share = DraftAccuracy()
    assert share.after(0.5, 1.0) == 0.5

    for _ in range(50):
        share.observe(4, 0)
    assert share.after(0.5, 1.0) < 0.06

    for _ in range(1000):
        share.fade(0.99)
    assert share.after(0.5, 1.0) > 0.49


def test_times_lie_on_lines_between_those_measured_and_never_fall() -> None:
    times = StepTimes()
    for tokens, seconds in ((1, 1.0), (4, 1.6), (3, 1.9)):
        times.observe(tokens, seconds)

    found = times.of(np.array([1, 2, 3, 4]))

    assert found.tolist() == pytest.approx([1.0, 1.45, 1.9, 1.9])


def test_a_delayed_step_counts_for_at_most_twice_the_usual_time() -> None:
    times = StepTimes()
    times.observe(1, 1.0)
    times.observe(1, 100.0)

    assert times.of(np.array([1])).tolist() == pytest.approx([1.2])


def measured(second: float) -> Gain:
    """A machine whose steps take 1 s, and `second` more for each token beyond the first."""
    gain = Gain()
    for tokens in (1, 2, 3, 5, 9):
        gain.step(tokens, 0, 1.0 + second * (tokens - 1))
    return gain


def test_drafts_are_as_long_as_they_bring_tokens_sooner() -> None:
    assert measured(0.0).lengths(1, [0.8], [8], 0.0) == [8]
    assert measured(2.0).lengths(1, [0.8], [8], 0.0) == [0]
    (some,) = measured(0.2).lengths(1, [0.8], [8], 0.0)
    assert 0 < some < 8
    assert measured(0.2).lengths(1, [0.1], [8], 0.0) == [0]


def test_the_likelier_output_gets_the_longer_draft() -> None:
    gain = Gain()
    for tokens in (2, 4, 8, 16):
        gain.step(tokens, 0, 1.0 + 0.1 * tokens)

    sure, unsure = gain.lengths(2, [0.95, 0.3], [8, 8], 0.0)

    assert sure > unsure


def test_drafting_that_takes_time_is_counted() -> None:
    gain = measured(0.0)

    assert gain.lengths(1, [0.8], [8], 2.0) == [0]
    (some,) = gain.lengths(1, [0.8], [8], 0.2)
    assert 0 < some < 8
    assert gain.lengths(1, [0.8], [8], 0.0) == [8]


def test_now_and_then_a_step_goes_without_drafts_to_tell_what_they_save() -> None:
    gain = measured(0.0)
    plain = 0
    for _ in range(200):
        (length,) = gain.lengths(1, [0.8], [4], 0.0)
        gain.step(1 + length, length, 1.0)
        plain += length == 0

    assert 2 <= plain <= 5


def test_steps_that_drafts_make_slower_are_left_without() -> None:
    """A clock of our own: a token more costs as much as a step, and drafts are half right."""
    gain, share = Gain(), DraftAccuracy()
    taken = []
    for _ in range(300):
        (length,) = gain.lengths(1, [share.after(0.5, 2.0)], [4], 0.0)
        gain.step(1 + length, length, 1.0 + length)
        if length:
            share.observe(length, 0)
        taken.append(length)

    assert any(taken)  # it was tried
    assert sum(map(bool, taken[100:])) <= 10


def logprobs_of(output: Output) -> list[Any]:
    return [entry for message in output.messages for entry in message.logprobs or ()]
