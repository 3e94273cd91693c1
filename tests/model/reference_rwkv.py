"""RWKV-7 in numpy float64, token by token, as its paper defines it (Peng et al. 2025, arXiv:2503.14456, section 4)."""

from __future__ import annotations

import numpy as np
from tests.model.reference_sums import Array, Rounding, linear, norm, sigmoid

from forearm.model.families.config import ModelConfig
from forearm.model.families.recurrent.time_mixing import Rwkv7


def rwkv_rows(config: ModelConfig, weights: dict[str, Array], x: Array, e: Rounding) -> Array:
    """The residual behind all layers, float64 [tokens, hidden]. x: behind the embedding."""
    first: Array | None = None
    for i, layer in enumerate(config.layers):
        own = {name.split(".", 2)[2]: w for name, w in weights.items() if name.startswith(f"layers.{i}.")}
        assert isinstance(layer.mixer, Rwkv7)
        y, first = time_mixed(layer.mixer, own, norm(config, own, "input_norm", x, e), first, e)
        x = e.around(x + y, e.sums)
        normed = norm(config, own, "pre_mlp_norm", x, e)
        rows = np.maximum(linear(shifted(normed, own["mlp_mix"], e), own["up"], None, e), 0) ** 2
        x = e.around(x + linear(e.around(rows, e.sums), own["down"], None, e), e.sums)
    return norm(config, weights, "final_norm", x, e)


def shifted(x: Array, mix: Array, e: Rounding) -> Array:
    """Each token mixed with the one before it; zeros stand before the first."""
    before = np.pad(x, ((1, 0), (0, 0)))[:-1]
    return e.around(x + mix * (before - x), e.sums, 2)


def time_mixed(own: Rwkv7, w: dict[str, Array], x: Array, first: Array | None, e: Rounding) -> tuple[Array, Array]:
    """The result of a layer's mixer, and the first layer's values. first: None in that layer."""
    mixes = dict(zip("rwkvag", w["rwkv_mixes"].reshape(6, -1), strict=True))

    def low_rank(name: str, squash: str = "") -> Array:
        latent = linear(shifted(x, mixes[name], e), w[f"rwkv_{name}_down"], None, e, codes=False)
        latent = np.tanh(latent) if squash == "tanh" else sigmoid(latent) if squash else latent
        latent = e.around(latent, e.sums, 4)
        return linear(latent, w[f"rwkv_{name}_up"], w.get(f"rwkv_{name}_up.bias"), e, codes=False)

    r, k, v = (linear(shifted(x, mixes[name], e), w[f"rwkv_{name}"], None, e) for name in "rkv")
    if first is not None:
        v = e.around(v + sigmoid(low_rank("v")) * (first - v), e.sums, 6)
    decay = e.around(np.exp(-np.exp(-0.5) * sigmoid(low_rank("w", "tanh"))), e.sums, 8)
    rate, gate = e.around(sigmoid(low_rank("a")), e.sums, 6), low_rank("g", "sigmoid")
    heads = (len(x), own.heads, own.head_dim)
    removal = (k * w["rwkv_k_k"]).reshape(heads)
    removal = e.around(removal / np.linalg.norm(removal, axis=-1, keepdims=True), e.sums, 8)
    k = e.around(k * (1 + (rate - 1) * w["rwkv_k_a"]), e.sums, 3)
    r, k, values, decay, rate = (one.reshape(heads) for one in (r, k, v, decay, rate))
    y = read_states(r, k, values, decay, removal, rate * removal, e)
    y = y - y.mean(axis=-1, keepdims=True)
    y = y / np.sqrt((y * y).mean(axis=-1, keepdims=True) + own.norm_eps)
    y = e.around(y.reshape(len(x), -1) * w["gate_norm"] + w["gate_norm.bias"], e.sums, 8)
    bonus = (r * k * w["rwkv_r_k"].reshape(own.heads, -1)).sum(axis=-1, keepdims=True)
    y = e.around((y + (bonus * values).reshape(len(x), -1)) * gate, e.sums, 6)
    return linear(y, w["rwkv_out"], None, e), v if first is None else first


def read_states(
    r: Array, k: Array, v: Array, decay: Array, removal: Array, replaced: Array, e: Rounding
) -> Array:  # fmt: skip
    """Return what each token reads of the states of all heads, [tokens, heads, head_dim]."""
    heads, dim = r.shape[1:]
    state, out = np.zeros((heads, dim, dim)), np.empty_like(v)
    for t in range(len(r)):
        told = np.einsum("hk,hkv->hv", removal[t], state)
        if e.sums:
            told = e.summed(told, np.einsum("hk,hkv->hv", removal[t] ** 2, state**2), dim)
        changed = k[t][..., None] * v[t][:, None] - replaced[t][..., None] * told[:, None]
        state = e.around(decay[t][..., None] * state + changed, e.sums, 3)
        out[t] = np.einsum("hk,hkv->hv", r[t], state)
        if e.sums:
            out[t] = e.summed(out[t], np.einsum("hk,hkv->hv", r[t] ** 2, state**2), dim)
    return out
