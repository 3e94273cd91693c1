"""The number format of each packed matrix in memory, and the bytes it takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from forearm.config.number_formats import NUMBER_FORMATS, DTypeName, WeightFormat
from forearm.errors import ConfigError
from forearm.model.checkpoint.shards import StoredTensor
from forearm.model.checkpoint.tensor_part import TensorPart
from forearm.model.families.matrix_spec import MatrixSpec
from forearm.model.quantization.codes import CodedMatrix, common_format, groups_of
from forearm.model.quantization.quantization import (
    EMBEDDING_GROUP,
    FP8_END_LAYERS,
    FP8_HEAD_GROUP,
    FP8_INT8_ROLES,
    FP8_WIDER_GROUP,
    HEAD_GROUPS,
    INT4_END_LAYERS,
    INT8_GROUP,
    Asked,
)
from forearm.model.quantization.rotation import TURNED_ROLES, is_turnable, turned_group

_PANEL = 16  # kernels.h, kPanel: columns of a packed panel

Source = tuple[TensorPart, StoredTensor | CodedMatrix]


def plan_formats(
    specs: Sequence[MatrixSpec],
    sources: Sequence[Source],
    weight_dtype: DTypeName,
    asked: Asked,
    quantized: bool,
    rotated: bool,
    turned: bool = False,
) -> dict[str, WeightFormat]:
    """Return the format of each packed matrix: the checkpoint's if it is quantized, else the one that was asked for.

    rotated: the model is; turned: activations are, before they are rounded to 8 bits (rotation.py).
    Raises: ConfigError naming the parts of a packed matrix that have no common format.
    """
    members: dict[str, list[Source]] = defaultdict(list)
    for part, stored in sources:
        members[part.matrix].append((part, stored))
    formats = {spec.name: _format(spec, members[spec.name], weight_dtype, asked, quantized) for spec in specs}
    if quantized:
        return formats
    # vLLM takes one format for all matrices of a layer's experts.
    downs = [one for one in specs if one.role == "feed_forward_out" and not (asked.portable and one.experts > 1)]
    grouped, wide = [spec.name for spec in downs], asked.wide
    if asked.calibrated:
        ends = len(grouped) // INT4_END_LAYERS
        grouped = [*grouped[:ends], *grouped[len(grouped) - ends :]]
    elif asked.weights == "fp8" and (up := [spec.name for spec in specs if spec.role == "feed_forward_in"]):
        ends = len(up) // FP8_END_LAYERS
        grouped, wide = [spec.name for spec in specs if spec.role in FP8_INT8_ROLES], True
        grouped += [*up[:ends], *up[len(up) - ends :]]
    elif asked.weights == "int8" and asked.wide and not rotated:
        grouped = [name for name, format in formats.items() if format == asked.at_load]
    elif asked.weights != "int8" or asked.wide:
        grouped = []
    formats |= dict.fromkeys(grouped, WeightFormat("int8", INT8_GROUP, "float16", wide=wide))
    if (asked.weights, asked.activations) == ("int8", "auto"):  # the last layer's: INT8_GROUP
        last = [name for name in grouped if name.split(".")[:2] == grouped[-1].split(".")[:2]]
        formats |= {name: replace(formats[name], wide=True) for name in last}
    wider = FP8_WIDER_GROUP if asked.weights == "fp8" and not asked.portable else INT8_GROUP
    whole = {spec.name: _in_whole_groups(formats[spec.name], spec.k, wider) for spec in specs}
    return _turned(specs, whole, grouped, rotated) if turned else whole


def _turned(
    specs: Sequence[MatrixSpec], formats: Mapping[str, WeightFormat], grouped: Sequence[str], rotated: bool
) -> dict[str, WeightFormat]:
    """Return the formats of a model before whose integer matrices activations are turned: whole rows.

    grouped: matrices before which groups are turned, unless activations have 16 bits. Those keep their groups in a
    model that is not rotated: without smoothing they lose less.
    """
    turned, own_head = dict(formats), any(spec.role == "head" for spec in specs)
    for spec in specs:
        own = formats[spec.name]
        if spec.role == "embedding" and own.dtype == "int8" and not own.group and (own_head or not own.wide):
            turned[spec.name] = replace(own, group=EMBEDDING_GROUP, scale_dtype="float16")
        if spec.role not in TURNED_ROLES or not own.is_integer or (own.wide and not rotated):
            continue
        if spec.name in grouped and not own.wide:
            if group := turned_group(spec.k):
                turned[spec.name] = replace(own, group=group, turned=True)
        elif is_turnable(spec.k):
            turned[spec.name] = replace(own, group=0, scale_dtype="float32", turned=True)
    return turned


def _in_whole_groups(format: WeightFormat, k: int, wider: int) -> WeightFormat:
    """Return a format whose groups divide rows of k values, as other readers of compressed-tensors ask.

    Groups are halved until they do, to 32 at the least, unless int8 can have groups of `wider` values. The kernels take
    any.
    """
    group = format.group
    if format.dtype == "int8" and group == INT8_GROUP and k % group and k % wider == 0:
        return replace(format, group=wider)
    while group > 32 and k % group:
        group //= 2
    return format if not group or k % group else replace(format, group=group)


def spec_bytes(spec: MatrixSpec, format: WeightFormat) -> int:
    """Upper bound of the bytes of a packed matrix with all its experts; each part begins at a panel."""
    return spec.experts * sum(packed_bytes(format, part.rows, spec.k) for part in spec.parts)


def packed_bytes(format: WeightFormat, rows: int, k: int) -> int:
    """Upper bound of a packed matrix's bytes: rows in panels of 16, columns in the layout's quantum, and scales.

    Codes, scales, zeros and offsets each end at a line of 128 bytes, as Pieces of native/model/memory.h have it.
    """
    number = NUMBER_FORMATS[format.dtype]
    padded = -(-rows // _PANEL) * _PANEL
    codes = _in_lines(padded * -(-k // number.quantum) * number.quantum_bytes)
    if format.dtype == "float32":
        return codes
    if not format.is_quantized:
        # A scale for each row, where 16-bit weights are multiplied in 16 bits (neon_fp16).
        return codes + _in_lines(padded * 4)
    of_scale = {"float32": 4, "float16": 2, "bfloat16": 2, "e8m0": 1}[format.scale_dtype]
    of_zero = {"none": 0, "int8": 1, "float16": 2}[format.zero]
    scales = padded * groups_of(format, k)
    return codes + _in_lines(scales * of_scale) + _in_lines(scales * of_zero) + (4 * k if format.ordered else 0)


def _in_lines(size: int) -> int:
    return -(-size // 128) * 128


def summary(matrices: Iterable[tuple[WeightFormat, int]]) -> str:
    """Text for a log line: each format with its bytes, the largest first."""
    total: dict[str, int] = defaultdict(int)
    for format, size in matrices:
        total[described(format)] += size
    ordered = sorted(total.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {size / 2**30:.2f} GiB" for name, size in ordered)


def described(format: WeightFormat) -> str:
    """Name of a format in a log line, such as "int8 in groups of 128"."""
    group = f" in groups of {format.group}" if format.group else ""
    wide = " (16-bit activations)" if format.wide and format.is_integer else ""
    return f"{format.dtype}{group}{wide}"


def _format(
    spec: MatrixSpec, members: Sequence[Source], weight_dtype: DTypeName, asked: Asked, quantized: bool
) -> WeightFormat:
    if spec.role in ("pooler", "router"):
        return WeightFormat("float32")  # small; what a router rounds changes the choice of experts
    if spec.role in ("mixer_heads", "mixer_low_rank"):
        return WeightFormat(weight_dtype)  # few, and half of them are transposed, or make decays
    coded = [stored for _, stored in members if isinstance(stored, CodedMatrix)]
    floats = [stored.name for _, stored in members if isinstance(stored, StoredTensor)]
    if coded and floats:
        raise ConfigError(
            f"{', '.join(matrix.name for matrix in coded)} is quantized and {', '.join(floats)} is not: they are kept "
            "as one matrix, so this mixture is not supported"
        )
    if coded:
        rows = {part.name: part.rows for part in spec.parts}
        return common_format(coded, [part.at // rows[part.name] for part, _ in members])
    at_load = None if quantized else asked.at_load
    if spec.role in ("embedding", "head") or spec.name == "embed_per_layer":
        rounded = asked.embeddings == "int8" or (asked.embeddings == "auto" and at_load is not None)
        if not rounded:
            return WeightFormat(weight_dtype)
        if spec.name == "embed_per_layer":
            return WeightFormat("int8", 256, wide=asked.wide)  # so that each layer of E2B and E4B has its own scale
        if at_load is None or asked.weights == "int8" or asked.wide:
            return WeightFormat("int8", wide=asked.wide)
        group = HEAD_GROUPS * at_load.group if at_load.is_integer else FP8_HEAD_GROUP
        return WeightFormat("int8", group, "float16", wide=asked.wide)
    if at_load is None or spec.role == "table":
        return WeightFormat(weight_dtype)
    return at_load
