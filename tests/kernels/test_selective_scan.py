"""Mamba's selective scan, scalar tier, against numpy float64."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from tests.kernels.float64 import UNIT, Doubles, Floats, assert_within, random

from forearm._native import Kernels

SIZES = [(1, 16, 16), (6, 5, 7), (19, 40, 12), (5, 131, 16)]


class Inputs(NamedTuple):
    """Arguments of Kernels.selective_scan, in their order."""

    x: Floats
    dt: Floats
    z: Floats
    b: Floats
    c: Floats
    a: Floats  # [channels, state_dim]
    d: Floats
    state: Floats  # [channels, state_dim]

    def packed(self) -> list[Floats]:
        return [*self[:5], panels(self.a), self.d, panels(self.state)]


def panels(rows: Floats) -> Floats:
    """[channels, state_dim] in panels of 16 channels."""
    padded = np.pad(rows, ((0, -len(rows) % 16), (0, 0)))
    return np.ascontiguousarray(padded.reshape(-1, 16, rows.shape[1]).swapaxes(1, 2))


def unpacked(packed: Floats, channels: int) -> Floats:
    """[channels, state_dim] of panels."""
    return packed.swapaxes(1, 2).reshape(-1, packed.shape[1])[:channels]


def inputs(rows: int, channels: int, state_dim: int) -> Inputs:
    return Inputs(
        random(0, rows, channels), random(1, rows, channels, scale=3.0), random(2, rows, channels),
        random(3, rows, state_dim), random(4, rows, state_dim), -0.1 * np.exp(random(5, channels, state_dim)),
        random(6, channels), random(7, channels, state_dim),
    )  # fmt: skip


def scanned(own: Inputs) -> tuple[Doubles, Doubles, Doubles, Doubles]:
    """Rows and state, and the sums of the magnitudes of their terms."""
    x, dt, z, b, c, a, d, state = (v.astype(np.float64) for v in own)
    size, ys, sizes = np.abs(state), [], []
    for t in range(len(x)):
        step = np.logaddexp(0, dt[t])
        decay = 2.0 ** (step[:, None] * a)
        added = (step * x[t])[:, None] * b[t]
        state, size = decay * state + added, decay * size + np.abs(added)
        gate = z[t] / (1 + np.exp(-z[t]))
        ys.append((state @ c[t] + d * x[t]) * gate)
        sizes.append((size @ np.abs(c[t]) + np.abs(d * x[t])) * np.abs(gate))
    return np.stack(ys), state, np.stack(sizes), size


@pytest.mark.parametrize("sizes", SIZES)
def test_rows_and_the_next_state(sizes: tuple[int, int, int]) -> None:
    own = inputs(*sizes)

    y, after = Kernels("scalar").selective_scan(*own.packed())

    wanted, state, sizes_of_y, sizes_of_state = scanned(own)
    # of a value of the state: for each row the rounding of two products and a sum, 3 units of the power, 6 of dt, and
    # of the exponent dt * a, which is off by 8 units of itself; y adds state_dim roundings, and 8 of the gate
    rows, channels, state_dim = sizes
    step = 12 + 8 * np.max(np.logaddexp(0, own.dt)[:, :, None] * np.abs(own.a))
    assert step < 200
    assert_within(y, wanted, sizes_of_y * UNIT * (rows * step + state_dim + 12))
    assert_within(unpacked(after, channels), state, sizes_of_state * UNIT * (rows * step + 4))


def test_a_short_past_is_remembered_to_a_few_units() -> None:
    # with a = -1/4, dt = softplus(0) and b = c = 1, what a first x of 1 adds is halved every 4 / log(2) tokens
    rows, steps = 12, np.log(2.0)
    one, zeros = np.ones((rows, 1), np.float32), np.zeros((1, 1), np.float32)
    x = np.zeros((rows, 1), np.float32)
    x[0] = 1.0
    own = Inputs(x, x * 0, 8 * one, one, one, zeros - 0.25, zeros[0], zeros)

    y, _ = Kernels("scalar").selective_scan(*own.packed())

    wanted = steps * 2.0 ** (-0.25 * steps * np.arange(rows)) * 8 / (1 + np.exp(-8.0))
    assert_within(y[:, 0], wanted, wanted * UNIT * (8 * rows))


def test_a_cut_between_any_rows_changes_no_bit() -> None:
    *rows, a, d, begin = inputs(21, 40, 12).packed()
    whole, end = Kernels("scalar").selective_scan(*rows, a, d, begin)

    for cut in range(1, 21):
        first, state = Kernels("scalar").selective_scan(*(v[:cut] for v in rows), a, d, begin)
        second, state = Kernels("scalar").selective_scan(*(v[cut:] for v in rows), a, d, state)

        assert np.array_equal(np.concatenate([first, second]), whole)
        assert np.array_equal(state, end)


def test_rows_before_the_first_output_move_the_state_alone() -> None:
    own = inputs(9, 40, 12).packed()
    whole, end = Kernels("scalar").selective_scan(*own)

    last, state = Kernels("scalar").selective_scan(*own, first_output=7)

    assert np.array_equal(last, whole[7:])
    assert np.array_equal(state, end)
