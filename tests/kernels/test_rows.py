"""Passes over a row of logits, scalar tier, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from tests.kernels.float64 import UNIT, Floats, assert_within, random
from tests.kernels.sampling_reference import masks

from forearm._native import Kernels

LENGTHS = [1, 2, 15, 16, 17, 64, 65, 100, 1000]


def some_of(n: int) -> list[int]:
    """About a third of 0 .. n - 1; of long rows nothing of the second 64 and all of the third."""
    draw = np.random.default_rng(n).random(n)
    return [i for i in range(n) if i // 64 == 2 or (i // 64 != 1 and draw[i] < 0.3)]


def without(x: Floats, allowed: list[int]) -> Floats:
    masked = np.full_like(x, -np.inf)
    masked[allowed] = x[allowed]
    return masked


@pytest.mark.parametrize("n", LENGTHS)
def test_row_max_is_the_first_of_the_largest(n: int) -> None:
    x = np.round(random(n, n) * 2)  # many equal values

    assert Kernels("scalar").row_max(x) == (x.max(), int(np.argmax(x)), False)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("where", [0, -1])
def test_row_max_reports_a_nan_wherever_it_stands(n: int, where: int) -> None:
    x = random(n, n)
    x[where] = np.nan

    assert Kernels("scalar").row_max(x)[2]


def test_row_max_of_nothing_but_minus_infinity_is_minus_infinity() -> None:
    assert Kernels("scalar").row_max(np.full(20, -np.inf, np.float32)) == (-np.inf, 0, False)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("temperature", [0.1, 1.0, 3.0])
def test_row_exp_sum_gives_the_terms_and_their_sum(n: int, temperature: float) -> None:
    x = random(n, n, scale=5)
    top = float(x.max())

    total, terms = Kernels("scalar").row_exp_sum(x, top, 1 / temperature)

    power = (x.astype(np.float64) - top) * float(np.float32(1 / temperature))
    wanted = np.exp(power)
    # The power is rounded twice, so off by 2 units of itself; exp is within 2 units.
    assert_within(terms, wanted, wanted * UNIT * (2 * abs(power) + 2) + 2e-38)
    assert abs(total - terms.astype(np.float64).sum()) <= UNIT * (n / 16 + 5) * total


def test_row_exp_sum_has_nothing_for_minus_infinity_and_nan_for_nan() -> None:
    total, terms = Kernels("scalar").row_exp_sum(np.array([0, -np.inf, -200, np.nan], np.float32), 0.0, 1.0)

    assert terms[:3].tolist() == [1, 0, 0]
    assert np.isnan(terms[3])
    assert np.isnan(total)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("threshold", [-np.inf, 0.0, 1.0, 1e9])
def test_row_collect_takes_all_that_reach_the_threshold_in_order(n: int, threshold: float) -> None:
    x = np.round(random(n, n))

    index, value = Kernels("scalar").row_collect(x, threshold)

    assert index.tolist() == np.flatnonzero(x >= threshold).tolist()
    assert value.tolist() == x[x >= threshold].tolist()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("n", LENGTHS)
def test_row_maxima_are_those_of_each_64_that_count(n: int, masked: bool) -> None:
    x = random(n, n)
    mask = masks([some_of(n)], n)[0] if masked else None

    maxima = Kernels("scalar").row_maxima(x, mask)

    counted = without(x, some_of(n)) if masked else x
    assert maxima.tolist() == [counted[begin : begin + 64].max() for begin in range(0, n, 64)]


@pytest.mark.parametrize("where", [0, 63, 64, 999])
def test_row_maxima_carry_a_nan(where: int) -> None:
    x = random(5, 1000)
    x[where] = np.nan

    maxima = Kernels("scalar").row_maxima(x, None)

    assert np.flatnonzero(np.isnan(maxima)).tolist() == [where // 64]


@pytest.mark.parametrize("n", LENGTHS)
def test_row_passes_take_no_notice_of_what_the_mask_has_not(n: int) -> None:
    x, allowed = random(n, n, scale=5), some_of(n)
    scalar, mask = Kernels("scalar"), masks([allowed], n)[0]

    total, terms = scalar.row_exp_sum(x, 0.0, 1.0, mask)
    index, value = scalar.row_collect(x, 0.5, mask, scalar.row_maxima(x, None))

    wanted_total, wanted_terms = scalar.row_exp_sum(without(x, allowed), 0.0, 1.0)
    assert (total, terms.tolist()) == (wanted_total, wanted_terms.tolist())
    assert index.tolist() == [i for i in allowed if x[i] >= 0.5]
    assert value.tolist() == x[index].tolist()
