"""Floats rounded to GGUF's blocks: gguf-py reads the same numbers as forearm, and they lose what the bits allow."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from forearm.model.gguf.gguf_blocks import ENCODED, encode_rows, type_of_rows
from forearm.model.gguf.gguf_codes import BLOCK_TYPES, decode_rows

RANDOM = np.random.default_rng(0)
NORMAL = RANDOM.standard_normal((24, 1536), np.float32) * np.float32(0.03)
# Relative errors of normally distributed weights, as measured. Without a search Q4_0 loses 0.086, Q4_K 0.078 and Q6_K
# 0.0193 (scales from the largest value).
LOST = {
    "Q4_0": 0.081, "Q5_0": 0.040, "Q5_1": 0.0335, "Q8_0": 0.0054, "Q4_K": 0.0714, "Q5_K": 0.0358, "Q6_K": 0.0168,
}  # fmt: skip


def read(dtype: str, stored: np.ndarray) -> np.ndarray:
    """Return the floats that gguf-py reads in blocks."""
    return np.asarray(dequantize(stored, GGMLQuantizationType[dtype]))


def lost(values: np.ndarray, wanted: np.ndarray, weights: np.ndarray | float = 1.0) -> float:
    return float(np.sqrt((weights * (values - wanted) ** 2).sum() / (weights * wanted**2).sum()))


@pytest.mark.parametrize("dtype", ENCODED)
def test_normal_weights_lose_what_the_bits_allow(dtype: str) -> None:
    error = lost(read(dtype, encode_rows(dtype, NORMAL)), NORMAL)

    assert LOST[dtype] * 0.97 < error < LOST[dtype] * 1.01


@pytest.mark.parametrize("dtype", ENCODED)
def test_both_readers_see_the_same_numbers(dtype: str) -> None:
    stored = encode_rows(dtype, NORMAL)

    codes, group = decode_rows(dtype, stored, NORMAL.shape[1]), BLOCK_TYPES[dtype].format.group
    products = codes.codes * np.repeat(codes.scales, group, axis=1)
    ours = products if codes.offsets is None else products + np.repeat(codes.offsets, group, axis=1)

    # Both round a product and a sum to float32 in their own order: an ulp of the largest term each. The scales of K
    # types and all offsets are rounded to float16, by at most 2^-11 of them.
    rounding = 2**-11 * (np.abs(ours - products) + np.abs(products) * dtype.endswith("_K"))
    assert (np.abs(ours - read(dtype, stored)) <= 2**-21 * np.abs(NORMAL).max() + 1.001 * rounding).all()


# its codes are computed from the largest value
@pytest.mark.parametrize("dtype", [name for name in ENCODED if name != "Q8_0"])
def test_important_columns_lose_less(dtype: str) -> None:
    importance = np.exp(2 * RANDOM.standard_normal(NORMAL.shape[1])).astype(np.float32)

    plain, weighted = (read(dtype, encode_rows(dtype, NORMAL, one)) for one in (None, importance))

    assert lost(weighted, NORMAL, importance) < 0.97 * lost(plain, NORMAL, importance)


@pytest.mark.parametrize("dtype", ENCODED)
def test_odd_blocks_keep_their_size(dtype: str) -> None:
    zeros, same, single, tiny = (np.zeros((1, 512), np.float32) for _ in range(4))
    same[:] = -0.25
    single[0, 300] = 8.0
    tiny[0] = np.linspace(-1e-9, 1e-9, 512)  # below float16's smallest number: 0 is the nearest

    assert not read(dtype, encode_rows(dtype, zeros)).any()
    np.testing.assert_allclose(read(dtype, encode_rows(dtype, same)), same, rtol=1 / 63)  # of 6-bit minima
    np.testing.assert_allclose(read(dtype, encode_rows(dtype, single)), single, rtol=1e-3)
    assert np.abs(read(dtype, encode_rows(dtype, tiny))).max() <= 2e-9


def test_a_weight_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="not a number"):
        encode_rows("Q8_0", np.full((1, 32), np.nan, np.float32))


def test_rows_that_blocks_do_not_divide_get_another_type() -> None:
    assert [type_of_rows("Q4_K", columns) for columns in (512, 576, 40)] == ["Q4_K", "Q5_0", "F16"]
    assert type_of_rows("Q6_K", 576) == type_of_rows("Q8_0", 576) == "Q8_0"
    assert np.array_equal(encode_rows("F16", np.ones((1, 40), np.float32)).view(np.float16), np.ones((1, 40)))
