"""The parts that ZAYA1 alone has, in float64: convolved heads, a router that is an MLP, residuals that are scaled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tests.model.reference_sums import Array, Rounding, activated, linear, norm

from forearm.model.families.config import Attention, Experts, ModelConfig


def added(config: ModelConfig, w: dict[str, Array], half: str, x: Array, y: Array, e: Rounding) -> Array:
    """The residual behind a half of a layer. x: the one before; y: what is added, through a norm in other models."""
    if not config.merges:
        return x + config.residual_scale * norm(config, w, f"post_{half}_norm", y, e)
    scale, bias, residual_scale, residual_bias = np.split(w[f"{half}_merge"], 4)
    return e.around((y + bias) * scale + (x + residual_bias) * residual_scale, e.sums, 3)


def convolved_heads(
    config: ModelConfig, layer: Attention, w: dict[str, Array], q: Array, k: Array, v: Array, e: Rounding
) -> tuple[Array, Array, Array]:
    """Queries, keys and values before their rotation, of what is projected, [tokens, numbers of all heads]."""
    own, tokens = layer.convolved, len(q)
    assert own is not None
    heads, kv_heads, dim = config.heads_of(layer)
    rows = np.hstack([q, k])
    before = np.pad(rows, ((own.taps + own.head_taps - 2, 0), (0, 0)))
    taps, count = w["conv"].reshape(-1, own.taps), tokens + own.head_taps - 1
    parts = [before[j : j + count] * taps[:, j] for j in range(own.taps)]
    channels = e.around(np.sum(parts, axis=0) + w["conv.bias"], e.sums, 2 * own.taps)
    of_heads = channels.reshape(count, -1, dim)
    joined = np.stack([of_heads[j : j + tokens] for j in range(own.head_taps)], axis=-1)  # [tokens, heads, dim, taps]
    matrices, biases = np.split(w["conv_heads"], heads + kv_heads), np.split(w["conv_heads.bias"], heads + kv_heads)
    exact = replace(e, int8="")  # matrices of heads are never quantized
    mixed = np.stack(
        [linear(joined[:, h].reshape(tokens, -1), matrices[h], biases[h], exact) for h in range(heads + kv_heads)],
        axis=1,
    )
    mean = (q.reshape(tokens, kv_heads, -1, dim) + k.reshape(tokens, kv_heads, 1, dim)) / 2
    q = mixed[:, :heads] + mean.reshape(tokens, heads, dim)
    k = mixed[:, heads:] + mean.mean(axis=2)
    q, k = (a / np.maximum(np.sqrt((a * a).mean(axis=-1, keepdims=True)), 1e-30) for a in (q, k))
    late = v[:, v.shape[1] // 2 :]
    first = np.broadcast_to(w.get("v.bias", np.zeros(v.shape[1]))[v.shape[1] // 2 :], late[:1].shape)
    v = np.hstack([v[:, : v.shape[1] // 2], np.vstack([first, late[:-1]])])
    scaled = k * w["key_scale"][:, None]
    return e.around(q, e.sums, 8), e.around(scaled, e.sums, 8), v.reshape(tokens, kv_heads, dim)


def routed(
    config: ModelConfig, own: Experts, w: dict[str, Array], x: Array, handed: Array | None, e: Rounding
) -> tuple[Array, Array]:
    """The logits of a router that is an MLP, and what it hands on."""
    assert own.router is not None
    exact = replace(e, operands=0.0, int8="")  # its matrices and their inputs are float32
    state = linear(x, w["router_down"], w["router_down.bias"], exact)
    if own.router.follows:
        assert handed is not None
        state = e.around(state + handed * w["router_state"], e.sums, 2)
    rows = norm(config, w, "router_norm", state, e)
    for name in ("router_first", "router_second"):
        rows = e.around(activated("gelu_erf", linear(rows, w[name], w[f"{name}.bias"], exact)), e.sums, 8)
    return linear(rows, w["router"], None, exact), state
