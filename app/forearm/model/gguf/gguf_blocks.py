"""Rounds floats to the block types of .gguf files: the inverse of gguf_codes.

A scale is searched for in every group: each candidate gives codes, the codes give the scale (and offset) of the least
weighted squares, and the best of all is kept. The weights are the importance of columns on a calibration text, as far
as it is known. Scales of the K types are then rounded to integers times a float16 of the whole block.
Source: ggml-common.h (blocks) of github.com/ggml-org/ggml; weighted least squares: any textbook.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from forearm.array_types import Float32Array, UInt8Array
from forearm.errors import ConfigError
from forearm.model.gguf.gguf_codes import BLOCK_TYPES, FLOATS

# Types of rows that are no multiple of 256 values long, as llama.cpp chooses them (src/llama-quant.cpp).
_OF_SHORT_ROWS = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
_PART_VALUES = 1 << 15  # rounded at a time: the floats of a search fit a core's second-level cache

Encode = Callable[[Float32Array, Float32Array], UInt8Array]


def type_of_rows(dtype: str, columns: int) -> str:
    """Return the type for rows of so many values: `dtype`, what stands for a K type, or F16 if 32 do not divide it."""
    if dtype in FLOATS:
        return dtype
    if columns % 32:
        return "F16"
    return _OF_SHORT_ROWS.get(dtype, dtype) if columns % 256 else dtype


def encode_rows(dtype: str, rows: Float32Array, importance: Float32Array | None = None) -> UInt8Array:
    """Round rows to blocks.

    dtype: one of ENCODED, F32, F16 or BF16. rows: float32 [rows, columns]. importance: float32 [columns], weights of
    the squared errors; None: all count alike.
    Returns: uint8 [rows, bytes of a row]. Raises: ValueError for floats that are not numbers, ConfigError for
    those that float16 does not have.
    """
    if not np.isfinite(rows).all():
        raise ValueError("a weight is not a number")
    if dtype == "F32":
        return rows.astype(np.float32).view(np.uint8)
    if dtype == "F16":
        if np.abs(rows).max(initial=0) >= 65520:  # which rounds to infinity
            raise ConfigError(f"a weight of {np.abs(rows).max():g} is more than float16 has; choose gguf-BF16")
        return rows.astype(np.float16).view(np.uint8)
    if dtype == "BF16":  # to the nearest, and of two equally near ones to the even one
        bits = np.ascontiguousarray(rows, np.float32).view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16).view(np.uint8)
    count, columns = rows.shape
    encode, values = ENCODED[dtype]
    stored = np.empty((count, columns // values * BLOCK_TYPES[dtype].bytes), np.uint8)
    weights = np.ones(columns, np.float32) if importance is None else importance
    step = max(1, _PART_VALUES // columns)
    for row in range(0, count, step):
        part = np.ascontiguousarray(rows[row : row + step], np.float32)
        of_part = np.broadcast_to(weights, part.shape).reshape(-1, values)
        stored[row : row + step] = encode(part.reshape(-1, values), of_part).reshape(len(part), -1)
    return stored


def _columns(blocks: Float32Array, group: int) -> Float32Array:
    """Return groups of values as columns, [group, groups], so that sums over a group add long rows."""
    return np.ascontiguousarray(blocks.reshape(-1, group).T)


def _divided(values: Float32Array, by: Float32Array) -> Float32Array:
    result: Float32Array = np.zeros(np.broadcast_shapes(values.shape, by.shape), np.float32)
    np.divide(values, by, out=result, where=by != 0)
    return result


def _half(values: Float32Array) -> tuple[UInt8Array, Float32Array]:
    """Return float16 bytes [n, 2] of n values, and the values that they stand for."""
    stored = values.astype(np.float16)
    return stored.reshape(-1, 1).view(np.uint8), stored.astype(np.float32)


def _sum(values: Float32Array) -> Float32Array:
    total: Float32Array = values.sum(axis=0)
    return total


def _symmetric(x: Float32Array, w: Float32Array, half: int, candidates: int) -> Float32Array:
    """Return the scale of each group for codes -half .. half - 1, of either sign. x, w: [group, groups]."""
    largest = np.take_along_axis(x, np.abs(x).argmax(axis=0)[None], axis=0)[0]
    wx = w * x
    best: Float32Array = np.zeros_like(largest)
    scale: Float32Array = np.zeros_like(largest)
    # The largest value is code -half, or up to a tenth of the range beyond either side of it; or half - 1.
    ends = [*np.linspace(-0.9 * half, -1.1 * half, candidates), half - 1.0, 0.95 * (half - 1)]
    for end in ends:
        codes = np.rint(x * _divided(np.full_like(largest, end), largest))
        np.clip(codes, -half, half - 1, out=codes)
        along = _sum(wx * codes)
        codes *= codes
        codes *= w
        square = _sum(codes)
        gain = _divided(along * along, square)
        np.copyto(scale, _divided(along, square), where=gain > best)
        np.maximum(best, gain, out=best)
    return scale


def _asymmetric(
    x: Float32Array, w: Float32Array, most: int, candidates: int, below: bool
) -> tuple[Float32Array, Float32Array]:
    """Return scale and offset of each group for codes 0 .. most. below: offsets are at most 0, scales at least 0."""
    low, high = x.min(axis=0), x.max(axis=0)
    low = np.minimum(low, 0) if below else low
    total, first = _sum(w), _sum(w * x)
    wx = w * x
    best = np.full_like(low, np.inf)
    scale, offset = np.zeros_like(low), low.copy()
    for end in np.linspace(0.92 * most, 1.08 * most, candidates):
        codes = np.rint((x - low) * _divided(np.full_like(low, end), high - low))
        np.clip(codes, 0, most, out=codes)
        own, shift = _line(codes, w, wx, total, first, below)
        error = x - codes * own
        error -= shift
        error *= error
        error *= w
        lost = _sum(error)
        better = lost < best
        np.copyto(scale, own, where=better)
        np.copyto(offset, shift, where=better)
        np.minimum(best, lost, out=best)
    return scale, offset


def _line(
    codes: Float32Array, w: Float32Array, wx: Float32Array, total: Float32Array, first: Float32Array, below: bool
) -> tuple[Float32Array, Float32Array]:
    """Return the scale and offset that fit groups of codes best. total, first: sums of w and of wx."""
    weighted = w * codes
    one, two, along = _sum(weighted), _sum(weighted * codes), _sum(wx * codes)
    det = total * two - one * one
    det[det <= 1e-6 * total * two] = 0  # all codes are the same
    scale, offset = _divided(total * along - one * first, det), _divided(two * first - one * along, det)
    offset = np.where(det == 0, _divided(first, total), offset)
    if below:
        through = (offset > 0) | (scale < 0)
        scale = np.where(through, np.maximum(_divided(along, two), 0), scale)
        offset = np.where(through, np.minimum(offset, 0) * (scale == 0), offset)
    return scale, offset


def _nibbles(codes: UInt8Array) -> UInt8Array:
    """Join 4-bit values [n, parts, 2, w] to bytes [n, parts * w]: the first w of a part are the low halves."""
    joined = (codes[:, :, 0] & np.uint8(15)) | (codes[:, :, 1] << np.uint8(4))
    return joined.reshape(len(codes), -1)


def _codes(x: Float32Array, scale: Float32Array, least: int, most: int) -> UInt8Array:
    """Return values as codes counted from `least`, uint8. scale: one for each value, or for the last axis."""
    codes: UInt8Array = (np.clip(np.rint(_divided(x, scale)), least, most) - least).astype(np.uint8)
    return codes


def _q8_0(x: Float32Array, w: Float32Array) -> UInt8Array:
    stored, scale = _half(np.abs(x).max(axis=1) / np.float32(127))
    codes = _codes(x, scale[:, None], -127, 127)
    return np.concatenate([stored, (codes - np.uint8(127)).view(np.uint8)], axis=1)


def _q4_0(x: Float32Array, w: Float32Array) -> UInt8Array:
    stored, scale = _half(_symmetric(_columns(x, 32), _columns(w, 32), 8, 24))
    return np.concatenate([stored, _nibbles(_codes(x, scale[:, None], -8, 7).reshape(-1, 1, 2, 16))], axis=1)


def _q5_0(x: Float32Array, w: Float32Array) -> UInt8Array:
    stored, scale = _half(_symmetric(_columns(x, 32), _columns(w, 32), 16, 24))
    codes = _codes(x, scale[:, None], -16, 15)
    fifth = np.packbits(codes >> 4, axis=1, bitorder="little")
    return np.concatenate([stored, fifth, _nibbles(codes.reshape(-1, 1, 2, 16))], axis=1)


def _q5_1(x: Float32Array, w: Float32Array) -> UInt8Array:
    scale, offset = _asymmetric(_columns(x, 32), _columns(w, 32), 31, 20, below=False)
    (stored, scale), (more, offset) = _half(scale), _half(offset)
    codes = _codes(x - offset[:, None], scale[:, None], 0, 31)
    fifth = np.packbits(codes >> 4, axis=1, bitorder="little")
    return np.concatenate([stored, more, fifth, _nibbles(codes.reshape(-1, 1, 2, 16))], axis=1)


def _q6_k(x: Float32Array, w: Float32Array) -> UInt8Array:
    wanted = _symmetric(_columns(x, 16), _columns(w, 16), 32, 12).reshape(-1, 16)
    largest = np.take_along_axis(wanted, np.abs(wanted).argmax(axis=1)[:, None], axis=1)[:, 0]
    stored, d = _half(largest / np.float32(-128))
    scales = np.clip(np.rint(_divided(wanted, d[:, None])), -128, 127)
    codes = _codes(x.reshape(-1, 16, 16), (d[:, None] * scales)[:, :, None], -32, 31).reshape(-1, 2, 4, 32)
    low = (codes[:, :, :2] & 15) | (codes[:, :, 2:] << 4)
    high = np.bitwise_or.reduce((codes >> 4) << np.array([0, 2, 4, 6], np.uint8)[:, None], axis=2)
    parts = [low.reshape(-1, 128), high.reshape(-1, 64), scales.astype(np.int8).view(np.uint8), stored]
    return np.concatenate(parts, axis=1)


def _with_minima(x: Float32Array, w: Float32Array, most: int) -> tuple[UInt8Array, UInt8Array]:
    """Return the 16 bytes of scales and minima, and codes 0 .. most [n, 8, 32]."""
    wanted, offset = (one.reshape(-1, 8) for one in _asymmetric(_columns(x, 32), _columns(w, 32), most, 20, below=True))
    stored, d = _half(wanted.max(axis=1) / np.float32(63))
    more, d_min = _half(-offset.min(axis=1) / np.float32(63))
    scales = np.clip(np.rint(_divided(wanted, d[:, None])), 0, 63)
    minima = np.clip(np.rint(_divided(-offset, d_min[:, None])), 0, 63)
    shifted = x.reshape(-1, 8, 32) + (d_min[:, None] * minima)[:, :, None]
    codes = _codes(shifted, (d[:, None] * scales)[:, :, None], 0, most)
    s, m = scales.astype(np.uint8), minima.astype(np.uint8)
    one, two = s[:, :4] | (s[:, 4:] >> 4) << 6, m[:, :4] | (m[:, 4:] >> 4) << 6
    return np.concatenate([stored, more, one, two, (s[:, 4:] & 15) | (m[:, 4:] << 4)], axis=1), codes


def _q4_k(x: Float32Array, w: Float32Array) -> UInt8Array:
    head, codes = _with_minima(x, w, 15)
    return np.concatenate([head, _nibbles(codes.reshape(-1, 4, 2, 32))], axis=1)


def _q5_k(x: Float32Array, w: Float32Array) -> UInt8Array:
    head, codes = _with_minima(x, w, 31)
    fifth = np.bitwise_or.reduce((codes >> 4) << np.arange(8, dtype=np.uint8)[:, None], axis=1)
    return np.concatenate([head, fifth, _nibbles(codes.reshape(-1, 4, 2, 32))], axis=1)


# The types that are written: encoder of blocks [n, values], and values of a block.
ENCODED: dict[str, tuple[Encode, int]] = {
    "Q4_0": (_q4_0, 32), "Q5_0": (_q5_0, 32), "Q5_1": (_q5_1, 32), "Q8_0": (_q8_0, 32),
    "Q4_K": (_q4_k, 256), "Q5_K": (_q5_k, 256), "Q6_K": (_q6_k, 256),
}  # fmt: skip
