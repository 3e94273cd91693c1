"""Families with experts whose layers differ in attention: windows, sinks, heads, angles, limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from forearm.model.families.config import Attention, FeedForward, ModelConfig
from forearm.model.families.decoder import (
    FamilyInputs,
    activation,
    decoder,
    listed_layers,
    ropes_by_layer_type,
    windows_of,
)
from forearm.model.families.experts import SHARED_EXPERTS, routed, sparse_layers
from forearm.model.families.keys import Keys
from forearm.model.families.mixtures import CORRECTED, dense_then_sparse
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
