"""Measures, on some rows of each packed matrix, how far quantized weights are from the floats they stand for.

Weights that are rounded while loading are compared with their floats. Of a quantized checkpoint the floats are gone: an
evenly rounded value is off by step / sqrt(12) in the root mean square, so the error is what its scales tell. What a
checkpoint has lost by clipping is then unseen, and steps of 2 between MXFP4's large codes count as steps of 1.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from forearm import _native
from forearm.array_types import Float32Array, Int8Array, Int32Array, UInt8Array, UInt16Array
from forearm.config.number_formats import WeightFormat
from forearm.model.checkpoint.checkpoint import Checkpoint
from forearm.model.checkpoint.shards import widened
from forearm.model.families.matrices import matrices
from forearm.model.quantization.codes import E4M3
from forearm.model.quantization.rounding import PLAIN, Rounding

log = logging.getLogger(__name__)

ROWS = 16  # of a matrix that are looked at, evenly spread over its parts and experts
# Errors of one matrix, and of all on average, above which a start warns. Normally distributed weights lose 0.10 in
# groups of 128 of 4 bits, and so do the matrices of the demonstration model, whose perplexity rises by 3 %. In
# SmolLM2-135M one matrix loses 0.29 where its largest activations are, and the perplexity rises by 24 %
# (bench/results/quantization.md).
MOST_OF_ONE, MOST_ON_AVERAGE = 0.25, 0.15


@dataclass(frozen=True)
class RoundingErrors:
    """The relative error of each quantized matrix: root mean squares of errors over those of weights.

    Calibrated columns count by their importance. measured: against the floats; otherwise expected from scales.
    """

    by_matrix: Mapping[str, float]
    measured: bool = True

    @property
    def worst(self) -> str:
        """Return the name of the matrix with the largest error."""
        return max(self.by_matrix, key=lambda name: self.by_matrix[name])

    @property
    def mean(self) -> float:
        """Return the mean of all matrices' errors."""
        return math.fsum(self.by_matrix.values()) / len(self.by_matrix)

    def log(self) -> None:
        """Log mean and worst error; warn of a model that loses more than quantized models do."""
        if not self.by_matrix:
            return
        worst = self.by_matrix[self.worst]
        how = "measured" if self.measured else "expected from its scales"
        log.info(
            "weights: relative rounding error %.2f %% on average of %d matrices, %.2f %% at worst (%s), %s",
            100 * self.mean, len(self.by_matrix), 100 * worst, self.worst, how,
        )  # fmt: skip
        if self.mean > MOST_ON_AVERAGE or worst > MOST_OF_ONE:
            above = [name for name, error in self.by_matrix.items() if error > MOST_OF_ONE]
            log.warning(
                "weights: this model loses more than 4 bits usually cost (bounds: %.0f %% on average, %.0f %% of one "
                "matrix, which %d of %d exceed): its answers will be worse; serve the original weights in 16 bits or "
                "with --quantization int8", 100 * MOST_ON_AVERAGE, 100 * MOST_OF_ONE, len(above), len(self.by_matrix),
            )  # fmt: skip


NOTHING_ROUNDED = RoundingErrors({})


class TensorReceiver(Protocol):
    """Takes the tensors of a model of floats: an executor, or the writer of a quantized checkpoint."""

    def load_matrix(
        self, name: str, data: Float32Array | UInt16Array, dtype: str, row: int = 0, rounding: Rounding = PLAIN
    ) -> None:
        """Take rows of a matrix (_native.pyi, Executor)."""
        ...

    def load_vector(self, name: str, values: Float32Array, row: int = 0) -> None:
        """Take a norm or a bias."""
        ...

    def finish_loading(self) -> None:
        """Note that all tensors were taken."""
        ...


class RoundingSample:
    """Passes a model's tensors on to an executor or a writer, and collects the errors of some rows on the way."""

    def __init__(self, checkpoint: Checkpoint, target: TensorReceiver) -> None:
        self._formats, self._target = checkpoint.formats, target
        self._kernels = _native.Kernels(_native.tier())
        self._places = {  # of a part: its matrix, and the distance of the rows that are looked at
            part.name: (spec.name, max(1, part.rows * spec.experts * len(spec.parts) // ROWS))
            for spec in matrices(checkpoint.config)
            for part in spec.parts
        }
        self._squares: dict[str, tuple[float, float]] = {}  # of errors and of weights, by matrix
        self.measured = True

    @property
    def errors(self) -> RoundingErrors:
        """Return the errors seen so far, of all matrices that are not zero."""
        found = {name: math.sqrt(lost / kept) for name, (lost, kept) in self._squares.items() if kept > 0}
        return RoundingErrors(found, self.measured)

    def load_vector(self, name: str, values: Float32Array, row: int = 0) -> None:
        """Pass a norm or a bias on."""
        self._target.load_vector(name, values, row)

    def load_matrix(
        self, name: str, data: Float32Array | UInt16Array, dtype: str, row: int = 0, rounding: Rounding = PLAIN
    ) -> None:
        """Pass rows of floats on; round some of them as the executor does, and compare."""
        self._target.load_matrix(name, data, dtype, row, rounding)
        matrix, step = self._places[name]
        format, rows = self._formats[matrix], data[-row % step :: step]
        if not format.is_quantized or not len(rows):
            return
        floats = np.ascontiguousarray(widened(rows, dtype))
        if format.is_integer:
            group = format.group or floats.shape[1]
            codes, scales = self._kernels.round(
                floats, format.dtype, group, format.scale_dtype, rounding.importance, rounding.feedback
            )
            lost = floats - codes * _spread(scales, floats.shape, format)
        else:
            scales = np.maximum(np.abs(floats).max(axis=1, keepdims=True) / E4M3[126], np.finfo(np.float32).tiny)
            steps = _fp8_step(floats / scales) * scales
            lost = floats - np.rint(floats / steps) * steps
        weight = np.float32(1) if rounding.importance is None else rounding.importance
        self._add(matrix, float((weight * lost**2).sum()), float((weight * floats**2).sum()))

    def load_codes(
        self,
        name: str,
        codes: Int8Array | UInt8Array,
        scales: Float32Array,
        zeros: Int8Array | None,
        offsets: Float32Array | None,
        order: Int32Array | None,
        row: int,
    ) -> None:
        """Pass rows of a quantized checkpoint on; estimate the errors of some."""
        assert isinstance(self._target, _native.Executor), "a quantized checkpoint is not written again"
        self._target.load_codes(name, codes, scales, zeros, offsets, order, row)
        matrix, step = self._places[name]
        format, some = self._formats[matrix], slice(-row % step, None, step)
        codes = codes[some]
        if not len(codes):
            return
        self.measured = False
        values = codes.astype(np.float32) if format.is_integer else E4M3[codes.view(np.uint8)]
        steps = _spread(scales[some], codes.shape, format)
        if zeros is not None:
            values -= _spread(zeros[some], codes.shape, format)
        kept = values * steps
        if offsets is not None:
            kept += _spread(offsets[some], codes.shape, format)
        if not format.is_integer:
            steps = _fp8_step(values) * steps
        self._add(matrix, float((steps**2).sum()) / 12, float((kept**2).sum()))

    def finish_loading(self) -> None:
        """Note that all tensors were taken."""
        self._target.finish_loading()

    def _add(self, matrix: str, lost: float, kept: float) -> None:
        before = self._squares.get(matrix, (0.0, 0.0))
        self._squares[matrix] = (before[0] + lost, before[1] + kept)


def _spread(of_groups: npt.NDArray[np.generic], shape: tuple[int, ...], format: WeightFormat) -> Float32Array:
    """Return a value for each weight of values for each group, float32."""
    return np.repeat(of_groups.astype(np.float32), format.group or shape[1], axis=1)[:, : shape[1]]


def _fp8_step(values: Float32Array) -> Float32Array:
    """Return the distance of neighbours in fp8 E4M3 around values, of 3 bits behind the first."""
    _, exponents = np.frexp(values)
    steps: Float32Array = np.ldexp(np.float32(1), np.maximum(exponents, -5) - 4)
    return steps
