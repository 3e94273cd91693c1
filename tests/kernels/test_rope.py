"""Rotary embedding of the scalar tier against float64."""

from __future__ import annotations

import numpy as np
import pytest
from tests.kernels.float64 import UNIT, assert_within, random

from forearm._native import Kernels


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(8, 8), (20, 20), (64, 32), (80, 20), (128, 128), (96, 96)])
def test_rope_turns_pairs_and_leaves_the_rest(head_dim: int, rotary_dim: int, interleaved: bool) -> None:
    x, half = random(1, 5, 3, head_dim), rotary_dim // 2
    angle = random(2, 5, half, scale=3)
    cos, sin = np.cos(angle), np.sin(angle)

    got = Kernels("scalar").rope(x, cos, sin, interleaved)

    first = slice(0, rotary_dim, 2) if interleaved else slice(0, half)
    second = slice(1, rotary_dim, 2) if interleaved else slice(half, rotary_dim)
    a, b = x[..., first].astype(np.float64), x[..., second].astype(np.float64)
    c, s = cos[:, None].astype(np.float64), sin[:, None].astype(np.float64)
    wanted, size = x.astype(np.float64), np.zeros(x.shape)
    wanted[..., first], wanted[..., second] = a * c - b * s, b * c + a * s
    size[..., first], size[..., second] = abs(a * c) + abs(b * s), abs(b * c) + abs(a * s)
    assert_within(got, wanted, 2 * UNIT * size + 1e-30)  # two products and their sum, each rounded once
    assert np.array_equal(got[..., rotary_dim:], x[..., rotary_dim:])
