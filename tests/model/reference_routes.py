"""Choices by scores, in numpy float64, a part of the reference: of experts with their weights, and of keys."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
from tests.model.reference_sums import Array, Positions, Rounding, linear, norm, rotated

from forearm.model.families.config import Attention, Experts, LatentAttention, ModelConfig

# [tokens, keys], or [heads, tokens, keys]: those that an indexer has chosen; None: all
Seen = npt.NDArray[np.bool_] | None


def routes(
    own: Experts, logits: Array, correction: Array | None, table: Positions | None = None
) -> tuple[Positions, Array]:
    """The experts of each token, best first, or those of the table, and their weights."""
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    softmax = exponentials / exponentials.sum(axis=-1, keepdims=True)
    if own.score == "sparse_mixer":
        return sparse_mixer(own, logits)
    scores = {
        "softmax": softmax,
        "sigmoid": 1 / (1 + np.exp(-logits)),
        "softmax_chosen": softmax,
        "sqrt_softplus": np.sqrt(np.logaddexp(0, logits)),
        "sigmoid_chosen": logits,
    }[own.score]
    if own.always and correction is not None:
        correction = np.append(correction, np.full(own.always, np.inf))
    choice = scores if correction is None else scores + correction
    if own.groups > 1:
        groups = choice.reshape(len(choice), own.groups, -1)
        sums = np.sort(groups, axis=-1)[:, :, -own.group_best :].sum(axis=-1)
        worst_kept = np.sort(sums, axis=-1)[:, -own.groups_kept, None]
        choice = np.where((sums >= worst_kept)[:, :, None], groups, -np.inf).reshape(choice.shape)
    chosen = np.argsort(-choice, axis=-1, kind="stable")[:, : own.active] if table is None else table
    weights = np.take_along_axis(scores, chosen, axis=-1)
    if own.score == "sigmoid_chosen":
        weights = 1 / (1 + np.exp(-weights))
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


def chosen_keys(
    config: ModelConfig,
    own: LatentAttention,
    w: dict[str, Array],
    x: Array,
    latents: Array,
    positions: Positions,
    e: Rounding,
) -> Seen:
    """The keys that the indexer chooses for each token, [tokens, keys]. latents: those of queries."""
    indexer, exact = own.indexer, replace(e, int8="")  # keys and weights of its heads are never made by codes
    assert indexer is not None
    assert own.rope is not None
    turned = replace(config, ropes=tuple(replace(one, interleaved=indexer.interleaved) for one in config.ropes))
    q = linear(latents, w["index_q"], None, e).reshape(len(x), indexer.heads, -1)
    of_keys = replace(config, layer_norm=True, norm_eps=indexer.key_eps)
    k = norm(of_keys, w, "index_norm", linear(x, w["index_k"], None, exact), e)[:, None]
    first = indexer.head_dim - own.rotary if indexer.last else 0
    q, k = (
        np.concatenate([one[..., :first], rotated(turned, own.rope, one[..., first:], positions, e)], axis=-1)
        for one in (q, k)
    )
    k = e.around(k, e.cache)
    products = np.maximum(q @ k[:, 0].T, 0)  # [tokens, heads, keys]
    scores = np.matmul(linear(x, w["index_weights"], None, exact)[:, None], products)[:, 0]
    scores = np.where(positions[None] <= positions[:, None], scores, -np.inf)
    order = np.argsort(-scores, axis=1, kind="stable")
    seen = np.zeros(scores.shape, bool)
    np.put_along_axis(seen, order[:, : indexer.chosen], True, axis=1)
    return seen


def chosen_blocks(
    config: ModelConfig, layer: Attention, w: dict[str, Array], x: Array, positions: Positions, e: Rounding
) -> Seen:
    """The keys of the blocks that each head's kv head chooses for each token, [heads, tokens, keys]."""
    own, exact = layer.blocks, replace(e, int8="")  # its matrices are never made by codes
    assert own is not None
    assert layer.rope is not None
    heads, kv_heads, _ = config.heads_of(layer)
    q, k = (linear(x, w[f"index_{n}"], None, exact).reshape(len(x), -1, own.head_dim) for n in "qk")
    if own.heads:
        return complete_blocks(config, layer, w, q, k[:, 0], positions, e)
    q, k = norm(config, w, "index_q_norm", q, e), norm(config, w, "index_norm", k, e)
    q, k = (rotated(config, layer.rope, one, positions, e) for one in (q, k))
    scores = np.where(positions[None] <= positions[:, None], q.swapaxes(0, 1) @ e.around(k, e.cache)[:, 0].T, -np.inf)
    blocks = -(-len(x) // own.block)
    padded = np.pad(scores, ((0, 0), (0, 0), (0, blocks * own.block - len(x))), constant_values=-np.inf)
    best = padded.reshape(kv_heads, len(x), blocks, own.block).max(axis=-1)
    before = positions[:, None] // own.block - np.arange(blocks)  # blocks between the token's own and this one
    best = np.where((before >= 0) & (before < own.local), np.inf, best)
    order = np.argsort(-best, axis=-1, kind="stable")[:, :, : own.chosen]
    seen = np.zeros(best.shape, bool)
    np.put_along_axis(seen, order, True, axis=-1)
    return np.repeat(np.repeat(seen, own.block, axis=-1)[:, :, : len(x)], heads // kv_heads, axis=0)


def complete_blocks(
    config: ModelConfig, layer: Attention, w: dict[str, Array], q: Array, k: Array, positions: Positions, e: Rounding
) -> Seen:
    """The keys of complete blocks that small heads choose by means, and those behind the last, [tokens, keys]."""
    own, count = layer.blocks, len(k)
    assert own is not None
    assert layer.rope is not None
    means = e.around(k[: count // own.block * own.block].reshape(-1, own.block, own.head_dim).mean(axis=1), e.sums, 3)
    first = np.arange(len(means)) * own.block
    q = rotated(config, layer.rope, norm(config, w, "index_q_norm", q, e), positions, e)
    means = rotated(config, layer.rope, norm(config, w, "index_norm", means[:, None], e), first, e)
    scores = np.maximum(q @ e.around(means, e.cache)[:, 0].T, 0).sum(axis=1)
    complete = (positions[:, None] + 1) // own.block
    scores = np.where(np.arange(len(means)) < complete, scores, -np.inf)
    seen = np.zeros(scores.shape, bool)
    np.put_along_axis(seen, np.argsort(-scores, axis=1, kind="stable")[:, : own.chosen], True, axis=1)
    seen = np.pad(np.repeat(seen & (scores >= 0), own.block, axis=1), ((0, 0), (0, count - len(means) * own.block)))
    return seen | (positions >= complete * own.block)
