"""A.X K2: latent attention to chosen keys, whose values have gates, and norms with gates."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from forearm.model.families.config import Experts, LatentAttention, ModelConfig
from forearm.model.families.decoder import FamilyInputs
from forearm.model.families.latent import corrected_layers, indexed, with_latents


def axk2(inputs: FamilyInputs) -> ModelConfig:
    """A.X K2: DeepSeek V3.2 with a gate of each value, made beside queries, and gates behind norms."""
    inputs = inputs.with_defaults(
        kv_lora_rank=128, q_lora_rank=384, qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=64, index_topk=2048,
        index_head_dim=128, index_n_heads=16, n_routed_experts=128, n_shared_experts=1, moe_intermediate_size=512,
        num_experts_per_tok=8, norm_topk_prob=True, routed_scaling_factor=2.5, first_k_dense_replace=1,
    )  # fmt: skip
    keys = inputs.keys
    for key in ("head_dim", "qk_head_dim"):
        keys.get(key)  # marks it as read: what transformers writes of the sizes above
    rank = keys.integer("gated_norm_rank", 16)
    if not 1 <= rank <= keys.integer("hidden_size"):
        raise keys.wrong("gated_norm_rank", "1 to hidden_size")
    config = indexed(inputs, with_latents(inputs, corrected_layers(inputs), interleaved=True), interleaved=False)
    names, layers = {"input_norm": "input_layernorm.norm"}, []
    for i, layer in enumerate(config.layers):
        own = cast("LatentAttention", layer.mixer)
        layers.append(replace(layer, mixer=replace(own, joint_gates=True)))
        query, both = own.plain + own.rotary, own.plain + own.rotary + own.value  # rows of a head
        names |= {
            "q_up": f"self_attn.q_b_proj[0:{query}:{both}]",
            "q_gate": f"self_attn.q_b_proj[{query}:{own.value}:{both}]",
        }
        if isinstance(layer.feed_forward, Experts):
            names[f"layers.{i}.pre_mlp_norm"] = f"layers.{i}.post_attention_layernorm.norm"
    return replace(config, layers=tuple(layers), attention_gate="sigmoid", norm_gates=rank, names=config.names | names)
