"""Unpacks packed integers to int8; low bits come first, as in most quantized formats."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from forearm.array_types import Int8Array, UInt8Array


def unpacked(words: npt.NDArray[Any], bits: int) -> Int8Array:
    """Unpack the last axis of contiguous int32 words or bytes to int8 [..., n]; subtract 2^(bits - 1).

    bits: 4 or 8. Stored 0 .. 15 become -8 .. 7, and 0 .. 255 become -128 .. 127.
    """
    stored = words.view(np.uint8)
    if bits == 8:
        return (stored ^ np.uint8(128)).view(np.int8)
    return nibbles(stored).view(np.int8) - np.int8(8)


def nibbles(stored: UInt8Array) -> UInt8Array:
    """Return the low and then the high half of each byte, uint8 [..., 2 n]."""
    out = np.empty((*stored.shape[:-1], 2 * stored.shape[-1]), np.uint8)
    np.bitwise_and(stored, 15, out=out[..., 0::2])
    np.right_shift(stored, 4, out=out[..., 1::2])
    return out
