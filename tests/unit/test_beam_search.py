"""The search against one that lists every continuation, and against vLLM's loop without its early end."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from forearm.beam_search import BeamSearch, BeamSearchParams, step_params
from forearm.wire import PositionLogprobs, TokenLogprob

END = 0
PROMPT_TOKENS = 3


def position(token_ids: tuple[int, ...], vocabulary: int) -> PositionLogprobs:
    """Return a made-up model's position after these tokens: always the same, the likeliest token first."""
    values = [random.Random(f"{token_ids} {token}").gauss(0, 2) for token in range(vocabulary)]
    total = math.log(sum(math.exp(value) for value in values))
    ranked = sorted(range(vocabulary), key=lambda token: -values[token])
    found = [TokenLogprob(token, values[token] - total, rank + 1) for rank, token in enumerate(ranked)]
    return [found[0], *found]


def searched(params: BeamSearchParams, vocabulary: int) -> tuple[BeamSearch, int]:
    search, rounds = BeamSearch(PROMPT_TOKENS, params, [END]), 0
    while search.live:
        search.add([position(tuple(beam.token_ids), vocabulary) for beam in search.live])
        rounds += 1
    return search, rounds


def vllms(params: BeamSearchParams, vocabulary: int) -> list[tuple[tuple[int, ...], float]]:
    """vLLM's loop, which always takes max_tokens rounds: tokens (an end among them) and scores."""
    live: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    completed: list[tuple[tuple[int, ...], float]] = []

    def score(beam: tuple[tuple[int, ...], float]) -> float:
        tokens, total = beam
        return total / (PROMPT_TOKENS + len(tokens) - (tokens[-1] == END)) ** params.length_penalty

    for _ in range(params.max_tokens):
        grown = []
        for tokens, total in live:
            for one in position(tokens, vocabulary)[1 : 1 + 2 * params.beam_width]:
                beam = ((*tokens, one.token_id), total + one.logprob)
                (completed if one.token_id == END and not params.ignore_eos else grown).append(beam)
        live = sorted(grown, key=score, reverse=True)[: params.beam_width]
    best = sorted(completed + live, key=score, reverse=True)[: params.beam_width]
    return [(beam[0], score(beam)) for beam in best]


@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_the_beams_are_those_of_vllms_loop(width: int, length_penalty: float) -> None:
    params = BeamSearchParams(beam_width=width, max_tokens=8, length_penalty=length_penalty)
    search, _ = searched(params, vocabulary=9)
    expected = vllms(params, vocabulary=9)
    assert [tuple(beam.token_ids) for beam in search.best] == [tokens for tokens, _ in expected]
    assert [search.score(beam) for beam in search.best] == pytest.approx([score for _, score in expected])


def test_a_wide_search_finds_the_likeliest_of_all_continuations() -> None:
    vocabulary, tokens = 4, 3
    params = BeamSearchParams(beam_width=vocabulary**tokens, max_tokens=tokens, length_penalty=0.0, ignore_eos=True)
    search, _ = searched(params, vocabulary)

    def likelihood(sequence: tuple[int, ...]) -> float:
        return sum(
            one.logprob
            for length, token in enumerate(sequence)
            for one in position(sequence[:length], vocabulary)[1:]
            if one.token_id == token
        )

    every = sorted(itertools.product(range(vocabulary), repeat=tokens), key=likelihood, reverse=True)
    assert [tuple(beam.token_ids) for beam in search.best] == every


def test_a_beam_tells_its_tokens_logprobs_and_how_it_ended() -> None:
    search, _ = searched(BeamSearchParams(beam_width=4, max_tokens=6, length_penalty=0.5), vocabulary=5)
    reasons = set()
    for beam in search.best:
        assert [one[0].token_id for one in beam.logprobs] == beam.token_ids
        assert sum(one[0].logprob for one in beam.logprobs) == pytest.approx(beam.cum_logprob)
        assert (beam.finish_reason == "stop") == (beam.token_ids[-1] == END) == (beam.stop_reason == END)
        assert beam.finish_reason == "stop" or len(beam.token_ids) == 6
        reasons.add(beam.finish_reason)
    assert reasons == {"stop", "length"}


def test_it_ends_once_nothing_better_can_come() -> None:
    """Ends that are almost certain leave nothing to look for in 1,000 more rounds."""
    params = BeamSearchParams(beam_width=2, max_tokens=1000, length_penalty=1.0)
    search, rounds = BeamSearch(1, params, [END]), 0
    sure = [TokenLogprob(END, math.log(0.999), 1), *(TokenLogprob(n, math.log(0.0003), n + 1) for n in (1, 2, 3))]
    while search.live:
        search.add([[sure[0], *sure] for _ in search.live])
        rounds += 1
    assert rounds < 1000
    assert search.best[0].token_ids == [END]


def test_ignore_eos_takes_the_end_for_a_token_like_others() -> None:
    search, _ = searched(BeamSearchParams(beam_width=3, max_tokens=4, ignore_eos=True), vocabulary=4)
    assert {len(beam.token_ids) for beam in search.best} == {4}
    assert any(END in beam.token_ids for beam in search.best)
    assert {beam.finish_reason for beam in search.best} == {"length"}


def test_a_step_asks_for_twice_the_width_or_what_the_answer_shows() -> None:
    params = BeamSearchParams(beam_width=3, max_tokens=5)
    assert step_params(params).logprobs == 6
    assert step_params(params, alternatives=9).logprobs == 9
    assert step_params(params).max_tokens == 1
