"""The experts that a router chooses and their weights, in numpy float64; a part of the reference."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from forearm.model.families.config import Experts

Array = npt.NDArray[np.float64]
Positions = npt.NDArray[np.int64]


def routes(own: Experts, logits: Array, correction: Array | None) -> tuple[Positions, Array]:
    """The experts of each token, best first, and their weights."""
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    softmax = exponentials / exponentials.sum(axis=-1, keepdims=True)
    if own.score == "sparse_mixer":
        return sparse_mixer(own, logits)
    scores = {"softmax": softmax, "sigmoid": 1 / (1 + np.exp(-logits)), "softmax_chosen": softmax}[own.score]
    choice = scores if correction is None else scores + correction
    if own.groups > 1:
        groups = choice.reshape(len(choice), own.groups, -1)
        sums = np.sort(groups, axis=-1)[:, :, -own.group_best :].sum(axis=-1)
        worst_kept = np.sort(sums, axis=-1)[:, -own.groups_kept, None]
        choice = np.where((sums >= worst_kept)[:, :, None], groups, -np.inf).reshape(choice.shape)
    chosen = np.argsort(-choice, axis=-1, kind="stable")[:, : own.active]
    weights = np.take_along_axis(scores, chosen, axis=-1)
    if own.renormalized or own.score == "softmax_chosen":
        weights = weights / (weights.sum(axis=-1, keepdims=True) + own.sum_epsilon)
    return chosen, weights * own.scale


def sparse_mixer(own: Experts, logits: Array) -> tuple[Positions, Array]:
    """Phi-3.5-MoE's: each expert's share of those left that are near it. Source: transformers' modeling_phimoe.py."""
    left, tokens = logits.copy(), np.arange(len(logits))
    chosen, weights = np.zeros((len(logits), own.active), np.int64), np.zeros((len(logits), own.active))
    for i in range(own.active):
        top = left.max(axis=-1, keepdims=True)
        near = (top - logits) / np.maximum(np.abs(logits), top) <= 2 * own.jitter
        chosen[:, i] = left.argmax(axis=-1)
        weights[:, i] = 1 / np.where(near, np.exp(left - top), 0).sum(axis=-1)
        left[tokens, chosen[:, i]] = -np.inf
    return chosen, weights
