"""The real-gated linear recurrent unit, scalar tier, against numpy float64."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from tests.kernels.float64 import UNIT, Doubles, Floats, assert_within, random

from forearm._native import Kernels

SIZES = [(1, 16), (6, 5), (19, 40), (5, 131)]


class Inputs(NamedTuple):
    """Arguments of Kernels.rg_lru, in their order."""

    x: Floats
    r: Floats
    i: Floats
    y: Floats
    rate: Floats
    state: Floats


def inputs(rows: int, channels: int) -> Inputs:
    """Decays from 0 to 1 - 1e-4: rates from -8 to those of the longest memories."""
    rates = -8 * np.exp(-np.abs(random(4, channels, scale=4.0)))
    return Inputs(
        random(0, rows, channels), random(1, rows, channels, scale=3.0), random(2, rows, channels, scale=3.0),
        random(3, rows, channels), rates.astype(np.float32), random(5, channels),
    )  # fmt: skip


def moved(own: Inputs, begins: bool) -> tuple[Doubles, Doubles, Doubles, Doubles]:
    """Rows and state, the sums of the magnitudes of their terms, and those of rows with |y| for gelu(y)."""
    x, r, i, y, rate, state = (v.astype(np.float64) for v in own)
    size, rows, sizes = np.abs(state), [], []
    gate = 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
    for t in range(len(x)):
        exponent = rate / (1 + np.exp(-r[t]))
        root = np.ones_like(state) if begins and t == 0 else np.sqrt(-np.expm1(2 * exponent))
        added = root * x[t] / (1 + np.exp(-i[t]))
        state, size = np.exp(exponent) * state + added, np.exp(exponent) * size + np.abs(added)
        rows.append(state * gate[t])
        sizes.append(size * np.stack([np.abs(gate[t]), np.abs(y[t])]))
    return np.stack(rows), state, np.stack(sizes), size


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_rows_and_the_next_state(sizes: tuple[int, int], begins: bool) -> None:
    own = inputs(*sizes)
    own = own._replace(state=own.state * np.float32(not begins))  # zeros before a sequence's first token

    out, after = Kernels("scalar").rg_lru(*own, begins=begins)

    wanted, state, sizes_of_rows, sizes_of_state = moved(own, begins)
    # for each row: of the decay 2 units and those of its exponent, which is at most 8 and off by 6 units of itself; of
    # what is added 6 of a sigmoid and 2 products, and of the root half of 8 of its square; gelu is off by 8 of itself,
    # and 4 of y where 1 + tanh cancels
    a_row = 2 + 8 * 6 + 6 + 2 + 4
    assert_within(out, wanted, (sizes_of_rows[:, 0] * (sizes[0] * a_row + 8) + sizes_of_rows[:, 1] * 4) * UNIT)
    assert_within(after, state, sizes_of_state * UNIT * sizes[0] * a_row)


def test_what_a_long_memory_adds_keeps_its_digits() -> None:
    # of decays within 1e-6 of 1, 1 - decay^2 in float32 would be off by 1 / 30 of itself
    channels = 40
    rate = np.linspace(-1e-3, -1e-6, channels, dtype=np.float32)
    one, zeros = np.ones((1, channels), np.float32), np.zeros((1, channels), np.float32)

    _, after = Kernels("scalar").rg_lru(one, zeros, 100 * one, one, rate, zeros[0])

    wanted = np.sqrt(-np.expm1(rate.astype(np.float64)))  # sigmoid(0) is a half, sigmoid(100) is one
    assert_within(after, wanted, wanted * UNIT * 12)


def test_a_cut_between_any_rows_changes_no_bit() -> None:
    *rows, rate, begin = inputs(21, 40)
    begin *= 0
    whole, end = Kernels("scalar").rg_lru(*rows, rate, begin, begins=True)

    for cut in range(1, 21):
        first, state = Kernels("scalar").rg_lru(*(v[:cut] for v in rows), rate, begin, begins=True)
        second, state = Kernels("scalar").rg_lru(*(v[cut:] for v in rows), rate, state)

        assert np.array_equal(np.concatenate([first, second]), whole)
        assert np.array_equal(state, end)


def test_rows_before_the_first_output_move_the_state_alone() -> None:
    own = inputs(9, 40)
    whole, end = Kernels("scalar").rg_lru(*own)

    last, state = Kernels("scalar").rg_lru(*own, first_output=7)

    assert np.array_equal(last, whole[7:])
    assert np.array_equal(state, end)
