"""The metadata of a .gguf file for a model of a folder: the inverse of gguf_config, for families of few keys.

What the keys cannot say is found by reading them again: `difference` names the first field that comes back changed.
Source: convert_hf_to_gguf.py of ggml-org/llama.cpp.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import numpy as np

from forearm.array_types import Float32Array
from forearm.config.number_formats import INTEGERS
from forearm.errors import ConfigError
from forearm.model.families.config import Experts, ModelConfig
from forearm.model.families.keys import Keys

_ARCHITECTURE_OF = {
    "llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "mixtral": "llama", "olmoe": "olmoe",
    "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe",
}  # fmt: skip
_FREE = ("model_type", "dtype", "names", "ropes", "eos_token_ids", "bos_token_id")  # may differ in what is read again


def architecture_of(config: ModelConfig) -> str:
    """Return the architecture's name in a .gguf file. Raises: ConfigError if the family is not written."""
    if config.model_type not in _ARCHITECTURE_OF:
        raise ConfigError(
            f"{config.model_type}: GGUF files are written of {', '.join(_ARCHITECTURE_OF)} and of other GGUF files; "
            f"take llama.cpp's convert_hf_to_gguf.py and requantize what it writes, or choose --format {INTEGERS[4]}"
        )
    return _ARCHITECTURE_OF[config.model_type]


def metadata_of(config: ModelConfig, keys: Keys, name: str) -> tuple[dict[str, Any], dict[str, Float32Array]]:
    """Return the metadata of a model, and tensors that belong to it: factors of Llama 3's stretched angles.

    keys: those of config.json, which say how angles were stretched. name: for readers.
    """
    architecture = architecture_of(config)
    settings = keys.object("rope_scaling") or keys.object("rope_parameters") or Keys({}, keys.source)
    kind = settings.text("rope_type", settings.text("type", "default"))
    theta = settings.number("rope_theta", keys.number("rope_theta", 10_000.0))
    found: dict[str, Any] = {
        "context_length": keys.integer("max_position_embeddings"), "embedding_length": config.hidden,
        "block_count": len(config.layers), "feed_forward_length": keys.integer("intermediate_size"),
        "attention.head_count": config.heads, "attention.head_count_kv": config.kv_heads,
        "attention.layer_norm_rms_epsilon": config.norm_eps, "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim, "rope.dimension_count": config.head_dim, "rope.freq_base": theta,
        "vocab_size": config.vocab_size,
    }  # fmt: skip
    experts = next((own for layer in config.layers if isinstance(own := layer.feed_forward, Experts)), None)
    if experts is not None:
        found |= {"expert_count": experts.count, "expert_used_count": experts.active}
        found["expert_feed_forward_length"] = experts.width
    if experts is not None and experts.shared is not None:
        found["expert_shared_feed_forward_length"] = experts.shared.width
    factors: dict[str, Float32Array] = {}
    if kind in ("linear", "yarn"):
        found |= {"rope.scaling.type": kind, "rope.scaling.factor": settings.number("factor")}
    if kind == "yarn":
        original = settings.integer("original_max_position_embeddings", keys.integer("max_position_embeddings"))
        found["rope.scaling.original_context_length"] = original
    if kind == "llama3" and architecture == "llama":  # whose tensor of factors llama.cpp reads
        plain = 1.0 / np.power(theta, np.arange(0, config.head_dim, 2) / config.head_dim)
        factors["rope_freqs.weight"] = (plain / config.ropes[0].inv_freq).astype(np.float32)
    common = {"general.architecture": architecture, "general.type": "model", "general.name": name}
    return common | {f"{architecture}.{key}": value for key, value in found.items()}, factors


def difference(asked: ModelConfig, read: ModelConfig) -> str | None:
    """Return the first field of a model that a .gguf file does not give back; None if it gives back all of them."""
    for field in (field for field in fields(ModelConfig) if field.name not in _FREE):
        one, other = getattr(asked, field.name), getattr(read, field.name)
        same = math.isclose(one, other, rel_tol=1e-6) if isinstance(one, float) else one == other
        if not same:
            return field.name
    angles = zip(asked.ropes, read.ropes, strict=False)
    same = len(asked.ropes) == len(read.ropes) and all(
        np.allclose(one.inv_freq, other.inv_freq, rtol=1e-5, atol=0)
        and math.isclose(one.scale, other.scale, rel_tol=1e-5)
        for one, other in angles
    )
    return None if same else "ropes"
