"""The native executor filled with random weights of a shape, without files in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from bench.shapes import POOL, Shape, bfloat16

from forearm import _native
from forearm.config.number_formats import WeightFormat
from forearm.model.checkpoint.formats import plan_formats
from forearm.model.families.config import ModelConfig
from forearm.model.families.matrices import matrices, uniform_formats
from forearm.model.quantization.quantization import Asked
from forearm.model.quantization.rotation import norm_before, obstacle

KV_DTYPE = "bfloat16"
FLOATS = ("float32", "float16", "bfloat16")
PIECE_ROWS = 4096


def formats_of(config: ModelConfig, name: str) -> dict[str, WeightFormat]:
    """Return the formats of --quantization `name` (embedding and head int8), or a float dtype for all.

    A name ending in -float has --quantization-activations float. mxfp4 is that of experts, beside int4.
    """
    if name in FLOATS:
        return uniform_formats(config, WeightFormat(name))  # type: ignore[arg-type]  # one of FLOATS
    if name == "mxfp4":
        experts = [spec.name for spec in matrices(config) if spec.experts > 1]
        return formats_of(config, "int4") | dict.fromkeys(experts, WeightFormat("fp4_e2m1", 32, "e8m0"))
    asked = _asked(name)
    rotated, turned = asked.rotated and not obstacle(config, portable=False), asked.turned and not config.pooled
    return plan_formats(matrices(config), (), "bfloat16", asked, quantized=False, rotated=rotated, turned=turned)


def served_config(config: ModelConfig, name: str) -> ModelConfig:
    """Return the model as --quantization `name` serves it: its norms may have biases."""
    centred = name not in FLOATS and _asked(name).centred and not obstacle(config, portable=False)
    return replace(config, centred=centred)


def _asked(name: str) -> Asked:
    return Asked(name.removesuffix("-float"), activations="float" if name.endswith("-float") else "auto")


def make_executor(
    shape: Shape, name: str, kv_dtype: str, cores: Sequence[int], threads: int, step_tokens: int, sequences: int
) -> _native.Executor:
    """Return a loaded executor without a KV cache."""
    config = served_config(shape.model, name)
    formats = formats_of(config, name)
    executor = _native.Executor(
        config,
        matrices(config),
        formats,
        kv_dtype,
        step_tokens,
        sequences,
        sequences,
        config.max_positions,
        cores,
        threads,
    )
    pool = np.random.default_rng(0).normal(0, 1, POOL).astype(np.float32)
    for spec in matrices(config):
        for part in spec.parts:
            rows = part.rows * spec.experts
            for row in range(0, rows, PIECE_ROWS):
                values = np.resize(pool[row % 1021 :], (min(PIECE_ROWS, rows - row), spec.k))
                load_piece(executor, part.name, row, values, formats[spec.name])
    load_vectors(executor, shape, config)
    executor.finish_loading()
    return executor


def allocate_cache(executor: _native.Executor, blocks: int, sequences: int) -> None:
    """Allocate KV blocks, and a slot of states for each sequence if layers keep states."""
    executor.allocate_kv(blocks)
    if executor.state_bytes_per_slot:
        executor.allocate_states(sequences)


def load_piece(
    executor: _native.Executor, matrix: str, row: int, values: np.ndarray[tuple[int, int], np.dtype[np.float32]],
    format: WeightFormat,
) -> None:  # fmt: skip
    """Load rows of a matrix from normally distributed numbers; quantized ones have one scale for all groups."""
    rows, columns = values.shape
    if format.dtype in FLOATS:
        executor.load_matrix(matrix, bfloat16(values * np.float32(columns**-0.5)), "bfloat16", row)
        return
    most = {"int6": 31, "int4": 7, "fp4_e2m1": 4}.get(format.dtype, 127)  # fp4 has every code from -4 to 4
    codes = np.clip(np.rint(values * (most / 3)), -most, most).astype(np.int8)
    scale = 2.0 ** np.round(np.log2(3 / most * columns**-0.5))  # exact in any float
    groups = -(-columns // format.group) if format.group else 1
    executor.load_codes(matrix, codes, np.full((rows, groups), scale, np.float32), row=row)


def load_vectors(executor: _native.Executor, shape: Shape, config: ModelConfig) -> None:
    """Load norms of ones, and all other vectors as zeros."""
    for part in shape.parts():
        if len(part.shape) == 1:
            values = np.full(part.shape, "norm" in part.name, np.float32)
            executor.load_vector(part.name, values, part.at)
    if not config.centred:
        return
    for spec in matrices(config):
        if norm := norm_before(spec.name, spec.role):
            executor.load_vector(f"{norm}.bias", np.zeros(spec.k, np.float32))
            for one in spec.parts:
                executor.load_vector(f"{one.name}.bias", np.zeros(one.rows * spec.experts, np.float32))
