"""Quantized checkpoints of models that transformers builds: the codes of linear layers become packed matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from forearm.errors import ConfigError
from forearm.model.checkpoint.shards import StoredTensor
from forearm.model.checkpoint.tensor_part import TensorPart
from forearm.model.families.config import ModelConfig
from forearm.model.modules.linear_module import LinearModule
from forearm.model.quantization.codes import CodedMatrix, Find, common_format

# Dtypes of codes, which are matrices or the stacked matrices of experts.
_CODES, _DIMENSIONS = ("I32", "I8", "U8", "F8_E4M3"), (2, 3)


def with_codes(
    config: ModelConfig, find: Find, tensors: Mapping[str, StoredTensor]
) -> tuple[ModelConfig, tuple[tuple[TensorPart, CodedMatrix], ...]]:
    """Return the config and its quantized layers. Layers of one input stay one matrix if one format holds them all.

    Raises: ConfigError naming codes that no linear layer reads: transformers would take them for weights.
    """
    stored = {name.rpartition(".")[0] for name in tensors}  # a tied head has no tensors
    found = {one.name: find(one.name, (one.rows, one.k)) for one in config.linears if one.name in stored}
    linears: list[LinearModule] = []
    for _, group in groupby(config.linears, key=lambda one: one.matrix):
        layers = list(group)
        fit = _fit_together([found.get(one.name) for one in layers])
        linears += layers if fit else [replace(one, matrix=one.name, gate=None) for one in layers]
    coded = tuple(
        (TensorPart(one.name, f"{one.name}.weight", (one.rows, one.k), matrix=one.matrix), matrix)
        for one in linears
        if (matrix := found.get(one.name)) is not None
    )
    read = {tensor.name for _, matrix in coded for tensor in matrix.tensors}
    codes = [one for one in tensors.values() if one.dtype in _CODES and len(one.shape) in _DIMENSIONS]
    if left := sorted(one.name for one in codes if one.name not in read):
        raise ConfigError(
            f"{left[0]} and {len(left) - 1} other tensors are quantized, but no linear layer of the model that "
            "transformers builds has their name; serve the original weights, with --quantization to quantize them "
            "while loading"
        )
    return replace(config, linears=tuple(linears)), coded


def _fit_together(matrices: Sequence[CodedMatrix | None]) -> bool:
    """Return whether layers can be one packed matrix: all floats, or all quantized in formats with a common one."""
    coded = [one for one in matrices if one is not None]
    if len(coded) < len(matrices):
        return not coded
    try:
        common_format(coded)
    except ConfigError:
        return False
    return True
