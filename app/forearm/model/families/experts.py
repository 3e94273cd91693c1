"""Families whose layers have experts: Mixtral, Qwen-MoE, OLMoE, GLM-4-MoE, ERNIE, gpt-oss and more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from forearm.model.families.config import Attention, Experts, FeedForward, ModelConfig
from forearm.model.families.decoder import FamilyInputs, activation, decoder, windows_of
from forearm.model.families.keys import Keys
from forearm.model.families.llama_like import granite_scales, layers_with_positions, qwen_windows


def mixtral(inputs: FamilyInputs) -> ModelConfig:
    """Mixtral 8x7B and 8x22B: Mistral whose layers have experts, weighted by a softmax of the chosen ones."""
    inputs = inputs.with_defaults(num_local_experts=8, num_experts_per_tok=2, num_key_value_heads=8)
    keys = inputs.keys
    window = keys.optional_integer("sliding_window") or 0
    experts = routed(inputs, "num_local_experts", "intermediate_size", renormalized=True)
    return decoder(
        inputs, windows=[window] * inputs.layers, feed_forwards=[experts] * inputs.layers, names=MIXTRAL_NAMES
    )


def qwen2_moe(inputs: FamilyInputs) -> ModelConfig:
    """Qwen1.5-MoE, Qwen2-57B-A14B: Qwen2 with experts and a shared expert, whose result has a gate."""
    inputs = inputs.with_defaults(
        num_experts=60, num_experts_per_tok=4, moe_intermediate_size=1408, shared_expert_intermediate_size=5632
    )
    shared = FeedForward(inputs.keys.integer("shared_expert_intermediate_size"), _act(inputs))
    layers = sparse_layers(inputs, shared=shared, shared_gate=True)
    bias = inputs.keys.flag("qkv_bias", True)
    return decoder(inputs, windows=qwen_windows(inputs), feed_forwards=layers, qkv_bias=bias)


def qwen3_moe(inputs: FamilyInputs) -> ModelConfig:
    """Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder: Qwen3 with experts."""
    inputs = inputs.with_defaults(num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768)
    bias = inputs.keys.flag("attention_bias")
    layers = sparse_layers(inputs)
    return decoder(
        inputs, windows=qwen_windows(inputs), feed_forwards=layers, qk_norm="head", qkv_bias=bias, o_bias=bias
    )


def qwen3_vl_moe(inputs: FamilyInputs) -> ModelConfig:
    """Qwen3-VL-30B-A3B and 235B-A22B for text alone: Qwen3 with experts, whose columns are stored."""
    inputs = inputs.with_defaults(
        num_experts=60, num_experts_per_tok=4, moe_intermediate_size=1408, norm_topk_prob=True, rope_theta=5e5,
        num_key_value_heads=16,
    )  # fmt: skip
    return replace(qwen3_moe(inputs), names=_COLUMNS)


def olmoe(inputs: FamilyInputs) -> ModelConfig:
    """OLMoE 1B-7B: experts in every layer; q and k are normalized over all heads."""
    inputs = inputs.with_defaults(num_experts=64, num_experts_per_tok=8, rms_norm_eps=1e-5)
    bias = inputs.keys.flag("attention_bias")
    experts = routed(inputs, "num_experts", "intermediate_size", inputs.keys.flag("norm_topk_prob"))
    return decoder(inputs, feed_forwards=[experts] * inputs.layers, qk_norm="full", qkv_bias=bias, o_bias=bias)


def glm4_moe(inputs: FamilyInputs) -> ModelConfig:
    """GLM-4.5 to 4.7 and their Air versions: sigmoid scores with a correction, a shared expert, dense first layers."""
    inputs = inputs.with_defaults(
        num_key_value_heads=8, n_routed_experts=128, num_experts_per_tok=8, moe_intermediate_size=1408,
        rms_norm_eps=1e-5, partial_rotary_factor=0.5,
    )  # fmt: skip
    keys = inputs.keys
    width, shared = keys.integer("moe_intermediate_size"), keys.integer("n_shared_experts", 1)
    if shared < 1:
        raise keys.wrong("n_shared_experts", "at least 1")
    experts = routed(
        inputs, "n_routed_experts", "moe_intermediate_size", keys.flag("norm_topk_prob", True),
        score="sigmoid", correction=True, sum_epsilon=1e-20, scale=keys.positive("routed_scaling_factor", 1.0),
        groups=keys.integer("n_group", 1), groups_kept=keys.integer("topk_group", 1),
        shared=FeedForward(shared * width, _act(inputs)),
    )  # fmt: skip
    dense = keys.integer("first_k_dense_replace", 1)
    plain = FeedForward(keys.integer("intermediate_size"), _act(inputs))
    return decoder(
        inputs,
        feed_forwards=[plain if i < dense else experts for i in range(inputs.layers)],
        partial=True,
        qk_norm="head" if keys.flag("use_qk_norm") else "none",
        qkv_bias=keys.flag("attention_bias"),
        names=SHARED_EXPERTS,
    )


def ernie4_5_moe(inputs: FamilyInputs) -> ModelConfig:
    """ERNIE 4.5 with experts: chosen by corrected softmax scores, beside shared experts; interleaved rotary angles."""
    inputs = inputs.with_defaults(
        num_key_value_heads=4, moe_num_experts=64, moe_k=6, moe_intermediate_size=1536, moe_num_shared_experts=2,
        tie_word_embeddings=True, rms_norm_eps=1e-5, rope_theta=500_000.0,
    )  # fmt: skip
    keys, act = inputs.keys, _act(inputs)
    bias, shared = keys.flag("use_bias"), keys.integer("moe_num_shared_experts")
    beside = FeedForward(shared * keys.integer("moe_intermediate_size"), act, bias=bias) if shared > 0 else None
    experts = routed(
        inputs, "moe_num_experts", "moe_intermediate_size", True, active="moe_k", correction=True,
        sum_epsilon=keys.number("moe_norm_min", 1e-12), shared=beside,
    )  # fmt: skip
    first, last, step = (keys.integer(f"moe_layer_{key}", default) for key, default in _ERNIE_LAYERS)
    if step < 1:
        raise keys.wrong("moe_layer_interval", "at least 1")
    last = inputs.layers - 1 if last == -1 else last
    sparse = [first <= i <= last and (i + 1) % step == 0 for i in range(inputs.layers)]
    plain = FeedForward(keys.integer("intermediate_size"), act, bias=bias)
    return decoder(
        inputs,
        feed_forwards=[experts if one else plain for one in sparse],
        interleaved=True,
        qkv_bias=bias,
        o_bias=bias,
        head_bias=bias,
        names=SHARED_EXPERTS | {"correction": "mlp.moe_statics.e_score_correction_bias"},
    )


def gpt_oss(inputs: FamilyInputs) -> ModelConfig:
    """gpt-oss: attention sinks, a window on every other layer, experts with biases and a clamped SwiGLU."""
    inputs = inputs.with_defaults(
        head_dim=64, num_key_value_heads=8, num_local_experts=128, num_experts_per_tok=4, rms_norm_eps=1e-5,
        sliding_window=128, rope_theta=150_000.0, rope_parameters=_GPT_OSS_YARN, max_position_embeddings=131_072,
    )  # fmt: skip
    keys = inputs.keys
    for key, only in (("swiglu_alpha", 1.702), ("swiglu_limit", 7.0), ("hidden_act", "silu")):
        if keys.get(key) not in (None, only):
            raise keys.wrong(key, f"{only}: the clamped SwiGLU is computed with no other")
    experts = routed(
        inputs, "num_local_experts", "intermediate_size", False,
        bias=True, score="softmax_chosen", router_bias=True,
    )  # fmt: skip
    bias, windows = keys.flag("attention_bias", True), windows_of(inputs, [i % 2 == 0 for i in range(inputs.layers)])
    return decoder(
        inputs,
        mixers=[Attention(0, window, sinks=True) for window in windows],
        feed_forwards=[replace(experts, activation="swiglu_oai")] * inputs.layers,
        qkv_bias=bias,
        o_bias=bias,
        names=_GPT_OSS_NAMES,
    )


_GPT_OSS_YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False}
# MXFP4's blocks are rows, floats columns; rows of gate and up alternate.
_GPT_OSS_NAMES = {
    "router": "mlp.router",
    "experts.gate": "mlp.experts.gate_up_proj.T[0::2]",
    "experts.up": "mlp.experts.gate_up_proj.T[1::2]",
    "experts.down": "mlp.experts.down_proj.T",
}


def granite_moe(inputs: FamilyInputs) -> ModelConfig:
    """Granite 3 with experts, weighted by a softmax of the chosen ones; beside a shared one, if it has a width."""
    inputs = inputs.with_defaults(num_local_experts=8, num_experts_per_tok=2, shared_intermediate_size=0)
    keys = inputs.keys
    bias = keys.flag("attention_bias")
    feed_forward, names = granite_feed_forward(keys)
    layers = [feed_forward] * inputs.layers
    return decoder(inputs, feed_forwards=layers, qkv_bias=bias, o_bias=bias, names=names, **granite_scales(keys))


def granite_feed_forward(keys: Keys) -> tuple[FeedForward | Experts, dict[str, str]]:
    """Return the feed-forward of every layer, which without experts is the shared one alone, and its names."""
    width, act = keys.integer("shared_intermediate_size"), activation(keys, "hidden_act", "silu")
    shared = FeedForward(width, act) if width else None
    count, active = keys.integer("num_local_experts"), keys.integer("num_experts_per_tok")
    if count == 0 and shared is not None:
        return shared, _GRANITE_SHARED
    if not 2 <= count <= 4096:
        raise keys.wrong("num_local_experts", "0, or 2 to 4096" if shared else "2 to 4096")
    if not 1 <= active <= count:
        raise keys.wrong("num_experts_per_tok", f"1 to num_local_experts ({count})")
    experts = Experts(keys.integer("intermediate_size"), count, active, act, score="softmax_chosen", shared=shared)
    return experts, _GRANITE_NAMES | {f"shared.{name}": stored for name, stored in _GRANITE_SHARED.items()}


_GRANITE_NAMES = {
    "router": "block_sparse_moe.router.layer",
    "experts.gate": "block_sparse_moe.input_linear[0]",
    "experts.up": "block_sparse_moe.input_linear[1]",
    "experts.down": "block_sparse_moe.output_linear",
}
_GRANITE_SHARED = {
    "gate": "shared_mlp.input_linear", "up": "shared_mlp.input_linear", "down": "shared_mlp.output_linear"
}  # fmt: skip


def phimoe(inputs: FamilyInputs) -> ModelConfig:
    """Phi-3.5-MoE: LayerNorms, biases of attention and head, two experts chosen one after the other (SparseMixer)."""
    inputs = inputs.with_defaults(
        num_local_experts=16, num_experts_per_tok=2, num_key_value_heads=8, rms_norm_eps=1e-5, rope_theta=1e6,
        router_jitter_noise=0.01, original_max_position_embeddings=4096,
    )  # fmt: skip
    keys, bias = inputs.keys, inputs.keys.flag("attention_bias")
    jitter = keys.positive("router_jitter_noise")
    experts = routed(inputs, "num_local_experts", "intermediate_size", False, score="sparse_mixer", jitter=jitter)
    if experts.active != 2:
        raise keys.wrong("num_experts_per_tok", "2: transformers chooses no other number with SparseMixer")
    return decoder(
        inputs,
        windows=[keys.optional_integer("sliding_window") or 0] * inputs.layers,
        feed_forwards=[experts] * inputs.layers,
        layer_norm=True,
        qkv_bias=bias,
        o_bias=bias,
        head_bias=keys.flag("lm_head_bias"),
        names=MIXTRAL_NAMES,
    )


def llama4(inputs: FamilyInputs) -> ModelConfig:
    """Llama 4 Scout and Maverick, for text alone: experts of scaled inputs, a shared one, attention in segments."""
    inputs = inputs.with_defaults(
        head_dim=128, num_key_value_heads=8, num_local_experts=16, num_experts_per_tok=1, intermediate_size=8192,
        rms_norm_eps=1e-5, rope_theta=500_000.0,
    )  # fmt: skip
    keys, layers = inputs.keys, range(inputs.layers)
    shared = FeedForward(keys.integer("intermediate_size"), _act(inputs))
    experts = routed(
        inputs, "num_local_experts", "intermediate_size", False, score="sigmoid", scales_input=True, shared=shared
    )
    plain = FeedForward(keys.integer("intermediate_size_mlp", 16384), _act(inputs))
    every, sparse = keys.integer("interleave_moe_layer_step", 1), keys.get("moe_layers")
    if every < 1:
        raise keys.wrong("interleave_moe_layer_step", "at least 1")
    if sparse is not None and not isinstance(sparse, list):
        raise keys.wrong("moe_layers", "a list of numbers of layers")
    sparse = layers[every - 1 :: every] if sparse is None else sparse
    bias = keys.flag("attention_bias")
    return decoder(
        inputs,
        mixers=_llama4_mixers(inputs),
        feed_forwards=[experts if i in sparse else plain for i in layers],
        interleaved=True,
        qkv_bias=bias,
        o_bias=bias,
        names=_LLAMA4_NAMES,
    )


def _llama4_mixers(inputs: FamilyInputs) -> list[Attention]:
    """Return layers with positions, whose attention is in segments, and without, whose queries grow with these."""
    keys, rotated = inputs.keys, layers_with_positions(inputs)
    chunked, full = "chunked_attention", "full_attention"
    kinds = keys.get("layer_types") or [chunked if r else full for r in rotated]
    if not isinstance(kinds, list) or len(kinds) != len(rotated) or not all(kind in (chunked, full) for kind in kinds):
        raise keys.wrong("layer_types", f"a list of {len(rotated)} times {chunked} or {full}")
    segment = keys.optional_integer("attention_chunk_size", 8192) or 0
    tuning = keys.get("attn_temperature_tuning")  # true, or a number in the first files
    growth = keys.number("attn_scale", 0.1) * (tuning is None or bool(tuning))
    step, unit = keys.integer("floor_scale", 8192), keys.flag("use_qk_norm", True)
    if step < 1:
        raise keys.wrong("floor_scale", "at least 1")
    grown = Attention(rope=None, query_growth=growth, query_positions=step, query_first=1)
    turned = Attention(rope=0, unit_qk=unit)
    pairs = zip(rotated, kinds, strict=True)
    return [replace(turned if r else grown, segment=segment if kind == chunked else 0) for r, kind in pairs]


_LLAMA4_NAMES = {
    "router": "feed_forward.router", "experts.gate": "feed_forward.experts.gate_up_proj.T[0]",
    "experts.up": "feed_forward.experts.gate_up_proj.T[1]", "experts.down": "feed_forward.experts.down_proj.T",
    **{part: f"feed_forward.{part}_proj" for part in ("gate", "up", "down")},
    **{f"shared.{part}": f"feed_forward.shared_expert.{part}_proj" for part in ("gate", "up", "down")},
}  # fmt: skip
_COLUMNS = {part: at.replace("feed_forward", "mlp") for part, at in _LLAMA4_NAMES.items() if "experts" in part}
_ERNIE_LAYERS = (("start_index", 1), ("end_index", -1), ("interval", 1))
SHARED_EXPERTS = {f"shared.{part}": f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")}
MIXTRAL_NAMES = {"router": "block_sparse_moe.gate"} | {
    f"experts.{part}": f"block_sparse_moe.experts.{{expert}}.{name}"
    for part, name in (("gate", "w1"), ("up", "w3"), ("down", "w2"))
}


def _act(inputs: FamilyInputs) -> Any:
    return activation(inputs.keys, "hidden_act", "silu")


def routed(
    inputs: FamilyInputs,
    count: str,
    width: str,
    renormalized: bool,
    active: str = "num_experts_per_tok",
    **differs: Any,
) -> Experts:
    """Return the experts of a layer; `count`, `width` and `active` are config.json's keys."""
    keys = inputs.keys
    if count == "num_experts" and keys.optional_integer("num_local_experts"):  # transformers 5 writes this name
        count = "num_local_experts"
    number, chosen = keys.integer(count), keys.integer(active)
    if not 2 <= number <= 4096:
        raise keys.wrong(count, "2 to 4096")
    if not 1 <= chosen <= number:
        raise keys.wrong(active, f"1 to {count} ({number})")
    experts = Experts(keys.integer(width), number, chosen, _act(inputs), renormalized=renormalized, **differs)
    groups, kept = experts.groups, experts.groups_kept
    if groups < 1 or number % groups or (groups > 1 and number // groups < experts.group_best):
        raise keys.wrong("n_group", f"a divisor of {count} ({number}), with {experts.group_best} or more in a group")
    if not 1 <= kept <= groups or chosen > kept * (number // groups):
        raise keys.wrong("topk_group", f"1 to n_group ({groups}), groups of at least {chosen} experts together")
    return experts if kept < groups else replace(experts, groups=1, groups_kept=1)


def sparse_layers(inputs: FamilyInputs, **differs: Any) -> list[FeedForward | Experts]:
    """Return Qwen's layers: experts in every decoder_sparse_step-th one, but not in mlp_only_layers."""
    keys = inputs.keys
    step, dense = keys.integer("decoder_sparse_step", 1), keys.get("mlp_only_layers") or []
    if step < 1:
        raise keys.wrong("decoder_sparse_step", "at least 1")
    if not isinstance(dense, list):
        raise keys.wrong("mlp_only_layers", "a list of numbers of layers")
    experts = routed(inputs, "num_experts", "moe_intermediate_size", keys.flag("norm_topk_prob"), **differs)
    plain = FeedForward(keys.integer("intermediate_size"), _act(inputs))
    return [plain if i in dense or (i + 1) % step else experts for i in range(inputs.layers)]
