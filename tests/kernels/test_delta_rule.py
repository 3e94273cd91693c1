"""The gated delta rule with its gates, and attention with gates, scalar tier, against numpy float64."""

from __future__ import annotations

import numpy as np
import pytest
from tests.kernels.float64 import UNIT, Doubles, Floats, assert_within, packed_states, random, unpacked_states

from forearm._native import Kernels

SCALAR = Kernels("scalar")


class Inputs:
    """Keys of length one, as the mixer makes them, and gates as those of published models are spread.

    With a `rate` of 20 most decays are near 0, so that the scale falls below its least again and again.
    by_channel: each channel of the keys has a decay.
    """

    def __init__(self, rows: int, key_dim: int, value_dim: int, rate: float = 1.0, by_channel: bool = False) -> None:
        self.q, self.k = random(0, rows, key_dim), random(1, rows, key_dim)
        self.q /= np.linalg.norm(self.q, axis=1, keepdims=True)
        self.k /= np.linalg.norm(self.k, axis=1, keepdims=True)
        self.v, self.state = random(2, rows, value_dim), random(3, key_dim, value_dim)
        self.decay = np.exp(-np.abs(random(4, *((rows, key_dim) if by_channel else (rows,)), scale=rate)))
        self.beta = (1 / (1 + np.exp(-random(5, rows)))).astype(np.float32)

    def rule(self, begin: int, end: int, state: Floats) -> tuple[Floats, Floats]:
        rows = slice(begin, end)
        return SCALAR.delta_rule(self.q[rows], self.k[rows], self.v[rows], self.decay[rows], self.beta[rows], state)


def reference(x: Inputs) -> tuple[Doubles, Doubles, Doubles, Doubles]:
    """The recurrence in float64, and how far float32 may be from its rows and its last state.

    What is read is a sum of key_dim products, off by as many units of their magnitudes and by the state's own error.
    beta < 1 and |k| = 1: an update adds at most the error of what was read, and five roundings of its own: the scale,
    what was read, the difference, beta / scale and the product with it. What was there before a row is rounded with the
    scale and, where that gets too small, once more. Decays of channels round what is there once, before it is read.
    """
    q, k, v, state = (a.astype(np.float64) for a in (x.q, x.k, x.v, x.state))
    error, rows, errors = np.zeros_like(state), [], []
    for t in range(len(q)):
        decay, beta = x.decay[t].astype(np.float64).reshape(-1, 1), float(x.beta[t])
        state, error = decay * state, decay * error
        told, told_error = k[t] @ state, abs(k[t]) @ (error + (len(k[t]) + 2) * UNIT * abs(state))
        change = beta * (v[t] - told)
        change_error = beta * (told_error + 5 * UNIT * (abs(v[t]) + abs(told)))
        forgotten = abs(state)
        state = state + np.outer(k[t], change)
        error = error + np.outer(abs(k[t]), change_error) + 2 * UNIT * abs(state) + 2 * UNIT * forgotten
        rows.append(q[t] @ state)
        errors.append(abs(q[t]) @ (error + (len(k[t]) + 2) * UNIT * abs(state)) + 1e-30)
    return np.array(rows), np.array(errors), state, error + 1e-30


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("rate", [1.0, 20.0])
@pytest.mark.parametrize(("rows", "key_dim", "value_dim"), [(1, 8, 16), (9, 20, 13), (40, 128, 128), (3, 1, 70)])
def test_rows_and_the_state_after_them(rows: int, key_dim: int, value_dim: int, rate: float, by_channel: bool) -> None:
    x = Inputs(rows, key_dim, value_dim, rate, by_channel)

    out, after = x.rule(0, rows, packed_states(x.state[None])[0])

    wanted, tolerance, state, error = reference(x)
    assert_within(out, wanted, tolerance)
    assert_within(unpacked_states(after[None], key_dim, value_dim)[0], state, error)


@pytest.mark.parametrize("by_channel", [False, True])
def test_zeros_are_a_state_before_its_first_token(by_channel: bool) -> None:
    x = Inputs(5, 12, 20, by_channel=by_channel)
    x.state = np.zeros_like(x.state)

    out, after = x.rule(0, 5, np.zeros_like(packed_states(x.state[None])[0]))

    wanted, tolerance, state, error = reference(x)
    assert_within(out, wanted, tolerance)
    assert_within(unpacked_states(after[None], 12, 20)[0], state, error)


def test_a_scale_that_is_too_small_is_multiplied_into_the_state() -> None:
    x = Inputs(30, 12, 20, rate=4.0)
    state, scales = packed_states(x.state[None])[0], []

    for row in range(30):
        _, state = x.rule(row, row + 1, state)
        scales.append(float(state[-16]))

    assert 1.0 in scales[5:]
    assert min(scales) >= 2.0**-60


def test_decays_of_channels_that_are_all_0_leave_the_last_row_alone() -> None:
    """Sums of their logarithms over a prompt would be infinite, and differences of them no numbers."""
    x = Inputs(40, 12, 20, by_channel=True)
    x.decay[:] = 0

    out, after = x.rule(0, 40, packed_states(x.state[None])[0])

    k, change = x.k.astype(np.float64), x.beta[:, None].astype(np.float64) * x.v
    wanted = (x.q.astype(np.float64) * k).sum(axis=1, keepdims=True) * change
    size = np.abs(x.q * x.k).sum(axis=1, keepdims=True) * np.abs(change)
    assert_within(out, wanted, 16 * UNIT * size + 1e-30)
    last = np.outer(k[-1], change[-1])
    assert_within(unpacked_states(after[None], 12, 20)[0], last, 3 * UNIT * np.abs(last) + 1e-30)


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("rate", [1.0, 20.0])
def test_a_cut_between_any_rows_changes_no_bit(rate: float, by_channel: bool) -> None:
    x = Inputs(9, 32, 40, rate, by_channel)
    begin = packed_states(x.state[None])[0]
    whole, end = x.rule(0, 9, begin)

    for cut in range(1, 9):
        first, state = x.rule(0, cut, begin)
        second, state = x.rule(cut, 9, state)

        assert np.array_equal(np.concatenate([first, second]), whole)
        assert np.array_equal(state, end)


@pytest.mark.parametrize("beta_scale", [1.0, 2.0])
@pytest.mark.parametrize(("heads", "channels"), [(1, 1), (16, 1), (21, 1), (3, 20), (2, 16)])
def test_gates_forget_by_a_factor_and_write_a_part(heads: int, channels: int, beta_scale: float) -> None:
    a, b = random(0, 7, heads * channels, scale=6), random(1, 7, heads * channels, scale=6)
    a_log, dt_bias = random(2, heads), random(3, heads * channels)

    decay, beta = SCALAR.delta_gates(a, b, a_log, dt_bias, beta_scale)

    rate = np.repeat(np.exp(a_log.astype(np.float64)), channels)
    b = b[:, :heads]
    exponent = rate * np.logaddexp(0, (a + dt_bias).astype(np.float64))
    # The exponent is a product of two functions that are off by a few units (math.h), and its error is e^x's.
    assert_within(decay, np.exp(-exponent), np.exp(-exponent) * UNIT * (2 + 12 * exponent) + 1e-37)
    assert_within(beta, beta_scale / (1 + np.exp(-b.astype(np.float64))), beta_scale * 6 * UNIT)


@pytest.mark.parametrize(("heads", "channels"), [(1, 1), (21, 1), (3, 20)])
def test_factors_have_a_lower_bound(heads: int, channels: int) -> None:
    a, a_log, dt_bias = random(0, 7, heads * channels, scale=6), random(2, heads), random(3, heads * channels)

    decay, _ = SCALAR.delta_gates(a, a, a_log, dt_bias, least=-5.0)

    rate = np.repeat(np.exp(a_log.astype(np.float64)), channels)
    exponent = rate * (a + dt_bias).astype(np.float64)
    wanted = np.exp(-5.0 / (1 + np.exp(-exponent)))
    assert_within(decay, wanted, wanted * UNIT * (2 + 5 * (12 + 12 * np.abs(exponent))))
    assert wanted.min() >= np.exp(-5.0)


@pytest.mark.parametrize("x", [-100.0, -20.0, -1.0, -1e-3, 0.0, 1e-3, 1.0, 20.0, 100.0])
def test_softplus_is_near_where_it_is_small_and_where_it_is_large(x: float) -> None:
    """decay = exp(-softplus(x)) with a_log 0 is 1 / (1 + e^x)."""
    decay, _ = SCALAR.delta_gates(
        np.array([[x]], np.float32), np.zeros((1, 1), np.float32), np.zeros(1, np.float32), np.zeros(1, np.float32)
    )

    wanted = np.exp(-np.logaddexp(0, np.float64(np.float32(x))))
    assert_within(decay, np.array([[wanted]]), wanted * UNIT * (2 + 12 * max(x, 1.0)) + 1e-37)


def test_results_of_attention_are_multiplied_with_the_sigmoid_of_their_gate() -> None:
    q, k, v, gate = (random(i, 5, heads, 20) for i, heads in enumerate((6, 2, 2, 6)))
    attended = [
        SCALAR.attend(q, k, v, "float32", 0.2, 0, 0.0, None, 2, in_chunks, None, by)
        for in_chunks in (False, True)
        for by in (None, gate)
    ]

    wanted = attended[0].astype(np.float64) / (1 + np.exp(-gate.astype(np.float64)))
    assert_within(attended[1], wanted, np.abs(wanted) * UNIT * 6 + 1e-30)
    assert np.array_equal(attended[3], attended[1])
