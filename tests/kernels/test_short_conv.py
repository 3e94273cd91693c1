"""The short convolution, scalar tier, against numpy float64."""

from __future__ import annotations

import numpy as np
import pytest
from tests.kernels.float64 import UNIT, Doubles, assert_within, random

from forearm._native import Kernels


def convolved(b: Doubles, x: Doubles, taps: Doubles, state: Doubles) -> tuple[Doubles, Doubles]:
    """The convolution of b * x, and the sums of its terms' magnitudes."""
    u = np.concatenate([state, b * x])
    terms = np.stack([taps[j] * u[j : j + len(b)] for j in range(len(taps))])
    return terms.sum(axis=0), np.abs(terms).sum(axis=0)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("rows", "channels", "width"), [(1, 16, 3), (2, 5, 3), (9, 70, 4), (3, 33, 2), (2, 40, 8)])
def test_rows_and_the_next_state(rows: int, channels: int, width: int, late: bool, biased: bool) -> None:
    first_output = rows // 2 if late else 0
    b, c, x = (random(i, rows, channels) for i in range(3))
    taps, state, bias = random(3, width, channels), random(4, width - 1, channels), random(5, channels)

    out, after = Kernels("scalar").short_conv(b, c, x, taps, state, bias if biased else None, first_output)

    sums, sizes = convolved(*(v.astype(np.float64) for v in (b, x, taps, state)))
    if biased:
        sums, sizes = sums + bias, sizes + np.abs(bias)
    wanted, size = (c * sums)[first_output:], (np.abs(c) * sizes)[first_output:]
    assert_within(out, wanted, size * UNIT * (width + 4))
    assert np.array_equal(after, np.concatenate([state, b * x])[-(width - 1) :])


def test_a_cut_between_any_rows_changes_no_bit() -> None:
    b, c, x = (random(i, 8, 40) for i in range(3))
    taps, begin = random(3, 3, 40), random(4, 2, 40)
    whole, end = Kernels("scalar").short_conv(b, c, x, taps, begin)

    for cut in range(1, 8):
        first, state = Kernels("scalar").short_conv(b[:cut], c[:cut], x[:cut], taps, begin)
        second, state = Kernels("scalar").short_conv(b[cut:], c[cut:], x[cut:], taps, state)

        assert np.array_equal(np.concatenate([first, second]), whole)
        assert np.array_equal(state, end)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(("rows", "channels", "width"), [(1, 16, 4), (9, 70, 4), (3, 33, 2)])
def test_without_gates_rows_are_convolved_and_activated_unless_plain(
    rows: int, channels: int, width: int, plain: bool
) -> None:
    u, taps, state = random(0, rows, channels), random(3, width, channels), random(4, width - 1, channels)

    out, after = Kernels("scalar").short_conv(u, None, None, taps, state, plain=plain)

    sums, sizes = convolved(*(v.astype(np.float64) for v in (u, np.ones_like(u), taps, state)))
    wanted = sums if plain else sums / (1 + np.exp(-sums))
    # silu's slope is at most 1.1; its exponential, sum, quotient and product round four times, exp by 2 units (math.h)
    assert_within(out, wanted, 1.1 * sizes * UNIT * width + np.abs(wanted) * UNIT * 8)
    assert np.array_equal(after, np.concatenate([state, u])[-(width - 1) :])
