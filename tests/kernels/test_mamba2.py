"""Mamba2's recurrence and the gated norm behind it, scalar tier, against numpy float64."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from tests.kernels.float64 import UNIT, Doubles, Floats, assert_within, packed_states, random, unpacked_states

from forearm._native import Kernels

SIZES = [(1, 2, 1, 16, 16), (6, 4, 2, 5, 7), (19, 3, 3, 40, 12), (5, 4, 1, 64, 33)]


class Inputs(NamedTuple):
    """Arguments of Kernels.mamba2, in their order."""

    x: Floats
    b: Floats
    c: Floats
    dt: Floats
    dt_bias: Floats
    a_log: Floats
    d: Floats
    state: Floats  # [heads, head_dim, state_dim]

    def packed(self) -> list[Floats]:
        return [*self[:-1], packed_states(self.state.transpose(0, 2, 1))]


def inputs(rows: int, heads: int, groups: int, head_dim: int, state_dim: int) -> Inputs:
    return Inputs(
        random(0, rows, heads, head_dim), random(1, rows, groups, state_dim), random(2, rows, groups, state_dim),
        random(3, rows, heads, scale=3.0), random(4, heads), random(5, heads), random(6, heads),
        random(7, heads, head_dim, state_dim),
    )  # fmt: skip


def scanned(own: Inputs, scale: float, least: float, most: float) -> tuple[Doubles, Doubles, Doubles, Doubles]:
    """Rows and state, and the sums of the magnitudes of their terms."""
    x, b, c, dt, dt_bias, a_log, d, state = (v.astype(np.float64) for v in own)
    size, ys, sizes = np.abs(state), [], []
    times = x.shape[1] // b.shape[1]
    for t in range(len(x)):
        step = np.clip(np.logaddexp(0, scale * dt[t] + dt_bias), least, most)
        decay = np.exp(-step * np.exp(a_log))[:, None, None]
        added = np.einsum("hp,hn->hpn", step[:, None] * x[t], b[t].repeat(times, axis=0))
        state, size = decay * state + added, decay * size + np.abs(added)
        ys.append(np.einsum("hpn,hn->hp", state, c[t].repeat(times, axis=0)) + d[:, None] * x[t])
        sizes.append(np.einsum("hpn,hn->hp", size, np.abs(c[t]).repeat(times, axis=0)) + np.abs(d[:, None] * x[t]))
    return np.stack(ys), state, np.stack(sizes), size


@pytest.mark.parametrize("limits", [(1.0, 0.0, np.inf), (0.5, 0.3, 1.5)])
@pytest.mark.parametrize("sizes", SIZES)
def test_rows_and_the_next_state(sizes: tuple[int, int, int, int, int], limits: tuple[float, float, float]) -> None:
    own = inputs(*sizes)

    y, after = Kernels("scalar").mamba2(*own.packed(), *limits)

    wanted, state, sizes_of_y, sizes_of_state = scanned(own, *limits)
    # of a value of the state: for each row the rounding of the product and sum, of dt and decay, whose exponent
    # -dt * exp(a_log) is off by 4 units of itself, at most 60 here, and of the scale; y adds state_dim roundings
    rows, _, _, head_dim, state_dim = sizes
    step = 15 + 4 * np.max(np.logaddexp(0, own.dt + own.dt_bias) * np.exp(own.a_log))
    assert step < 200
    assert_within(y, wanted, sizes_of_y * UNIT * (rows * step + state_dim + 5))
    kept = unpacked_states(after, state_dim, head_dim).transpose(0, 2, 1)
    assert_within(kept, state, sizes_of_state * UNIT * (rows * step + 4))


def test_a_cut_between_any_rows_changes_no_bit() -> None:
    x, b, c, dt, *weights, begin = inputs(21, 4, 2, 40, 12).packed()
    whole, end = Kernels("scalar").mamba2(x, b, c, dt, *weights, begin)

    for cut in range(1, 21):
        first, state = Kernels("scalar").mamba2(*(v[:cut] for v in (x, b, c, dt)), *weights, begin)
        second, state = Kernels("scalar").mamba2(*(v[cut:] for v in (x, b, c, dt)), *weights, state)

        assert np.array_equal(np.concatenate([first, second]), whole)
        assert np.array_equal(state, end)


def test_steps_are_softplus_to_a_few_units() -> None:
    raw = np.concatenate([np.linspace(-80, 80, 4001), -(10.0 ** np.linspace(-30, 1, 300))]).astype(np.float32)[:, None]
    zeros, one = np.zeros(1, np.float32), np.ones((1, 1, 1), np.float32)

    # with b = c = x = 1, d = 0 and a state of zeros, y is the step
    state = np.zeros((1, 32), np.float32)
    steps = [Kernels("scalar").mamba2(one, one, one, row[None], zeros, zeros, zeros, state)[0] for row in raw]

    wanted = np.logaddexp(0, raw.astype(np.float64)).ravel()
    assert_within(np.concatenate(steps).ravel(), wanted, wanted * UNIT * 6)


@pytest.mark.parametrize("by_sigmoid", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("gate_first", [True, False])
@pytest.mark.parametrize(("dim", "groups"), [(16, 1), (40, 1), (60, 3), (128, 8)])
def test_gated_norm(dim: int, groups: int, gate_first: bool, weighted: bool, by_sigmoid: bool) -> None:
    y, z, weight = random(0, 5, dim), random(1, 5, dim), random(2, dim)

    got = Kernels("scalar").gated_norm(y, z, weight if weighted else None, groups, 1e-5, gate_first, 0.75, by_sigmoid)

    gate = 0.75 * z.astype(np.float64)
    gate = (1 if by_sigmoid else gate) / (1 + np.exp(-gate))
    wanted = y.astype(np.float64)
    if weighted:
        wanted = wanted * gate if gate_first else wanted
        parts = wanted.reshape(5, groups, -1)
        normed = parts / np.sqrt((parts**2).mean(axis=2, keepdims=True) + 1e-5)
        wanted = normed.reshape(5, dim) * weight
        wanted = wanted if gate_first else wanted * gate
    else:
        wanted = wanted * gate
    assert_within(got, wanted, (np.abs(wanted) + 1e-6) * UNIT * (dim / groups / 16 + 24))
