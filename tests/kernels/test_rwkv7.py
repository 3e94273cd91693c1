"""The operations of RWKV-7, scalar tier, against numpy float64."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from tests.kernels.float64 import UNIT, Doubles, Floats, assert_within, random

from forearm._native import Kernels

SIZES = [(1, 16), (6, 5), (19, 40), (5, 64)]
EPS = 64e-5


class Inputs(NamedTuple):
    """Arguments of Kernels.rwkv7 but the epsilon and the state, in their order."""

    rows: Floats  # r, w, k, v, a, g
    mix: Floats | None
    first: Floats | None
    vectors: Floats  # k_k, k_a, r_k, norm, norm_bias


def inputs(rows: int, dim: int, mixes: bool = True) -> Inputs:
    mix, first = (random(2, rows, dim, scale=2.0), random(3, rows, dim)) if mixes else (None, None)
    return Inputs(random(0, 6, rows, dim), mix, first, random(1, 5, dim))


def state_of(dim: int, values: Floats) -> Floats:
    """A matrix [keys, values] in panels of 16 columns."""
    padded = np.zeros((dim, -(-dim // 16) * 16), np.float32)
    padded[:, :dim] = values
    return np.ascontiguousarray(padded.reshape(dim, -1, 16).swapaxes(0, 1)).ravel()


def matrix_of(dim: int, state: Floats) -> Floats:
    return np.asarray(state.reshape(-1, dim, 16).swapaxes(0, 1).reshape(dim, -1)[:, :dim])


def sigmoid(x: Doubles) -> Doubles:
    return np.asarray(1 / (1 + np.exp(-x)))


def mixed(own: Inputs, state: Doubles) -> tuple[Doubles, Doubles]:
    """Rows and state as the paper defines them."""
    (r, w, k, v, a, g), (k_k, k_a, r_k, norm, bias) = (x.astype(np.float64) for x in (own.rows, own.vectors))
    if own.mix is not None and own.first is not None:
        v = v + sigmoid(own.mix.astype(np.float64)) * (own.first - v)
    decay, rate = np.exp(-np.exp(-0.5) * sigmoid(w)), sigmoid(a)
    removal = k * k_k / np.linalg.norm(k * k_k, axis=1, keepdims=True)
    k = k * (1 + (rate - 1) * k_a)
    rows = []
    for t in range(len(r)):
        transition = np.diag(decay[t]) - np.outer(removal[t] * rate[t], removal[t])
        state = transition @ state + np.outer(k[t], v[t])
        y = state.T @ r[t]
        y = (y - y.mean()) / np.sqrt(y.var() + EPS) * norm + bias
        rows.append((y + (r[t] * k[t] * r_k).sum() * v[t]) * g[t])
    return np.stack(rows), state


@pytest.mark.parametrize("mixes", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_rows_and_the_next_state(sizes: tuple[int, int], mixes: bool) -> None:
    own, dim = inputs(*sizes, mixes), sizes[1]
    begin = random(4, dim, dim)

    out, after = Kernels("scalar").rwkv7(*own, EPS, state_of(dim, begin))

    wanted, state = mixed(own, begin.astype(np.float64))
    # A state's value is a sum of `dim` products that are as large as it, behind each row; keys, decays and values are
    # off by 16 units. A norm divides by the deviation of `dim` of them, which is not small in random rows.
    error = UNIT * (16 + dim) * (1 + sizes[0])
    assert_within(matrix_of(dim, after), state, np.full_like(state, 4 * np.abs(state).max() * error))
    assert_within(out, wanted, np.full_like(wanted, 16 * np.abs(wanted).max() * error))


def test_a_cut_between_any_rows_changes_no_bit() -> None:
    dim = 40
    own, begin = inputs(21, dim), state_of(dim, random(5, dim, dim))
    whole, end = Kernels("scalar").rwkv7(*own, EPS, begin)
    assert own.mix is not None
    assert own.first is not None

    for cut in range(1, 21):
        parts, state = [], begin
        for piece in (slice(0, cut), slice(cut, 21)):
            rows = np.ascontiguousarray(own.rows[:, piece])
            out, state = Kernels("scalar").rwkv7(rows, own.mix[piece], own.first[piece], own.vectors, EPS, state)
            parts.append(out)

        assert np.array_equal(np.concatenate(parts), whole)
        assert np.array_equal(state, end)


def test_rows_before_the_first_output_move_the_state_alone() -> None:
    own, begin = inputs(9, 16), state_of(16, random(6, 16, 16))
    whole, end = Kernels("scalar").rwkv7(*own, EPS, begin)

    last, state = Kernels("scalar").rwkv7(*own, EPS, begin, first_output=7)

    assert np.array_equal(last, whole[7:])
    assert np.array_equal(state, end)


def test_keys_of_zeros_remove_nothing() -> None:
    own, begin = inputs(1, 16), random(7, 16, 16)
    own.rows[2] = 0.0

    _, after = Kernels("scalar").rwkv7(*own, EPS, state_of(16, begin))

    decay = np.exp(-np.exp(-0.5) * sigmoid(own.rows[1, 0].astype(np.float64)))
    wanted = decay[:, None] * begin
    assert_within(matrix_of(16, after), wanted, np.abs(wanted) * UNIT * 8)


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(1, 16), (9, 70), (3, 33)])
def test_a_token_is_mixed_with_the_one_before(rows: int, columns: int, begins: bool) -> None:
    x, mix, before = random(0, rows, columns), random(1, columns), None if begins else random(2, columns)

    out = Kernels("scalar").token_shift(x, before, mix)

    last = np.concatenate([np.zeros((1, columns)) if before is None else before[None], x[:-1]]).astype(np.float64)
    wanted = x + mix * (last - x)
    assert_within(out, wanted, (np.abs(mix * (last - x)) + np.abs(wanted)) * UNIT * 2)
    assert np.array_equal(Kernels("scalar").token_shift(x, before, mix, rows - 1), out[-1:])


def test_latents_are_squashed() -> None:
    x = random(0, 3, 37, scale=4.0)

    wide = x.astype(np.float64)
    for by, wanted in (("none", wide), ("tanh", np.tanh(wide)), ("sigmoid", sigmoid(wide))):
        assert_within(Kernels("scalar").squash(x, by), wanted, np.abs(wanted) * UNIT * 8)
