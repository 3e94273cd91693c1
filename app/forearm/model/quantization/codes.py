"""Quantized matrices: their tensors in a checkpoint, their rows for the executor, one format for fused matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from forearm.array_types import Float32Array, Int8Array, Int32Array, UInt8Array
from forearm.config.number_formats import DTypeName, WeightFormat
from forearm.errors import ConfigError
from forearm.model.checkpoint.shards import Files, StoredTensor

# The numbers that bytes of fp8 E4M3 stand for (Micikevicius et al. 2022, arXiv:2209.05433, table 1).
_BYTE = np.arange(256)
E4M3 = np.ldexp(np.where(_BYTE & 120, 8 + (_BYTE & 7), _BYTE & 7), np.maximum(_BYTE >> 3 & 15, 1) - 10)
E4M3 = np.where(_BYTE & 127 == 127, np.nan, np.where(_BYTE < 128, E4M3, -E4M3)).astype(np.float32)
_SCALES: dict[str, DTypeName] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True, eq=False)
class Codes:
    """Rows of a quantized matrix, for Executor.load_codes: w = scale * (code - zero) or scale * code + offset.

    codes: [rows, k], int8, or uint8 with the bytes of fp8. scales, zeros, offsets: [rows, groups].
    """

    codes: Int8Array | UInt8Array
    scales: Float32Array
    zeros: Int8Array | None = None
    offsets: Float32Array | None = None

    def every(self, step: int) -> Codes:
        """Return the first row and every `step`-th after it."""
        zeros = None if self.zeros is None else self.zeros[::step].copy()
        offsets = None if self.offsets is None else self.offsets[::step].copy()
        return Codes(self.codes[::step].copy(), self.scales[::step].copy(), zeros, offsets)


@dataclass(frozen=True, eq=False)
class CodedMatrix:
    """A quantized matrix of a checkpoint.

    name: the module's name, for messages. shape: [rows, k]. format: the format that holds the matrix exactly.
    tensors: its stored tensors, the one with the codes first.
    read: the function that returns rows begin .. end - 1, bit for bit.
    order: if given, columns are in another order: column k of the codes is multiplied with activation order[k].
    """

    name: str
    shape: tuple[int, int]
    format: WeightFormat
    tensors: tuple[StoredTensor, ...]
    read: Callable[[Files, int, int], Codes]
    order: Int32Array | None = None


Find = Callable[[str, tuple[int, int]], CodedMatrix | None]
"""Find the quantized matrix of a module (its name without .weight) and shape; None if the module is not quantized.

Raises: ConfigError naming the tensor that is missing or has a wrong shape, or the feature that is not supported.
"""


@dataclass(frozen=True)
class CheckpointTensors:
    """A checkpoint's tensors by name; each access checks the dtype and shape that a format requires."""

    stored: Mapping[str, StoredTensor]

    def has(self, name: str) -> bool:
        """Return whether the checkpoint has a tensor of this name."""
        return name in self.stored

    def take(self, name: str, dtypes: Sequence[str], *shapes: Sequence[int]) -> StoredTensor:
        """Return the tensor of this name.

        Raises: ConfigError if it is missing, or has none of these dtypes or none of these shapes.
        """
        if name not in self.stored:
            raise ConfigError(f"tensor {name} is missing from the checkpoint; its quantization_config asks for it")
        tensor = self.stored[name]
        if tensor.dtype not in dtypes:
            raise ConfigError(f"{tensor.path}: tensor {name} is {tensor.dtype}; it should be {' or '.join(dtypes)}")
        if tensor.shape not in [tuple(shape) for shape in shapes]:
            right = " or ".join(str(list(shape)) for shape in shapes)
            raise ConfigError(
                f"{tensor.path}: tensor {name} has shape {list(tensor.shape)}; config.json makes it {right}"
            )
        return tensor

    def scales(self, name: str, *shapes: Sequence[int]) -> StoredTensor:
        """Return a tensor of scales: floats, of one of these shapes."""
        return self.take(name, tuple(_SCALES), *shapes)

    def some(self, *names: str) -> tuple[StoredTensor, ...]:
        """Return the tensors of these names that exist; they count as used, though their values are not needed."""
        return tuple(self.stored[name] for name in names if name in self.stored)


def scale_dtype(tensor: StoredTensor) -> DTypeName:
    """Return WeightFormat's name for the dtype of stored scales; scales that are not floats become float32."""
    return _SCALES.get(tensor.dtype, "float32")


def whole_groups(name: str, k: int, group: int) -> int:
    """Return the group size for WeightFormat, which is 0 if one scale covers the row.

    Raises: ConfigError if the kernels do not support the size.
    """
    if group <= 0 or group >= k:
        return 0
    if group % 16:
        raise ConfigError(f"{name}: quantized in groups of {group} values; groups must be multiples of 16")
    return group


def groups_of(format: WeightFormat, k: int) -> int:
    """Return the number of scales of a row of k values."""
    return -(-k // format.group) if format.group else 1


def common_format(matrices: Sequence[CodedMatrix], experts: Sequence[int] = ()) -> WeightFormat:
    """Return a format that holds several matrices exactly, as one packed matrix: the most bits, the smallest groups.

    experts: the expert that each matrix belongs to, as each may have an order of columns of its own; none: all to one.
    Raises: ConfigError naming the matrices if there is none.
    """
    formats = [matrix.format for matrix in matrices]
    first = formats[0]
    names = ", ".join(matrix.name for matrix in matrices)
    sharing: dict[int, CodedMatrix] = {}
    for matrix, expert in zip(matrices, experts or [0] * len(matrices), strict=True):
        other = sharing.setdefault(expert, matrix)
        if not np.array_equal(column_order(matrix), column_order(other)):
            raise ConfigError(
                f"{other.name}, {matrix.name} are kept as one matrix, but their columns were sorted differently (g_idx)"
            )
    dtypes = {format.dtype for format in formats}
    if len(dtypes) > 1 and not all(format.is_integer for format in formats):
        raise ConfigError(f"{names} are kept as one matrix, but are {' and '.join(sorted(dtypes))}: not supported")
    zeros = {format.zero for format in formats} - {"none"}
    return replace(
        first,
        dtype=first.dtype if len(dtypes) == 1 else "int8" if "int8" in dtypes else "int6",  # fp4 has codes -12 .. 12
        group=math.gcd(*(format.group for format in formats)),  # gcd(0, g) is g: rows with one scale fit any group
        scale_dtype=first.scale_dtype if len({format.scale_dtype for format in formats}) == 1 else "float32",
        zero="none" if not zeros else zeros.pop() if len(zeros) == 1 else "float16",
        wide=any(format.wide for format in formats),
        ordered=any(format.ordered for format in formats),
    )


def expressed(codes: Codes, have: WeightFormat, want: WeightFormat) -> Codes:
    """Convert rows from format `have` to `want`, a common_format of it and others; the values stay the same.

    Zero points that become offsets are rounded to float16.
    """
    k = codes.codes.shape[1]
    scales, zeros, offsets = codes.scales, codes.zeros, codes.offsets
    if want.zero == "float16" and offsets is None:
        offsets = np.zeros_like(scales) if zeros is None else (-scales * zeros).astype(np.float16).astype(np.float32)
        zeros = None
    elif want.zero == "int8" and zeros is None:
        zeros = np.zeros(scales.shape, np.int8)
    if have.group != want.group:
        # group i of `want` begins at value i * want.group, which lies in this group of `have`
        spread = np.arange(groups_of(want, k)) * want.group // (have.group or k)
        scales = np.take(scales, spread, axis=1)
        zeros = None if zeros is None else np.take(zeros, spread, axis=1)
        offsets = None if offsets is None else np.take(offsets, spread, axis=1)
    return Codes(codes.codes, scales, zeros, offsets)


def dequantized(matrix: CodedMatrix, codes: Codes) -> Float32Array:
    """Return rows of a quantized matrix as floats, float32 [rows, k], in the order of the activations."""
    k = codes.codes.shape[1]
    group = matrix.format.group or k
    is_fp8 = matrix.format.dtype == "fp8_e4m3"
    values = E4M3[codes.codes.view(np.uint8)] if is_fp8 else codes.codes.astype(np.float32)

    def spread(of_groups: npt.NDArray[Any]) -> Float32Array:
        return np.repeat(of_groups.astype(np.float32), group, axis=1)[:, :k]

    if codes.zeros is not None:
        values -= spread(codes.zeros)
    values *= spread(codes.scales)
    if codes.offsets is not None:
        values += spread(codes.offsets)
    if matrix.order is None:
        return values
    ordered = np.empty_like(values)
    ordered[:, matrix.order] = values
    return ordered


def column_order(matrix: CodedMatrix) -> Int32Array:
    """Return the order of columns, int32 [k], also where it is the stored one."""
    return np.arange(matrix.shape[1], dtype=np.int32) if matrix.order is None else matrix.order
