"""compressed-tensors checkpoints (llm-compressor): codes of 8 or 4 bits, plain or packed, FP8, MXFP4, by config group.

Codes are signed. Packed codes are stored with 2^(bits - 1) added, low bits first, along k (zero points: along the
rows). The config group of a matrix follows from `targets` (a module's name, a regular expression after re:, or Linear).
A matrix is quantized if its tensors are, so `ignore` is not read.
Source: compressors/ and quantization/quant_args.py of github.com/vllm-project/compressed-tensors.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from functools import partial

import numpy as np

from forearm.array_types import Int32Array
from forearm.config.number_formats import INTEGERS, WeightFormat
from forearm.errors import ConfigError
from forearm.model.checkpoint.shards import Files, StoredTensor, widened
from forearm.model.families.keys import Keys
from forearm.model.quantization.bits import unpacked
from forearm.model.quantization.codes import CheckpointTensors, CodedMatrix, Codes, Find, scale_dtype, whole_groups
from forearm.model.quantization.fp8 import MX_SCALES, block_of, fp8_matrix, mxfp4_matrix
from forearm.model.quantization.gptq import sorted_columns

log = logging.getLogger(__name__)

_FORMATS = ("int-quantized", "naive-quantized", "pack-quantized", "float-quantized", "mxfp4-pack-quantized")
_SEEN = ("input_scale", "input_zero_point", "weight_shape", "weight_g_idx", "output_scale")


@dataclass(frozen=True)
class _Scheme:
    """One config group: the format of its stored weights.

    kind: int or float. group: 0 means one scale for each row. int8_activations: the checkpoint quantizes activations.
    """

    targets: tuple[str, ...]
    patterns: tuple[re.Pattern[str], ...]
    packed: bool
    kind: str
    bits: int
    group: int
    block: tuple[int, int] | None
    symmetric: bool
    ordered: bool
    int8_activations: bool


def compressed_tensors(settings: Keys, tensors: CheckpointTensors, wide: bool | None) -> Find:
    """Return the function that finds the matrices of a compressed-tensors checkpoint.

    wide: see WeightFormat; None takes it from each config group.
    Raises: ConfigError naming the key whose value is not supported.
    """
    _check(settings)
    listed = settings.object("config_groups")
    if listed is None:
        raise settings.wrong("config_groups", "an object with a scheme for each group of layers")
    whole = settings.text("format", "dense")
    groups = [(name, listed.object(name)) for name in listed.values]
    schemes = [_scheme(scheme, whole) for _, scheme in groups if scheme is not None]
    files = Files()

    def matrix(module: str, shape: tuple[int, int]) -> CodedMatrix | None:
        if not any(tensors.has(f"{module}.{name}") for name in ("weight_scale", "weight_packed")):
            return None
        named = [s for s in schemes if module in s.targets]
        matching = [s for s in schemes if any(pattern.match(module) for pattern in s.patterns)]
        of_class = [s for s in schemes if "Linear" in s.targets]
        scheme = next(iter((*named, *matching, *of_class)), None)
        if scheme is None:
            raise ConfigError(
                f"{module} is quantized, but no group of quantization_config's config_groups has it as a target"
            )
        kept = not scheme.int8_activations if wide is None else wide
        return _matrix(scheme, tensors, files, module, shape, kept)

    return matrix


def _check(settings: Keys) -> None:
    """Refuse features beyond codes and scales that change the results; log the settings that have no effect."""
    sparsity = settings.object("sparsity_config")
    if sparsity is not None and sparsity.text("format", "dense") != "dense":
        raise sparsity.wrong("format", "dense; decompress the checkpoint first")
    transforms = settings.object("transform_config")
    if transforms is not None and transforms.values.get("config_groups"):
        raise settings.wrong("transform_config", "absent: rotations of activations are not supported")
    if settings.object("kv_cache_scheme") is not None:
        log.info("%s: kv_cache_scheme is left out; --kv-cache-dtype says how the KV cache is kept", settings.source)


def _scheme(group: Keys, whole: str) -> _Scheme:
    """Read a config group. Raises: ConfigError naming the key whose value is not supported."""
    layout = group.text("format", whole)
    if layout not in _FORMATS:
        raise ConfigError(f"{group.source}: format {layout} is not supported; {', '.join(_FORMATS)} are")
    weights = group.object("weights")
    if weights is None:
        raise group.wrong("weights", "an object")
    bits, kind = weights.integer("num_bits", 8), weights.text("type", "int")
    if (kind, bits) not in (("int", 4), ("int", 8), ("float", 8), ("float", 4)):
        raise weights.wrong("num_bits", "4 or 8")
    if kind == "float" and bits == 4 and layout != "mxfp4-pack-quantized":
        raise ConfigError(f"{group.source}: 4-bit floats are supported as mxfp4-pack-quantized, not as {layout}")
    strategy = weights.text("strategy", "group" if weights.get("group_size") else "tensor")
    if strategy not in ("tensor", "channel", "group", "block"):
        raise weights.wrong("strategy", "tensor, channel, group or block")
    block = block_of(weights, "block_structure") if strategy == "block" else None
    if strategy == "block" and (kind != "float" or block is None):
        raise weights.wrong("block_structure", "a list of two numbers, for 8-bit floats")
    targets = group.get("targets")
    targets = tuple(str(target) for target in targets) if isinstance(targets, list) else ("Linear",)
    try:
        patterns = tuple(re.compile(target[3:]) for target in targets if target.startswith("re:"))
    except (re.error, OverflowError, RecursionError) as problem:
        raise group.wrong("targets", f"names of modules or patterns ({problem})") from None
    return _Scheme(
        targets=targets,
        patterns=patterns,
        packed=layout.endswith("pack-quantized"),
        kind=kind,
        bits=bits,
        group=weights.integer("group_size", 0) if strategy == "group" else 0,
        block=block,
        symmetric=weights.flag("symmetric", True),
        ordered=weights.get("actorder") in ("group", "dynamic", True),
        int8_activations=_int8_activations(group),
    )


def _int8_activations(group: Keys) -> bool:
    """Return whether the group quantizes activations to int8; our scales are always dynamic, by token and group."""
    inputs = group.object("input_activations")
    if inputs is None or inputs.text("type", "int") != "int":
        return False
    if inputs.integer("num_bits", 8) != 8:
        raise inputs.wrong("num_bits", "8")
    if inputs.get("dynamic") is False or not inputs.flag("symmetric", True):
        log.info(
            "%s: activations are rounded to int8 as they come, a scale for each token, which is at least as exact as "
            "the checkpoint's own scales and zero points",
            group.source,
        )
    return True


def _matrix(
    scheme: _Scheme, tensors: CheckpointTensors, files: Files, module: str, shape: tuple[int, int], wide: bool
) -> CodedMatrix:
    rows, k = shape
    if scheme.kind == "float" and scheme.bits == 8:
        return fp8_matrix(tensors, module, shape, scheme.block)
    if scheme.kind == "float":
        codes = tensors.take(f"{module}.weight_packed", ("U8",), (rows, k // 2))
        scales = tensors.take(f"{module}.weight_scale", MX_SCALES, (rows, -(-k // 32)))
        return mxfp4_matrix(module, shape, codes, scales, wide)

    per_word = 32 // scheme.bits
    if scheme.packed:
        codes = tensors.take(f"{module}.weight_packed", ("I32",), (rows, -(-k // per_word)))
    else:
        codes = tensors.take(f"{module}.weight", ("I8",), shape)
    group = whole_groups(module, k, scheme.group)
    groups = -(-k // group) if group else 1
    whole = [] if group else [(), (1,), (rows,)]  # one scale for the matrix, or vectors
    scales = tensors.scales(f"{module}.weight_scale", (rows, groups), *whole)
    zeros = None
    if not scheme.symmetric and scheme.packed:
        zeros = tensors.take(f"{module}.weight_zero_point", ("I32",), (-(-rows // per_word), groups))
    elif not scheme.symmetric:
        zeros = tensors.take(f"{module}.weight_zero_point", ("I8",), (rows, groups), *whole)
    order = _order(tensors, files, module, k, group) if scheme.ordered and group else None
    format = WeightFormat(
        dtype=INTEGERS[scheme.bits],
        group=group,
        scale_dtype=scale_dtype(scales),
        zero="none" if zeros is None else "int8",
        wide=wide,
        ordered=order is not None,
    )
    used = (codes, scales, *tensors.some(*(f"{module}.{seen}" for seen in (*_SEEN, "weight_zero_point"))))
    read = partial(_rows, codes, scales, zeros, scheme.bits, scheme.packed, order, shape)
    return CodedMatrix(module, shape, format, used, read, order)


def _order(tensors: CheckpointTensors, files: Files, module: str, k: int, group: int) -> Int32Array | None:
    if not tensors.has(f"{module}.weight_g_idx"):
        return None
    stored = tensors.take(f"{module}.weight_g_idx", ("I32", "I64"), (k,))
    return sorted_columns(stored, files.array(stored), group)


def _rows(
    codes: StoredTensor,
    scales: StoredTensor,
    zeros: StoredTensor | None,
    bits: int,
    packed: bool,
    order: Int32Array | None,
    shape: tuple[int, int],
    files: Files,
    begin: int,
    end: int,
) -> Codes:
    rows, k = shape
    values = files.array(codes)[begin:end]
    if packed:
        values = np.ascontiguousarray(unpacked(values, bits)[:, :k])
    if order is not None:
        values = np.take(values, order, axis=1)
    spread = np.broadcast_to(files.array(scales).reshape(-1, _groups(scales)), (rows, _groups(scales)))
    signed = None
    if zeros is not None and packed:  # along the rows
        signed = unpacked(np.ascontiguousarray(files.array(zeros).T), bits)[:, :rows].T[begin:end]
    elif zeros is not None:
        signed = np.broadcast_to(files.array(zeros).reshape(-1, _groups(zeros)), (rows, _groups(zeros)))[begin:end]
    return Codes(
        values,
        widened(np.ascontiguousarray(spread[begin:end]), scales.float_dtype),
        None if signed is None else np.ascontiguousarray(signed),
    )


def _groups(tensor: StoredTensor) -> int:
    """Return the number of values for each row: a matrix's columns; 1 for a vector or a single number."""
    return tensor.shape[1] if len(tensor.shape) == 2 else 1
