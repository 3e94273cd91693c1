"""Attention of the scalar tier, through its paged cache, against float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from tests.kernels.float64 import UNIT, Doubles, Floats, assert_within, kept, random

from forearm._native import Kernels


@dataclass(frozen=True)
class Case:
    """`tokens` queries at the end of a context of `keys` keys; heads = kv_heads * group."""

    head_dim: int
    group: int = 1
    kv_heads: int = 2
    keys: int = 70
    tokens: int = 3
    window: int = 0
    segment: int = 0
    softcap: float = 0.0
    sinks: bool = False
    dtype: str = "float32"
    reach: int = 0  # slope of ALiBi's bias by distance; 0: none


CODES = ("int8", "fp8_e4m3", "fp8_e5m2")
CASES = [
    *[Case(head_dim, group=2) for head_dim in (8, 20, 64, 80, 96, 128, 256)],
    *[Case(64, group=group, kv_heads=1, tokens=5) for group in (1, 3, 7, 8)],
    *[Case(20, keys=keys, tokens=tokens) for keys, tokens in ((1, 1), (32, 1), (33, 33), (512, 2), (1100, 4))],
    *[Case(16, window=window, keys=600, tokens=40) for window in (1, 31, 32, 100, 513)],
    *[Case(16, segment=segment, keys=600, tokens=70) for segment in (1, 31, 32, 100, 513, 560)],
    Case(40, group=2, segment=90, keys=700, tokens=200, dtype="int8"),
    *[Case(32, group=4, dtype=dtype) for dtype in ("float16", "bfloat16")],
    *[Case(40, group=3, keys=600, tokens=20, dtype=dtype) for dtype in CODES],
    Case(16, group=2, sinks=True, softcap=20.0, window=50, keys=700, tokens=30, dtype="int8"),
    Case(24, softcap=5.0, keys=100, tokens=20),
    *[Case(24, group=2, keys=200, tokens=90, reach=reach) for reach in (1, 20, 128)],
    Case(16, softcap=5.0, sinks=True, window=60, keys=600, tokens=70, reach=30, dtype="int8"),
    Case(48, group=2, sinks=True),
    Case(40, group=2, sinks=True, softcap=20.0, window=50, keys=700, tokens=30, dtype="bfloat16"),
]


class Inputs:
    def __init__(self, case: Case) -> None:
        heads = case.kv_heads * case.group
        self.q = random(1, case.tokens, heads, case.head_dim)
        self.k = random(2, case.keys, case.kv_heads, case.head_dim)
        self.v = random(3, case.keys, case.kv_heads, case.head_dim)
        self.sinks = random(4, heads) if case.sinks else None
        self.bias: Floats | None = None
        if case.reach:
            inner = random(5, heads, 2 * case.reach + 1)
            self.bias = np.ascontiguousarray(np.pad(inner, ((0, 0), (15, 15)), "edge"))
        self.scale = float(np.float32(case.head_dim**-0.5))


def attend(case: Case, x: Inputs, step_tokens: int = 1000, in_chunks: bool = False) -> Floats:
    return Kernels("scalar").attend(
        x.q,
        x.k,
        x.v,
        case.dtype,
        x.scale,
        case.window,
        case.softcap,
        x.sinks,
        step_tokens,
        in_chunks,
        x.bias,
        segment=case.segment,
    )


def reference(case: Case, x: Inputs) -> tuple[Doubles, Doubles]:
    """Attention in float64 on the rounded cache, and how far float32 may be from it.

    A score is a sum of head_dim products, so off by head_dim + 2 units of the sum of their magnitudes; a weight by as
    much as its score and the largest one. The weighted sum adds 32 values a block, and the blocks rescale: 3 roundings
    each; the denominator adds one weight a block and lane.
    """
    k = np.repeat(kept(x.k, "int8" if case.dtype in CODES else case.dtype), case.group, axis=1)
    v = np.repeat(kept(x.v, case.dtype), case.group, axis=1)
    q = x.q.astype(np.float64) * x.scale
    scores = np.einsum("thd,khd->thk", q, k)
    error = UNIT * (case.head_dim + 2) * np.einsum("thd,khd->thk", abs(q), abs(k)).max(axis=2, keepdims=True)
    if case.softcap:
        scores = case.softcap * np.tanh(scores / case.softcap)
        error = error + 8 * UNIT * case.softcap
    position, key = np.arange(case.keys - case.tokens, case.keys)[:, None], np.arange(case.keys)[None]
    if x.bias is not None:
        added = x.bias[:, np.clip(key - position, -case.reach, case.reach) + case.reach + 15].transpose(1, 0, 2)
        scores = scores + added
        error = error + 2 * UNIT * (abs(scores) + abs(added)).max(axis=2, keepdims=True)
    seen = (key <= position) & ((case.window == 0) | (position - key < case.window))
    if case.segment:
        seen &= key // case.segment == position // case.segment
    scores = np.where(seen[:, None], scores, -np.inf)
    sinks = np.full(q.shape[1], -np.inf) if x.sinks is None else x.sinks.astype(np.float64)
    top = np.maximum(scores.max(axis=2), sinks)
    weights = np.exp(scores - top[..., None])
    weights /= (weights.sum(axis=2) + np.exp(sinks - top))[..., None]
    roundings = 32 + 4 * (case.keys / 32 + 1) + 16
    spread = np.einsum("thk,khd->thd", weights, abs(v))
    return np.einsum("thk,khd->thd", weights, v), spread * (4 * error + roundings * UNIT)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_is_the_softmax_of_scores_over_the_keys_seen(case: Case) -> None:
    x = Inputs(case)

    got = attend(case, x)

    assert_within(got, *reference(case, x))


@pytest.mark.parametrize("case", [case for case in CASES if case.keys > 512 or case.tokens > 4], ids=str)
def test_chunks_apart_and_other_company_give_the_same_bits(case: Case) -> None:
    x = Inputs(case)
    whole = attend(case, x)

    assert np.array_equal(attend(case, x, in_chunks=True), whole)
    assert np.array_equal(attend(case, x, step_tokens=1), whole)
    assert np.array_equal(attend(case, x, step_tokens=3, in_chunks=True), whole)


def test_the_context_behind_a_token_does_not_change_it() -> None:
    case = Case(24, group=2, keys=90, tokens=90)
    x = Inputs(case)
    whole = attend(case, x)

    x.q, x.k, x.v = x.q[:50], x.k[:50], x.v[:50]

    assert np.array_equal(attend(case, x), whole[:50])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", *CODES])
def test_a_nan_in_a_key_reaches_the_rows_that_see_it_and_no_others(dtype: str) -> None:
    case = Case(16, keys=60, tokens=60, kv_heads=1, dtype=dtype)
    x = Inputs(case)
    x.k[40, 0, 3] = np.nan

    got = attend(case, x)

    assert np.isnan(got[40:]).all()
    assert np.isfinite(got[:40]).all()


@pytest.mark.parametrize("dtype", CODES)
def test_an_infinity_in_a_quantized_value_makes_the_row_no_number(dtype: str) -> None:
    case = Case(16, keys=40, tokens=40, kv_heads=1, dtype=dtype)
    x = Inputs(case)
    x.v[39, 0, 3] = np.inf

    got = attend(case, x)

    assert not np.isfinite(got[39]).all()


@pytest.mark.parametrize("dtype", ["fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize("size", [2.0**-60, 2.0**60])
def test_values_of_any_size_keep_the_precision_of_fp8(dtype: str, size: float) -> None:
    case = Case(64, keys=40, dtype=dtype)
    x = Inputs(case)
    expected = attend(case, x) * np.float32(size)
    x.v *= np.float32(size)

    got = attend(case, x)

    assert np.array_equal(got, expected)
