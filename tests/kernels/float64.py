"""What the kernel tests compare with: float64, and how cache dtypes round."""

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


def assert_within(got: Floats, wanted: Doubles, tolerance: Doubles | float) -> None:
    """Every element, with the worst one named."""
    assert got.shape == wanted.shape
    share = np.abs(got.astype(np.float64) - wanted) / tolerance
    worst = np.unravel_index(np.argmax(share), share.shape)
    assert np.all(share <= 1), f"{worst}: {got[worst]} should be {wanted[worst]}: {share[worst]:.2f} of the tolerance"
