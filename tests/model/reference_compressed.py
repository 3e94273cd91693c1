"""Compressed attention and hyper-connections in numpy float64, a part of the reference (DeepSeek V4)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
from tests.model.reference_sums import Array, Positions, Rounding, linear, norm, rotated

from forearm.model.families.config import ModelConfig
from forearm.model.families.recurrences import CompressedAttention

Visible = npt.NDArray[np.bool_]


def compressed_attention(
    config: ModelConfig, own: CompressedAttention, w: dict[str, Array], x: Array, positions: Positions, e: Rounding
) -> Array:
    """Attention of all tokens to the window's keys and to entries, [tokens, hidden]."""
    latents = norm(config, w, "q_norm", linear(x, w["q_down"], None, e), e)
    q = linear(latents, w["q_up"], None, e).reshape(len(x), config.heads, -1)
    q = norm(replace(config, norm_weight=False), {}, "unit", q, e)
    k = norm(config, w, "k_norm", linear(x, w["kv"], None, e), e)[:, None]
    q, k = (last_rotated(config, own.rope, one, positions, e) for one in (q, k))
    distance = positions[:, None] - positions[None]
    keys, visible = e.around(k[:, 0], e.cache), (distance >= 0) & (distance < own.window)
    if own.ratio:
        made = entries(config, own, w, "entry", x, e)
        complete = np.arange(len(made))[None] < ((positions + 1) // own.ratio)[:, None]
        if own.chosen:
            complete &= chosen_entries(config, own, w, x, latents, positions, complete, e)
        keys, visible = np.concatenate([keys, made]), np.concatenate([visible, complete], axis=1)
    mixed = last_rotated(config, own.back, attended(config, w, q, keys, visible, e), positions, e)
    parts = np.split(mixed.reshape(len(x), -1), own.groups, axis=1)
    matrices = np.split(w["groups"], own.groups)
    groups = [linear(part, matrix, None, e) for part, matrix in zip(parts, matrices, strict=True)]
    return linear(np.concatenate(groups, axis=1), w["o"], None, e)


def last_rotated(config: ModelConfig, rope: int, x: Array, positions: Positions, e: Rounding) -> Array:
    """The last values of each head turned; x [tokens, heads, dim]."""
    plain = x.shape[-1] - 2 * len(config.ropes[rope].inv_freq)
    return np.concatenate([x[..., :plain], rotated(config, rope, x[..., plain:], positions, e)], axis=-1)


def entries(
    config: ModelConfig, own: CompressedAttention, w: dict[str, Array], name: str, x: Array, e: Rounding
) -> Array:
    """The entries of all complete windows, as the cache keeps them, [entries, dim]."""
    exact = replace(e, operands=0.0, int8="")
    numbers, gates = (linear(x, w[part], None, exact) for part in (name, f"{name}_gate"))
    count, dim = len(x) // own.ratio, numbers.shape[1] // own.series
    biases = w[f"{name}_bias"].reshape(own.ratio, -1)
    numbers, gates = (one[: count * own.ratio].reshape(count, own.ratio, -1) for one in (numbers, gates))
    gates = gates + biases
    if own.overlapping:  # of the window before, and of the entry's own
        before = np.roll(numbers[..., :dim], 1, axis=0), np.roll(gates[..., :dim], 1, axis=0)
        if count:
            before[1][0] = -np.inf
        numbers = np.concatenate([before[0], numbers[..., dim:]], axis=1)
        gates = np.concatenate([before[1], gates[..., dim:]], axis=1)
    weights = np.exp(gates - gates.max(axis=1, keepdims=True)) if count else gates
    weights = e.around(weights / weights.sum(axis=1, keepdims=True), e.sums, 8)
    made = norm(config, w, f"{name}_norm", (weights * numbers).sum(axis=1), e)
    made = last_rotated(config, own.rope, made[:, None], own.ratio * np.arange(count), e)[:, 0]
    return e.around(made, e.cache)


def chosen_entries(
    config: ModelConfig,
    own: CompressedAttention,
    w: dict[str, Array],
    x: Array,
    latents: Array,
    positions: Positions,
    complete: Visible,
    e: Rounding,
) -> Visible:
    """The entries with the largest scores, [tokens, entries], of those that are complete."""
    q = linear(latents, w["index_q"], None, e).reshape(len(x), own.index_heads, -1)
    q = last_rotated(config, own.rope, q, positions, e)
    products = np.maximum(q @ entries(config, own, w, "index", x, e).T, 0)  # [tokens, heads, entries]
    weights = linear(x, w["index_weights"], None, replace(e, operands=0.0, int8=""))
    scores = np.where(complete, np.matmul(weights[:, None], products)[:, 0], -np.inf)
    seen = np.zeros(scores.shape, bool)
    np.put_along_axis(seen, np.argsort(-scores, axis=1, kind="stable")[:, : own.chosen], True, axis=1)
    return seen


def attended(config: ModelConfig, w: dict[str, Array], q: Array, keys: Array, visible: Visible, e: Rounding) -> Array:
    """The keys that each head sees, weighted, [tokens, heads, dim]; one more logit a head takes part of the weight."""
    q, scores = q.swapaxes(0, 1), q.swapaxes(0, 1) @ keys.T
    if e.sums:
        scores = e.summed(scores, (q * q) @ (keys * keys).T, q.shape[-1])
    scores = np.where(visible, scores * config.attention_scale, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    p = np.exp(scores - top)
    p = p / (p.sum(axis=-1, keepdims=True) + np.exp(w["sinks"][:, None, None] - top))
    p = e.around(e.around(p, e.sums, 8), e.operands)
    mixed = p @ keys
    if e.sums:
        mixed = e.summed(mixed, (p * p) @ (keys * keys), keys.shape[0])
    return mixed.swapaxes(0, 1)


def weighed(
    config: ModelConfig, w: dict[str, Array], half: str, streams: Array, e: Rounding
) -> tuple[Array, Array, Array]:
    """The row that a half of a layer, or the final norm, reads, [tokens, hidden]; weights of its result and of streams.

    streams: [tokens, streams, hidden]. Returns also [tokens, streams] and [tokens, streams, streams]; empty for `head`.
    """
    own = config.hyper_connections
    assert own is not None
    count, flat = own.streams, streams.reshape(len(streams), -1)
    u = linear(flat, w[f"hyper_{half}_project"].reshape(-1, flat.shape[1]), None, replace(e, operands=0.0, int8=""))
    u = u / np.sqrt((flat * flat).mean(axis=1, keepdims=True) + config.norm_eps)
    pre, post, mix = np.split(u, [count, 2 * count], axis=1)
    scale, base = w[f"hyper_{half}_scale"], np.split(w[f"hyper_{half}_base"], [count, 2 * count])
    pre = e.around(1 / (1 + np.exp(-(scale[0] * pre + base[0]))) + own.eps, e.sums, 8)
    x = e.around((pre[..., None] * streams).sum(axis=1), e.sums, count)
    if half == "head":
        return x, post, mix
    post = own.most / (1 + np.exp(-(scale[1] * post + base[1]))) + (0.0 if own.rounds else own.eps)
    post = e.around(post, e.sums, 8)
    if not own.rounds:
        return x, post, np.broadcast_to(np.eye(count), (len(x), count, count))
    mix = (scale[2] * mix + base[2]).reshape(-1, count, count)
    mix = np.exp(mix - mix.max(axis=2, keepdims=True))
    mix = mix / mix.sum(axis=2, keepdims=True) + own.eps
    for axis in [1, *(2, 1) * (own.rounds - 1)]:
        mix = mix / (mix.sum(axis=axis, keepdims=True) + own.eps)
    return x, post, e.around(mix, e.sums, 8)


def joined(streams: Array, y: Array, post: Array, mix: Array, e: Rounding) -> Array:
    """The streams behind a half of a layer whose result is y."""
    added = post[..., None] * y[:, None] + np.einsum("tij,tih->tjh", mix, streams)
    return e.around(added, e.sums, streams.shape[1] + 1)
