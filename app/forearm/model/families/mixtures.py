"""Further families with experts, whose weights are scores without those of other experts, or of other norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from forearm.model.families.config import Attention, Experts, FeedForward, LatentAttention, ModelConfig
from forearm.model.families.decoder import (
    FamilyInputs,
    activation,
    decoder,
    listed_layers,
    windows_of,
)
from forearm.model.families.experts import MIXTRAL_NAMES, SHARED_EXPERTS, glm4_moe, granite_moe, routed
from forearm.model.families.keys import Keys
from forearm.model.families.latent import with_latents
from forearm.model.families.layer_norm import with_mosaic_names
from forearm.model.families.llama_like import hunyuan, with_windows
from forearm.model.families.post_norm import exaone4_mixers

CORRECTED: dict[str, Any] = {"score": "sigmoid", "correction": True}


def minimax_m2(inputs: FamilyInputs) -> ModelConfig:
    """MiniMax-M2: sigmoid scores with a correction; q and k are normalized over all heads, which are partly rotated."""
    inputs = inputs.with_defaults(
        head_dim=128, num_key_value_heads=8, num_local_experts=256, num_experts_per_tok=8, rope_theta=5e6,
        intermediate_size=1536,
    )  # fmt: skip
    keys = inputs.keys
    keys.only(scoring_func="sigmoid", use_routing_bias=True, use_qk_norm=True, qk_norm_type="per_layer")
    if keys.optional_integer("shared_intermediate_size"):
        raise keys.wrong("shared_intermediate_size", "0: transformers has no shared expert in this family")
    rotated = keys.optional_integer("rotary_dim")
    if rotated is not None:
        inputs = inputs.with_defaults(partial_rotary_factor=rotated / keys.integer("head_dim"))
    experts = routed(inputs, "num_local_experts", "intermediate_size", renormalized=True, **CORRECTED)
    return decoder(
        inputs,
        feed_forwards=[experts] * inputs.layers,
        partial=True,
        qk_norm="full",
        names=MIXTRAL_NAMES | {"correction": "block_sparse_moe.e_score_correction_bias"},
    )


def hunyuan_moe(inputs: FamilyInputs) -> ModelConfig:
    """HunYuan-A13B: HunYuan with experts and a shared one."""
    inputs = inputs.with_defaults(num_experts=1, moe_topk=1)
    keys = inputs.keys
    active, wide = _of_all(keys, "moe_topk"), _of_all(keys, "moe_intermediate_size", keys.integer("intermediate_size"))
    count, shared = _of_all(keys, "num_experts"), _of_all(keys, "num_shared_expert", 1)
    if wide != keys.integer("intermediate_size") or shared != 1:
        raise keys.wrong("moe_intermediate_size" if shared == 1 else "num_shared_expert", "that of transformers' model")
    keys.only(use_cla=False, use_mixed_mlp_moe=True, norm_topk_prob=True, use_mla=False)
    inputs = replace(inputs, keys=keys.with_values(num_experts=count, moe_topk=active))
    plain = FeedForward(wide, activation(keys, "hidden_act", "silu"))
    experts = routed(inputs, "num_experts", "intermediate_size", renormalized=True, active="moe_topk", shared=plain)
    dense = hunyuan(inputs)
    names = {f"shared.{part}": f"mlp.shared_mlp.{part}_proj" for part in ("gate", "up", "down")}
    return replace(
        dense,
        layers=tuple(replace(layer, feed_forward=experts) for layer in dense.layers),
        names=dense.names | names | {"router": "mlp.gate.wg"},
    )


def longcat_flash(inputs: FamilyInputs) -> ModelConfig:
    """LongCat-Flash: layers of two latent attentions and two feed-forwards, with experts on a shortcut beside them.

    Each is three of ours: the first attention and the experts, whose result is added behind the third; the first
    feed-forward, which reads the same rows as the experts; the second attention and feed-forward.
    Source: Meituan LongCat Team 2025, arXiv:2509.01322.
    """
    inputs = inputs.with_defaults(
        num_layers=28, ffn_hidden_size=12288, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, v_head_dim=128,
        qk_rope_head_dim=64, n_routed_experts=512, expert_ffn_hidden_size=2048, moe_topk=12, rope_theta=1e7,
        rms_norm_eps=1e-5, zero_expert_num=256, routed_scaling_factor=6.0,
    )  # fmt: skip
    keys = inputs.keys
    for key in ("num_hidden_layers", "num_key_value_heads", "head_dim", "qk_head_dim"):
        keys.get(key)  # marks it as read: what transformers writes of other keys
    keys.only(norm_topk_prob=False, router_bias=False, zero_expert_type="identity", attention_method="MLA")
    keys.only(router_dtype="float32")
    count, zeros, width = (keys.integer(key) for key in ("num_layers", "zero_expert_num", "ffn_hidden_size"))
    if not 1 <= count <= 256:
        raise keys.wrong("num_layers", "1 to 256")
    if not 0 <= zeros <= 4096:
        raise keys.wrong("zero_expert_num", "0 to 4096")
    inputs = replace(inputs, keys=keys.with_values(num_hidden_layers=3 * count, intermediate_size=width))
    experts = routed(
        inputs, "n_routed_experts", "expert_ffn_hidden_size", False, active="moe_topk", zeros=zeros, behind=2,
        correction=True, scale=keys.positive("routed_scaling_factor"),
    )  # fmt: skip
    dense = FeedForward(width, activation(keys, "hidden_act", "silu"))
    config = with_latents(inputs, [experts, dense, dense] * count, interleaved=True)
    mixer = cast("LatentAttention", config.layers[0].mixer)
    ranks = (("mla_scale_q_lora", mixer.q_rank), ("mla_scale_kv_lora", mixer.rank))
    if not mixer.q_rank:
        raise keys.wrong("q_lora_rank", "a rank: queries are made of a latent")
    scales = tuple(math.sqrt(config.hidden / rank) if keys.flag(key, True) else 1.0 for key, rank in ranks)
    mixer = replace(mixer, scales=(scales[0], scales[1]))
    layers = (replace(one, mixer=None if i % 3 == 1 else mixer) for i, one in enumerate(config.layers))
    names = {"router": "mlp.router.classifier", "correction": "mlp.router.e_score_correction_bias"}
    for i in range(3 * count):
        names |= _longcat_names(i)
    return replace(config, layers=tuple(layers), names=names)


def _longcat_names(layer: int) -> dict[str, str]:
    """Return the names of a layer of ours, which is a third of one of LongCat's."""
    half, at, own = int(layer % 3 == 2), f"layers.{layer // 3}", f"layers.{layer}"
    parts = {"q_down": "q_a_proj", "kv_down": "kv_a_proj_with_mqa", "q_up": "q_b_proj", "o": "o_proj"}
    parts |= {"k_up": "kv_b_proj", "v_up": "kv_b_proj", "q_norm": "q_a_layernorm", "k_norm": "kv_a_layernorm"}
    names = {part: f"self_attn.{half}.{stored}" for part, stored in parts.items()}
    names |= {part: f"mlps.{half}.{part}_proj" for part in ("gate", "up", "down")}
    names |= {"input_norm": f"input_layernorm.{half}", "pre_mlp_norm": f"post_attention_layernorm.{half}"}
    return {own: at} | {f"{own}.{part}": f"{at}.{stored}" for part, stored in names.items()}


def dbrx(inputs: FamilyInputs) -> ModelConfig:
    """DBRX: LayerNorms without biases, q, k and v fused and clamped, few key heads; 4 of 16 experts in all layers."""
    inputs = with_mosaic_names(inputs)
    keys = inputs.keys
    attention, own = (keys.object(key) or Keys({}, f"{keys.source}: {key}") for key in ("attn_config", "ffn_config"))
    for key in ("emb_pdrop", "num_key_value_heads"):
        keys.get(key)  # marks it as read: of training, and what transformers writes of attn_config
    width, few = own.integer("ffn_hidden_size", 3584), attention.integer("kv_n_heads", 1)
    if not 1 <= width <= 1 << 20:
        raise own.wrong("ffn_hidden_size", f"1 to {1 << 20}")
    heads = keys.integer("num_attention_heads")
    if not 1 <= few <= heads or heads % few:
        raise attention.wrong("kv_n_heads", f"a divisor of n_heads ({heads})")
    own.only(moe_normalize_expert_weights=1)
    renormalized = own.optional_number("moe_normalize_expert_weights", 1.0) is not None
    act = (own.object("ffn_act_fn") or Keys({}, own.source)).text("name", "silu")
    inputs = replace(inputs, keys=keys.with_values(
        num_key_value_heads=few, intermediate_size=width, hidden_act=act,
        moe_num_experts=own.integer("moe_num_experts", 4), moe_top_k=own.integer("moe_top_k", 1),
    ))  # fmt: skip
    trained = attention.optional_number("rope_theta")
    if trained is not None and "rope_scaling" not in keys:  # which --rope-theta changes
        old = keys.object("rope_parameters")
        angles = {"rope_parameters": old.values | {"rope_theta": trained}} if old else {"rope_theta": trained}
        inputs = replace(inputs, keys=inputs.keys.with_values(**angles))
    experts = routed(inputs, "moe_num_experts", "intermediate_size", renormalized, active="moe_top_k")
    return decoder(
        inputs,
        feed_forwards=[experts] * inputs.layers,
        layer_norm=True,
        norm_bias=False,
        norm_eps=1e-5,  # torch's default for LayerNorm; DBRX has no key for it
        qkv_clip=attention.optional_number("clip_qkv") or 0.0,
        names=_DBRX_NAMES,
    )


_DBRX_NAMES = {
    "embed": "wte", "layers": "blocks", "final_norm": "norm_f", "o": "norm_attn_norm.attn.out_proj",
    **dict.fromkeys("qkv", "norm_attn_norm.attn.Wqkv"),
    "input_norm": "norm_attn_norm.norm_1", "pre_mlp_norm": "norm_attn_norm.norm_2", "router": "ffn.router.layer",
    "experts.gate": "ffn.experts.mlp.w1", "experts.up": "ffn.experts.mlp.v1", "experts.down": "ffn.experts.mlp.w2.T",
}  # fmt: skip


def dots1(inputs: FamilyInputs) -> ModelConfig:
    """dots.llm1: q and k are normalized per head; DeepSeek V3's experts, dense first layers."""
    inputs = inputs.with_defaults(sliding_window=4096, max_window_layers=62)
    keys = inputs.keys
    bias, first = keys.flag("attention_bias"), keys.integer("max_window_layers")
    return decoder(
        inputs,
        windows=windows_of(inputs, [i >= first for i in range(inputs.layers)]),
        feed_forwards=dense_then_sparse(inputs, "n_routed_experts", "n_shared_experts", 0),
        qk_norm="head",
        qkv_bias=bias,
        o_bias=bias,
        names=SHARED_EXPERTS,
    )


def solar_open(inputs: FamilyInputs) -> ModelConfig:
    """Solar Open 100B: GLM-4.5 with experts in all layers and wholly rotated heads."""
    inputs = inputs.with_defaults(
        head_dim=128, moe_intermediate_size=1280, rope_theta=1e6, partial_rotary_factor=1.0, intermediate_size=1
    )
    inputs.keys.get("intermediate_size")
    return glm4_moe(replace(inputs, keys=inputs.keys.with_values(first_k_dense_replace=0)))


def exaone_moe(inputs: FamilyInputs) -> ModelConfig:
    """K-EXAONE: EXAONE 4 with norms before each half of a layer, and DeepSeek V3's experts."""
    inputs = inputs.with_defaults(
        rms_norm_eps=1e-5, sliding_window=4096, num_experts=64, num_experts_per_tok=8, moe_intermediate_size=1024,
        norm_topk_prob=True, routed_scaling_factor=2.5,
    )  # fmt: skip
    return decoder(
        inputs,
        mixers=exaone4_mixers(inputs),
        feed_forwards=dense_then_sparse(inputs, "num_experts", "num_shared_experts", 1, shared=1),
        qk_norm="head",
        names=SHARED_EXPERTS | {"correction": "mlp.e_score_correction_bias"},
    )


def hy_v3(inputs: FamilyInputs) -> ModelConfig:
    """Hy3: q and k are normalized per head; corrected sigmoid scores, shared experts, a dense first layer."""
    inputs = inputs.with_defaults(
        head_dim=128, num_key_value_heads=8, rms_norm_eps=1e-5, rope_theta=11_158_840.0, num_experts=192,
        num_experts_per_tok=8, moe_intermediate_size=1536, router_scaling_factor=2.826, norm_topk_prob=True,
    )  # fmt: skip
    keys = inputs.keys
    bias = keys.flag("attention_bias")
    if keys.flag("mlp_bias"):
        raise keys.wrong("mlp_bias", "false: experts have none")
    keys.get("enable_moe_fp32_combine")  # marks it as read: sums are float32 here
    inputs = inputs.with_defaults(routed_scaling_factor=keys.number("router_scaling_factor"))
    names = {f"shared.{part}": f"mlp.shared_mlp.{part}_proj" for part in ("gate", "up", "down")}
    return decoder(
        inputs,
        feed_forwards=dense_then_sparse(inputs, "num_experts", "num_shared_experts", 1, shared=1),
        qk_norm="head",
        qkv_bias=bias,
        o_bias=bias,
        names=names | {"router": "mlp.router.gate", "correction": "mlp.expert_bias"},
    )


def afmoe(inputs: FamilyInputs) -> ModelConfig:
    """Arcee Trinity: attention with gates, without positions where it has no window; corrected sigmoid scores."""
    inputs = inputs.with_defaults(
        head_dim=128, rms_norm_eps=1e-5, num_experts=64, num_experts_per_tok=6, moe_intermediate_size=1408,
        sliding_window=1024, norm_topk_prob=True,
    )  # fmt: skip
    keys = inputs.keys
    keys.only(score_func="sigmoid", route_norm=True)
    every = keys.integer("global_attn_every_n_layers", 4)
    if every < 1:
        raise keys.wrong("global_attn_every_n_layers", "at least 1")
    windows = windows_of(inputs, [(i + 1) % every != 0 for i in range(inputs.layers)])
    inputs = inputs.with_defaults(
        routed_scaling_factor=keys.number("route_scale", 1.0), first_k_dense_replace=keys.integer("num_dense_layers", 1)
    )
    bias = keys.flag("attention_bias")
    return decoder(
        inputs,
        mixers=[Attention(rope=0 if window else None, window=window) for window in windows],
        feed_forwards=dense_then_sparse(inputs, "num_experts", "num_shared_experts", 1, shared=2),
        norm_placement="sandwich",
        qk_norm="head",
        attention_gate="sigmoid",
        qkv_bias=bias,
        o_bias=bias,
        embedding_scale=math.sqrt(keys.integer("hidden_size")) if keys.flag("mup_enabled") else 1.0,
        names=SHARED_EXPERTS | _AFMOE_NAMES,
    )


_AFMOE_NAMES = {
    "q_gate": "self_attn.gate_proj", "router": "mlp.router.gate", "correction": "mlp.expert_bias",
    "post_attention_norm": "post_attention_layernorm", "pre_mlp_norm": "pre_mlp_layernorm",
}  # fmt: skip


def aria(inputs: FamilyInputs) -> ModelConfig:
    """Aria for text alone: Llama with experts, weighted by a softmax of the chosen ones, beside shared ones."""
    inputs = inputs.with_defaults(intermediate_size=4096, moe_num_experts=8, moe_topk=2, moe_num_shared_experts=2)
    keys = inputs.keys
    beside = keys.integer("moe_num_shared_experts") * keys.integer("intermediate_size")
    shared = FeedForward(beside, activation(keys, "hidden_act", "silu"))
    experts = routed(
        inputs, "moe_num_experts", "intermediate_size", False, active="moe_topk", score="softmax_chosen", shared=shared
    )
    bias = keys.flag("attention_bias")
    names = {"gate": "fc1.T[0]", "up": "fc1.T[1]", "down": "fc2.T"}
    return decoder(
        inputs,
        feed_forwards=[replace(experts, activation="silu")] * inputs.layers,
        qkv_bias=bias,
        o_bias=bias,
        names=SHARED_EXPERTS
        | {f"experts.{part}": f"mlp.experts.{name}" for part, name in names.items()}
        | {"router": "mlp.router"},
    )


def granite_moe_swa(inputs: FamilyInputs) -> ModelConfig:
    """Granite with experts, a window on three layers of four, attention sinks, and angles of each layer's own."""
    return with_windows(inputs, granite_moe)


def dense_then_sparse(
    inputs: FamilyInputs, count: str, beside: str, dense: int, shared: int = 0
) -> Sequence[FeedForward | Experts]:
    """Return DeepSeek V3's experts behind dense layers, or where mlp_layer_types says sparse.

    count, beside: keys of the numbers of experts and of shared ones. dense, shared: defaults.
    """
    keys, act = inputs.keys, activation(inputs.keys, "hidden_act", "silu")
    together = keys.integer(beside, shared) * keys.integer("moe_intermediate_size")
    experts = routed(
        inputs, count, "moe_intermediate_size", keys.flag("norm_topk_prob"),
        sum_epsilon=1e-20, scale=keys.positive("routed_scaling_factor", 1.0), groups=keys.integer("n_group", 1),
        groups_kept=keys.integer("topk_group", 1), shared=FeedForward(together, act) if together > 0 else None,
        **CORRECTED,
    )  # fmt: skip
    return listed_layers(inputs, experts, keys.integer("first_k_dense_replace", dense))


def _of_all(keys: Keys, key: str, default: int | None = None) -> int:
    """Return a number that is written once, or as often as there are layers."""
    value = keys.get(key)
    if isinstance(value, list) and value and len(set(map(str, value))) == 1:
        return Keys({key: value[0]}, keys.source).integer(key)
    return keys.integer(key, default)
