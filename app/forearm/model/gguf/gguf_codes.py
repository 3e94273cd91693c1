"""Decodes blocks of a GGUF tensor to rows of signed codes with scales and offsets: w = scale * code + offset.

Scales of most types are kept in float16. Those of K types and IQ4_XS, a float16 times an integer of up to 8 bits, are
rounded by at most 2^-11 of them; not at all below 2^-14, where float16 is spaced by 2^-24, of which they are multiples.
In float32 they would take 0.5 bits more for a weight of Q4_K and 1 bit for one of Q6_K, all of which decode reads.
Codes of Q6_K are kept in 6 bits: it takes 7 bits a weight in memory, where 8-bit codes would take 9.
Offsets are rounded to float16 once; those of Q5_1, whose codes keep their stored values, are float16 in the file. Where
4-bit codes 0 .. 15 become -8 .. 7 (Q4_1, Q4_K), 8 times the scale before rounding is added first. That sum is at most 8
scales where weights of both signs share a group, so a weight errs by up to 2^-11 of that, 1/256 of a code's step, where
rounding to codes erred by a half. In float32 they would take 0.5 bits more for a weight: 5.5 instead of 5 for Q4_K.
Source: ggml-common.h (blocks) and ggml-quants.c (dequantize_row_*) of github.com/ggml-org/ggml.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from forearm.array_types import Float32Array, Int8Array, UInt8Array
from forearm.config.number_formats import INTEGERS, WeightFormat
from forearm.errors import ConfigError
from forearm.model.checkpoint.shards import Files, StoredTensor
from forearm.model.gguf import gguf_small_codes as small
from forearm.model.gguf.gguf_small_codes import half
from forearm.model.quantization.codes import E4M3, CodedMatrix, Codes, Find

# (codes [blocks, values of a block], scales [blocks, groups of a block], offsets of the same shape or None)
Decoded = tuple[Int8Array, Float32Array, Float32Array | None]

FLOATS = ("F32", "F16", "BF16", "F64")
_PART_VALUES = 1 << 18  # decoded at a time, so that their bytes and the results stay in a core's cache
_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
_MXFP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)


@dataclass(frozen=True)
class BlockType:
    """One tensor type: bytes of a block, the executor's format for it, and the decoder of blocks uint8 [n, bytes]."""

    bytes: int
    format: WeightFormat
    decode: Callable[[UInt8Array], Decoded]


def _nibbles(packed: UInt8Array) -> UInt8Array:
    """Split bytes [n, parts, w] into 4-bit values [n, parts, 2, w]: the low halves of w bytes, then the high halves."""
    codes = np.empty((*packed.shape[:2], 2, packed.shape[2]), np.uint8)
    np.bitwise_and(packed, 15, out=codes[:, :, 0])
    np.right_shift(packed, 4, out=codes[:, :, 1])
    return codes


def _pairs(packed: UInt8Array) -> UInt8Array:
    """Split bytes [n, parts, w] into 2-bit values [n, parts, 4, w]: bits 0 and 1 of w bytes, then bits 2 and 3, ..."""
    return (packed[:, :, None] >> np.array([[0], [2], [4], [6]], np.uint8)) & np.uint8(3)


def _bits(packed: UInt8Array, place: int) -> UInt8Array:
    """Split bytes [n, w] into bits [n, 8, w]: bit 0 of w bytes, then bit 1, ..., each shifted left by `place`."""
    bits = (packed[:, None] >> np.arange(8, dtype=np.uint8)[:, None]) & np.uint8(1)
    return bits << np.uint8(place)


def _minus(codes: UInt8Array, zero: int) -> Int8Array:
    """Subtract `zero` from unsigned codes [n, ...]; return int8 [n, values]."""
    signed = codes.reshape(len(codes), -1).view(np.int8)
    signed -= np.int8(zero)
    return signed


def _q4_0(blocks: UInt8Array) -> Decoded:
    return _minus(_nibbles(blocks[:, None, 2:]), 8), half(blocks, 0), None


def _q4_1(blocks: UInt8Array) -> Decoded:
    scale = half(blocks, 0)
    return _minus(_nibbles(blocks[:, None, 4:]), 8), scale, half(blocks, 2) + 8 * scale


def _fifth_bits(packed: UInt8Array) -> UInt8Array:
    """Split bytes [n, 4] into the fifth bits of 32 values, [n, 32]: bit i of the block belongs to value i."""
    return np.unpackbits(packed, axis=1, bitorder="little") << np.uint8(4)


def _q5_0(blocks: UInt8Array) -> Decoded:
    codes = _nibbles(blocks[:, None, 6:]).reshape(-1, 32) | _fifth_bits(blocks[:, 2:6])
    return _minus(codes, 16), half(blocks, 0), None


def _q5_1(blocks: UInt8Array) -> Decoded:
    codes = _nibbles(blocks[:, None, 8:]).reshape(-1, 32) | _fifth_bits(blocks[:, 4:8])
    return _minus(codes, 0), half(blocks, 0), half(blocks, 2)


def _q8_0(blocks: UInt8Array) -> Decoded:
    return np.ascontiguousarray(blocks[:, 2:]).view(np.int8), half(blocks, 0), None


def _q2_k(blocks: UInt8Array) -> Decoded:
    codes = _pairs(blocks[:, 16:80].reshape(-1, 2, 32))
    scales = half(blocks, 80) * (blocks[:, :16] & 15)
    return _minus(codes, 0), scales, -half(blocks, 82) * (blocks[:, :16] >> 4)


def _q3_k(blocks: UInt8Array) -> Decoded:
    """Decode Q3_K: a code's high bit, which lies in hmask, adds 4, and 4 is subtracted from every code."""
    codes = _pairs(blocks[:, 32:96].reshape(-1, 2, 32)).reshape(-1, 8, 32) | _bits(blocks[:, :32], 2)
    packed = blocks[:, 96:108]
    low = _nibbles(packed[:, None, :8]).reshape(-1, 16)
    high = _pairs(packed[:, None, 8:]).reshape(-1, 16)
    scales = (low | (high << np.uint8(4))).view(np.int8) - np.int8(32)
    return _minus(codes, 4), half(blocks, 108) * scales, None


def _six_bit_scales(packed: UInt8Array) -> tuple[UInt8Array, UInt8Array]:
    """Split bytes [n, 12] into 8 scales and 8 minima of 6 bits, each [n, 8]."""
    first, second, high = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, (high & 15) | ((first >> 2) & 48)], axis=1)
    minima = np.concatenate([second & 63, (high >> 4) | ((second >> 2) & 48)], axis=1)
    return scales, minima


def _q4_k(blocks: UInt8Array) -> Decoded:
    six, minima = _six_bit_scales(blocks[:, 4:16])
    scales = half(blocks, 0) * six
    codes = _nibbles(blocks[:, 16:].reshape(-1, 4, 32))
    return _minus(codes, 8), scales, 8 * scales - half(blocks, 2) * minima


def _q5_k(blocks: UInt8Array) -> Decoded:
    six, minima = _six_bit_scales(blocks[:, 4:16])
    codes = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32) | _bits(blocks[:, 16:48], 4)
    return _minus(codes, 0), half(blocks, 0) * six, -half(blocks, 2) * minima


def _q6_k(blocks: UInt8Array) -> Decoded:
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    codes = low | (_pairs(blocks[:, 128:192].reshape(-1, 2, 32)) << np.uint8(4))
    scales = half(blocks, 208) * np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
    return _minus(codes, 32), scales, None


def _iq4_nl(blocks: UInt8Array) -> Decoded:
    return _IQ4[_nibbles(blocks[:, None, 2:])].reshape(-1, 32), half(blocks, 0), None


def _iq4_xs(blocks: UInt8Array) -> Decoded:
    high = np.ascontiguousarray(blocks[:, 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    low = np.stack([blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4], axis=2).reshape(-1, 8)
    six = (low | (high.astype(np.uint8) << np.uint8(4))).view(np.int8) - np.int8(32)
    return _IQ4[_nibbles(blocks[:, 8:].reshape(-1, 8, 16))].reshape(-1, 256), half(blocks, 0) * six, None


def _mxfp4(blocks: UInt8Array) -> Decoded:
    """Decode MXFP4: codes are twice the values, so the scale is half of the stored power of two, 2^(e - 127)."""
    scales = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128)
    return _MXFP4[_nibbles(blocks[:, None, 1:])].reshape(-1, 32), scales.astype(np.float32), None


def _nvfp4(blocks: UInt8Array) -> Decoded:
    """Decode NVFP4: four scales in E4M3 without a sign, of which 127 is 0; codes are twice the values."""
    scales = np.nan_to_num(E4M3[blocks[:, :4] & 127]) * np.float32(0.5)
    return _MXFP4[_nibbles(blocks[:, 4:].reshape(-1, 4, 8))].reshape(-1, 64), scales, None


_CODES_8, _CODES_4 = INTEGERS[8], INTEGERS[4]
_IN_4_BITS, _IN_8_BITS = WeightFormat(_CODES_4, 32, "float16"), WeightFormat(_CODES_8, 32, "float16")
_OFFSETS_4 = WeightFormat(_CODES_4, 32, "float16", "float16")
_OFFSETS_8 = WeightFormat(_CODES_8, 32, "float16", "float16")
_FINE_SCALES = WeightFormat(_CODES_8, 32, "float32")
BLOCK_TYPES: dict[str, BlockType] = {
    "Q4_0": BlockType(18, _IN_4_BITS, _q4_0),
    "Q4_1": BlockType(20, _OFFSETS_4, _q4_1),
    "Q5_0": BlockType(22, _IN_8_BITS, _q5_0),
    "Q5_1": BlockType(24, _OFFSETS_8, _q5_1),
    "Q8_0": BlockType(34, _IN_8_BITS, _q8_0),
    "Q2_K": BlockType(84, WeightFormat(_CODES_4, 16, "float16", "float16"), _q2_k),
    "Q3_K": BlockType(110, WeightFormat(_CODES_4, 16, "float16"), _q3_k),
    "Q4_K": BlockType(144, _OFFSETS_4, _q4_k),
    "Q5_K": BlockType(176, _OFFSETS_8, _q5_k),
    "Q6_K": BlockType(210, WeightFormat("int6", 16, "float16"), _q6_k),
    "IQ4_NL": BlockType(18, _IN_8_BITS, _iq4_nl),
    "IQ4_XS": BlockType(136, _IN_8_BITS, _iq4_xs),
    "MXFP4": BlockType(17, WeightFormat("fp4_e2m1", 32, "e8m0"), _mxfp4),
    "NVFP4": BlockType(36, WeightFormat(_CODES_8, 16, "float32"), _nvfp4),
    "Q1_0": BlockType(18, WeightFormat(_CODES_4, 128, "float16"), small.q1_0),
    "IQ1_S": BlockType(50, _FINE_SCALES, small.iq1_s),
    "IQ1_M": BlockType(56, WeightFormat(_CODES_8, 16, "float32"), small.iq1_m),
    "IQ2_XXS": BlockType(66, _FINE_SCALES, small.iq2_xxs),
    "IQ2_XS": BlockType(74, WeightFormat(_CODES_8, 16, "float32"), small.iq2_xs),
    "IQ2_S": BlockType(82, WeightFormat(_CODES_8, 16, "float32"), small.iq2_s),
    "IQ3_XXS": BlockType(98, _FINE_SCALES, small.iq3_xxs),
    "IQ3_S": BlockType(110, _FINE_SCALES, small.iq3_s),
    "TQ1_0": BlockType(54, WeightFormat(_CODES_4, 256, "float16"), small.tq1_0),
    "TQ2_0": BlockType(66, WeightFormat(_CODES_4, 256, "float16"), small.tq2_0),
}

# What is said of types that llama.cpp does not have.
_OF_FORKS = {
    "type 36": " (I2_S of bitnet.cpp, whose order of weights is that of the machine that wrote it: serve the model's "
    "safetensors instead)"
}


def gguf_matrices(stored: Mapping[str, StoredTensor], wide: bool) -> Find:
    """Return the function that finds the quantized matrices of a .gguf file. wide: activations are of 16 bits."""

    def find(module: str, shape: tuple[int, int]) -> CodedMatrix | None:
        tensor = stored.get(f"{module}.weight")
        if tensor is None or tensor.dtype in FLOATS:
            return None
        if tensor.dtype not in BLOCK_TYPES:
            raise ConfigError(
                f"{tensor.path}: tensor {tensor.name} is {tensor.dtype}{_OF_FORKS.get(tensor.dtype, '')}; "
                f"{', '.join((*FLOATS, *BLOCK_TYPES))} are supported"
            )
        if tensor.shape != shape:
            raise ConfigError(
                f"{tensor.path}: tensor {tensor.name} has shape {list(tensor.shape)}; the metadata makes it "
                f"{list(shape)}"
            )
        format = replace(BLOCK_TYPES[tensor.dtype].format, wide=wide)
        scale = stored.get(f"{module}.scale") if tensor.dtype == "NVFP4" else None
        if scale is None:
            return CodedMatrix(module, shape, format, (tensor,), partial(_read, tensor, None))
        if scale.dtype != "F32" or len(scale.shape) != 1 or not scale.shape[0] or shape[0] % scale.shape[0]:
            raise ConfigError(
                f"{scale.path}: tensor {scale.name} is {scale.dtype} {list(scale.shape)}; it should be float32, a "
                "number for all rows or for each expert's"
            )
        beside = (stored[name] for name in (f"{module}.input_scale",) if name in stored)
        return CodedMatrix(module, shape, format, (tensor, scale, *beside), partial(_read, tensor, scale))

    return find


def _read(tensor: StoredTensor, scale: StoredTensor | None, files: Files, begin: int, end: int) -> Codes:
    rows, columns = tensor.shape
    stored = files.array(replace(tensor, dtype="U8", shape=(rows, (tensor.end - tensor.begin) // rows)))[begin:end]
    found = decode_rows(tensor.dtype, stored, columns)
    if scale is None:
        return found
    of_rows = np.repeat(files.array(scale), rows // scale.shape[0])[begin:end, None]
    return replace(found, scales=found.scales * of_rows)


def decode_rows(dtype: str, stored: UInt8Array, columns: int) -> Codes:
    """Decode rows of a tensor, uint8 [rows, bytes of a row], to BLOCK_TYPES[dtype].format, in cache-sized parts."""
    kind, rows = BLOCK_TYPES[dtype], len(stored)
    groups = columns // kind.format.group
    codes = np.empty((rows, columns), np.int8)
    scales = np.empty((rows, groups), np.float32)
    offsets = None if kind.format.zero == "none" else np.empty((rows, groups), np.float32)
    step = max(1, _PART_VALUES // columns)
    for row in range(0, rows, step):
        part = np.ascontiguousarray(stored[row : row + step])
        some, theirs, more = kind.decode(part.reshape(-1, kind.bytes))
        codes[row : row + step] = some.reshape(-1, columns)
        half = kind.format.scale_dtype == "float16"
        scales[row : row + step] = (theirs.astype(np.float16) if half else theirs).reshape(-1, groups)
        if offsets is not None and more is not None:
            offsets[row : row + step] = more.astype(np.float16).reshape(-1, groups)
    return Codes(codes, scales, offsets=offsets)
