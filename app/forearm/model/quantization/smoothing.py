"""Weights of columns that let 8 bits lose least: activations are multiplied with them, and weights divided by them.

Rounding x to codes of one scale errs by about |x|^2 |W|^2 in the square of x W^T, and so does rounding W, if what is
rounded is mixed by an orthogonal matrix (rotation.py). A product of two sums of squares is least where their terms are
equal (Cauchy and Schwarz): d = (W^2 / x^2)^(1/4), by the mean squares of columns. Source: Xiao et al. 2022,
SmoothQuant, arXiv:2211.10438, equation 4 with exponent 0.5, there by largest values.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from forearm.array_types import Float32Array, UInt16Array
from forearm.model.checkpoint.rounding_errors import TensorReceiver
from forearm.model.checkpoint.shards import widened
from forearm.model.quantization.rounding import PLAIN, Rounding, expert_slices

# Added to every mean square, as a part of their mean: a column that the text does not use has a weight all the same.
_DAMPING = 1e-3

ExpertSquares = dict[tuple[str, int], Float32Array]  # float32 [k], by the name of a part and an expert's number


def column_weights(activations: Float32Array, weights: Float32Array) -> Float32Array:
    """Return d, float32 [..., k]. activations, weights: squares of their columns, in any unit, float32 [..., k]."""
    least = np.finfo(np.float32).tiny
    damped = [
        squares / np.maximum(squares.mean(axis=-1, keepdims=True), least) + _DAMPING
        for squares in (activations, weights)
    ]
    return np.asarray((damped[1] / damped[0]) ** 0.25, np.float32)


class ColumnSquares:
    """Adds the squares of the columns of each part of a matrix to `squares`, and passes tensors on to `target`.

    expert_rows: the rows of each expert, by the name of a part.
    layer: the number of the only layer that there is, in the names of both.
    """

    def __init__(
        self,
        squares: ExpertSquares,
        expert_rows: Mapping[str, int],
        target: TensorReceiver | None = None,
        layer: int = 0,
    ) -> None:
        self._squares, self._expert_rows, self._target, self._layer = squares, expert_rows, target, layer

    def load_matrix(
        self, name: str, data: Float32Array | UInt16Array, dtype: str, row: int = 0, rounding: Rounding = PLAIN
    ) -> None:
        """Add the squares of rows of a matrix."""
        rows = widened(data, dtype)
        part = name.replace("layers.0.", f"layers.{self._layer}.", 1)
        for expert, own in expert_slices(self._expert_rows[part], row, len(rows)):
            some = np.einsum("ij,ij->j", rows[own], rows[own])
            self._squares[part, expert] = self._squares.get((part, expert), np.float32(0)) + some
        if self._target is not None:
            self._target.load_matrix(name, data, dtype, row, rounding)

    def load_vector(self, name: str, values: Float32Array, row: int = 0) -> None:
        """Pass a norm or a bias on."""
        if self._target is not None:
            self._target.load_vector(name, values, row)

    def finish_loading(self) -> None:
        """Note that all tensors were taken."""
