"""Multiplication and embedding, scalar against float64; tests/native/kernel_check_gemm.cpp has the other tiers."""

from __future__ import annotations

from collections.abc import Callable
from math import erf

import numpy as np
import pytest
from tests.kernels.float64 import UNIT, Doubles, Floats, assert_within, random, rounded

from forearm._native import Kernels, tier_names

DTYPES = ["float32", "float16", "bfloat16"]
SHAPES = [(1, 1, 1), (1, 16, 2), (2, 17, 3), (3, 33, 64), (5, 48, 97), (7, 40, 130)]  # m, n, k


def product(a: Floats, w: Doubles, bias: Floats | None = None) -> tuple[Doubles, Doubles]:
    """a w^T + bias in float64, and how far k rounded additions may be from it (Higham, section 3.1), and the bias's."""
    wide = a.astype(np.float64)
    exact = wide @ w.T
    if bias is not None:
        exact = exact + bias
    return exact, UNIT * (a.shape[1] * (np.abs(wide) @ np.abs(w).T) + np.abs(exact)) + 1e-38


ACTIVATIONS: dict[str, Callable[[Doubles], Doubles]] = {
    "none": lambda x: x,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "gelu_erf": lambda x: 0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2))),
    "relu": lambda x: np.maximum(x, 0),
    "relu_squared": lambda x: np.maximum(x, 0) ** 2,
}


def activated(name: str, x: Doubles, error: Doubles) -> tuple[Doubles, Doubles]:
    """The activation of x, and what x's error and 16 roundings of its own (of x or of the result) make of it."""
    f = ACTIVATIONS[name]
    value = f(x)
    spread = np.maximum(np.abs(f(x + error) - value), np.abs(f(x - error) - value))
    return value, 2 * spread + 16 * UNIT * (np.abs(value) + np.abs(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_a_product_is_within_its_roundings(m: int, n: int, k: int, dtype: str) -> None:
    a, w, bias = random(1, m, k), random(2, n, k), random(3, n)

    got = Kernels("scalar").gemm(a, w, dtype, bias, scale=0.5)

    exact, error = product(a, rounded(w, dtype), bias)
    assert_within(got, 0.5 * exact, 0.5 * error)


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_adds_to_what_is_there(dtype: str) -> None:
    a, w, residual = random(1, 5, 33), random(2, 20, 33), random(3, 5, 20)

    got = Kernels("scalar").gemm(a, w, dtype, epilogue="add", scale=2.0, residual=residual)

    exact, error = product(a, rounded(w, dtype))
    assert_within(got, residual + 2 * exact, 2 * error + UNIT * np.abs(residual + 2 * exact))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activate_applies_the_activation(activation: str) -> None:
    a, w, bias = random(1, 4, 40), random(2, 35, 40), random(3, 35)

    got = Kernels("scalar").gemm(a, w, "float32", bias, epilogue="activate", activation=activation)

    assert_within(got, *activated(activation, *product(a, rounded(w, "float32"), bias)))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("half", [1, 16, 17, 40])
def test_gated_multiplies_up_by_the_activated_gate(half: int, activation: str) -> None:
    a, w, bias = random(1, 3, 21, scale=0.3), random(2, 2 * half, 21), random(3, 2 * half)

    got = Kernels("scalar").gemm(a, w, "bfloat16", bias, epilogue="gated", activation=activation)

    exact, error = product(a, rounded(w, "bfloat16"), bias)
    gate, gate_error = activated(activation, exact[:, :half], error[:, :half])
    up, up_error = exact[:, half:], error[:, half:]
    bound = np.abs(up) * gate_error + np.abs(gate) * up_error + gate_error * up_error
    assert_within(got, gate * up, bound + UNIT * np.abs(gate * up))


@pytest.mark.parametrize(("gate_limit", "limit"), [(0.3, 0.2), (0.2, np.inf), (np.inf, 0.3)])
def test_gates_and_what_they_multiply_have_limits_of_their_own(gate_limit: float, limit: float) -> None:
    a, w = random(1, 5, 21), random(2, 2 * 40, 21)

    got = Kernels("scalar").gemm(
        a, w, "float32", epilogue="gated", activation="silu", scale=0.5, gate_limit=gate_limit, limit=limit
    )

    exact, error = product(a, rounded(w, "float32"))
    scaled, most = 0.5 * exact[:, :40], np.float64(np.float32(gate_limit))
    assert np.isinf(most) or (scaled > most).mean() > 0.1
    gate, gate_error = activated("silu", np.minimum(scaled, most), error[:, :40])
    up = np.clip(exact[:, 40:], -np.float64(np.float32(limit)), np.float64(np.float32(limit)))
    bound = np.abs(up) * gate_error + np.abs(gate) * error[:, 40:] + gate_error * error[:, 40:]
    assert_within(got, gate * up, bound + UNIT * np.abs(gate * up))


def test_softcap_keeps_below_its_cap() -> None:
    a, w = random(1, 4, 64), random(2, 30, 64)

    got = Kernels("scalar").gemm(a, w, "float32", epilogue="softcap", scale=0.5, softcap=3.0)

    exact, error = product(a, rounded(w, "float32"))
    wanted = 3 * np.tanh(0.5 * exact / 3)
    assert_within(got, wanted, 0.5 * error + 16 * UNIT * np.abs(wanted))
    assert np.abs(got).max() <= 3


def test_swiglu_oai_clamps_gate_and_up_and_adds_one_to_up() -> None:
    a, w = random(1, 9, 32), random(2, 2 * 24, 32, scale=2)

    got = Kernels("scalar").gemm(a, w, "float32", epilogue="gated", activation="swiglu_oai")

    exact, error = product(a, rounded(w, "float32"))
    assert (np.abs(exact) > 7).mean() > 0.1  # both clamps are reached
    gate, up = np.minimum(exact[:, :24], 7), np.clip(exact[:, 24:], -7, 7)
    wanted = gate / (1 + np.exp(-1.702 * gate)) * (up + 1)
    # error of either factor; the other is at most 8, and its slope below 2
    spread = (error[:, :24] + error[:, 24:]) * 20
    assert_within(got, wanted, spread + 32 * UNIT * (np.abs(wanted) + 8))


@pytest.mark.parametrize("scale", [1.0, 1e-4, 20.0])
def test_xielu_is_a_square_above_zero_and_an_exponential_below(scale: float) -> None:
    a, w, constants = random(1, 9, 32), random(2, 35, 32, scale=scale), (0.8, 1.3, 0.5, -1e-6)

    got = Kernels("scalar").gemm(a, w, "float32", epilogue="activate", activation="xielu", xielu=constants)

    positive, negative, linear, limit = np.float32(constants).astype(np.float64)
    exact, error = product(a, rounded(w, "float32"))
    below = negative * (np.expm1(np.minimum(exact, limit)) - exact)
    wanted = np.where(exact > 0, positive * exact**2, below) + linear * exact
    slope = 2 * positive * np.abs(exact) + negative + linear  # at most
    assert_within(got, wanted, 2 * slope * error + 16 * UNIT * (np.abs(wanted) + np.abs(exact)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (16, 3), (45, 97)])
def test_embed_gives_the_tokens_rows(n: int, k: int, dtype: str) -> None:
    w = random(1, n, k)
    tokens = np.array([n - 1, 0, n // 2, n - 1], np.int32)

    got = Kernels("scalar").embed(tokens, w, dtype, scale=0.5)

    assert np.array_equal(got, (0.5 * rounded(w, dtype)[tokens]).astype(np.float32))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tier", tier_names())
def test_a_row_gives_the_same_bits_alone_as_among_many(tier: str, dtype: str) -> None:
    a, w = random(1, 29, 50), random(2, 70, 50)
    kernels = Kernels(tier)

    together = kernels.gemm(a, w, dtype)

    for row in (0, 13, 28):
        assert np.array_equal(kernels.gemm(a[row : row + 1], w, dtype)[0], together[row])
