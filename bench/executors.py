"""The native executor filled with random weights of a shape, without files in between."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from bench.shapes import POOL, Shape, bfloat16

from forearm import _native
from forearm.model.checkpoint.formats import plan_formats
from forearm.model.families.config import Attention, FeedForward, Layer, ModelConfig, Rope, WeightFormat
from forearm.model.families.matrices import matrices, uniform_formats
from forearm.model.quantization.quantization import Asked

KV_DTYPE = "bfloat16"
FLOATS = ("float32", "float16", "bfloat16")
PIECE_ROWS = 4096


def config_of(shape: Shape) -> ModelConfig:
    pairs = np.arange(0, shape.head_dim, 2) / shape.head_dim
    return ModelConfig(
        model_type=shape.architecture,
        dtype="bfloat16",
        vocab_size=shape.vocab,
        hidden=shape.hidden,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_positions=131072,
        layers=(Layer(Attention(rope=0), FeedForward(shape.intermediate)),) * shape.layers,
        ropes=(Rope((shape.rope_theta**-pairs).astype(np.float32)),),
        qkv_bias=shape.architecture == "qwen2",
        tied_head=shape.tied,
        attention_scale=shape.head_dim**-0.5,
    )


def formats_of(config: ModelConfig, name: str) -> dict[str, WeightFormat]:
    """Return the formats of --quantization `name` (embedding and head int8), or a float dtype for all."""
    if name in FLOATS:
        return uniform_formats(config, WeightFormat(name))  # type: ignore[arg-type]  # one of FLOATS
    return plan_formats(matrices(config), (), "bfloat16", Asked(name), quantized=False)


def make_executor(
    shape: Shape, name: str, kv_dtype: str, cores: Sequence[int], threads: int, step_tokens: int, sequences: int
) -> _native.Executor:
    """Loaded; its KV cache is still to be allocated."""
    config = config_of(shape)
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
            for row in range(0, part.rows, PIECE_ROWS):
                values = np.resize(pool[row % 1021 :], (min(PIECE_ROWS, part.rows - row), spec.k))
                load_piece(executor, part.name, row, values, formats[spec.name])
    load_vectors(executor, shape)
    executor.finish_loading()
    return executor


def load_piece(
    executor: _native.Executor, matrix: str, row: int, values: np.ndarray[tuple[int, int], np.dtype[np.float32]],
    format: WeightFormat,
) -> None:  # fmt: skip
    """Rows of a matrix from normal numbers; codes straight from them, with one scale for all groups."""
    rows, columns = values.shape
    if format.dtype in FLOATS:
        executor.load_matrix(matrix, bfloat16(values * np.float32(columns**-0.5)), "bfloat16", row)
        return
    most = 7 if format.dtype == "int4" else 127
    codes = np.clip(np.rint(values * (most / 3)), -most, most).astype(np.int8)
    scale = 2.0 ** np.round(np.log2(3 / most * columns**-0.5))  # exact in any float
    groups = -(-columns // format.group) if format.group else 1
    executor.load_codes(matrix, codes, np.full((rows, groups), scale, np.float32), row=row)


def packed_rows(shape: Shape) -> dict[str, tuple[int, int]]:
    """Return [rows, columns] of the matrices that are loaded, by the executor's names and in its order."""
    return {part.name: (part.rows, spec.k) for spec in matrices(config_of(shape)) for part in spec.parts}


def load_vectors(executor: _native.Executor, shape: Shape) -> None:
    """Norms of one, biases of zero."""
    rows = packed_rows(shape)
    for i in range(shape.layers):
        for norm in ("input_norm", "pre_mlp_norm"):
            executor.load_vector(f"layers.{i}.{norm}", np.ones(shape.hidden, np.float32))
        for part in "qkv" if shape.architecture == "qwen2" else "":
            executor.load_vector(f"layers.{i}.{part}.bias", np.zeros(rows[f"layers.{i}.{part}"][0], np.float32))
    executor.load_vector("final_norm", np.ones(shape.hidden, np.float32))
