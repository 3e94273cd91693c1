"""FP8 checkpoints (E4M3, a scale for each matrix, row or block) and MXFP4 checkpoints (a scale for 32 values).

FP8 stays FP8 in memory and is widened while it is multiplied. MXFP4 stays as it is in memory, 4.25 bits a weight: twice
a value (E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6) is a whole number, the code, with half the scale, a power of two.
Source: OCP, "8-bit Floating Point Specification" 1.0; "Microscaling Formats (MX) Specification" 1.0, sections 5 and 6.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from forearm.array_types import Float32Array, UInt8Array
from forearm.config.number_formats import WeightFormat
from forearm.model.checkpoint.shards import Files, StoredTensor
from forearm.model.families.keys import Keys
from forearm.model.quantization.bits import nibbles
from forearm.model.quantization.codes import (
    CheckpointTensors,
    CodedMatrix,
    Codes,
    Find,
    groups_of,
    scale_dtype,
    whole_groups,
)

MX_GROUP = 32
_MOST_BLOCK = 1 << 20
_TWICE = (0, 1, 2, 3, 4, 6, 8, 12)  # 2 * E2M1 by its three low bits
_TABLE = bytes((-_TWICE[code % 8] if code >= 8 else _TWICE[code]) & 255 for code in range(16)) * 16  # for any byte
# Ends of the names of scales for blocks (it is a factor in spite of the name), and for all others.
_SCALE_ENDS = ("_scale_inv", "_scale")
_IGNORED = ("input_scale", "activation_scale", "input_scale_ub")


def fp8(settings: Keys, tensors: CheckpointTensors, wide: bool) -> Find:
    """Return the function that finds the matrices of a checkpoint with quant_method fp8 or fbgemm_fp8.

    DeepSeek V4's experts beside them are MXFP4, int8 [rows, k / 2]; the names of its scales end in .scale. wide: their
    activations are not rounded to int8.
    """
    block = block_of(settings, "weight_block_size")

    def matrix(module: str, shape: tuple[int, int]) -> CodedMatrix | None:
        weight = tensors.stored.get(_codes_name(tensors, module))
        if weight is not None and weight.dtype == "I8" and tensors.has(f"{module}.scale"):
            rows, k = shape
            codes = tensors.take(f"{module}.weight", ("I8",), (rows, k // 2))
            scales = tensors.take(f"{module}.scale", MX_SCALES, (rows, k // MX_GROUP))
            return mxfp4_matrix(module, shape, codes, scales, wide)
        if weight is None or weight.dtype != "F8_E4M3":
            return None
        return fp8_matrix(tensors, module, shape, block)

    return matrix


def block_of(settings: Keys, key: str) -> tuple[int, int] | None:
    """Return the rows and columns of a block with one scale; None if the key is absent. Raises: ConfigError."""
    block = settings.get(key)
    if block is None:
        return None
    if (
        not isinstance(block, list)
        or len(block) != 2
        or not all(type(b) is int and 0 < b <= _MOST_BLOCK for b in block)
    ):
        raise settings.wrong(key, f"a list of two numbers from 1 to {_MOST_BLOCK}")
    return block[0], block[1]


def _codes_name(tensors: CheckpointTensors, module: str) -> str:
    """Return the name of a module's codes; modules of all experts may have it themselves, without .weight."""
    return module if tensors.has(module) else f"{module}.weight"


def fp8_matrix(
    tensors: CheckpointTensors, module: str, shape: tuple[int, int], block: tuple[int, int] | None
) -> CodedMatrix:
    """Return a matrix of E4M3 with one scale, a scale for each row, or one for each block of [rows, columns].

    Those of all experts may be stacked, [experts, rows of one, columns], and their scales with them.
    """
    name, k = _codes_name(tensors, module), shape[1]
    experts = tensors.stored[name].shape[:-2] if tensors.has(name) else ()
    rows = shape[0] // max(math.prod(experts), 1)
    codes = tensors.take(name, ("F8_E4M3",), (*experts, rows, k))
    names = *(name + end for end in _SCALE_ENDS), f"{module}.scale"
    scales_name = next((one for one in names if tensors.has(one)), name + _SCALE_ENDS[block is None])
    floats = ("F32", "BF16", "F16", "F8_E8M0")
    if block is None:
        of_one = [(*experts, 1, 1), experts] if experts else [(), (1,), (1, 1)]
        scales = tensors.take(scales_name, floats, *of_one, (*experts, rows), (*experts, rows, 1))
        group, of_rows = 0, scales.shape[len(experts) : len(experts) + 1] == (rows,)
        block_rows = 1 if of_rows else rows
    else:
        scales = tensors.take(scales_name, floats, (*experts, -(-rows // block[0]), -(-k // block[1])))
        group, block_rows = whole_groups(module, k, block[1]), block[0]
    format = WeightFormat("fp8_e4m3", group, scale_dtype(scales), wide=True)
    before = name.removesuffix("weight") if name != module else f"{module}_"
    used = (codes, scales, *tensors.some(*(before + ignored for ignored in _IGNORED)))
    flat = replace(codes, shape=shape)
    return CodedMatrix(
        module, shape, format, used, partial(_fp8_rows, flat, scales, (rows, block_rows), groups_of(format, k))
    )


def _fp8_rows(
    codes: StoredTensor, scales: StoredTensor, rows: tuple[int, int], groups: int, files: Files, begin: int, end: int
) -> Codes:
    """Return rows begin .. end - 1. rows: those of one expert, and those of a block of them that share scales."""
    of_expert, of_block = rows
    stored = powers_of_two(files.array(scales)) if scales.dtype == "F8_E8M0" else files.floats(scales)
    expert, row = np.divmod(np.arange(begin, end), of_expert)
    block = expert * -(-of_expert // of_block) + row // of_block
    return Codes(files.array(codes)[begin:end], np.ascontiguousarray(stored.reshape(-1, groups)[block]))


def mxfp4(tensors: CheckpointTensors, wide: bool) -> Find:
    """Return the function that finds matrices of quant_method mxfp4.

    Their tensors are NAME_blocks, uint8 [rows, k / 32, 16], and NAME_scales, [rows, k / 32]; of experts [experts, rows,
    k / 32, 16] and [experts, rows, k / 32], where rows x experts are rows of the matrix.
    """

    def matrix(module: str, shape: tuple[int, int]) -> CodedMatrix | None:
        rows, k = shape
        name = next((n for n in (f"{module}.weight", module) if tensors.has(f"{n}_blocks")), None)
        if name is None:
            return None
        groups, stored = k // MX_GROUP, tensors.stored[f"{name}_blocks"].shape
        split = (stored[0], rows // max(stored[0], 1)) if len(stored) == 4 else (rows,)
        blocks = tensors.take(f"{name}_blocks", ("U8",), (*split, groups, MX_GROUP // 2))
        scales = tensors.take(f"{name}_scales", MX_SCALES, (*split, groups))
        flat = replace(blocks, shape=(rows, k // 2)), replace(scales, shape=(rows, groups))
        return mxfp4_matrix(module, shape, *flat, wide)

    return matrix


MX_SCALES = ("U8", "F8_E8M0")


def mxfp4_matrix(
    module: str, shape: tuple[int, int], codes: StoredTensor, scales: StoredTensor, wide: bool
) -> CodedMatrix:
    """Return a matrix of E2M1, two values in a byte along k, low half first, with power-of-two scales for 32 values."""
    group = whole_groups(module, shape[1], MX_GROUP)
    format = WeightFormat("fp4_e2m1", group, "e8m0", wide=wide)
    return CodedMatrix(module, shape, format, (codes, scales), partial(_mxfp4_rows, codes, scales))


def _mxfp4_rows(codes: StoredTensor, scales: StoredTensor, files: Files, begin: int, end: int) -> Codes:
    stored = files.array(codes)[begin:end].reshape(end - begin, -1).view(np.uint8)
    stored = nibbles(stored)
    twice = np.frombuffer(stored.tobytes().translate(_TABLE), np.int8).reshape(stored.shape)  # no indices of 8 bytes
    return Codes(twice, powers_of_two(files.array(scales)[begin:end]) * np.float32(0.5))


def powers_of_two(exponents: UInt8Array) -> Float32Array:
    """Return 2^(e - 127) as float32; 255 gives NaN."""
    powers = np.ldexp(np.float32(1), exponents.astype(np.int32) - 127)
    return np.where(exponents == 255, np.float32(np.nan), powers).astype(np.float32)
