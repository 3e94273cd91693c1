"""The way a matrix of floats is rounded to integers while it is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from forearm.array_types import Float32Array


@dataclass(frozen=True)
class Rounding:
    """Knowledge of the activations that a matrix of k columns is multiplied with (kernels.h, RoundTask).

    importance   weights of the columns' errors, float32 [k]
    feedback     what later columns make up for earlier ones (feedback.py), float32 [2 * k * RANK]
    """

    importance: Float32Array | None = None
    feedback: Float32Array | None = None


PLAIN = Rounding()


def expert_slices(expert_rows: int, row: int, rows: int) -> Iterator[tuple[int, slice]]:
    """Yield each expert of `rows` rows from `row` on, and which of them are its own.

    expert_rows: rows of each expert, which follow each other.
    """
    at = 0
    while at < rows:
        expert = (row + at) // expert_rows
        end = min(rows, (expert + 1) * expert_rows - row)
        yield expert, slice(at, end)
        at = end
