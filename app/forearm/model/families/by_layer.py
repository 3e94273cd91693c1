"""Families with experts whose layers differ in attention: windows, sinks, heads, angles, limits."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, TypeVar

from forearm.model.families.config import Attention, Experts, FeedForward, ModelConfig
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
from forearm.model.families.switches import FULL, SLIDING, layer_types


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


def step3p5(inputs: FamilyInputs) -> ModelConfig:
    """Step 3.5 Flash, and 3.7 for text alone: more heads in windows, gates of heads, limits of SwiGLU by layer."""
    inputs = _step_keys(inputs)
    keys, few, dim = inputs.keys, *(inputs.keys.integer(key) for key in ("num_key_value_heads", "head_dim"))
    keys.only(use_head_wise_attn_gate=True, use_qk_norm=True, att_impl_type="GQA", zero_centered=True, sink=False)
    keys.only(moe_router_activation="sigmoid", use_moe_router_bias=True, norm_expert_weight=True, use_rope_layers=[])
    keys.only(hidden_act="silu", yarn_only_types=[FULL])
    for key in ("need_fp32_gate", "use_moe", "moe_every_n_layer", "moe_layer_offset", "max_seq_len"):
        keys.get(key)  # marks it as read: what is always so, and what other keys say
    if keys.get("gating") not in (None, True, "per-head"):
        raise keys.wrong("gating", "true or per-head")
    kinds, window = layer_types(keys, [FULL] * inputs.layers), keys.optional_integer("sliding_window") or 0
    if window < 1 and SLIDING in kinds:
        raise keys.wrong("sliding_window", "at least 1: some layers have a window")
    other = keys.object("attention_other_setting") or Keys({}, keys.source)
    other.only(attention_type=SLIDING, num_attention_groups=few, head_dim=dim, true_head_dim=dim)
    heads = other.integer("num_attention_heads", keys.integer("num_attention_heads"))
    heads = keys.integer("num_sliding_attention_heads", heads)
    if not 0 < heads <= 4096 or heads % few:
        told = keys.with_values(num_sliding_attention_heads=heads)
        raise told.wrong("num_sliding_attention_heads", f"a multiple of num_key_value_heads ({few}), at most 4096")
    listed = {str(i): {"num_attention_heads": heads} for i, kind in enumerate(kinds) if kind == SLIDING}
    given = keys.object("per_layer_config")  # transformers' numbers of layers begin with zeros
    if given and {i.lstrip("0") or "0": own for i, own in given.values.items()} != listed:
        raise keys.wrong("per_layer_config", f"absent, or say that layers with a window have {heads} heads")
    return decoder(
        inputs,
        mixers=[Attention(1, window=window, heads=heads) if kind == SLIDING else Attention(0) for kind in kinds],
        ropes=ropes_by_layer_type(inputs, full=("rope_theta", 1e4), sliding=("rope_theta", 1e4), partial=True),
        feed_forwards=_step_halves(inputs),
        qk_norm="head",
        norm_plus_one=True,
        attention_gate="sigmoid",
        head_gates=True,
        attention_scale=keys.positive("query_pre_attn_scalar", dim) ** -0.5,
        names=_STEP_NAMES,
    )


_STEP_KEYS = {
    "num_attention_groups": "num_key_value_heads", "moe_num_experts": "n_routed_experts",
    "num_local_experts": "n_routed_experts", "moe_top_k": "num_experts_per_tok",
    "share_expert_dims": "share_expert_dim",
}  # fmt: skip
_STEP_LISTS = (
    "layer_types", "mlp_layer_types", "swiglu_limits", "swiglu_limits_shared", "rope_theta", "partial_rotary_factors",
)  # fmt: skip
_STEP_ANGLES = (("rope_theta", "rope_theta", 1e4), ("partial_rotary_factors", "partial_rotary_factor", 1.0))
_STEP_NAMES = {
    "q_gate": "self_attn.g_proj", "router": "moe.gate", "correction": "moe.router_bias",
    **{f"experts.{part}": f"moe.{part}_proj" for part in ("gate", "up", "down")},
    **{f"shared.{part}": f"share_expert.{part}_proj" for part in ("gate", "up", "down")},
}  # fmt: skip


def _step_keys(inputs: FamilyInputs) -> FamilyInputs:
    """Return config.json as transformers writes it; published lists go on with layers that predict further tokens."""
    keys, layers = inputs.keys, inputs.layers
    found: dict[str, Any] = {}
    for old, new in _STEP_KEYS.items():
        value, known = keys.get(old), found.get(new, keys.get(new))
        if value is not None and known not in (None, value):
            raise keys.wrong(old, f"{known}, as {new}")
        found |= {} if value is None else {new: value}
    lists = {key: keys.get(key) for key in _STEP_LISTS}
    whole = layers + keys.integer("num_nextn_predict_layers", 0)
    found |= {key: each[:layers] for key, each in lists.items() if isinstance(each, list) and len(each) == whole}
    if (sparse := keys.get("moe_layers_enum")) is not None:
        numbers = {str(one).strip() for one in (sparse if isinstance(sparse, list) else str(sparse).split(","))} - {""}
        if not all(one.isdecimal() for one in numbers):
            raise keys.wrong("moe_layers_enum", "numbers of layers, with commas between them")
        kinds = ["sparse" if str(i) in numbers else "dense" for i in range(layers)]
        found |= {"mlp_layer_types": kinds} if lists["mlp_layer_types"] is None else {}
    keys = keys.with_values(**found).with_defaults(
        head_dim=128, num_key_value_heads=8, n_routed_experts=288, num_experts_per_tok=8, moe_intermediate_size=1280,
        share_expert_dim=1280, rms_norm_eps=1e-5,
    )  # fmt: skip
    kinds, empty = list(layer_types(keys, [FULL] * layers)), Keys({}, keys.source)
    angles: dict[str, Any] = (keys.object("rope_parameters") or empty).values
    if not all(isinstance(angles.get(kind), dict) for kind in kinds):
        angles = {FULL: {}, SLIDING: {}}
        for key, name, default in _STEP_ANGLES:
            listed = isinstance(keys.get(key), list)
            each = keys.numbers(key, layers) if listed else [keys.number(key, default)] * layers
            if len(set(zip(kinds, each, strict=True))) != len(set(kinds)):
                raise keys.wrong(key, "of equal numbers for layers of the same kind")
            for kind, value in zip(kinds, each, strict=True):
                angles[kind][name] = value
        angles[FULL] |= (keys.object("rope_scaling") or empty).values
    return replace(inputs, keys=keys.with_values(rope_theta=None, rope_scaling=None, rope_parameters=angles))


def _step_halves(inputs: FamilyInputs) -> list[FeedForward | Experts]:
    """Return the feed-forwards with their limits, 0 or null for none; dense ones have those of shared experts."""
    keys, limits = inputs.keys, list[list[float]]()
    for key in ("swiglu_limits", "swiglu_limits_shared"):
        each = keys.get(key) or [0.0] * inputs.layers
        each = [0.0 if one is None else one for one in each] if isinstance(each, list) else each
        limits.append(keys.with_values(**{key: each}).numbers(key, inputs.layers))
        if min(limits[-1]) < 0:
            raise keys.wrong(key, "of numbers that are at least 0, which stands for no limit")
    beside = FeedForward(keys.integer("share_expert_dim"))
    experts = routed(
        inputs, "n_routed_experts", "moe_intermediate_size", renormalized=True, **CORRECTED,
        scale=keys.positive("moe_router_scaling_factor", 1.0),
    )  # fmt: skip
    return [
        _limited(half, most_beside)
        if isinstance(half, FeedForward)
        else _limited(replace(half, shared=_limited(beside, most_beside)), most)
        for half, most, most_beside in zip(listed_layers(inputs, experts, dense=3), *limits, strict=True)
    ]


_Half = TypeVar("_Half", FeedForward, Experts)


def _limited(half: _Half, most: float) -> _Half:
    """Return a feed-forward whose activated gates, and the size of what they multiply, are at most `most`; 0: any.

    SiLU rises where it is above 0, so the gate before it may be bounded instead, at the number whose SiLU is `most`,
    which is between it and twice as much.
    """
    if not most:
        return half
    low, high = most, 2 * most
    for _ in range(60):  # halves: float64 has 53 bits
        middle = (low + high) / 2
        low, high = (middle, high) if middle / (1 + math.exp(-middle)) < most else (low, middle)
    return replace(half, limit=most, gate_limit=high)
