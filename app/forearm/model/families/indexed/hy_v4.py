"""Hy4: latent attention to chosen keys, with sinks and gates, and several residual streams that are not mixed."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from forearm.model.families.config import Experts, LatentAttention, ModelConfig
from forearm.model.families.decoder import FamilyInputs
from forearm.model.families.indexed.indexers import Indexer
from forearm.model.families.latent import glm4_moe_lite, indexed
from forearm.model.families.recurrences import HyperConnections


def hy_v4(inputs: FamilyInputs) -> ModelConfig:
    """Hy4: GLM-5.2 with attention sinks, a gate of every result, and residual streams that keep their own rows."""
    inputs = inputs.with_defaults(
        q_lora_rank=1536, v_head_dim=256, n_routed_experts=256, moe_intermediate_size=768, num_experts_per_tok=8,
        routed_scaling_factor=2.827, swiglu_limit=10.0, index_topk=2048, index_head_dim=128, index_n_heads=16,
        hc_mult=4, hc_eps=1e-6, hc_magnitude=2.0, max_position_embeddings=262144,
        indexer_types=["full" if i == 0 or i % 4 == 1 else "shared" for i in range(inputs.layers)],
    )  # fmt: skip
    keys = inputs.keys
    for key in ("head_dim", "learnable_sink_init"):
        keys.get(key)  # marks it as read: what transformers writes of qk_rope_head_dim, and a value of training
    if keys.flag("attention_bias"):
        raise keys.wrong("attention_bias", "false: the gates beside queries and latents have none")
    streams, eps, most = keys.integer("hc_mult"), keys.number("hc_eps"), keys.positive("hc_magnitude")
    for key, value, least, greatest in (("hc_mult", streams, 1, 8), ("hc_eps", eps, 0, 1)):
        if not least <= value <= greatest:
            raise keys.wrong(key, f"{least} to {greatest}")
    inputs = replace(inputs, keys=keys.with_values(rope_interleave=False, indexer_rope_interleave=False))
    config = indexed(inputs, glm4_moe_lite(inputs), interleaved=False)
    layers, limit = [], keys.number("swiglu_limit")
    for layer in config.layers:
        mixer, half = cast("LatentAttention", layer.mixer), layer.feed_forward
        indexer = replace(cast("Indexer", mixer.indexer), last=True, key_eps=config.norm_eps)
        if isinstance(half, Experts) and limit > 0:
            half = replace(half, limit=limit)
        layers.append(replace(layer, mixer=replace(mixer, sinks=True, indexer=indexer), feed_forward=half))
    return replace(
        config,
        layers=tuple(layers),
        attention_gate="sigmoid",
        hyper_connections=HyperConnections(streams, 0, eps, most),
        names=config.names | _NAMES,
    )


_NAMES = {
    "q_gate": "self_attn.linear_gate", "sinks": "self_attn.learnable_sink_param",
    "hyper_attention": "hc_attn_layer.hc_pre.hc_{part}", "hyper_mlp": "hc_mlp_layer.hc_pre.hc_{part}",
    "hyper_head": "hc_head.hc_head_{part}",
}  # fmt: skip
