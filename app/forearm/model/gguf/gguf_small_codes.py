"""Decodes blocks of one to three bits a value: IQ1, IQ2 and IQ3, codes of which are places in lattices, TQ, and Q1_0.

Memory holds them as int8 codes (ternary TQ and the signs of Q1_0 in 4 bits): 8.5 to 10 bits a weight.
Source: ggml-common.h (blocks) and ggml-quants.c (dequantize_row_*) of github.com/ggml-org/ggml.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from forearm.array_types import Float32Array, Int8Array, UInt8Array
from forearm.model.gguf import gguf_lattices as lattices

_BITS = np.arange(8, dtype=np.uint8)
_QUARTERS = np.array([0, 7, 14, 21], np.uint32)  # of four signs in a word, above which are 4 bits of a scale
_THREES = np.array([0, 3, 6, 9], np.uint16)


def half(blocks: UInt8Array, at: int) -> Float32Array:
    """Return the float16 at byte `at` of each block, as float32 [n, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def _words(blocks: UInt8Array, begin: int, end: int, dtype: str) -> npt.NDArray[np.unsignedinteger]:
    return np.ascontiguousarray(blocks[:, begin:end]).view(dtype)


def _nibbles(packed: UInt8Array) -> Float32Array:
    """Split bytes [n, w] into 4-bit numbers [n, 2 w], the low half of each first."""
    return np.stack([packed & 15, packed >> 4], axis=2).reshape(len(packed), -1).astype(np.float32)


def _signed(values: Int8Array, bits: UInt8Array) -> Int8Array:
    """Return values [n, ...] negated where a bit of bytes [n, values / 8] is set, int8 [n, 256]."""
    minus = (bits[:, :, None] >> _BITS & 1).reshape(len(bits), -1).view(np.int8)
    signed: Int8Array = values.reshape(len(bits), -1) * (1 - 2 * minus)
    return signed


def _of_words(words: npt.NDArray[np.unsignedinteger]) -> tuple[UInt8Array, Float32Array]:
    """Return the sign bits [n, 32] and half-steps [n, 8] of words with four signs and a scale."""
    codes = (words[:, :, None] >> _QUARTERS & 127).astype(np.uint8)
    return lattices.signs(codes).reshape(len(words), -1), np.float32(0.5) + (words >> 28).astype(np.float32)


def iq2_xxs(blocks: UInt8Array) -> tuple[Int8Array, Float32Array, None]:
    """Decode 66 bytes: for each 32 values four places, and a word with their signs and a scale."""
    pairs = _words(blocks, 2, 66, "<u4").reshape(len(blocks), 8, 2)
    bits, steps = _of_words(pairs[:, :, 1])
    places = np.ascontiguousarray(pairs[:, :, 0]).view(np.uint8)
    return _signed(lattices.IQ2_XXS[places], bits), half(blocks, 0) * steps * np.float32(0.25), None


def iq2_xs(blocks: UInt8Array) -> tuple[Int8Array, Float32Array, None]:
    """Decode 74 bytes: a place of 9 bits and 7 signs for each 8 values, a scale for each 16."""
    codes = _words(blocks, 2, 66, "<u2")
    steps = np.float32(0.5) + _nibbles(blocks[:, 66:])
    bits = lattices.signs((codes >> 9).astype(np.uint8))
    return _signed(lattices.IQ2_XS[codes & 511], bits), half(blocks, 0) * steps * np.float32(0.25), None


def iq2_s(blocks: UInt8Array) -> tuple[Int8Array, Float32Array, None]:
    """Decode 82 bytes: a place of 10 bits and 8 signs for each 8 values, a scale for each 16."""
    high = (blocks[:, 66:74, None] >> np.array([0, 2, 4, 6], np.uint8) & 3).reshape(len(blocks), -1)
    places = blocks[:, 2:34] | high.astype(np.uint16) << np.uint16(8)
    steps = np.float32(0.5) + _nibbles(blocks[:, 74:])
    return _signed(lattices.IQ2_S[places], blocks[:, 34:66]), half(blocks, 0) * steps * np.float32(0.25), None


def iq3_xxs(blocks: UInt8Array) -> tuple[Int8Array, Float32Array, None]:
    """Decode 98 bytes: a place for each 4 values, and for each 32 a word with their signs and a scale."""
    bits, steps = _of_words(_words(blocks, 66, 98, "<u4"))
    return _signed(lattices.IQ3_XXS[blocks[:, 2:66]], bits), half(blocks, 0) * steps * np.float32(0.5), None


def iq3_s(blocks: UInt8Array) -> tuple[Int8Array, Float32Array, None]:
    """Decode 110 bytes: a place of 9 bits for each 4 values, 8 signs for each 8, a scale for each 32."""
    high = (blocks[:, 66:74, None] >> _BITS & 1).reshape(len(blocks), -1)
    places = blocks[:, 2:66] | high.astype(np.uint16) << np.uint16(8)
    steps = 1 + 2 * _nibbles(blocks[:, 106:])
    return _signed(lattices.IQ3_S[places], blocks[:, 74:106]), half(blocks, 0) * steps, None


def _shifted(places: npt.NDArray[np.unsignedinteger], minus: npt.NDArray[np.bool_]) -> Int8Array:
    """Return eight times the entries of IQ1's lattice plus or minus an eighth, int8 [n, 256]."""
    step = np.where(minus, np.int8(-1), np.int8(1))
    shifted: Int8Array = (8 * lattices.IQ1[places] + step[:, :, None]).reshape(len(places), -1)
    return shifted


def iq1_s(blocks: UInt8Array) -> tuple[Int8Array, Float32Array, None]:
    """Decode 50 bytes: for each 32 values four places of 11 bits, a scale of 3 bits and the sign of the shift."""
    words = _words(blocks, 34, 50, "<u2")
    high = (words[:, :, None] >> _THREES & 7).reshape(len(blocks), -1)
    places = blocks[:, 2:34] | (high << np.uint16(8)).astype(np.uint16)
    minus = np.repeat(words & 0x8000 != 0, 4, axis=1)
    return (
        _shifted(places, minus),
        half(blocks, 0) * (2 * (words >> 12 & 7) + 1).astype(np.float32) * np.float32(0.125),
        None,
    )


def iq1_m(blocks: UInt8Array) -> tuple[Int8Array, Float32Array, None]:
    """Decode 56 bytes: places of 11 bits with a sign of the shift for each 8 values, a scale of 3 bits for each 16."""
    words = _words(blocks, 48, 56, "<u2")
    high = np.stack([blocks[:, 32:48] & 15, blocks[:, 32:48] >> 4], axis=2).reshape(len(blocks), -1)
    places = blocks[:, :32] | (high & 7).astype(np.uint16) << np.uint16(8)
    bits = (words >> 12) << np.array([0, 4, 8, 12], np.uint16)  # the float16 of the block lies in four words
    half = np.bitwise_or.reduce(bits.astype(np.uint16), axis=1, keepdims=True).view(np.float16).astype(np.float32)
    steps = (words[:, :, None] >> _THREES & 7).reshape(len(blocks), -1)
    return _shifted(places, high & 8 != 0), half * (2 * steps + 1).astype(np.float32) * np.float32(0.125), None


def tq1_0(blocks: UInt8Array) -> tuple[Int8Array, Float32Array, None]:
    """Decode 54 bytes: five ternary digits a byte, as a fraction of 256, four in the last ones."""

    def digits(begin: int, end: int, count: int) -> UInt8Array:
        powers = 3 ** np.arange(count, dtype=np.uint8)[:, None]
        shifted = blocks[:, None, begin:end] * powers.astype(np.uint8)  # modulo 256: the digits before are cut off
        return ((shifted.astype(np.uint16) * 3) >> 8).astype(np.uint8).reshape(len(blocks), -1)

    codes = np.concatenate([digits(0, 32, 5), digits(32, 48, 5), digits(48, 52, 4)], axis=1)
    return codes.view(np.int8) - np.int8(1), half(blocks, 52), None


def tq2_0(blocks: UInt8Array) -> tuple[Int8Array, Float32Array, None]:
    """Decode 66 bytes: the two bits of a value are the value plus one."""
    codes = blocks[:, :64].reshape(-1, 2, 1, 32) >> np.array([[0], [2], [4], [6]], np.uint8) & np.uint8(3)
    return codes.reshape(len(blocks), -1).view(np.int8) - np.int8(1), half(blocks, 64), None


def q1_0(blocks: UInt8Array) -> tuple[Int8Array, Float32Array, None]:
    """Decode 18 bytes: a scale, and a bit for each of 128 values, which is set if the value is positive."""
    positive = (blocks[:, 2:, None] >> _BITS & 1).reshape(len(blocks), -1).view(np.int8)
    return 2 * positive - np.int8(1), half(blocks, 0), None
