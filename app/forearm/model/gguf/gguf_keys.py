"""The metadata of a .gguf file for a model of a folder: the inverse of gguf_config.

What the keys cannot say is found by reading them again: `difference` names the first field that comes back changed.
Source: the converter (convert_hf_to_gguf.py, conversion/) of ggml-org/llama.cpp.
"""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from forearm.array_types import Float32Array
from forearm.model.families.config import Attention, Experts, FeedForward, LatentAttention, ModelConfig, Rope
from forearm.model.families.keys import Keys
from forearm.model.families.switches import FULL
from forearm.model.gguf.conversion.written_dense import GgufKeys, theta_of
from forearm.model.gguf.conversion.written_families import family_of

# Fields that may differ in what is read again: files have weights of norms with the one, value heads in their order,
# and rows for all tokens in a table of each layer.
_FREE = (
    "model_type", "dtype", "names", "ropes", "eos_token_ids", "bos_token_id", "norm_plus_one", "tiled",
    "per_layer_vocab",
)  # fmt: skip
# Gemmas' scales, which are rounded to the dtype of weights, of which bfloat16 has the fewest bits: 8.
_ROUNDED = ("embedding_scale", "per_layer_scale")
# Architectures whose tensor of Llama 3's factors llama.cpp reads.
_FACTORS = ("llama", "granite", "granitehybrid", "granitemoe", "arcee", "exaone4")


def metadata_of(config: ModelConfig, keys: Keys, name: str) -> tuple[dict[str, Any], dict[str, Float32Array]]:
    """Return the metadata of a model, and tensors that belong to it: factors of stretched angles.

    keys: those of config.json, which say how angles were stretched. name: for readers.
    """
    family = family_of(config)
    found, factors = _angles(config, keys, family.architecture)
    found = _sizes(config, keys) | found | family.own(config, keys)
    common = {"general.architecture": family.architecture, "general.type": "model", "general.name": name}
    own = {f"{family.architecture}.{key}": value for key, value in found.items() if value is not None}
    return common | own, factors


def _sizes(config: ModelConfig, keys: Keys) -> GgufKeys:
    """Return the keys that all architectures have."""
    feed_forwards = [layer.feed_forward for layer in config.layers]
    experts = next((own for own in feed_forwards if isinstance(own, Experts)), None)
    widths = [own.width if isinstance(own, FeedForward) else 0 for own in feed_forwards]
    alike = len({*widths} - {0}) < 2
    dense = keys.integer("intermediate_size", experts.width) if experts and not any(widths) else max(widths, default=0)
    found: GgufKeys = {
        "context_length": keys.integer("max_position_embeddings", config.max_positions),
        "vocab_size": config.vocab_size, "embedding_length": config.hidden, "block_count": len(config.layers),
        "feed_forward_length": dense if alike else widths, "attention.head_count": config.heads,
        "attention.head_count_kv": config.kv_heads, "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        f"attention.layer_norm_{'' if config.layer_norm else 'rms_'}epsilon": config.norm_eps,
    }  # fmt: skip
    if experts is not None:
        found |= {"expert_count": experts.count, "expert_used_count": experts.active}
        found["expert_feed_forward_length"] = experts.width
        if experts.shared is not None:
            found["expert_shared_feed_forward_length"] = experts.shared.width
    return found


def _angles(config: ModelConfig, keys: Keys, architecture: str) -> tuple[GgufKeys, dict[str, Float32Array]]:
    """Return the keys of angles, those of layers with full attention if others differ, and tensors of factors."""
    mixers = [layer.mixer for layer in config.layers]
    full = [one.rope for one in mixers if isinstance(one, Attention) and not one.window and one.rope is not None]
    if not config.ropes:
        return {}, {}
    rope: Rope = config.ropes[full[0] if full else 0]
    empty = Keys({}, keys.source)
    nested = keys.object("rope_parameters") or empty
    settings = keys.object("rope_scaling") or nested.object(FULL) or nested
    kind = settings.text("rope_type", settings.text("type", "default"))
    kind = "longrope" if kind == "su" else kind
    theta = settings.number("rope_theta", keys.number("rope_theta", theta_of(rope)))
    theta = theta_of(rope) if kind == "dynamic" else theta  # HunYuan's grown base
    found: GgufKeys = {"rope.dimension_count": 2 * len(rope.inv_freq), "rope.freq_base": theta}
    factors: dict[str, Float32Array] = {}
    original = keys.integer("max_position_embeddings", config.max_positions)
    original = settings.integer("original_max_position_embeddings", original)
    original = keys.integer("original_max_position_embeddings", original)
    if kind in ("linear", "yarn"):
        found |= {"rope.scaling.type": kind, "rope.scaling.factor": settings.number("factor", 1.0)}
    if kind == "yarn":
        found["rope.scaling.original_context_length"] = original
        for key in ("beta_fast", "beta_slow"):
            if key in settings:
                found[f"rope.scaling.yarn_{key}"] = settings.number(key)
        usual = 0.1 * math.log(max(settings.number("factor", 1.0), 1.0)) + 1
        if not math.isclose(rope.scale, usual, rel_tol=1e-6):
            found["rope.scaling.attn_factor"] = rope.scale / usual
    if kind == "longrope":
        found |= {"rope.scaling.original_context_length": original, "rope.scaling.attn_factor": rope.scale}
        for length in ("long", "short"):
            factors[f"rope_factors_{length}.weight"] = np.array(settings.get(f"{length}_factor"), np.float32)
    if kind == "proportional":  # pairs that do not turn
        factors["rope_freqs.weight"] = np.where(rope.inv_freq > 0, 1, 1e30).astype(np.float32)
    if kind == "llama3" and architecture in _FACTORS:
        dim = 2 * len(rope.inv_freq)
        plain = 1.0 / np.power(theta, np.arange(0, dim, 2) / dim)
        factors["rope_freqs.weight"] = (plain / rope.inv_freq).astype(np.float32)
    return found, factors


def difference(asked: ModelConfig, read: ModelConfig) -> str | None:
    """Return the first field of a model that a .gguf file does not give back; None if it gives back all of them."""
    attends = any(isinstance(layer.mixer, Attention | LatentAttention) for layer in asked.layers)
    free = _FREE if attends else (*_FREE, "heads", "kv_heads", "head_dim", "attention_scale")
    for field in (field for field in fields(ModelConfig) if field.name not in free):
        if not _same(getattr(asked, field.name), getattr(read, field.name), 2**-8 if field.name in _ROUNDED else 1e-6):
            return field.name
    angles = zip(asked.ropes, read.ropes, strict=False)
    same = len(asked.ropes) == len(read.ropes) and all(
        one.inv_freq.shape == other.inv_freq.shape
        and np.allclose(one.inv_freq, other.inv_freq, rtol=1e-5, atol=0)
        and math.isclose(one.scale, other.scale, rel_tol=1e-5)
        for one, other in angles
    )
    return None if same else "ropes"


def _same(one: Any, other: Any, error: float = 1e-6) -> bool:
    """Return whether two values are the same but for the rounding of numbers to float32, in which files have them."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=error)
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if is_dataclass(one):
        names = [field.name for field in fields(one) if field.name not in _FREE]
        return all(_same(getattr(one, name), getattr(other, name)) for name in names)
    return bool(one == other)
