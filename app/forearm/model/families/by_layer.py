"""Families with experts whose layers differ in attention: windows, sinks, heads, angles, keys that are compressed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from forearm.model.families.config import Attention, FeedForward, ModelConfig, Rope
from forearm.model.families.decoder import (
    FamilyInputs,
    activation,
    decoder,
    lengths_of,
    listed_layers,
    ropes_by_layer_type,
    windows_of,
)
from forearm.model.families.experts import SHARED_EXPERTS, routed, sparse_layers
from forearm.model.families.keys import Keys
from forearm.model.families.mixtures import CORRECTED, dense_then_sparse
from forearm.model.families.recurrences import CompressedAttention, HyperConnections
from forearm.model.families.rope import rope
from forearm.model.families.switches import FULL, SLIDING


def mellum(inputs: FamilyInputs) -> ModelConfig:
    """Mellum 2: Qwen3 with experts and a window on some layers, which have angles of their own."""
    inputs = inputs.with_defaults(
        head_dim=128, num_key_value_heads=4, num_experts=64, num_experts_per_tok=8, moe_intermediate_size=896,
        norm_topk_prob=True, sliding_window=1024,
    )  # fmt: skip
    keys = inputs.keys
    experts = routed(inputs, "num_experts", "moe_intermediate_size", keys.flag("norm_topk_prob"))
    bias = keys.flag("attention_bias")
    return decoder(
        inputs,
        mixers=[Attention(rope=1 if w else 0, window=w) for w in windows_of(inputs, [False] * inputs.layers)],
        ropes=ropes_by_layer_type(inputs, full=("rope_theta", 5e5), sliding=("rope_theta", 1e4)),
        feed_forwards=listed_layers(inputs, experts, dense=0),
        qk_norm="head",
        qkv_bias=bias,
        o_bias=bias,
    )


def flint(inputs: FamilyInputs) -> ModelConfig:
    """Flint: Qwen3 with experts, a shared one, attention sinks; layers with a window have positions, others do not."""
    inputs = inputs.with_defaults(
        head_dim=128, num_key_value_heads=4, num_experts=256, num_experts_per_tok=6, moe_intermediate_size=512,
        norm_topk_prob=True, sliding_window=513, mlp_only_layers=[0, 1], shared_expert_intermediate_size=1024,
    )  # fmt: skip
    keys, last = inputs.keys, inputs.layers - 1
    bias, beside = keys.flag("attention_bias"), keys.integer("shared_expert_intermediate_size")
    shared = FeedForward(beside, activation(keys, "hidden_act", "silu"))
    windows = windows_of(inputs, [i >= 2 and i % 4 != 1 and i != last for i in range(inputs.layers)])
    return decoder(
        inputs,
        mixers=[Attention(rope=0 if w else None, window=w, sinks=True) for w in windows],
        feed_forwards=sparse_layers(inputs, score="sigmoid", shared=shared),
        qk_norm="head",
        qkv_bias=bias,
        o_bias=bias,
        names={"sinks": "self_attn.softmax_offset"},
    )


def laguna(inputs: FamilyInputs) -> ModelConfig:
    """Laguna XS: attention with softplus gates, heads and angles by layer; corrected sigmoid scores, shared expert."""
    inputs = inputs.with_defaults(
        head_dim=128, num_key_value_heads=8, num_experts=256, num_experts_per_tok=8, moe_intermediate_size=512,
        shared_expert_intermediate_size=512, sliding_window=512, rope_parameters=_LAGUNA_ROPE,
    )  # fmt: skip
    keys, act = inputs.keys, activation(inputs.keys, "hidden_act", "silu")
    keys.only(moe_apply_router_weight_on_input=False)
    for key, why in (("moe_router_logit_softcapping", "0: no cap"), ("attention_bias", "false: no bias")):
        if keys.get(key):
            raise keys.wrong(key, f"{why} is computed natively; --model-impl transformers computes it")
    gating = keys.get("gating")
    if gating not in (None, True, "per-head", "per-element"):
        raise keys.wrong("gating", "true, per-head or per-element")
    heads = keys.get("num_attention_heads_per_layer") or [keys.integer("num_attention_heads")] * inputs.layers
    if not isinstance(heads, list) or len(heads) != inputs.layers or not all(type(one) is int for one in heads):
        raise keys.wrong("num_attention_heads_per_layer", f"a list of {inputs.layers} numbers of heads")
    if any(not 0 < one <= 4096 or one % keys.integer("num_key_value_heads") for one in heads):
        raise keys.wrong("num_attention_heads_per_layer", "of multiples of num_key_value_heads, at most 4096")
    experts = routed(
        inputs, "num_experts", "moe_intermediate_size", renormalized=True, **CORRECTED,
        scale=keys.positive("moe_routed_scaling_factor", 1.0),
        shared=FeedForward(keys.integer("shared_expert_intermediate_size"), act),
    )  # fmt: skip
    layers = zip(windows_of(inputs, [False] * inputs.layers), heads, strict=True)
    return decoder(
        inputs,
        mixers=[Attention(1 if w else 0, window=w, heads=n) for w, n in layers],
        ropes=ropes_by_layer_type(inputs, full=("rope_theta", 5e5), sliding=("rope_theta", 1e4), partial=True),
        feed_forwards=listed_layers(inputs, experts, dense=1),
        qk_norm="head",
        attention_gate="softplus",
        head_gates=gating != "per-element",
        names={"q_gate": "self_attn.g_proj", "correction": "mlp.experts.e_score_correction_bias"},
    )


_LAGUNA_ROPE = {
    "full_attention": {"rope_theta": 5e5, "partial_rotary_factor": 0.5}, "sliding_attention": {"rope_theta": 1e4},
}  # fmt: skip


def mimo_v2_flash(inputs: FamilyInputs) -> ModelConfig:
    """MiMo-V2-Flash: values narrower than keys; windows with sinks, angles and key heads of their own; experts."""
    inputs = inputs.with_defaults(
        head_dim=192, v_head_dim=128, num_key_value_heads=4, n_routed_experts=256, num_experts_per_tok=8,
        moe_intermediate_size=2048, norm_topk_prob=True, partial_rotary_factor=0.334, rope_theta=5e6,
        swa_rope_theta=1e4, sliding_window=129, attention_value_scale=0.707, layernorm_epsilon=1e-5,
    )  # fmt: skip
    keys = inputs.keys
    heads, head_dim, value = (keys.integer(key) for key in ("num_attention_heads", "head_dim", "v_head_dim"))
    keys.only(scoring_func="sigmoid", topk_method="noaux_tc", add_full_attention_sink_bias=False)
    keys.only(swa_num_attention_heads=heads, swa_head_dim=head_dim, swa_v_head_dim=value)
    for key in ("attention_chunk_size", "hybrid_block_size"):
        keys.get(key)  # marks it as read: published files have numbers that their code does not use
    more = keys.optional_integer("swa_num_key_value_heads") or 2 * keys.integer("num_key_value_heads")
    if not 1 <= more <= heads or heads % more:
        raise keys.wrong("swa_num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    if not 1 <= value <= head_dim:
        raise keys.wrong("v_head_dim", f"1 to head_dim ({head_dim})")
    before = keys.optional_integer("sliding_window_size")  # keys before the query's own
    window = keys.integer("sliding_window") if before is None else before + 1
    if window < 1:
        raise keys.wrong("sliding_window" if before is None else "sliding_window_size", "the keys of a window")
    full = Attention(0, value_dim=value, out_scale=keys.optional_number("attention_value_scale") or 1.0)
    sinks = keys.flag("add_swa_attention_sink_bias", True)
    slides = replace(full, rope=1, window=window, kv_heads=more, sinks=sinks)
    inputs = replace(inputs, keys=keys.with_values(sliding_window=window, **_mimo_layers(inputs)))
    return decoder(
        inputs,
        mixers=[slides if one else full for one in windows_of(inputs, [False] * inputs.layers)],
        ropes=ropes_by_layer_type(inputs, full=("rope_theta", 0.0), sliding=("swa_rope_theta", 0.0), partial=True),
        feed_forwards=dense_then_sparse(inputs, "n_routed_experts", "n_shared_experts", 1),
        norm_eps=keys.number("rms_norm_eps", keys.number("layernorm_epsilon")),
        qkv_bias=keys.flag("attention_bias"),
        names=SHARED_EXPERTS | {"sinks": "self_attn.attention_sink_bias"},
    )


def _mimo_layers(inputs: FamilyInputs) -> dict[str, Any]:
    """Return the layers' kinds and angles under transformers' names; the published file has lists of 0 and 1."""
    keys, layers = inputs.keys, inputs.layers
    found: dict[str, Any] = {"layer_types": [FULL if i == 0 or i % 6 == 5 else SLIDING for i in range(layers)]}
    for name, own, kinds in (
        ("layer_types", "hybrid_layer_pattern", (FULL, SLIDING)),
        ("mlp_layer_types", "moe_layer_freq", ("dense", "sparse")),
    ):
        marks: Any = keys.get(own)
        if marks is not None and not (isinstance(marks, list) and len(marks) == layers and set(marks) <= {0, 1}):
            raise keys.wrong(own, f"a list of {layers} times 0 or 1")
        if marks or keys.get(name):
            found[name] = keys.get(name) or [kinds[mark] for mark in marks or ()]
    share = {"partial_rotary_factor": keys.number("partial_rotary_factor")}
    given = keys.object("rope_parameters") or Keys({}, keys.source)
    angles = {kind: given.object(kind) for kind in (FULL, SLIDING)}
    return found | {"rope_parameters": {kind: share | (own.values if own else {}) for kind, own in angles.items()}}


def deepseek_v4(inputs: FamilyInputs) -> ModelConfig:
    """DeepSeek V4 Flash and Pro: compressed attention, several residual streams, experts that first layers look up."""
    inputs = inputs.with_defaults(
        num_key_value_heads=1, head_dim=512, q_lora_rank=1024, num_experts_per_tok=6, n_routed_experts=256,
        moe_intermediate_size=2048, n_shared_experts=1, routed_scaling_factor=1.5, swiglu_limit=10.0,
        sliding_window=128, o_groups=8, o_lora_rank=1024, index_n_heads=64, index_head_dim=128, index_topk=512,
        hc_mult=4, hc_sinkhorn_iters=20, hc_eps=1e-6, max_position_embeddings=1 << 20,
    )  # fmt: skip
    keys = inputs.keys
    for key, only in _V4_ONLY.items():
        if keys.get(key) not in (None, only):
            raise keys.wrong(key, f"{only}: no other is computed")
    keys.get("expert_dtype")  # as the tensors' own is
    streams, rounds, eps = keys.integer("hc_mult"), keys.integer("hc_sinkhorn_iters"), keys.number("hc_eps")
    for key, value, least, most in (
        ("hc_mult", streams, 1, 8), ("hc_sinkhorn_iters", rounds, 1, 1000), ("hc_eps", eps, 0, 1)
    ):  # fmt: skip
        if not least <= value <= most:
            raise keys.wrong(key, f"{least} to {most}")
    width, limit = keys.integer("moe_intermediate_size"), keys.positive("swiglu_limit")
    experts = routed(
        inputs, "n_routed_experts", "moe_intermediate_size", True, score="sqrt_softplus", correction=True,
        sum_epsilon=1e-20, scale=keys.positive("routed_scaling_factor"), limit=limit,
        shared=FeedForward(width, activation(keys, "hidden_act", "silu"), limit=limit),
    )  # fmt: skip
    first, kinds = keys.integer("num_hash_layers", 3), keys.get("mlp_layer_types")
    kinds = ["hash_moe" if i < first else "moe" for i in range(inputs.layers)] if kinds is None else kinds
    by_kind = {"hash_moe": replace(experts, by_token=True, correction=False), "moe": experts}
    return decoder(
        inputs.with_defaults(intermediate_size=width),
        mixers=_v4_mixers(inputs),
        ropes=_v4_ropes(inputs),
        feed_forwards=_of_kinds(inputs, "mlp_layer_types", kinds, by_kind),
        hyper_connections=HyperConnections(streams, rounds, eps),
        names=SHARED_EXPERTS | {"q_norm": "self_attn.q_a_norm", "k_norm": "self_attn.kv_norm"},
    )


_V4_ONLY = {
    "num_key_value_heads": 1, "n_shared_experts": 1, "scoring_func": "sqrtsoftplus", "norm_topk_prob": True,
    "topk_method": "noaux_tc",
}  # fmt: skip
_SPARSE, _HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
_RATIOS = {0: SLIDING, 4: _SPARSE, 128: _HEAVY}  # by which first files name the kinds of layers
_Half = TypeVar("_Half")


def _of_kinds(inputs: FamilyInputs, key: str, kinds: object, by_kind: Mapping[Any, _Half]) -> list[_Half]:
    """Return the half of each layer that `kinds`, the value of `key` or its default, names; more are left out."""
    layers = inputs.layers
    if not isinstance(kinds, list) or len(kinds) < layers or not all(kind in by_kind for kind in kinds):
        raise inputs.keys.wrong(key, f"a list of {layers} times {', '.join(map(str, by_kind))}")
    return [by_kind[kind] for kind in kinds[:layers]]


def _v4_mixers(inputs: FamilyInputs) -> list[CompressedAttention]:
    keys = inputs.keys
    heads, dim, rotary = keys.integer("num_attention_heads"), keys.integer("head_dim"), _v4_rotary(keys)
    groups, rank, q_rank = keys.integer("o_groups"), keys.integer("o_lora_rank"), keys.integer("q_lora_rank")
    if not 16 <= dim <= 4096 or dim % 16:
        raise keys.wrong("head_dim", "16 to 4096, a multiple of 16")
    if not 1 <= groups <= heads or heads % groups:
        raise keys.wrong("o_groups", f"a divisor of num_attention_heads ({heads})")
    if not 4 <= rank <= 1 << 20 or rank % 4:
        raise keys.wrong("o_lora_rank", f"4 to {1 << 20}, a multiple of 4")
    sizes = {key: keys.integer(key) for key in ("index_n_heads", "index_head_dim", "index_topk", "sliding_window")}
    for key, size, most in (("q_lora_rank", q_rank, 1 << 20), *((key, one, 1 << 30) for key, one in sizes.items())):
        if not 1 <= size <= most:
            raise keys.wrong(key, f"1 to {most}")
    index_heads, index_dim, chosen, window = sizes.values()
    if index_dim > 4096 or index_dim % 16 or index_dim < rotary:
        raise keys.wrong("index_head_dim", f"a multiple of 16 from {rotary}, the rotated numbers, to 4096")
    if index_heads > 4096:
        raise keys.wrong("index_n_heads", "1 to 4096")
    given = keys.object("compress_rates") or Keys({}, keys.source)
    sparse = keys.integer("compress_rate_csa", given.integer(_SPARSE, 4))
    heavy = keys.integer("compress_rate_hca", given.integer(_HEAVY, 128))
    for kind, ratio in ((_SPARSE, sparse), (_HEAVY, heavy)):
        if not 1 <= ratio <= 1 << 20:
            raise given.wrong(kind, f"1 to {1 << 20}")
    plain = CompressedAttention(0, 1, q_rank, window, groups, rank)
    entries = replace(plain, rope=2, back=3, ratio=heavy)
    scored = replace(entries, ratio=sparse, overlapping=True, index_heads=index_heads, index_dim=index_dim)
    by_kind = {SLIDING: plain, _SPARSE: replace(scored, chosen=chosen), _HEAVY: entries}
    kinds, ratios = keys.get("layer_types"), keys.get("compress_ratios")
    if kinds is None and ratios is not None:
        return _of_kinds(inputs, "compress_ratios", ratios, {ratio: by_kind[kind] for ratio, kind in _RATIOS.items()})
    kinds = [_SPARSE if i > 1 and i % 2 else _HEAVY for i in range(inputs.layers)] if kinds is None else kinds
    return _of_kinds(inputs, "layer_types", kinds, by_kind)


def _v4_rotary(keys: Keys, settings: Keys | None = None) -> int:
    """Return how many of a head's numbers are rotated."""
    dim, own = keys.integer("head_dim"), keys.integer("qk_rope_head_dim", keys.integer("head_dim") // 8)
    fraction = keys.number("partial_rotary_factor", own / dim)
    where = settings if settings and "partial_rotary_factor" in settings else keys
    rotary = int(dim * where.number("partial_rotary_factor", fraction))
    if not 2 <= rotary <= dim or rotary % 2:
        raise where.wrong("partial_rotary_factor", f"a share of head_dim ({dim}) that is even, and at most the whole")
    return rotary


def _v4_ropes(inputs: FamilyInputs) -> tuple[Rope, ...]:
    """Return the angles of layers with a window alone, and of those with entries, each with those that turn back."""
    keys = inputs.keys
    flat = keys.object("rope_parameters") or keys.object("rope_scaling") or Keys({}, keys.source)
    main, entries = flat.object("main"), flat.object("compress")
    base, own = keys.number("rope_theta", 1e4), keys.number("compress_rope_theta", 160_000.0)
    if main is None or entries is None:  # yarn is of layers with entries alone, and leaves the size of angles' cosines
        flat = Keys({k: v for k, v in flat.values.items() if k not in ("main", "compress")}, flat.source)
        main, entries = Keys({"rope_theta": base}, keys.source), flat.with_values(rope_theta=own)
        if entries.text("rope_type", entries.text("type", "default")) == "yarn":
            entries = entries.with_defaults(attention_factor=1.0)
    ropes: list[Rope] = []
    for settings in (main, entries):
        theta, rotary = settings.number("rope_theta", 1e4), _v4_rotary(keys, settings)
        turned = rope(settings, theta, rotary, lengths_of(inputs, settings), interleaved=True)
        ropes += [turned, replace(turned, inv_freq=-turned.inv_freq)]
    return tuple(ropes)
