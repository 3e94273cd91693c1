"""The mixers of reference.py that keep a state of each sequence, in numpy float64, token by token."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from tests.model.reference_sums import Array, Rounding, activated, linear, sigmoid

from forearm.model.families.config import Attention, ModelConfig
from forearm.model.families.recurrences import GatedDelta, Lightning, Mamba2, RgLru, SelectiveScan, ShortConv


def short_conv(own: ShortConv, w: dict[str, Array], x: Array, e: Rounding) -> Array:
    """A convolution of each channel over the tokens up to its own, between two gates."""
    b, c, u = (linear(x, w[f"conv_{name}"], w.get(f"conv_{name}.bias"), e) for name in ("b", "c", "x"))
    y = convolved(own.taps, w, e.around(b * u, e.sums), e)
    return linear(e.around(c * y, e.sums), w["conv_out"], w.get("conv_out.bias"), e)


def convolved(taps: int, w: dict[str, Array], u: Array, e: Rounding) -> Array:
    """The convolution of each channel over the tokens up to its own, and its bias."""
    rows = np.stack([np.pad(u, ((taps - 1, 0), (0, 0)))[j : j + len(u)] for j in range(taps)])
    weights = w["conv"].reshape(-1, taps).T
    y = np.einsum("jtc,jc->tc", rows, weights)
    if e.sums:
        y = e.summed(y, np.einsum("jtc,jc->tc", rows**2, weights**2), taps)
    return y + w.get("conv.bias", 0.0)


def half_convolved(config: ModelConfig, own: Attention, w: dict[str, Array], part: str, u: Array, e: Rounding) -> Array:
    """The sum of rows and of one of a layer's four convolutions over them; times the factor behind the last."""
    if not config.conv_taps:
        return u
    _, kv_heads, head_dim = config.heads_of(own)
    channels = np.cumsum([kv_heads * head_dim, kv_heads * head_dim, config.hidden])
    taps = dict(zip(("k", "v", "mixer", "mlp"), np.split(w["conv"], channels * config.conv_taps), strict=True))
    y = e.around(convolved(config.conv_taps, {"conv": taps[part]}, u, e) + u, e.sums, 2)
    return y * w["feed_forward_scale"] if part == "mlp" else y


def relative_bias(own: Attention, w: dict[str, Array], x: Array, growth: Array, e: Rounding) -> Array | None:
    """The bias of each score, [heads, tokens, keys]: profiles by distance, which each token weighs for each head."""
    if own.bias is None:
        return None
    r = (linear(x, w["r"], None, e).reshape(len(x), -1, own.bias.dim) * growth).swapaxes(0, 1)
    profiles = w["relative_bias"].reshape(own.bias.dim, own.bias.reach)
    by_distance = np.matmul(r, profiles)
    if e.sums:
        by_distance = e.summed(by_distance, np.matmul(r**2, profiles**2), own.bias.dim)
    distance = np.arange(len(x))[:, None] - np.arange(len(x))[None]
    rows = np.clip(distance, 0, own.bias.reach - 1)[None].repeat(len(r), axis=0)
    return np.where((distance >= 0) & (distance < own.bias.reach), np.take_along_axis(by_distance, rows, axis=2), 0.0)


def mamba2(own: Mamba2, w: dict[str, Array], x: Array, eps: float, e: Rounding) -> Array:
    """A state of each head, token by token, and the gated norm behind it."""
    z, xbc, dt = (linear(x, w[f"mamba_{name}"], w.get(f"mamba_{name}.bias"), e) for name in ("z", "xbc", "dt"))
    shared = own.groups * own.state_dim
    z, dt = own.z_scale * z, own.dt_scale * dt
    xbc = xbc * np.repeat([own.x_scale, own.b_scale, own.c_scale], [own.inner, shared, shared])
    xbc = e.around(activated("silu", convolved(own.taps, w, xbc, e)), e.sums, 8)
    u, b, c = np.split(xbc, [own.inner, own.inner + shared], axis=1)
    u = u.reshape(len(x), own.heads, own.head_dim)
    b, c = (np.repeat(v.reshape(len(x), own.groups, -1), own.heads // own.groups, axis=1) for v in (b, c))
    dt = np.clip(e.around(np.logaddexp(0, dt + w["dt_bias"]), e.sums, 8), own.dt_least, own.dt_most)
    decay = np.exp(-e.around(dt * np.exp(w["a_log"]), e.sums, 4))
    state, y = np.zeros((own.heads, own.state_dim, own.head_dim)), np.empty_like(u)
    for t in range(len(x)):
        added = np.einsum("h,hn,hp->hnp", dt[t], b[t], u[t])
        state = e.around(decay[t][:, None, None] * state + added, e.sums, 4)
        y[t] = np.einsum("hn,hnp->hp", c[t], state)
        if e.sums:
            y[t] = e.summed(y[t], np.einsum("hn,hnp->hp", c[t] ** 2, state**2), own.state_dim)
    rows = (y + w["d"][:, None] * u).reshape(len(x), -1)
    gate = activated("silu", z)
    rows = e.around(rows * gate, e.sums, 8) if own.gate_first or not own.norm else rows
    if own.norm:
        rows = rows.reshape(len(x), own.groups, -1)
        rows = rows / np.sqrt((rows**2).mean(axis=2, keepdims=True) + eps)
        rows = e.around(rows.reshape(len(x), -1) * w["gate_norm"], e.sums, 4)
        rows = rows if own.gate_first else e.around(rows * gate, e.sums, 8)
    return linear(rows, w["mamba_out"], w.get("mamba_out.bias"), e)


def selective_scan(own: SelectiveScan, w: dict[str, Array], x: Array, e: Rounding) -> Array:
    """A state of each channel, token by token, and the gate behind it."""
    u, z = (linear(x, w[f"scan_{name}"], w.get(f"scan_{name}.bias"), e) for name in "xz")
    u = e.around(activated("silu", convolved(own.taps, w, u, e)), e.sums, 8)
    latent, b, c = (linear(u, w[f"scan_{name}"], None, e) for name in ("latent", "b", "c"))
    if own.norm_eps:
        weights = w.get("scan_norm", np.ones(own.dt_rank + 2 * own.state_dim))
        each = np.split(weights, [own.dt_rank, own.dt_rank + own.state_dim])
        rows = zip((latent, b, c), each, strict=True)
        normed = [v / np.sqrt((v * v).mean(axis=1, keepdims=True) + own.norm_eps) * weight for v, weight in rows]
        latent, b, c = (e.around(v, e.sums, 8) for v in normed)
    dt = e.around(np.logaddexp(0, linear(latent, w["scan_dt"], w["scan_dt.bias"], e)), e.sums, 8)
    rate = np.exp(w["a_log"]).reshape(own.inner, own.state_dim)
    state, y = np.zeros((own.inner, own.state_dim)), np.empty_like(u)
    for t in range(len(x)):
        decay = e.around(np.exp(-e.around(dt[t][:, None] * rate, e.sums, 4)), e.sums, 4)
        state = e.around(decay * state + (dt[t] * u[t])[:, None] * b[t], e.sums, 4)
        y[t] = state @ c[t]
        if e.sums:
            y[t] = e.summed(y[t], state**2 @ c[t] ** 2, own.state_dim)
    rows = e.around((y + w["d"] * u) * activated("silu", z), e.sums, 8)
    return linear(rows, w["scan_out"], w.get("scan_out.bias"), e)


def rg_lru(own: RgLru, w: dict[str, Array], x: Array, e: Rounding) -> Array:
    """A number of each channel, token by token; its gates are made by a matrix for each head of channels."""
    u, y = (linear(x, w[f"lru_{name}"], w[f"lru_{name}.bias"], e) for name in "xy")
    u = convolved(own.taps, w, u, e)

    def gate(name: str) -> Array:
        heads = (np.split(v, own.gate_heads, axis) for v, axis in ((u, 1), (w[name], 0), (w[f"{name}.bias"], 0)))
        logits = [linear(part, matrix, bias, e) for part, matrix, bias in zip(*heads, strict=True)]
        return e.around(sigmoid(np.concatenate(logits, axis=1)), e.sums, 8)

    exponent = -e.around(8 * np.logaddexp(0, w["lru_rate"]) * gate("lru_recurrence_gate"), e.sums, 4)
    decay, square = (e.around(np.exp(factor * exponent), e.sums, 4) for factor in (1, 2))
    root = np.sqrt(np.maximum(1 - square, 0))  # as transformers subtracts; few digits are left where decay is near 1
    root[0] = 1
    added = e.around(root * gate("lru_input_gate") * u, e.sums, 4)
    state, rows = np.zeros(own.inner), np.empty_like(u)
    for t in range(len(x)):
        state = rows[t] = e.around(decay[t] * state + added[t], e.sums, 2)
    rows = e.around(rows * activated("gelu_tanh", y), e.sums, 8)
    return linear(rows, w["lru_out"], w["lru_out.bias"], e)


def gated_delta(own: GatedDelta, w: dict[str, Array], x: Array, e: Rounding, eps: float) -> Array:
    """The recurrence as it is defined, token by token, of all value heads."""
    u = np.concatenate([linear(x, w[f"delta_{name}"], None, e) for name in "qkv"], axis=1)
    y = convolved(own.taps, w, u, e)
    y = e.around(y * sigmoid(y), e.sums, 4)
    q, k, v = np.split(y, [own.key_heads * own.key_dim, 2 * own.key_heads * own.key_dim], axis=1)
    q, k = (a.reshape(len(x), own.key_heads, own.key_dim) for a in (q, k))
    q, k = (a / np.sqrt((a * a).sum(axis=-1, keepdims=True) + 1e-6) for a in (q, k))
    order = np.tile if own.tiled else np.repeat  # repeat each key head once for each of its value heads
    spread = order(np.arange(own.key_heads), own.value_heads // own.key_heads)
    q, k = (e.around(a, e.sums, 8)[:, spread] for a in (q, k))
    q, v = q / math.sqrt(own.key_dim), v.reshape(len(x), own.value_heads, own.value_dim)
    exact = replace(e, operands=0.0, int8="")  # the gates' matrices and their inputs are float32
    a = linear(x, w["delta_a_latent"], None, exact) if own.gate_rank else x
    a = (linear(a, w["delta_a"], None, exact) + w["dt_bias"]).reshape(len(x), own.value_heads, -1)
    rate = np.exp(w["a_log"])[:, None]
    exponent = own.least_decay * sigmoid(rate * a) if own.least_decay else -rate * np.logaddexp(0, a)
    decay = e.around(np.exp(e.around(exponent, e.sums, 8)), e.sums, 2)
    beta = e.around(own.beta_scale * sigmoid(linear(x, w["delta_b"], None, exact)), e.sums, 4)
    state, out = np.zeros((own.value_heads, own.key_dim, own.value_dim)), np.zeros_like(v)

    def read(by: Array) -> Array:
        found = np.einsum("hk,hkv->hv", by, state)
        return e.summed(found, np.einsum("hk,hkv->hv", by**2, state**2), own.key_dim) if e.sums else found

    for t in range(len(x)):
        state = decay[t][:, :, None] * state
        change = e.around(beta[t, :, None] * (v[t] - read(k[t])), e.sums, 3)
        state = e.around(state + k[t][:, :, None] * change[:, None, :], e.sums, 2)
        out[t] = read(q[t])
    out = out / np.sqrt((out * out).mean(axis=-1, keepdims=True) + (own.gate_norm_eps or eps)) * w["gate_norm"]
    z = linear(linear(x, w["delta_z_latent"], None, e) if own.gate_rank else x, w["delta_z"], None, e).reshape(v.shape)
    out = e.around(out * sigmoid(z) * (1 if own.by_channel or own.sigmoid_gate else z), e.sums, 12)
    return linear(out.reshape(len(x), -1), w["delta_out"], None, e)


def lightning(own: Lightning, w: dict[str, Array], x: Array, e: Rounding) -> Array:
    """A state of each head, token by token, and the norm and gate behind it."""
    v, k, q = (linear(x, w[f"lightning_{name}"], None, e) for name in "vkq")
    v, k, q = (e.around(a * sigmoid(a), e.sums, 4).reshape(len(x), own.heads, -1) for a in (v, k, q))
    decay = np.exp(-np.array(own.slopes, np.float64))[:, None, None]
    state, out = np.zeros((own.heads, own.head_dim, own.head_dim)), np.zeros_like(v)
    for t in range(len(x)):
        state = e.around(decay * state + k[t][:, :, None] * v[t][:, None, :], e.sums, 3)
        out[t] = np.einsum("hk,hkv->hv", q[t], state)
        if e.sums:
            out[t] = e.summed(out[t], np.einsum("hk,hkv->hv", q[t] ** 2, state**2), own.head_dim)
    y = out.reshape(len(x), -1)
    y = y / np.sqrt((y * y).mean(axis=-1, keepdims=True) + own.norm_eps) * w["gate_norm"]
    y = e.around(y * sigmoid(linear(x, w["lightning_gate"], None, e)), e.sums, 12)
    return own.out_scale * linear(y, w["lightning_out"], None, e)


RECURRENT: dict[type, Callable[..., Array]] = {
    ShortConv: short_conv, SelectiveScan: selective_scan, RgLru: rg_lru, Lightning: lightning
}  # fmt: skip
