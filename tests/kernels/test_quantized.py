"""Codes by codes, quantized rows and rounded weights, scalar against float64; kernel_check has the other tiers."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import pytest
from tests.kernels.float64 import UNIT, Doubles, assert_within, random, rounded

from forearm._native import Kernels
from forearm.model.quantization import rotation
from forearm.model.quantization.feedback import DAMPING, RANK, feedback_of

SHAPES = [(1, 1, 16), (2, 17, 37), (5, 48, 256), (13, 40, 300)]  # m, n, k


def spread(values: npt.NDArray[np.generic], k: int, group: int) -> Doubles:
    """Repeat a value of each group, [rows, groups], for each of its columns: [rows, k]."""
    return np.repeat(values.astype(np.float64), group, axis=1)[:, :k]


@pytest.mark.parametrize("group", [16, 64, 1000])
@pytest.mark.parametrize("ordered", [False, True])
def test_rows_are_quantized_to_the_nearest_code(group: int, ordered: bool) -> None:
    x = random(1, 5, 150)
    order = np.random.default_rng(2).permutation(150).astype(np.int32) if ordered else None

    codes, scales, sums = Kernels("scalar").quantize(x, group, order)

    columns = x if order is None else x[:, order]
    assert np.all(np.abs(columns - spread(scales, 150, group) * codes) <= spread(scales, 150, group) * 0.50001)
    starts = np.arange(0, 150, group)
    assert np.array_equal(sums, np.add.reduceat(codes.astype(np.int32), starts, axis=1))
    assert np.array_equal(scales, np.maximum.reduceat(np.abs(columns), starts, axis=1) / np.float32(127))


def turning_matrix(columns: int) -> Doubles:
    """Return the matrix that a group is multiplied with, by its definition in kernels.h."""
    rows = columns // 64
    made, left = np.ones((1, 1)), rows // (rows & -rows)
    while len(made) < 64 * (rows & -rows):
        made = np.kron(made, np.array([[1.0, 1.0], [1.0, -1.0]]))
    for odd in (3, 5, 7, 11, 13, 17, 19, 23):
        angles = 2 * np.pi / odd * np.outer(np.arange(odd), np.arange(odd))
        while left % odd == 0:
            made, left = np.kron(np.cos(angles) + np.sin(angles), made), left // odd
    order = np.arange(columns).reshape(-1, 4, 4, 4).transpose(0, 2, 3, 1).ravel()  # column 16 i + 4 q + l at q, l, i
    return np.asarray(made[order])


@pytest.mark.parametrize(
    ("k", "group"),
    [(64, 64), (576, 576), (576, 192), (896, 896), (960, 960), (1536, 512), (1280, 512), (2048, 2048), (2944, 2944)],
)
def test_turned_rows_are_products_with_an_orthogonal_matrix(k: int, group: int) -> None:
    x = random(1, 5, k)
    x[2, 2] = 50  # spread over all columns of its group
    groups = [(begin, min(group, k - begin)) for begin in range(0, k, group)]
    wanted = [x[:, begin : begin + size].astype(np.float64) @ turning_matrix(size).T for begin, size in groups]

    codes, scales, _ = Kernels("scalar").quantize(x, group, turned=True)

    turned = np.concatenate(wanted, axis=1)
    assert np.all(np.abs(turned - spread(scales, k, group) * codes) <= spread(scales, k, group) * 0.501)
    assert np.abs(turned[2, :group]).max() < np.linalg.norm(turned[2, :group]) / 4, "no value stands out"
    for _, size in groups:
        matrix = turning_matrix(size)
        assert np.abs(matrix @ matrix.T - size * np.eye(size)).max() < 1e-9 * size


@pytest.mark.parametrize(("k", "group"), [(576, 192), (1280, 512), (896, 0), (2944, 0)])
def test_weights_are_turned_as_their_activations_are(k: int, group: int) -> None:
    weights = random(3, 4, k)

    turned = rotation.turn(weights, group)

    sizes = [min(group or k, k - begin) for begin in range(0, k, group or k)]
    whole = np.zeros((k, k))
    for end, size in zip(np.cumsum(sizes).tolist(), sizes, strict=True):
        whole[end - size : end, end - size : end] = turning_matrix(size)
        whole[end - size : end] /= size
    assert np.abs(turned - weights @ whole.T).max() < 1e-5 * np.abs(turned).max()


@pytest.mark.parametrize(("k", "group"), [(384, 100), (700, 256), (32, 32), (192, 128 + 32), (64 * 67, 64 * 67)])
def test_groups_that_cannot_be_turned_are_refused(k: int, group: int) -> None:
    with pytest.raises(ValueError, match="in groups of a multiple of 64 columns, by primes up to 61"):
        Kernels("scalar").quantize(random(1, 5, k), group, turned=True)


@pytest.mark.parametrize("group", [16, 64, 1000])
def test_digits_of_16_bits_are_within_half_a_step(group: int) -> None:
    x = random(1, 5, 150)

    digits, scales, sums = Kernels("scalar").quantize(x, group, bits=16)

    step = spread(scales[1::2], 150, group)
    assert np.all(np.abs(x - step * (255.0 * digits[::2] + digits[1::2])) <= step * 0.51)
    assert digits.min() >= -127
    assert digits.max() == 127
    starts = np.arange(0, 150, group)
    assert np.array_equal(sums, np.add.reduceat(digits.astype(np.int32), starts, axis=1))
    assert np.array_equal(scales[1::2], np.maximum.reduceat(np.abs(x), starts, axis=1) / np.float32(32512))
    assert np.array_equal(scales[::2], scales[1::2] * np.float32(255))


@pytest.mark.parametrize("scale_dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("zero", ["none", "zeros", "offsets"])
@pytest.mark.parametrize("dtype", ["int8", "int6", "int4"])
@pytest.mark.parametrize("group", [16, 64, 1000])
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize("bits", [8, 16])
def test_a_product_of_codes_is_exact_within_a_group(
    bits: Literal[8, 16], m: int, n: int, k: int, group: int, dtype: str, zero: str, scale_dtype: str
) -> None:
    generator = np.random.default_rng(m + n + k)
    groups = -(-k // group)
    limit = {"int8": 128, "int6": 32, "int4": 8}[dtype]
    codes = generator.integers(-limit, limit, (n, k), np.int8)
    a, scales = random(1, m, k), random(2, n, groups, scale=0.02)
    zeros = generator.integers(-128, 128, (n, groups), np.int8) if zero == "zeros" else None
    offsets = random(3, n, groups) if zero == "offsets" else None
    kernels = Kernels("scalar")

    got = kernels.gemm_codes(a, codes, scales, dtype, group, zeros, offsets, scale_dtype, bits)

    a_codes, a_scales, _ = kernels.quantize(a, group, bits=bits)
    digits = (spread(a_scales, k, group) * a_codes).reshape(m, bits // 8, k)
    wide_a, of_a = digits.sum(axis=1), np.abs(digits).sum(axis=1)
    s = spread(rounded(scales, scale_dtype).astype(np.float32), k, group)
    o = np.zeros_like(s)
    if zeros is not None:
        o = -s * spread(zeros, k, group)
    if offsets is not None:
        o = spread(offsets.astype(np.float16), k, group)
    magnitude = of_a @ (np.abs(s * codes) + np.abs(o)).T
    assert_within(got, wide_a @ (s * codes + o).T, UNIT * (4 * groups + 9) * magnitude + 1e-30)


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_a_product_of_fp4_is_that_of_twice_its_numbers_and_half_its_scales(m: int, n: int, k: int) -> None:
    """The same bits as int8's, whose loops have no code book; and float64's, with all powers of two that matter."""
    generator = np.random.default_rng(m + n + k)
    numbers = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])[generator.integers(0, 8, (n, k))]  # OCP MX 1.0, section 5.3.3
    numbers *= generator.choice([-1, 1], (n, k))
    scales = np.exp2(generator.integers(-20, 20, (n, -(-k // 32)))).astype(np.float32)
    a, codes, kernels = random(1, m, k), (2 * numbers).astype(np.int8), Kernels("scalar")

    got = kernels.gemm_codes(a, codes, scales / 2, "fp4_e2m1", 32, scale_dtype="e8m0")

    assert np.array_equal(got, kernels.gemm_codes(a, codes, scales / 2, "int8", 32))
    a_codes, a_scales, _ = kernels.quantize(a, 32)
    wide_a, weights = spread(a_scales, k, 32) * a_codes, spread(scales, k, 32) * numbers
    bound = UNIT * (4 * scales.shape[1] + 8) * (np.abs(wide_a) @ np.abs(weights).T)
    assert_within(got, wide_a @ weights.T, bound + 1e-30)


@pytest.mark.parametrize(("dtype", "bound"), [("int8", 0.0072), ("int4", 0.101)])
def test_rounded_normal_weights_keep_their_error(dtype: str, bound: float) -> None:
    """Root mean square of the error over that of the weights, groups of 128: int8 at most absmax / 127 / sqrt(12)."""
    w = random(1, 64, 1024, scale=0.02)

    codes, scales = Kernels("scalar").round(w, dtype, 128, "float16")

    error = w - spread(scales, 1024, 128) * codes
    assert np.sqrt(np.mean(error**2) / np.mean(w.astype(np.float64) ** 2)) < bound
    assert np.array_equal(scales, rounded(scales, "float16").astype(np.float32))


def search(w: np.ndarray, importance: np.ndarray) -> float:
    """Return the scale of a group as kernels.h's RoundTask searches it, in float64."""
    best, gain = 0.0, -1.0
    for i in range(16):
        codes = np.clip(np.rint(w * (-7.0 * 1.06**i / w[np.argmax(np.abs(w))])), -8, 7)
        products, squares = importance @ (w * codes), importance @ (codes * codes)
        if products**2 / squares > gain:
            best, gain = products / squares, products**2 / squares
    return best


def test_scales_of_int4_are_searched_with_the_importance_of_columns() -> None:
    w = random(3, 8, 256, scale=0.02)
    importance = np.exp(3 * random(4, 256))

    codes, scales = Kernels("scalar").round(w, "int4", 128, "float32", importance)

    wide, weights = w.astype(np.float64), importance.astype(np.float64)
    wanted = [[search(row[g : g + 128], weights[g : g + 128]) for g in (0, 128)] for row in wide]
    assert_within(scales, np.array(wanted), 64 * UNIT * np.abs(wanted))
    plain, of_plain = Kernels("scalar").round(w, "int4", 128, "float32")

    def error(codes: np.ndarray, scales: np.ndarray) -> float:
        return float(((wide - spread(scales, 256, 128) * codes) ** 2 @ weights).sum())

    assert error(codes, scales) < 0.9 * error(plain, of_plain)


@pytest.mark.parametrize(("dtype", "group"), [("int8", 1000), ("int8", 32), ("int4", 32)])
def test_columns_are_rounded_with_feedback_of_the_errors_before_them(dtype: str, group: int) -> None:
    """Compare with GPTQ of H = D + V V^T, by dense matrices in float64 (Frantar et al. 2022, arXiv:2210.17323)."""
    w, x = random(3, 24, 96, scale=0.02), random(4, 200, 96) + 4 * random(5, 200, 2) @ random(6, 2, 96)
    feedback = feedback_of(x)

    codes, scales = Kernels("scalar").round(w, dtype, group, "float32", feedback=feedback)

    steps, directions = spread(scales, 96, group), feedback.reshape(2, 96, RANK)[1].astype(np.float64)
    squares = np.square(x, dtype=np.float64).mean(axis=0)
    diagonal = np.maximum(squares - np.square(directions).sum(axis=1), 0) + DAMPING * squares.mean()
    products = np.diag(diagonal) + directions @ directions.T
    errors, lowest, highest = np.zeros(w.shape), *((-8, 7) if dtype == "int4" else (-127, 127))
    for column in range(96):
        rest = products[column:, column:]
        best = -errors[:, :column] @ np.linalg.solve(rest, products[column:, :column])[0] if column else 0
        code = np.clip(np.rint((w[:, column] + best) / steps[:, column]), lowest, highest)
        errors[:, column] = steps[:, column] * code - w[:, column]
    got = steps * codes - w
    assert np.mean(np.abs(got - errors) < 1e-6) > 0.98  # a rounding of a half goes another way

    def loss(errors: np.ndarray) -> float:
        return float(np.square(x @ errors.T).sum())

    plain, of_plain = Kernels("scalar").round(w, dtype, group, "float32")
    assert loss(got) < 1.02 * loss(errors)
    assert loss(got) < 0.5 * loss(spread(of_plain, 96, group) * plain - w)


@pytest.mark.parametrize("rows", [np.zeros((5, 32), np.float32), np.ones((1, 8), np.float32), random(7, 3, 40)])
def test_feedback_of_few_rows_or_zeros_is_finite(rows: np.ndarray) -> None:
    feedback = feedback_of(rows)

    assert feedback.shape == (2 * rows.shape[1] * RANK,)
    assert np.isfinite(feedback).all()
    assert feedback.any() == rows.any()
