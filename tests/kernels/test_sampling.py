"""The sampler on the scalar tier: what it draws, what it never draws, and what it reports."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from tests.kernels.float64 import Floats, random
from tests.kernels.sampling_reference import Line, adjusted, arrays, philox, probabilities, uniform

from forearm._native import Kernels, tier_names

DRAWS = 4000
VOCABULARIES = [3, 50, 1024, 5000]  # one block of sums is 1024 logits, one of maxima 256
REQUESTS = [
    Line(),
    Line(temperature=0.3),
    Line(temperature=2.5),
    Line(top_k=1),
    Line(top_k=7),
    Line(top_k=900),
    Line(top_p=0.05),
    Line(top_p=0.9),
    Line(top_p=0.9999),
    Line(temperature=1.7, top_p=0.97),
    Line(min_p=0.1),
    Line(temperature=0.7, top_k=20, top_p=0.8, min_p=0.05),
    Line(top_k=40, top_p=0.95),
    Line(min_p=0.02, top_p=0.7),
    Line(repetition=1.5, prompt=[0, 1, 2, 2], output=[1, 2]),
    Line(frequency=0.8, presence=0.3, output=[0, 0, 2, 0]),
    Line(repetition=0.8, frequency=-0.5, presence=1.0, prompt=[2], output=[1, 1], top_p=0.9),
    Line(bias={1: 3.0, 2: -np.inf}),
    Line(allowed=[0, 2], temperature=5.0),
    Line(mask=[0, 2]),
    Line(mask=[0, 2], top_k=50),
    Line(mask=range(1, 3), top_p=0.9, top_k=2),
    Line(mask=range(3), min_p=0.1),
    Line(mask=[1, 2], top_p=0.6),
    Line(mask=[0, 1], allowed=[1, 2], bias={2: 50.0}),
    Line(mask=range(3), temperature=1.4),
    Line(mask=range(3), min_p=0.05, top_k=2, top_p=0.8),
    Line(mask=[0, 2], repetition=1.5, frequency=0.4, prompt=[1, 2], output=[0, 1]),
]


def draw(logits: Floats, lines: list[Line]) -> npt.NDArray[np.int32]:
    token, nan, *_ = Kernels("scalar").sample(logits.reshape(-1, logits.shape[-1]), *arrays(lines, logits.shape[-1]))
    assert not nan.any()
    return token


def test_philox_gives_the_numbers_its_authors_publish() -> None:
    """Random123's kat_vectors, philox4x32 with 10 rounds."""
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    key = (0xA4093822, 0x299F31D0)

    assert philox((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox(pi, key) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)


@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parametrize("request_", REQUESTS, ids=str)
def test_a_draw_is_where_the_uniform_number_falls_among_the_probabilities(request_: Line, vocab: int) -> None:
    logits = random(vocab, vocab, scale=2)
    lines = [replace(request_, seed=2**63 + 5 * i, counter=2**32 * i + 3) for i in range(300)]

    tokens = draw(logits, lines)

    upper = np.cumsum(probabilities(logits, request_))
    lower = upper - probabilities(logits, request_)
    numbers = np.array([uniform(line.seed, line.counter) for line in lines])
    slack = 1e-5  # a float32 weight is within 40 units, and 64 of them a lane are added in float32
    assert np.all((lower[tokens] - slack <= numbers) & (numbers <= upper[tokens] + slack))
    assert np.all(probabilities(logits, request_)[tokens] > 0)


def chi_square_limit(freedom: int) -> float:
    """Exceeded by chance once in a million. Wilson and Hilferty 1931."""
    return float(freedom * (1 - 2 / (9 * freedom) + 4.753 * np.sqrt(2 / (9 * freedom))) ** 3)


@pytest.mark.parametrize("vocab", [40, 1500])  # masks of few tokens visit those tokens only
@pytest.mark.parametrize("request_", REQUESTS, ids=str)
def test_draws_over_positions_follow_the_distribution(request_: Line, vocab: int) -> None:
    logits = random(7, vocab, scale=1.5)

    tokens = draw(logits, [replace(request_, seed=99, counter=i) for i in range(DRAWS)])

    expected = DRAWS * probabilities(logits, request_)
    counts = np.bincount(tokens, minlength=vocab)
    assert counts[expected == 0].sum() == 0
    often = expected >= 5
    pooled_counts = np.append(counts[often], counts[~often].sum())
    pooled = np.append(expected[often], expected[~often].sum())
    pooled_counts, pooled = pooled_counts[pooled > 0], pooled[pooled > 0]
    statistic = ((pooled_counts - pooled) ** 2 / pooled).sum()
    assert statistic <= chi_square_limit(max(len(pooled) - 1, 1))


@pytest.mark.parametrize("temperature", [0.0, 1e-6])
@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_without_temperature_the_lowest_id_of_the_largest_logits_is_taken(vocab: int, temperature: float) -> None:
    logits = np.round(random(vocab, vocab))

    assert draw(logits, [Line(temperature=temperature)]) == [np.argmax(logits)]


@pytest.mark.parametrize("count", [1, 5, 93, 94, 200])  # masks of up to 3000 / 32 tokens visit those tokens only
def test_masks_of_few_tokens_and_of_many_choose_alike(count: int) -> None:
    logits = np.round(random(21, 3000, scale=2), 1)  # with equal ones
    allowed = sorted(np.random.default_rng(count).choice(3000, count, replace=False).tolist())
    choices = [{"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.3}, {"top_k": 40, "top_p": 0.9}]
    same = {"bias": {allowed[0]: 0.0}}  # a mask of all tokens changes nothing, except that the whole row is visited
    lines = [Line(mask=allowed, counter=i, **choice) for choice in choices for i in range(40)]  # type: ignore[arg-type]

    alone, whole = draw(logits, lines), draw(logits, [replace(line, **same) for line in lines])  # type: ignore[arg-type]

    assert alone.tolist() == whole.tolist()


def test_greedy_sees_penalties_and_biases() -> None:
    logits = random(3, 60)
    best = int(np.argmax(logits))
    lines = [
        Line(temperature=0, bias={5: 50.0}),
        Line(temperature=0, output=[best], presence=2.0),
        Line(temperature=0, prompt=[best], repetition=4.0),
        Line(temperature=0, allowed=[8, 9]),
        Line(temperature=0, mask=[8, 9, 31, 32, 59]),
        Line(temperature=0, mask=[best, 9, 31]),
        Line(temperature=0, mask=[i for i in range(60) if i != best]),
        Line(temperature=0, mask=[8, 9, 31], bias={9: 50.0, 10: 100.0}),
    ]

    assert draw(logits, lines).tolist() == [int(np.argmax(adjusted(logits, line))) for line in lines]


def test_top_k_and_top_p_prefer_the_lower_of_equal_ids() -> None:
    logits = np.zeros(600, np.float32)
    lines = [Line(top_k=2, counter=i) for i in range(50)] + [Line(top_p=1.5 / 600, counter=i) for i in range(50)]

    assert set(draw(logits, lines).tolist()) == {0, 1}


def test_a_line_is_the_same_whatever_stands_beside_it() -> None:
    logits = random(11, 3, 700, scale=2)
    lines = [replace(line, row=i % 3, seed=i, counter=i * i, logprobs=i % 4) for i, line in enumerate(REQUESTS)]
    together = Kernels("scalar").sample(logits, *arrays(lines))

    for i, line in enumerate(lines):
        alone = Kernels("scalar").sample(logits, *arrays([line]))
        for whole, one in zip(together[:4], alone[:4], strict=True):
            assert whole[i] == one[0]
        for whole, one in zip(together[4:], alone[4:], strict=True):
            assert np.array_equal(whole[i, : max(line.logprobs, 0)], one[0, : max(line.logprobs, 0)])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(
    "request_", [Line(), Line(temperature=0), Line(top_k=3), Line(allowed=[1]), Line(mask=[1])], ids=str
)
def test_a_nan_or_infinity_is_reported_and_leaves_the_neighbours_alone(bad: float, request_: Line) -> None:
    logits = random(1, 3, 40)
    logits[1, 17] = bad

    token, nan, *_ = Kernels("scalar").sample(logits, *arrays([replace(request_, row=row) for row in range(3)]))

    assert nan.tolist() == [False, True, False]
    assert [token[0], token[2]] == [draw(logits[row], [request_])[0] for row in (0, 2)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_with_nothing_left_to_choose_is_reported(temperature: float) -> None:
    logits = random(1, 10)
    lines = [
        Line(temperature=temperature, allowed=[3], bias={3: -np.inf}),
        Line(temperature=temperature, mask=[]),
        Line(temperature=temperature, mask=[], top_k=5),
        Line(temperature=temperature, mask=[4], allowed=[3]),
        Line(temperature=temperature, mask=[3], bias={3: -np.inf}),
        Line(temperature=temperature, mask=[3]),
        Line(temperature=temperature),
    ]

    _, nan, *_ = Kernels("scalar").sample(logits[None], *arrays(lines, 10))

    assert nan.tolist() == [True] * 5 + [False] * 2


@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_logprobs_and_ranks_come_from_the_raw_logits(vocab: int) -> None:
    logits = np.round(random(vocab, 2, vocab, scale=4))  # with equal ones
    wanted = min(5, vocab)
    lines = [
        Line(row=1, temperature=0.5, top_k=2, bias={0: -3.0}, logprobs=wanted),
        Line(row=0, temperature=3.0, repetition=2.0, prompt=[1, 2], logprobs=1),
        Line(row=0, logprobs=0),
        Line(row=0, logprobs=-1),
        Line(row=1, mask=[1], logprobs=wanted),
    ]

    token, _, logprob, rank, top_ids, top_logprobs = Kernels("scalar").sample(logits, *arrays(lines))

    assert top_ids.shape == top_logprobs.shape == (5, wanted)
    for i, line in [*enumerate(lines[:3]), (4, lines[4])]:
        x = logits[line.row].astype(np.float64)
        wanted_logprobs = x - x.max() - np.log(np.exp(x - x.max()).sum())
        order = np.lexsort((np.arange(vocab), -x))
        assert logprob[i] == pytest.approx(wanted_logprobs[token[i]], abs=1e-5)
        assert order[rank[i] - 1] == token[i]
        assert top_ids[i, : line.logprobs].tolist() == order[: line.logprobs].tolist()
        assert top_logprobs[i, : line.logprobs] == pytest.approx(wanted_logprobs[order[: line.logprobs]], abs=1e-5)
        assert not top_ids[i, line.logprobs :].any()
    assert (logprob[3], rank[3]) == (0, 0)


def test_scores_of_given_tokens_are_those_of_drawn_ones() -> None:
    logits = random(5, 2, 3000, scale=3)
    lines = [Line(row=row, seed=row, logprobs=4) for row in (1, 0)]
    token, _, *scored = Kernels("scalar").sample(logits, *arrays(lines))

    given = Kernels("scalar").score(logits, np.array([1, 0], np.int32), token, 4)

    for drawn, one in zip(scored, given, strict=True):
        assert np.array_equal(drawn, one)


def test_a_score_of_a_row_with_a_nan_is_nan() -> None:
    logits = random(5, 1, 20)
    logits[0, 4] = np.nan

    assert np.isnan(Kernels("scalar").score(logits, np.array([0], np.int32), np.array([3], np.int32), 0)[0])


def test_an_id_outside_the_vocabulary_is_named() -> None:
    logits = random(5, 1, 20)

    with pytest.raises(ValueError, match="allowed_ids of line 1 has 20; it must be below 20"):
        Kernels("scalar").sample(logits, *arrays([Line(), Line(allowed=[20])]))
    with pytest.raises(ValueError, match="row of line 0 has 1; it must be below 1"):
        Kernels("scalar").sample(logits, *arrays([Line(row=1)]))


def test_masks_that_are_too_narrow_or_not_there_are_named() -> None:
    logits = random(5, 1, 65)
    good = arrays([Line(mask=[64])], 65)

    with pytest.raises(ValueError, match="masks have 2 words; the vocabulary needs 3"):
        Kernels("scalar").sample(logits, *arrays([Line(mask=[3])], 64))
    with pytest.raises(ValueError, match="mask of line 0 has 1; it must be below 1"):
        Kernels("scalar").sample(logits, *good[:-2], np.array([1], np.int32), good[-1])
    assert Kernels("scalar").sample(logits, *good)[0].tolist() == [64]


@pytest.mark.parametrize("tier", tier_names())
def test_every_tier_draws_the_same(tier: str) -> None:
    logits = random(13, 2, 2500, scale=3)
    lines = [replace(line, row=i % 2, counter=i, logprobs=3) for i, line in enumerate(REQUESTS * 5)]

    for one, scalar in zip(
        Kernels(tier).sample(logits, *arrays(lines)), Kernels("scalar").sample(logits, *arrays(lines)), strict=True
    ):
        assert np.array_equal(one, scalar)
