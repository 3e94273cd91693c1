"""Norms of the scalar tier against float64."""

from __future__ import annotations

import numpy as np
import pytest
from tests.kernels.float64 import UNIT, Doubles, Floats, assert_within, random

from forearm._native import Kernels

EPS = 1e-5
DIMS = [1, 7, 16, 40, 100, 1536]


def rms(x: Floats) -> Doubles:
    wide = x.astype(np.float64)
    return np.asarray(wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + EPS))


def rms_tolerance(y: Doubles, dim: int) -> Doubles:
    """A lane adds dim / 16 squares and the fold 4; the root halves that error; five more roundings follow."""
    return UNIT * np.abs(y) * ((dim / 16 + 6) / 2 + 5) + 1e-30


@pytest.mark.parametrize("dim", DIMS)
def test_rms_norm_divides_by_the_root_mean_square(dim: int) -> None:
    x, weight = random(dim, 3, dim), random(1, dim)

    got = Kernels("scalar").norm(x, weight, None, EPS, False)

    wanted = rms(x) * weight.astype(np.float64)
    assert_within(got, wanted, rms_tolerance(wanted, dim))


def test_a_norm_without_weight_is_the_one_with_ones() -> None:
    x = random(5, 2, 40)

    assert np.array_equal(
        Kernels("scalar").norm(x, None, None, EPS, False),
        Kernels("scalar").norm(x, np.ones(40, np.float32), None, EPS, False),
    )


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dim", DIMS)
def test_layer_norm_centres_and_scales(dim: int, with_bias: bool) -> None:
    x, weight = random(dim, 3, dim) + np.float32(3), random(1, dim)
    bias = random(2, dim) if with_bias else None

    got = Kernels("scalar").norm(x, weight, bias, EPS, True)

    wide = x.astype(np.float64)
    mean, deviation = wide.mean(axis=1, keepdims=True), np.sqrt(wide.var(axis=1, keepdims=True) + EPS)
    y = (wide - mean) / deviation * weight
    wanted = y if bias is None else y + bias
    # The mean is off by the roundings of a lane, of the fold and of the division: an error not relative to x - mean.
    mean_error = UNIT * (dim / 16 + 6) * np.abs(wide).mean(axis=1, keepdims=True)
    tolerance = (mean_error + UNIT * np.abs(wide - mean)) / deviation * np.abs(weight) * 2 + rms_tolerance(y, dim)
    assert_within(got, wanted, tolerance + UNIT * np.abs(wanted))


def test_add_norm_adds_a_scaled_norm_to_the_residual() -> None:
    residual, x, weight = random(1, 4, 70), random(2, 4, 70), random(3, 70)

    got = Kernels("scalar").add_norm(residual, x, weight, EPS, 0.5)

    added = rms(x) * weight.astype(np.float64) * 0.5
    wanted = residual + added
    assert_within(got, wanted, rms_tolerance(added, 70) + UNIT * np.abs(wanted))


@pytest.mark.parametrize("head_dim", [8, 20, 64, 128])
def test_head_norm_takes_each_head_by_itself(head_dim: int) -> None:
    x, weight = random(head_dim, 3, 5, head_dim), random(1, head_dim)

    got = Kernels("scalar").head_norm(x, weight, EPS)

    wanted = rms(x) * weight.astype(np.float64)
    assert_within(got, wanted, rms_tolerance(wanted, head_dim))
