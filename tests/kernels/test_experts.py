"""Routing of experts and the sum of their results, scalar tier, against numpy float64."""

from __future__ import annotations

import numpy as np
import pytest
from tests.kernels.float64 import UNIT, Doubles, assert_within, random

from forearm._native import Kernels

SIZES = [(1, 2, 1), (3, 8, 2), (5, 60, 4), (4, 128, 8), (2, 256, 8)]  # rows, experts, active


def softmax(x: Doubles) -> Doubles:
    terms = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(terms / terms.sum(axis=-1, keepdims=True))


SCORES = {
    "softmax": softmax,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sqrt_softplus": lambda x: np.sqrt(np.logaddexp(0, x)),
}


def best(x: Doubles, count: int) -> np.ndarray:
    """Indices of the largest of each row, largest first."""
    return np.argsort(-x, axis=-1, kind="stable")[:, :count]


@pytest.mark.parametrize(("rows", "experts", "active"), SIZES)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("renormalized", [False, True])
def test_the_best_experts_are_weighted_by_their_scores(
    rows: int, experts: int, active: int, score: str, renormalized: bool
) -> None:
    logits = random(experts, rows, experts, scale=3)

    chosen, weights = Kernels("scalar").route(logits, active, score, renormalized=renormalized, scale=2.5)

    scores = SCORES[score](logits.astype(np.float64))
    assert chosen.tolist() == best(logits, active).tolist()
    wanted = np.take_along_axis(scores, chosen, axis=-1)
    if renormalized:
        wanted /= wanted.sum(axis=-1, keepdims=True)
    # exp is within 2 units, of an exponent that is off by half a unit of itself; sums and quotients add theirs.
    assert_within(weights, 2.5 * wanted, 2.5 * wanted * UNIT * (experts / 16 + active + 2 * np.abs(logits).max() + 16))


@pytest.mark.parametrize("score", SCORES)
def test_a_correction_changes_the_choice_and_not_the_weights(score: str) -> None:
    logits, correction = random(1, 6, 16), random(2, 16)

    chosen, weights = Kernels("scalar").route(logits, 3, score, correction)

    scores = SCORES[score](logits.astype(np.float64))
    assert chosen.tolist() == best(scores + correction, 3).tolist()
    assert chosen.tolist() != best(scores, 3).tolist()
    wanted = np.take_along_axis(scores, chosen, axis=-1)
    assert_within(weights, wanted, wanted * UNIT * 30)


def test_experts_of_an_infinite_correction_are_always_chosen_and_weighted_as_others_are() -> None:
    logits, correction = random(3, 7, 14, scale=3), random(4, 14)
    correction[12:] = np.inf

    chosen, weights = Kernels("scalar").route(logits, 5, "sigmoid", correction, renormalized=True, scale=2.5)

    scores = SCORES["sigmoid"](logits.astype(np.float64))
    others = best((scores + correction)[:, :12], 3)
    assert chosen.tolist() == np.hstack([np.tile([12, 13], (7, 1)), others]).tolist()
    wanted = np.take_along_axis(scores, chosen, axis=-1)
    wanted *= 2.5 / wanted.sum(axis=-1, keepdims=True)
    assert_within(weights, wanted, wanted * UNIT * 60)


@pytest.mark.parametrize("group_best", [1, 2])
def test_experts_are_chosen_from_the_groups_whose_best_are_best(group_best: int) -> None:
    logits, correction = random(3, 9, 32), random(4, 32, scale=0.2)

    chosen, _ = Kernels("scalar").route(
        logits, 4, "sigmoid", correction, groups=8, groups_kept=3, group_best=group_best
    )

    scores = SCORES["sigmoid"](logits.astype(np.float64)) + correction
    groups = np.sort(scores.reshape(9, 8, 4), axis=-1)[:, :, -group_best:].sum(axis=-1)
    kept = np.zeros((9, 8), bool)
    np.put_along_axis(kept, best(groups, 3), True, axis=-1)
    assert chosen.tolist() == best(np.where(kept.repeat(4, axis=-1), scores, -np.inf), 4).tolist()


def test_softmax_of_the_chosen_alone_sums_to_one() -> None:
    logits = random(5, 4, 32, scale=4)

    chosen, weights = Kernels("scalar").route(logits, 4, "softmax_chosen")

    wanted = softmax(np.take_along_axis(logits, best(logits, 4), axis=-1).astype(np.float64))
    assert chosen.tolist() == best(logits, 4).tolist()
    assert_within(weights, wanted, wanted * UNIT * 40)


@pytest.mark.parametrize("renormalized", [False, True])
def test_experts_are_chosen_by_corrected_logits_and_weighted_by_their_sigmoid(renormalized: bool) -> None:
    logits, correction = random(8, 9, 40, scale=3), random(9, 40)

    chosen, weights = Kernels("scalar").route(logits, 20, "sigmoid_chosen", correction, renormalized=renormalized)

    assert chosen.tolist() == best(logits + correction, 20).tolist()
    assert chosen.tolist() != best(SCORES["sigmoid"](logits.astype(np.float64)) + correction, 20).tolist()
    wanted = SCORES["sigmoid"](np.take_along_axis(logits, chosen, axis=-1).astype(np.float64))
    if renormalized:
        wanted /= wanted.sum(axis=-1, keepdims=True)
    assert_within(weights, wanted, wanted * UNIT * 60)


def sparse_mixer(logits: Doubles, jitter: float) -> tuple[list[int], list[float]]:
    """Two experts of one row as transformers' modeling_phimoe.py chooses them."""
    chosen: list[int] = []
    weights: list[float] = []
    left = logits.copy()
    for _ in range(2):
        top = left.max()
        near = (top - logits) / np.maximum(np.abs(logits), top) <= 2 * jitter
        gates = softmax(np.where(near, left, -np.inf))
        chosen.append(int(left.argmax()))
        weights.append(float(gates[chosen[-1]]))
        left[chosen[-1]] = -np.inf
    return chosen, weights


def test_the_sparse_mixer_weighs_an_expert_among_those_near_it() -> None:
    logits = 1 + np.abs(random(6, 20, 16, scale=0.1))

    chosen, weights = Kernels("scalar").route(logits, 2, "sparse_mixer", jitter=0.02)

    wanted = [sparse_mixer(row.astype(np.float64), 0.02) for row in logits]
    assert chosen.tolist() == [row for row, _ in wanted]
    assert_within(weights, np.array([row for _, row in wanted]), UNIT * 40)
    assert len({round(float(w), 3) for w in weights.ravel()}) > 5  # some chosen experts are neighbours, some are not


def test_of_equal_logits_the_first_experts_are_chosen() -> None:
    chosen, weights = Kernels("scalar").route(np.zeros((2, 12), np.float32), 3, "softmax", renormalized=True)

    assert chosen.tolist() == [[0, 1, 2], [0, 1, 2]]
    assert_within(weights, np.full((2, 3), 1 / 3), 4 * UNIT)


def test_a_row_that_is_not_a_number_is_routed_somewhere_and_stays_not_a_number() -> None:
    logits = np.zeros((1, 8), np.float32)
    logits[0, 3] = np.nan

    chosen, weights = Kernels("scalar").route(logits, 2, "softmax", renormalized=True)

    assert chosen.tolist() == [[0, 0]]
    assert np.isnan(weights).all()


@pytest.mark.parametrize(("rows", "slots", "columns"), [(1, 1, 1), (2, 8, 33), (5, 3, 64)])
@pytest.mark.parametrize("added", [False, True])
def test_results_are_added_by_their_weights(rows: int, slots: int, columns: int, added: bool) -> None:
    results, weights = random(1, rows * slots, columns), random(2, rows, slots)
    place = np.random.default_rng(3).permutation(rows * slots).astype(np.int32).reshape(rows, slots)
    residual = random(4, rows, columns) if added else None

    got = Kernels("scalar").combine(results, weights, place, 0.5, residual)

    terms = weights[:, :, None].astype(np.float64) * results[place]
    wanted = 0.5 * terms.sum(axis=1) + (0 if residual is None else residual)
    size = 0.5 * np.abs(terms).sum(axis=1) + np.abs(wanted)
    assert_within(got, wanted, size * UNIT * (slots + 2) + 1e-38)
