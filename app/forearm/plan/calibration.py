"""Calibration: the measured speed of two layers of zeros in the formats of a model's matrices.

An instruction's peak does not predict the speed of a loop around it: Zen 4 reached 83 % of its int8 peak, a Xeon with
twice that peak 50 %. So `forearm plan` on this machine times a step of a few rows and one of many, in about a second.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from forearm.array_types import Int32Array
from forearm.config.number_formats import AT_LOAD, NUMBER_FORMATS, WeightFormat
from forearm.engine.cache.kv_groups import BLOCK_TOKENS
from forearm.engine.host.placement import Plan
from forearm.model.checkpoint.checkpoint import open_checkpoint
from forearm.model.checkpoint.weights import load_native
from forearm.model.quantization.quantization import FP8_HEAD_GROUP, HEAD_GROUPS, INT8_GROUP, Asked
from forearm.model.quantization.rotation import TURNED
from forearm.plan.cost import FEW_ROWS, LAYER_S, MANY_ROWS, Achieved
from forearm.plan.shapes import SMALL_SHAPE, write_shape
from forearm.plan.work import work_of

WATCHED_S = 0.3  # measuring time for each number of rows; the shortest step counts


class TimedExecutor(Protocol):
    """The part of the native executor that is timed (_native.pyi)."""

    def forward(
        self,
        tokens: Int32Array,
        positions: Int32Array,
        starts: Int32Array,
        block_starts: Int32Array,
        blocks: Int32Array,
        logit_rows: Int32Array,
    ) -> None:
        """Compute one step."""
        ...


def achieved(formats: Iterable[WeightFormat], placed: Plan) -> dict[WeightFormat, Achieved]:
    """Measure the GFLOP/s of matrices in these formats on the planned threads, for few and for many rows.

    Zero points are ignored; a format whose group size --quantization does not make is left out.
    """
    with tempfile.TemporaryDirectory(prefix="forearm-plan-") as folder, contextlib.ExitStack() as stack:
        logging.disable(logging.WARNING)  # what rounding loses is said of the model, not of these zeros
        stack.callback(logging.disable, logging.NOTSET)
        shape = write_shape(SMALL_SHAPE, Path(folder))
        asked = {format: _asked(format) for format in formats}
        return {format: _achieved(shape, format, one, placed) for format, one in asked.items() if one is not None}


def _asked(format: WeightFormat) -> Asked | None:
    """Return the --quantization that gives this format, or one with the same multiplication."""
    if not format.is_quantized:
        return Asked(embeddings="none")
    groups = {name: {one.group} for name, one in AT_LOAD.items()}
    groups["int8"] |= {
        INT8_GROUP,
        *range(64, TURNED + 64, 64),
        FP8_HEAD_GROUP,
        *(HEAD_GROUPS * one.group for one in AT_LOAD.values()),
    }
    number = NUMBER_FORMATS[format.dtype]
    return next(
        (
            Asked(name, "none", "float" if format.wide else "auto")
            for name, one in AT_LOAD.items()
            if NUMBER_FORMATS[one.dtype] == number and format.group in groups[name]
        ),
        None,
    )


def _achieved(folder: Path, format: WeightFormat, asked: Asked, placed: Plan) -> Achieved:
    dtype = "bfloat16" if format.is_quantized else format.dtype
    checkpoint = replace(open_checkpoint(folder, dtype=dtype, quantization=asked), calibrated=False)
    executor = load_native(
        checkpoint,
        step_tokens=MANY_ROWS,
        step_sequences=FEW_ROWS,
        step_logit_rows=FEW_ROWS,
        cores=placed.cores,
        threads=placed.threads,
        progress=False,
    )
    executor.allocate_kv(MANY_ROWS // BLOCK_TOKENS + FEW_ROWS)
    work = work_of(checkpoint)
    weights, fixed_s = sum(matrices.weights for matrices in work.body), LAYER_S * work.layers
    few = _least_s(executor, FEW_ROWS, 1) - fixed_s
    many = _least_s(executor, 1, MANY_ROWS) - fixed_s
    return Achieved(2e-9 * weights * FEW_ROWS / max(few, fixed_s), 2e-9 * weights * MANY_ROWS / max(many, fixed_s))


def _least_s(executor: TimedExecutor, sequences: int, count: int) -> float:
    """Return the shortest time in seconds of a step of the first `count` tokens of each sequence."""
    blocks = -(-count // BLOCK_TOKENS)
    starts = np.arange(sequences + 1, dtype=np.int32)
    tokens = np.zeros(sequences * count, np.int32)
    positions = np.tile(np.arange(count, dtype=np.int32), sequences)
    taken = np.arange(sequences * blocks, dtype=np.int32)
    least_s, end = 1e9, time.monotonic() + WATCHED_S
    while time.monotonic() < end or least_s == 1e9:
        begin = time.perf_counter()
        executor.forward(tokens, positions, starts * count, starts * blocks, taken, starts[1:] * count - 1)
        least_s = min(least_s, time.perf_counter() - begin)
    return least_s
