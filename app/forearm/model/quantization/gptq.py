"""GPTQ and AWQ checkpoints: unsigned codes packed into int32 words, zero points, float scales; stored [k, rows].

GPTQ packs codes along k, low bits first, and zero points along the rows; stored zero points are one less than the real
ones unless `checkpoint_format` is gptq_v2. With desc_act, g_idx holds the group of each column. AWQ packs both along
the rows, eight to a word, in the order 0, 2, 4, 6, 1, 3, 5, 7.
Source: AutoGPTQ's and GPTQModel's qlinear, AutoAWQ's WQLinear_GEMM (their pack functions).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from forearm.array_types import Float32Array, Int8Array, Int32Array
from forearm.config.number_formats import INTEGERS, WeightFormat
from forearm.errors import ConfigError
from forearm.model.checkpoint.shards import Files, StoredTensor, widened
from forearm.model.families.keys import Keys
from forearm.model.quantization.bits import unpacked
from forearm.model.quantization.codes import CheckpointTensors, CodedMatrix, Codes, Find, scale_dtype, whole_groups

_AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)  # entry i is the row, of eight, in the i-th lowest nibble of a word


@dataclass(frozen=True)
class _Packed:
    """The tensors of one packed matrix."""

    codes: StoredTensor
    zeros: StoredTensor
    scales: StoredTensor


@dataclass(frozen=True)
class _Gptq:
    """GPTQ's settings, which all matrices share."""

    tensors: CheckpointTensors
    bits: int
    group: int
    symmetric: bool
    zero_less: int  # added to a stored zero point
    ordered: bool
    files: Files


def gptq(settings: Keys, tensors: CheckpointTensors, wide: bool) -> Find:
    """Return the function that finds the matrices of a GPTQ checkpoint. wide: see WeightFormat.

    Raises: ConfigError naming the key whose value is not supported.
    """
    bits = settings.integer("bits")
    if bits not in (4, 8):
        raise settings.wrong("bits", "4 or 8")
    layout = settings.text("checkpoint_format", "gptq")
    if layout not in ("gptq", "gptq_v2"):
        raise settings.wrong("checkpoint_format", "gptq or gptq_v2; save it again in one of these")
    group = settings.integer("group_size", -1)
    ordered = settings.flag("desc_act") and group > 0
    symmetric = settings.flag("sym", True)
    form = _Gptq(tensors, bits, group, symmetric, int(layout == "gptq"), ordered, Files())
    return partial(_gptq_matrix, form, wide)


def _gptq_matrix(form: _Gptq, wide: bool, module: str, shape: tuple[int, int]) -> CodedMatrix | None:
    if not form.tensors.has(f"{module}.qweight"):
        return None
    rows, k = shape
    group = whole_groups(module, k, form.group)
    groups = -(-k // group) if group else 1
    per_word = 32 // form.bits
    packed = _Packed(
        form.tensors.take(f"{module}.qweight", ("I32",), (k // per_word, rows)),
        form.tensors.take(f"{module}.qzeros", ("I32",), (groups, -(-rows // per_word))),
        form.tensors.scales(f"{module}.scales", (groups, rows)),
    )
    order = _order(form, module, k, group) if form.ordered and group else None
    return CodedMatrix(
        module,
        shape,
        WeightFormat(
            dtype=INTEGERS[form.bits],
            group=group,
            scale_dtype=scale_dtype(packed.scales),
            zero="none" if form.symmetric else "int8",
            wide=wide,
            ordered=order is not None,
        ),
        (packed.codes, packed.zeros, packed.scales, *form.tensors.some(f"{module}.g_idx")),
        partial(_gptq_rows, packed, form, order),
        order,
    )


def _gptq_rows(packed: _Packed, form: _Gptq, order: Int32Array | None, files: Files, begin: int, end: int) -> Codes:
    codes = unpacked(np.ascontiguousarray(files.array(packed.codes)[:, begin:end].T), form.bits)
    if order is not None:
        codes = np.take(codes, order, axis=1)
    first = begin * form.bits // 32  # the word of row `begin`
    words = np.ascontiguousarray(files.array(packed.zeros)[:, first : -(-end * form.bits // 32)])
    skipped, less = begin - first * 32 // form.bits, form.zero_less
    signed = unpacked(words, form.bits)[:, skipped : skipped + end - begin]
    if less and signed.size and signed.max() > 127 - less:  # 256, which 8-bit codes can have, does not fit int8
        where = f"{packed.zeros.path}: tensor {packed.zeros.name}"
        raise ConfigError(f"{where} has a zero point of 256, which is not supported")
    zeros = np.ascontiguousarray(signed.T) + np.int8(less)
    if form.symmetric and zeros.any():
        raise ConfigError(
            f"{packed.zeros.path}: tensor {packed.zeros.name} has zero points that are not in the middle, but "
            'quantization_config says "sym": true; if the file is right, set it to false in config.json'
        )
    return Codes(codes, _columns(files, packed.scales, begin, end), None if form.symmetric else zeros)


def _order(form: _Gptq, module: str, k: int, group: int) -> Int32Array | None:
    """Return the order of columns by group; None if they are sorted already.

    Raises: ConfigError if the groups differ in size.
    """
    stored = form.tensors.take(f"{module}.g_idx", ("I32",), (k,))
    return sorted_columns(stored, form.files.array(stored), group)


def sorted_columns(stored: StoredTensor, g_idx: Int32Array, group: int) -> Int32Array | None:
    """Return the columns in the order of their groups, int32 [k]; None if they are in order already.

    Raises: ConfigError if a group does not have `group` columns.
    """
    k = len(g_idx)
    order = np.argsort(g_idx, kind="stable").astype(np.int32)
    if not np.array_equal(g_idx[order], np.arange(k) // group):
        raise ConfigError(f"{stored.path}: tensor {stored.name} does not divide {k} columns into groups of {group}")
    return None if np.array_equal(order, np.arange(k)) else order


def _columns(files: Files, stored: StoredTensor, begin: int, end: int) -> Float32Array:
    """Return scales of rows begin .. end - 1 as [rows, groups]; they are stored as [groups, rows]."""
    return np.ascontiguousarray(widened(files.array(stored)[:, begin:end], stored.float_dtype).T)


def awq(settings: Keys, tensors: CheckpointTensors, wide: bool) -> Find:
    """Return the function that finds the matrices of an AWQ checkpoint (AutoAWQ's gemm). wide: see WeightFormat.

    Raises: ConfigError naming the key whose value is not supported.
    """
    key = "bits" if "bits" in settings else "w_bit"  # w_bit in quant_config.json of older checkpoints
    if settings.integer(key) != 4:
        raise settings.wrong(key, "4")
    if settings.text("version", "gemm").lower() != "gemm":
        raise settings.wrong("version", "gemm; save it again as that")
    if not settings.flag("zero_point", True):
        raise settings.wrong("zero_point", "true")
    group = settings.integer("group_size" if "group_size" in settings else "q_group_size", -1)

    def matrix(module: str, shape: tuple[int, int]) -> CodedMatrix | None:
        if not tensors.has(f"{module}.qweight"):
            return None
        rows, k = shape
        own = whole_groups(module, k, group)
        groups = -(-k // own) if own else 1
        packed = _Packed(
            tensors.take(f"{module}.qweight", ("I32",), (k, rows // 8)),
            tensors.take(f"{module}.qzeros", ("I32",), (groups, rows // 8)),
            tensors.scales(f"{module}.scales", (groups, rows)),
        )
        format = WeightFormat(INTEGERS[4], own, scale_dtype(packed.scales), zero="int8", wide=wide)
        used = (packed.codes, packed.zeros, packed.scales)
        return CodedMatrix(module, shape, format, used, partial(_awq_rows, packed))

    return matrix


def _awq_rows(packed: _Packed, files: Files, begin: int, end: int) -> Codes:
    return Codes(
        _awq_unpacked(files.array(packed.codes), begin, end),
        _columns(files, packed.scales, begin, end),
        _awq_unpacked(files.array(packed.zeros), begin, end),
    )


def _awq_unpacked(words: Int32Array, begin: int, end: int) -> Int8Array:
    """Unpack rows begin .. end - 1 of int32 [k, all rows / 8] to int8 [rows, k]; subtract 8 from each value."""
    first, last = begin // 8, -(-end // 8)
    stored = np.ascontiguousarray(words[:, first:last].T)
    out = np.empty((last - first, 8, words.shape[0]), np.int8)
    for nibble, row in enumerate(_AWQ_COLUMNS):
        np.bitwise_and(stored >> np.int32(4 * nibble), 15, out=out[:, row], casting="unsafe")
    out -= np.int8(8)
    return np.ascontiguousarray(out.reshape(-1, words.shape[0])[begin - 8 * first : end - 8 * first])
