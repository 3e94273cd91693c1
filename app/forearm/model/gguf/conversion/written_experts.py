"""Keys of .gguf files with experts or latent attention, of ModelConfig."""

from __future__ import annotations

from forearm.model.families.config import Experts, FeedForward, LatentAttention, ModelConfig
from forearm.model.families.keys import Keys
from forearm.model.gguf.conversion.written_dense import GgufKeys, windows


def _experts(config: ModelConfig) -> Experts | None:
    return next((own for one in config.layers if isinstance(own := one.feed_forward, Experts)), None)


def leading_dense(config: ModelConfig) -> GgufKeys:
    """Return the number of dense layers, which are the first."""
    dense = sum(isinstance(one.feed_forward, FeedForward) for one in config.layers)
    return {"leading_dense_block_count": dense}


def scored(config: ModelConfig, keys: Keys) -> GgufKeys:
    """Return what the weights of experts are made of: 1 for softmax, 2 for sigmoid."""
    own = _experts(config)
    return {"expert_gating_func": 2 if own and own.score == "sigmoid" else 1}


def routed(config: ModelConfig, keys: Keys) -> GgufKeys:
    """Return what chooses and scales experts, and the number of shared ones."""
    own = _experts(config)
    found = leading_dense(config) | {"expert_shared_feed_forward_length": None, "expert_shared_count": 0}
    if own is None:  # llama.cpp asks for the width of experts in any case
        return found | {"expert_feed_forward_length": keys.integer("intermediate_size")}
    if own.groups > 1:
        found |= {"expert_group_count": own.groups, "expert_group_used_count": own.groups_kept}
    if own.shared:
        found["expert_shared_count"] = own.shared.width // own.width
    return found | scored(config, keys) | {"expert_weights_scale": own.scale, "expert_weights_norm": own.renormalized}


def exaone(config: ModelConfig, keys: Keys) -> GgufKeys:
    own = _experts(config)
    shared = own.shared.width if own and own.shared else None
    return routed(config, keys) | windows(config, keys) | {"expert_shared_feed_forward_length": shared}


def ernie(config: ModelConfig, keys: Keys) -> GgufKeys:
    """Return ERNIE 4.5's shared experts, and which layers have experts: every so many from one on."""
    sparse = [i for i, one in enumerate(config.layers) if isinstance(one.feed_forward, Experts)]
    every = sparse[1] - sparse[0] if len(sparse) > 1 else 1
    own = _experts(config)
    shared = own.shared.width // own.width if own and own.shared else 0
    return {
        "leading_dense_block_count": sparse[0] if sparse else len(config.layers), "expert_shared_count": shared,
        "interleave_moe_layer_step": every,
    }  # fmt: skip


def hunyuan(config: ModelConfig, keys: Keys) -> GgufKeys:
    own = _experts(config)
    return {"expert_shared_count": own.shared.width // own.width if own and own.shared else 0}


def phimoe(config: ModelConfig, keys: Keys) -> GgufKeys:
    """Return the epsilon of Phi-3.5-MoE's norms under the key that llama.cpp reads, though they are LayerNorms."""
    return {"attention.layer_norm_rms_epsilon": config.norm_eps, "attention.layer_norm_epsilon": None}


def latent(config: ModelConfig, keys: Keys) -> GgufKeys:
    """Return the sizes of DeepSeek's latent attention: as one key head, and as its heads before the latent."""
    own = next(one.mixer for one in config.layers if isinstance(one.mixer, LatentAttention))
    settings = keys.object("rope_scaling") or keys.object("rope_parameters") or Keys({}, keys.source)
    weight = settings.optional_number("mscale_all_dim")
    return routed(config, keys) | {
        "attention.head_count_kv": 1, "attention.kv_lora_rank": own.rank, "attention.q_lora_rank": own.q_rank or None,
        "attention.key_length": own.rank + own.rotary, "attention.value_length": own.rank,
        "attention.key_length_mla": own.plain + own.rotary, "attention.value_length_mla": own.value,
        "rope.dimension_count": own.rotary, "rope.scaling.attn_factor": None,
        "rope.scaling.yarn_log_multiplier": None if weight is None else 0.1 * weight,
    }  # fmt: skip
