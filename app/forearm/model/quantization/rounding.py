"""The way a matrix of floats is rounded to integers while it is loaded."""

from __future__ import annotations

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
