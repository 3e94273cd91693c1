"""Rounding with feedback: each column of a matrix makes up for what the errors of columns before it do to the result.

The squared error of a product with rows x is d H d^T, where d is the error of a row of weights and H the mean of x^T x.
Given the errors so far, the errors of the columns to come that are best follow from H; the next column is rounded with
its own. Source: Frantar et al. 2022, GPTQ, arXiv:2210.17323. Here H is a diagonal matrix plus one of rank RANK, the
main directions of x, so that feedback takes 2 * RANK multiplications a weight, and any number of columns.
"""

from __future__ import annotations

import numpy as np

from forearm.array_types import Float32Array

RANK = 16  # kernels.h, kFeedback
_TURNS = 3  # of the search of the main directions
DAMPING = 0.01  # added to the diagonal, as a part of its mean: for directions that the text does not use


def feedback_of(rows: Float32Array) -> Float32Array:
    """Return what the kernels round a matrix with (kernels.h, RoundTask), float32 [2 * k * RANK].

    rows: some of those that the matrix is multiplied with, float32 [tokens, k].
    """
    tokens, k = rows.shape
    # The eigenvectors of the mean of x^T x with the largest values, times their roots.
    basis = np.random.Generator(np.random.PCG64(0)).standard_normal((k, min(RANK + 8, k)), np.float32)
    for _ in range(_TURNS):
        # Orthonormal by the small matrix of products: LAPACK's QR of a tall matrix took 10 times as long on busy cores.
        spread = (rows.T @ (rows @ basis)).astype(np.float64)
        values, vectors = np.linalg.eigh(spread.T @ spread)
        kept = values > 1e-10 * values[-1]
        basis = np.asarray(spread @ (vectors * np.where(kept, 1 / np.sqrt(np.where(kept, values, 1)), 0)), np.float32)
    projected = (rows @ basis).astype(np.float64)
    values, vectors = np.linalg.eigh(projected.T @ projected / tokens)
    found = basis @ (vectors * np.sqrt(np.maximum(values, 0)))
    directions = np.zeros((k, RANK))
    directions[:, -found.shape[1] :] = found[:, -RANK:]
    squares = np.square(rows).mean(axis=0, dtype=np.float64)
    rest = np.maximum(squares - np.square(directions).sum(axis=1), 0) + DAMPING * squares.mean()
    rest = np.maximum(rest, np.finfo(np.float32).tiny)  # of rows that are all 0
    # Of the columns from j on: I + V^T D^-1 V. After the errors d, the best one of column j is -(a[j] . V^T d).
    outer = directions[:, :, None] * (directions / rest[:, None])[:, None, :]
    remaining = np.eye(RANK) + np.cumsum(outer[::-1], axis=0)[::-1]
    answers = np.linalg.solve(remaining, (directions / rest[:, None])[:, :, None])[:, :, 0]
    return np.stack([answers, directions]).astype(np.float32).ravel()
