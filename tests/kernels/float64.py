"""References of the kernel tests: float64, and the rounding of cache dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]
Doubles = npt.NDArray[np.float64]

UNIT = 2.0**-24  # relative error of one float32 rounding to nearest


def random(seed: int, *shape: int, scale: float = 1.0) -> npt.NDArray[np.float32]:
    """Normal float32 numbers, the same in every run."""
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def rounded(x: npt.NDArray[np.float32], dtype: str) -> Doubles:
    """x as `dtype` holds it (to nearest, ties to even)."""
    if dtype == "float16":
        return x.astype(np.float16).astype(np.float64)
    if dtype == "bfloat16":
        bits = x.view(np.uint32).astype(np.uint64)
        kept = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        return kept.astype(np.uint32).view(np.float32).astype(np.float64)
    return x.astype(np.float64)


def fp8_numbers(exponent_bits: int, fraction_bits: int, largest: float) -> Doubles:
    """Every number of an 8-bit float from 0 to the largest, by code (OCP 8-bit floating point, 2023)."""
    bias = (1 << (exponent_bits - 1)) - 1
    codes = np.arange(128)
    exponent, fraction = codes >> fraction_bits, codes & ((1 << fraction_bits) - 1)
    step = 2.0 ** (np.maximum(exponent, 1) - bias - fraction_bits)
    numbers = (fraction + np.where(exponent > 0, 1 << fraction_bits, 0)) * step
    return np.asarray(numbers[numbers <= largest])


FP8 = {"fp8_e4m3": fp8_numbers(4, 3, 448.0), "fp8_e5m2": fp8_numbers(5, 2, 57344.0)}


def kept(x: npt.NDArray[np.float32], dtype: str) -> Doubles:
    """Values [..., head_dim] as a cache of `dtype` holds them; keys likewise, but of fp8 as of int8."""
    if dtype != "int8" and dtype not in FP8:
        return rounded(x, dtype)
    top, largest = np.float32(112 if dtype in FP8 else 127), np.abs(x).max(axis=-1, keepdims=True)
    scaled = x * (top / largest)
    codes = nearest_fp8(scaled, FP8[dtype]) if dtype in FP8 else np.rint(scaled).astype(np.float64)
    return np.asarray(codes * (largest / top))


def nearest_fp8(x: npt.NDArray[np.float32], numbers: Doubles) -> Doubles:
    """The nearest of `numbers`, ascending and from 0 on, with the sign of x; of two the one whose code is even."""
    size = np.abs(x).astype(np.float64)
    above = np.searchsorted(numbers, size)  # index of the first value that is not smaller
    below = np.maximum(above - 1, 0)
    down, up = size - numbers[below], numbers[above] - size
    nearest = np.where((up < down) | ((up == down) & (above % 2 == 0)), above, below)
    return np.asarray(np.copysign(numbers[nearest], x))


def packed_states(matrices: Floats) -> npt.NDArray[np.float32]:
    """Heads' matrices [heads, rows, columns] as recurrences keep them, [heads, floats], with scales of 1."""
    heads, rows, columns = matrices.shape
    panels = -(-columns // 16)
    padded = np.zeros((heads, rows, panels * 16), np.float32)
    padded[:, :, :columns] = matrices
    kept = padded.reshape(heads, rows, panels, 16).transpose(0, 2, 1, 3)
    scale = np.broadcast_to(np.eye(1, 16, dtype=np.float32), (heads, panels, 1, 16))
    return np.concatenate([kept, scale], axis=2).reshape(heads, -1)


def unpacked_states(states: Floats, rows: int, columns: int) -> Doubles:
    """The matrices [heads, rows, columns] of packed states."""
    panels = states.reshape(len(states), -1, rows + 1, 16)
    kept = panels[:, :, :rows].transpose(0, 2, 1, 3).reshape(len(states), rows, -1)
    scale = panels[:, :1, rows, :1].astype(np.float64)
    assert not kept[:, :, columns:].any()
    assert (panels[:, :, rows, :1] == scale).all()
    return kept[:, :, :columns].astype(np.float64) * scale


def assert_within(got: Floats, wanted: Doubles, tolerance: Doubles | float) -> None:
    """Every element, with the worst one named."""
    assert got.shape == wanted.shape
    share = np.abs(got.astype(np.float64) - wanted) / tolerance
    worst = np.unravel_index(np.argmax(share), share.shape)
    assert np.all(share <= 1), f"{worst}: {got[worst]} should be {wanted[worst]}: {share[worst]:.2f} of the tolerance"
