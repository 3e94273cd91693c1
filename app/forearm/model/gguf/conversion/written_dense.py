"""Keys of .gguf files of dense models, of ModelConfig and of config.json where that has what ModelConfig lacks."""

from __future__ import annotations

from typing import Any

from forearm.model.families.config import Attention, ModelConfig, Rope
from forearm.model.families.keys import Keys

GgufKeys = dict[str, Any]  # metadata's keys without the architecture's prefix


def theta_of(rope: Rope) -> float:
    """Return the base of angles that are not stretched, to six digits: those of float32."""
    turned = [float(one) for one in rope.inv_freq if one]
    ratio, steps = turned[0] / turned[-1], len(turned) - 1
    return float(f"{ratio ** (len(rope.inv_freq) / steps):.6g}") if steps else 1e4


def sliding(config: ModelConfig) -> list[Attention]:
    """Return the attention of layers with a window."""
    return [one.mixer for one in config.layers if isinstance(one.mixer, Attention) and one.mixer.window]


def window(config: ModelConfig, keys: Keys) -> GgufKeys:
    """Return the window of the layers that have one; 0: none has."""
    return {"attention.sliding_window": max((mixer.window for mixer in sliding(config)), default=0)}


def windows(config: ModelConfig, keys: Keys) -> GgufKeys:
    """Return the window, and which layers have it."""
    slides = [isinstance(one.mixer, Attention) and one.mixer.window > 0 for one in config.layers]
    return window(config, keys) | {"attention.sliding_window_pattern": slides} if any(slides) else {}


def phi3(config: ModelConfig, keys: Keys) -> GgufKeys:
    """Return Phi-3's window and the length before its angles were stretched, which files have in any case."""
    original = keys.integer("original_max_position_embeddings", config.max_positions)
    return window(config, keys) | {"rope.scaling.original_context_length": original}


def cohere(config: ModelConfig, keys: Keys) -> GgufKeys:
    return {"logit_scale": config.logits_scale, "rope.scaling.type": "none"}


def cohere2(config: ModelConfig, keys: Keys) -> GgufKeys:
    return cohere(config, keys) | window(config, keys)


def residual(config: ModelConfig, keys: Keys) -> GgufKeys:
    return {"use_parallel_residual": config.parallel_residual}


def falcon(config: ModelConfig, keys: Keys) -> GgufKeys:
    """Return the name of the order of rows in attn_qkv: queries, keys, values."""
    return {"tensor_data_layout": "jploski"}


def clipped(config: ModelConfig, keys: Keys) -> GgufKeys:
    return {"attention.clamp_kqv": config.qkv_clip or None}


def mpt(config: ModelConfig, keys: Keys) -> GgufKeys:
    """Return MPT's clamp, and the largest exponent of its slopes, which is that of the last head."""
    own = keys.object("attn_config") or Keys({}, keys.source)
    return clipped(config, keys) | {"attention.max_alibi_bias": own.number("alibi_bias_max", 8.0)}


def granite(config: ModelConfig, keys: Keys) -> GgufKeys:
    """Return Granite's four multipliers."""
    return {
        "embedding_scale": config.embedding_scale, "residual_scale": config.residual_scale,
        "attention.scale": config.attention_scale, "logit_scale": 1 / config.logits_scale,
    }  # fmt: skip


def ministral3(config: ModelConfig, keys: Keys) -> GgufKeys:
    """Return by how much queries grow; the scale of yarn's angles follows from a weight."""
    settings = keys.object("rope_parameters") or keys.object("rope_scaling") or Keys({}, keys.source)
    return {
        "rope.scaling.attn_factor": None, "attention.temperature_scale": settings.number("llama_4_scaling_beta", 0.0),
        "rope.scaling.yarn_log_multiplier": settings.optional_number("mscale_all_dim"),
    }  # fmt: skip
