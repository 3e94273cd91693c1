"""A plain transformer in numpy float64, driven by ModelConfig: what every family computes, to be read in one go.

It takes the weights as a checkpoint stores them (float16 and bfloat16 are widened exactly). `Rounding`
(reference_sums.py) turns it into an experiment: how far the logits move is the tolerance for another arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from tests.model.reference_compressed import compressed_attention, joined, weighed
from tests.model.reference_recurrent import RECURRENT, gated_delta, half_convolved, mamba2, relative_bias
from tests.model.reference_routes import Seen, chosen_blocks, chosen_keys, routes
from tests.model.reference_rwkv import rwkv_rows
from tests.model.reference_streams import (
    first_streams,
    gated,
    laurel,
    one_stream,
    predicted,
    with_ngrams,
    with_own_embedding,
)
from tests.model.reference_sums import (
    EXACT,
    Array,
    Positions,
    Rounding,
    activated,
    distance_terms,
    gated_norm,
    head_products,
    linear,
    norm,
    rotated,
    sigmoid,
    xielu,
)
from tests.model.reference_zaya import added, convolved_heads, routed

from forearm.model.checkpoint.checkpoint import Checkpoint, open_checkpoint
from forearm.model.checkpoint.shards import Files, Mapping, widened
from forearm.model.families.config import Attention, Experts, FeedForward, LatentAttention, Layer, ModelConfig
from forearm.model.families.recurrences import (
    CompressedAttention,
    GatedDelta,
    Lightning,
    RgLru,
    SelectiveScan,
    ShortConv,
)
from forearm.model.families.recurrent.time_mixing import Rwkv7
from forearm.model.pooling.adapters import SummedTensor

Kept = dict[int, tuple[Array, Array]]  # the keys and values of each layer


def load_weights(
    folder: Path, *, dtype: str = "auto", max_model_len: int | None = None
) -> tuple[ModelConfig, dict[str, Array]]:
    """The model's config for this dtype and length, and its tensors by the executor's names (_native.pyi), float64."""
    return weights_of(open_checkpoint(folder, dtype=dtype, max_model_len=max_model_len))


def weights_of(checkpoint: Checkpoint) -> tuple[ModelConfig, dict[str, Array]]:
    found: dict[str, list[tuple[int, Array]]] = {}
    for part, tensor in checkpoint.sources:
        mapping = Mapping(tensor.path)
        if len(part.shape) == 2:
            rows = part.rows(0, part.stored_shape[0])
            stored = tensor.rows(Files(), rows) if isinstance(tensor, SummedTensor) else mapping.rows(tensor, rows)
            values = widened(stored.T if part.turned else stored, tensor.float_dtype).astype(np.float64)
        else:
            values = part.vector(mapping, tensor).astype(np.float64)
        found.setdefault(part.name, []).append((part.at, values))
    experts_in_order = {name: sorted(pieces, key=lambda piece: piece[0]) for name, pieces in found.items()}
    return checkpoint.config, {
        name: np.concatenate([values for _, values in pieces]) for name, pieces in experts_in_order.items()
    }


def logits(config: ModelConfig, weights: dict[str, Array], tokens: list[int], rounding: Rounding = EXACT) -> Array:
    """Logits after every token, float64 [tokens, vocab]."""
    several = hyper_connected(config, weights, tokens, rounding) if config.hyper_connections else None
    if isinstance(config.layers[0].mixer, Rwkv7):
        x = embedded(config, weights, tokens, 0, np.arange(len(tokens)), rounding)
        several = rwkv_rows(config, weights, x, rounding)
    x = hidden(config, weights, tokens, 0, rounding) if several is None else several
    if own := config.head_dense:
        x = activated(own.activation, linear(x, weights["head_dense"], weights.get("head_dense.bias"), rounding))
        x = norm(config, weights, "head_dense.norm", x, rounding)
    head = "embed" if config.tied_head else "head"
    out = linear(x, weights[head], weights.get(f"{head}.bias"), rounding, rounding.int8_head) * config.logits_scale
    return config.logits_softcap * np.tanh(out / config.logits_softcap) if config.logits_softcap else out


def hidden(config: ModelConfig, weights: dict[str, Array], tokens: list[int], second: int, rounding: Rounding) -> Array:
    """Rows after the last norm, float64 [tokens, hidden]. second: where tokens of type 1 begin; 0: nowhere."""
    positions = np.arange(len(tokens))
    x = embedded(config, weights, tokens, second, positions, rounding)
    per_layer = per_layer_inputs(config, weights, tokens, x, rounding)
    kept: Kept = {}
    embedding, beside = x, np.zeros_like(x)
    later, seen = dict[int, Array](), None  # later: results of experts, by the layer behind which they are added
    streams, handed = first_streams(config, weights, x, rounding), None
    for i, layer in enumerate(config.layers):
        own = of_layer(config, weights, i)
        if layer.aside:
            beside = side_block(config, layer, own, np.hstack([x, embedding]), rounding)
            continue
        if config.alt_up:
            streams = predicted(config, own, streams, rounding)
            x = streams[0]
        normed = gated_norm(config, own, "input", x + beside, rounding)
        x = normed if config.norm_residual == "all" or (config.norm_residual == "first" and i == 0) else x
        y, before = np.zeros_like(x), x
        if isinstance(layer.mixer, ShortConv | SelectiveScan | RgLru | Lightning):
            y = RECURRENT[type(layer.mixer)](layer.mixer, own, normed, rounding)
        elif isinstance(layer.mixer, GatedDelta):
            y = gated_delta(layer.mixer, own, normed, rounding, config.norm_eps)
        elif isinstance(layer.mixer, LatentAttention):
            y, seen = latent_attention(config, layer.mixer, own, normed, positions, rounding, seen)
        elif isinstance(layer.mixer, Attention):
            y, kept[i] = attention(config, layer.mixer, own, normed, positions, rounding, kept)
        if layer.mamba2:
            y = y + layer.mamba2.out_scale * mamba2(layer.mamba2, own, normed, config.norm_eps, rounding)
        mixed = added(config, own, "attention", x, y, rounding)
        if config.alt_up:
            mixed = (mixed + laurel(config, own, normed, rounding)) / math.sqrt(2)
        normed = gated_norm(config, own, "pre_mlp", x if config.parallel_residual else mixed, rounding)
        x = normed if config.norm_residual == "all" else mixed
        if isinstance(layer.feed_forward, Experts) and layer.feed_forward.router:
            own["logits"], handed = routed(config, layer.feed_forward, own, normed, handed, rounding)
        y = feed_forward(config, layer, own, mixed, normed, rounding, before)
        if isinstance(layer.feed_forward, Experts) and layer.feed_forward.behind:
            later[i + layer.feed_forward.behind], y = y, np.zeros_like(x)
        x = added(config, own, "mlp", x, y, rounding) + later.get(i, 0.0)
        if layer.feed_forward and per_layer is not None:
            x, streams = with_own_embedding(config, own, x, streams, per_layer[:, i], rounding)
        x, beside = x * own.get("scalar", 1.0), np.zeros_like(x)
    x = one_stream(config, weights, streams, rounding) if config.alt_up else x
    return norm(config, weights, "final_norm", x, rounding)


def feed_forward(
    config: ModelConfig, layer: Layer, w: dict[str, Array], residual: Array, x: Array, e: Rounding, before: Array
) -> Array:
    """The result of the second half of a layer. x: the residual, normalized. before: the one before the mixer."""
    own = layer.feed_forward
    if isinstance(own, Experts):
        y = experts_apart(config, own, w, residual, e) if own.apart else experts(own, w, x, e, before=before)
    else:
        y = mlp(own, w, x, e, config) if own else np.zeros_like(x)
    return half_convolved(config, layer.mixer, w, "mlp", y, e) if isinstance(layer.mixer, Attention) else y


def of_layer(config: ModelConfig, weights: dict[str, Array], layer: int) -> dict[str, Array]:
    """The weights of a layer by their names in it: its own, those that all have, and those of an earlier layer."""
    joint = {"qkv": ("q", "k", "v")}
    found = {name.split(".", 2)[2]: w for name, w in weights.items() if name.startswith(f"layers.{layer}.")}
    found |= {name: w for name, w in weights.items() if name.startswith(("attention_bias", "distance"))}
    for name, other in config.shared.items():
        if name.startswith(f"layers.{layer}."):
            before, _, key = other.rpartition(".")
            found |= {part: weights[f"{before}.{part}"] for part in joint.get(key, (key,))}
    return found


def side_block(config: ModelConfig, layer: Layer, w: dict[str, Array], both: Array, e: Rounding) -> Array:
    """The rows that a block beside the residual adds to what the next layer reads. both: residual and embedding."""
    assert isinstance(layer.mixer, Attention)
    assert isinstance(layer.feed_forward, FeedForward)
    normed = norm(config, w, "input_norm", both, e)
    y, _ = attention(config, layer.mixer, w, normed, np.arange(len(both)), e, {})
    y = mlp(layer.feed_forward, w, norm(config, w, "pre_mlp_norm", y, e), e, config)
    return linear(y, w["side"], None, e)


def hyper_connected(config: ModelConfig, weights: dict[str, Array], tokens: list[int], e: Rounding) -> Array:
    """Rows after the last norm, as `hidden`, of several residual streams, which each half of a layer weighs."""
    assert config.hyper_connections is not None
    positions = np.arange(len(tokens))
    x = embedded(config, weights, tokens, 0, positions, e)
    streams = np.repeat(x[:, None], config.hyper_connections.streams, axis=1)
    seen: Seen = None
    for i, layer in enumerate(config.layers):
        own = {name.split(".", 2)[2]: w for name, w in weights.items() if name.startswith(f"layers.{i}.")}
        if config.hyper_connections.rank:
            streams = gated_layer(config, layer, own, tokens, streams, e)
            continue
        x, post, mix = weighed(config, own, "attention", streams, e)
        x = norm(config, own, "input_norm", x, e)
        if isinstance(layer.mixer, LatentAttention):
            y, seen = latent_attention(config, layer.mixer, own, x, positions, e, seen)
        else:
            assert isinstance(layer.mixer, CompressedAttention)
            y = compressed_attention(config, layer.mixer, own, x, positions, e)
        streams = joined(streams, y, post, mix, e)
        x, post, mix = weighed(config, own, "mlp", streams, e)
        x, half = norm(config, own, "pre_mlp_norm", x, e), layer.feed_forward
        assert half is not None
        y = experts(half, own, x, e, tokens) if isinstance(half, Experts) else mlp(half, own, x, e)
        streams = joined(streams, y, post, mix, e)
    if config.hyper_connections.rank:
        return gated(config, weights, "head", streams, e)[0]
    return norm(config, weights, "final_norm", weighed(config, weights, "head", streams, e)[0], e)


def gated_layer(
    config: ModelConfig, layer: Layer, w: dict[str, Array], tokens: list[int], streams: Array, e: Rounding
) -> Array:
    """The streams behind a layer of Qwen4-Exp."""
    if layer.ngrams:
        streams = with_ngrams(config, layer.ngrams, w, tokens, streams, e)
    x, post = gated(config, w, "attention", streams, e)
    if isinstance(layer.mixer, GatedDelta):
        y = gated_delta(layer.mixer, w, x, e, config.norm_eps)
    else:
        assert isinstance(layer.mixer, Attention)
        y, _ = attention(config, layer.mixer, w, x, np.arange(len(tokens)), e, {})
    streams = e.around(streams + post[..., None] * y[:, None], e.sums, 2)
    x, post = gated(config, w, "mlp", streams, e)
    assert isinstance(layer.feed_forward, Experts)
    return e.around(streams + post[..., None] * experts(layer.feed_forward, w, x, e)[:, None], e.sums, 2)


def embedded(
    config: ModelConfig, weights: dict[str, Array], tokens: list[int], second: int, positions: Positions, e: Rounding
) -> Array:
    """The rows of the embedding, with those of token types and positions."""
    x = weights["embed"][tokens] * config.embedding_scale
    if config.dropped_token in tokens:
        dropped = np.array(tokens) == config.dropped_token
        x = np.where(dropped[:, None], 0, x / max(1 - dropped.mean(), np.finfo(float).tiny))
    if config.merges:
        x = (x + weights["embed_merge"][config.hidden :]) * weights["embed_merge"][: config.hidden]
    if config.token_types:
        x = x + weights["types"][((positions >= second) & (second > 0)).astype(int)]
    if config.learned_positions:
        x = x + weights["positions"][positions + config.position_offset]
    if config.embed_norm:
        x = norm(config, weights, "embed_norm", x, e)
    return linear(x, weights["embed_in"], weights["embed_in.bias"], e) if config.embed_width else x


def per_layer_inputs(
    config: ModelConfig, weights: dict[str, Array], tokens: list[int], x: Array, e: Rounding
) -> Array | None:
    """Return the second embedding's rows for each layer, [tokens, layers, width]. x: the first embedding's rows."""
    if not config.per_layer:
        return None
    projected = linear(x, weights["project_per_layer"], None, e) * config.hidden**-0.5
    projected = projected.reshape(len(x), len(config.layers), -1)
    table = weights["embed_per_layer"]
    stored = table[[t if t < len(table) else 0 for t in tokens]].reshape(projected.shape) * config.per_layer_scale
    return e.around((norm(config, weights, "per_layer_norm", projected, e) + stored) / math.sqrt(2), e.sums, 3)


def attention(
    config: ModelConfig, layer: Attention, w: dict[str, Array], x: Array, positions: Positions, e: Rounding, kept: Kept
) -> tuple[Array, tuple[Array, Array]]:
    """Attention of all tokens to all tokens that they see, [tokens, hidden], and the keys and values of all heads.

    kept: keys and values of the layers before.
    """
    head_dim = config.heads_of(layer)[2]
    q = linear(x, w["q"], w.get("q.bias"), e)
    k = q if layer.shared_from is not None else linear(x, w["k"], w.get("k.bias"), e)
    v = linear(x, w["v"], w.get("v.bias"), e) if "v" in w else k
    k, v = (half_convolved(config, layer, w, name, a, e) for name, a in (("k", k), ("v", v)))
    if config.qkv_clip:
        q, k, v = (np.clip(a, -config.qkv_clip, config.qkv_clip) for a in (q, k, v))
    if config.qk_norm == "full":
        q, k = norm(config, w, "q_norm", q, e), norm(config, w, "k_norm", k, e)
    if layer.convolved:
        q, k, v = convolved_heads(config, layer, w, q, k, v, e)
    q, k, v = (a.reshape(len(x), -1, n) for a, n in ((q, head_dim), (k, head_dim), (v, layer.value_dim or head_dim)))
    if config.v_norm:
        v = norm(replace(config, norm_weight=False), {}, "v_norm", v, e)
    for after in (False, True):
        if config.qk_norm in ("head", "each_head") and config.qk_norm_after_rope == after:
            q, k = norm(config, w, "q_norm", q, e), norm(config, w, "k_norm", k, e)
        if layer.rope is not None and not after:
            q, k = (rotated(config, layer.rope, a, positions, e) for a in (q, k))
    if layer.unit_qk:
        q, k = (norm(replace(config, norm_weight=False), {}, "unit", a, e) for a in (q, k))
    q = q * growth(layer, positions + layer.query_first)
    k, v = e.around(k, e.cache), e.around(v, e.cache)
    k, v = (k, v) if layer.shared_from is None else kept[layer.shared_from]
    seen = chosen_blocks(config, layer, w, x, positions, e) if layer.blocks else None
    scaled = replace(config, attention_scale=layer.scale or config.attention_scale)
    bias = relative_bias(layer, w, x, growth(layer, positions + layer.query_first), e)
    mixed = attended(scaled, w, q, k, v, (layer.window, layer.segment), positions, e, seen, bias)
    if config.attention_gate != "none":
        gate = linear(x, w["q_gate"], None, e).reshape(*mixed.shape[:2], -1)
        gate = np.logaddexp(0, gate) if config.attention_gate == "softplus" else sigmoid(gate)
        mixed = e.around(mixed * gate, e.sums, 8 if config.attention_gate == "softplus" else 4)
    mixed = mixed.reshape(len(x), -1)
    if config.sub_norm:
        mixed = norm(config, w, "attn_sub_norm", mixed, e)
    y = layer.out_scale * linear(mixed, w["o"], w.get("o.bias"), e)
    return half_convolved(config, layer, w, "mixer", y, e), (k, v)


def growth(own: Attention | LatentAttention, positions: Array) -> Array:
    """Return the factors of queries at these positions."""
    if not own.query_growth:
        return np.ones((1, 1, 1))
    if isinstance(own, Attention) and own.query_smooth:
        return (1 + own.query_growth * np.log(np.maximum(1, positions / own.query_positions)))[:, None, None]
    return (1 + own.query_growth * np.log(1 + positions // own.query_positions))[:, None, None]


def attended(
    config: ModelConfig,
    w: dict[str, Array],
    q: Array,
    k: Array,
    v: Array,
    reach: tuple[int, int],
    positions: Positions,
    e: Rounding,
    seen: Seen = None,
    bias: Array | None = None,
) -> Array:
    """The values that each head sees, weighted: [tokens, heads, value]. q, k, v: [tokens, heads or kv heads, dim]."""
    window, segment = reach  # 0: none
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = head_products(q, k)
    if e.sums:
        scores = e.summed(scores, head_products(q * q, k * k), q.shape[-1])
    scores = scores * config.attention_scale
    if config.attention_softcap:
        scores = config.attention_softcap * np.tanh(scores / config.attention_softcap)
    scores = scores if bias is None else e.around(scores + bias, e.sums, 2)
    distance = positions[:, None] - positions[None, :]
    if config.slopes:
        scores = e.around(scores - np.array(config.slopes)[:, None, None] * np.abs(distance), e.sums)
    if config.distance_bias.startswith("embedded"):
        scores = e.around(scores + config.attention_scale * distance_terms(config, w, q, k, distance, e), e.sums, 2)
    elif config.distance_buckets:
        reach = len(config.distance_buckets) // 2
        buckets = np.array(config.distance_buckets)[np.clip(-distance, -reach, reach) + reach]
        scores = e.around(scores + w["attention_bias"].reshape(-1, config.heads)[buckets].transpose(2, 0, 1), e.sums)
    distance = np.abs(distance) if config.bidirectional else distance
    visible = (distance >= 0) & ((distance < window) if window else True)
    visible = visible & (positions[:, None] // segment == positions[None] // segment) if segment else visible
    if seen is not None:
        visible = visible & seen
    scores = np.where(visible, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    p = np.exp(scores - top)
    total = p.sum(axis=-1, keepdims=True) + (np.exp(w["sinks"][:, None, None] - top) if "sinks" in w else 0.0)
    p = e.around(e.around(p / total, e.sums, 8), e.operands)  # the exponential and its argument, the sum, a product
    mixed = np.matmul(p, v.swapaxes(0, 1)).swapaxes(0, 1)
    if e.sums:
        mixed = e.summed(mixed, np.matmul(p * p, (v * v).swapaxes(0, 1)).swapaxes(0, 1), len(q))
    return mixed


def latent_queries(
    config: ModelConfig, own: LatentAttention, w: dict[str, Array], x: Array, e: Rounding
) -> tuple[Array, Array]:
    """The normalized latent of queries, and what queries are made of: it, with itself as it was behind it, or x."""
    if not own.q_rank:
        return x, x
    raw = linear(x, w["q_down"], w.get("q_down.bias"), e)
    latent = norm(config, w, "q_norm", raw, e)
    return latent, np.hstack([latent, raw]) if own.joint_gates else latent


def latent_attention(
    config: ModelConfig,
    own: LatentAttention,
    w: dict[str, Array],
    x: Array,
    positions: Positions,
    e: Rounding,
    seen: Seen,
) -> tuple[Array, Seen]:
    """Attention of all heads to one latent a token, absorbed, [tokens, hidden]; seen: the keys chosen for it so far."""
    latents, heads = replace(config, norm_eps=own.norm_eps), config.heads_of(own)[0]
    floats = replace(e, int8="")  # the matrices of heads are never codes
    queries, made_of = latent_queries(latents, own, w, x, e)
    q = linear(made_of, w["q_up" if own.q_rank else "q"], None, e).reshape(len(x), heads, -1)
    if own.indexer and not own.indexer.shared:
        seen = chosen_keys(latents, own, w, x, queries, positions, e)
    down = linear(x, w["kv_down"], w.get("kv_down.bias"), e)
    latent = norm(latents, w, "k_norm", down[:, : own.rank], e)
    key, turned = down[:, None, own.rank :], q[..., own.plain :]
    if own.key_norm:
        key = norm(latents, w, "rotated_key_norm", key, e)
    if own.rope is not None:
        key, turned = (rotated(config, own.rope, one, positions, e) for one in (key, turned))
    k = np.concatenate([latent, key[:, 0]], axis=1)
    k = e.around(k, e.cache)[:, None]
    k_up, v_up = np.split(w["k_up"], heads), np.split(w["v_up"], heads)
    q, turned = q * growth(own, positions), turned * growth(own, positions)
    absorbed = np.stack([linear(q[:, h, : own.plain], k_up[h], None, floats) for h in range(heads)], axis=1)
    q = np.concatenate([absorbed, turned], axis=2)
    mixed = attended(config, w, q, k, k[..., : own.rank], (own.window, 0), positions, e, seen if own.indexer else None)
    gated_by = made_of if own.joint_gates else x
    gates = sigmoid(linear(gated_by, w["q_gate"], None, e)) if config.attention_gate != "none" else None
    if gates is not None and config.head_gates:
        mixed = e.around(mixed * gates[..., None], e.sums, 4)
    out = np.concatenate([linear(mixed[:, h], v_up[h], None, floats) for h in range(heads)], axis=1)
    if gates is not None and not config.head_gates:
        out = e.around(out * gates, e.sums, 4)
    return linear(out, w["o"], w.get("o.bias"), e), seen


def mlp(own: FeedForward, w: dict[str, Array], x: Array, e: Rounding, config: ModelConfig | None = None) -> Array:
    """Two or three products with an activation between, and BitNet's norm before the last (config)."""
    up = linear(x, w["up"], w.get("up.bias"), e)
    if own.activation == "swiglu_oai":  # transformers' modeling_gpt_oss.py
        gate = np.minimum(linear(x, w["gate"], w.get("gate.bias"), e), 7)
        up = e.around(gate / (1 + np.exp(-1.702 * gate)), e.sums, 8) * (np.clip(up, -7, 7) + 1)
    elif own.gated:
        most = own.limit if own.gate_limit is None else own.gate_limit
        gate = np.minimum(own.gate_scale * linear(x, w["gate"], w.get("gate.bias"), e), most)
        up = np.clip(up, -own.limit, own.limit)
        if own.gate_cut is not None:
            least = gate.mean(axis=1, keepdims=True) + own.gate_cut * gate.std(axis=1, keepdims=True)
            gate = np.maximum(e.around(gate - e.around(least, e.sums, 8), e.sums), 0)
        up = e.around(activated(own.activation, gate), e.sums, 8) * up
    else:
        up = xielu(w["xielu"], up) if own.activation == "xielu" else activated(own.activation, up)
    if config and config.sub_norm:
        up = norm(config, w, "ffn_sub_norm", up, e)
    return own.out_scale * linear(up, w["down"], w.get("down.bias"), e)


def experts(
    own: Experts,
    w: dict[str, Array],
    x: Array,
    e: Rounding,
    tokens: Sequence[int] = (),
    before: Array | None = None,
) -> Array:
    """The weighted sum of a token's experts, and the shared one's result. What routes is not rounded.

    tokens: those of the rows, by which a table may have their experts. before: rows by which they may be chosen.
    """
    routing = x if before is None or not own.ahead else before
    table = w["experts_by_token"].reshape(-1, own.active)[list(tokens)].astype(int) if own.by_token else None
    logits = w["logits"] if own.router else routing @ w["router"].T + w.get("router.bias", 0.0)
    chosen, weights = routes(own, logits, w.get("correction"), table)
    one = FeedForward(own.width, own.activation, own.gated, own.bias, limit=own.limit, gate_limit=own.gate_limit)
    each = each_expert(own, w)
    y = np.zeros_like(x)
    for token, expert in np.ndindex(chosen.shape):
        if chosen[token, expert] >= own.count:
            y[token] += 0 if own.skips else weights[token, expert] * x[token]
            continue
        mine = each[chosen[token, expert]]
        before, after = (weights[token, expert], 1.0) if own.scales_input else (1.0, weights[token, expert])
        y[token] += after * mlp(one, mine, before * x[token : token + 1], e)[0]
    if own.shared is None:
        return y
    shared = mlp(own.shared, {name[7:]: w[name] for name in w if name.startswith("shared.")}, x, e)
    return y + (shared / (1 + np.exp(-x @ w["shared_gate"].T)) if own.shared_gate else shared)


def each_expert(own: Experts, w: dict[str, Array]) -> list[dict[str, Array]]:
    """The matrices of each expert, by their names in a feed-forward."""
    parts = {name[8:]: np.split(values, own.count) for name, values in w.items() if name.startswith("experts.")}
    return [{name: pieces[number] for name, pieces in parts.items()} for number in range(own.count)]


def experts_apart(config: ModelConfig, own: Experts, w: dict[str, Array], x: Array, e: Rounding) -> Array:
    """Experts and a shared feed-forward with norms of their own before and after each; x: the residual."""
    chosen, weights = routes(own, norm(config, w, "router_norm", x, e) @ w["router"].T * config.hidden**-0.5, None)
    weights = weights * w["expert_scale"][chosen]
    one, each = FeedForward(own.width, own.activation), each_expert(own, w)
    rows, y = norm(config, w, "pre_experts_norm", x, e), np.zeros_like(x)
    for token, expert in np.ndindex(chosen.shape):
        y[token] += weights[token, expert] * mlp(one, each[chosen[token, expert]], rows[token : token + 1], e)[0]
    assert own.shared is not None
    rows = norm(config, w, "pre_mlp_norm", x, e)
    shared = mlp(own.shared, {name[7:]: w[name] for name in w if name.startswith("shared.")}, rows, e)
    return norm(config, w, "post_experts_norm", y, e) + norm(config, w, "post_shared_norm", shared, e)


def tolerance(
    config: ModelConfig, weights: dict[str, Array], tokens: list[int], rounding: Rounding, exact: Array | None = None
) -> float:
    """Return the largest allowed error of a logit in this arithmetic: twice the largest of three random experiments.

    Twice, because three do not meet the worst case, and vectorized functions (exp, tanh) have their own last bits.
    exact: `logits` without rounding, if the caller has them.
    """
    exact = logits(config, weights, tokens) if exact is None else exact
    noisy = (logits(config, weights, tokens, replace(rounding, seed=rounding.seed + i)) for i in range(3))
    return 2 * max(float(np.abs(one - exact).max()) for one in noisy)
