"""Keys of .gguf files whose layers keep a state, of ModelConfig."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np

from forearm.array_types import Float64Array
from forearm.model.families.config import Attention, Experts, FeedForward, Layer, ModelConfig
from forearm.model.families.keys import Keys
from forearm.model.families.recurrences import GatedDelta, Mamba2, SelectiveScan, ShortConv
from forearm.model.gguf.conversion import written_dense
from forearm.model.gguf.conversion.written_dense import GgufKeys
from forearm.model.gguf.conversion.written_experts import leading_dense, routed, scored

_Mixer = TypeVar("_Mixer", GatedDelta, Mamba2, SelectiveScan, ShortConv)
# Without attention there are no heads.
_NO_ATTENTION = {"attention.head_count": 0} | dict.fromkeys(
    f"attention.{key}" for key in ("head_count_kv", "key_length", "value_length")
)


def _mixer(config: ModelConfig, kind: type[_Mixer]) -> _Mixer:
    return next(one.mixer for one in config.layers if isinstance(one.mixer, kind))


def _kv_heads(config: ModelConfig) -> GgufKeys:
    """Return the kv heads of each layer: none where there is no attention."""
    return {"attention.head_count_kv": [config.kv_heads * isinstance(o.mixer, Attention) for o in config.layers]}


def lfm2(config: ModelConfig, keys: Keys) -> GgufKeys:
    return _kv_heads(config) | {"shortconv.l_cache": _mixer(config, ShortConv).taps}


def lfm2_moe(config: ModelConfig, keys: Keys) -> GgufKeys:
    return lfm2(config, keys) | leading_dense(config) | scored(config, keys)


def qwen(config: ModelConfig, keys: Keys) -> GgufKeys:
    """Return the delta rule of Qwen3-Next and Qwen3.5. llama.cpp asks for sections of positions in Qwen3.5's files."""
    own = _mixer(config, GatedDelta)
    found: GgufKeys = {
        "ssm.conv_kernel": own.taps, "ssm.state_size": own.key_dim, "ssm.group_count": own.key_heads,
        "ssm.time_step_rank": own.value_heads, "ssm.inner_size": own.value_heads * own.value_dim,
        "full_attention_interval": keys.integer("full_attention_interval", 4),
        "attention.recurrent_layers": [isinstance(one.mixer, GatedDelta) for one in config.layers],
    }  # fmt: skip
    if config.model_type != "qwen3_next":
        rope, pairs = keys.object("rope_parameters") or Keys({}, keys.source), len(config.ropes[0].inv_freq)
        # Pairs take turns; one that no section had would not be rotated. Those of 32 pairs are Qwen3.5's 11, 11 and 10.
        sections = rope.get("mrope_section") or [(pairs + 2 - i) // 3 for i in range(3)]
        found["rope.dimension_sections"] = [*sections, *[0] * (4 - len(sections))]
    return found


def _mamba2(config: ModelConfig) -> GgufKeys:
    own = next(one.mamba2 for one in config.layers if one.mamba2)
    return {
        "ssm.conv_kernel": own.taps, "ssm.inner_size": own.inner, "ssm.state_size": own.state_dim,
        "ssm.time_step_rank": own.heads, "ssm.group_count": own.groups,
    }  # fmt: skip


def granite(config: ModelConfig, keys: Keys) -> GgufKeys:
    """Return the keys of Granite 4 H, some of which have no angles."""
    own = _mamba2(config) | _kv_heads(config) | {"rope.scaling.finetuned": bool(config.ropes)}
    return written_dense.granite(config, keys) | own


def bamba(config: ModelConfig, keys: Keys) -> GgufKeys:
    return _mamba2(config) | _kv_heads(config) | {"rope.scaling.finetuned": True}


def nemotron_h(config: ModelConfig, keys: Keys) -> GgufKeys:
    """Return the keys of Nemotron-H, whose layers are halves: Mamba2, attention or a feed-forward."""
    own = (one.feed_forward for one in config.layers)
    widths = [half.width if isinstance(half, Experts | FeedForward) else 0 for half in own]
    found = _mamba2(config) | _kv_heads(config) | {"feed_forward_length": widths}
    return found | {
        "attention.layer_norm_epsilon": config.norm_eps
    }  # which llama.cpp asks for, beside that of RMSNorms


def nemotron_h_moe(config: ModelConfig, keys: Keys) -> GgufKeys:
    """Return the keys of Nemotron 3 Nano's experts, too, whose shared one has a width of its own."""
    own = next(one.feed_forward for one in config.layers if isinstance(one.feed_forward, Experts))
    found = routed(config, keys) | nemotron_h(config, keys)
    found |= dict.fromkeys(("leading_dense_block_count", "expert_gating_func"))
    latent = {"moe_latent_size": keys.optional_integer("moe_latent_size")}
    found |= {"expert_shared_feed_forward_length": own.shared.width if own.shared else None}
    return found | latent | {"expert_shared_count": int(own.shared is not None)}


def falcon_h1(config: ModelConfig, keys: Keys) -> GgufKeys:
    return _mamba2(config)


def falcon_factors(config: ModelConfig, keys: Keys) -> tuple[ModelConfig, dict[str, Float64Array]]:
    """Return Falcon-H1 without its multipliers, and what its matrices are multiplied with instead, row by row.

    Raises: ConfigError for an embedding that is also the head, if these have different multipliers.
    """
    if config.tied_head and config.embedding_scale != config.logits_scale:
        raise keys.wrong("tie_word_embeddings", "false: GGUF files have no key for lm_head_multiplier")
    own = next(one.mamba2 for one in config.layers if one.mamba2)
    half = next(one.feed_forward for one in config.layers if isinstance(one.feed_forward, FeedForward))
    into, out = (keys.number(f"attention_{end}_multiplier", 1.0) for end in ("in", "out"))
    shared = own.groups * own.state_dim
    factors = {
        "embed": config.embedding_scale, "head": config.logits_scale, "q": into, "v": into, "o": out,
        "k": into * keys.number("key_multiplier", 1.0), "gate": half.gate_scale, "down": half.out_scale,
        "mamba_z": own.z_scale, "mamba_dt": own.dt_scale, "mamba_out": own.out_scale,
    }  # fmt: skip
    rows = np.repeat([own.x_scale, own.b_scale, own.c_scale], [own.inner, shared, shared])
    mamba2 = replace(own, z_scale=1.0, x_scale=1.0, b_scale=1.0, c_scale=1.0, dt_scale=1.0, out_scale=1.0)
    plain = replace(
        config, embedding_scale=1.0, logits_scale=1.0, attention_scale=config.head_dim**-0.5,
        layers=(Layer(Attention(rope=0), replace(half, gate_scale=1.0, out_scale=1.0), mamba2),)
        * len(config.layers),
    )  # fmt: skip
    return plain, {name: np.array(one, np.float64) for name, one in factors.items()} | {"mamba_xbc": rows}


def mamba2(config: ModelConfig, keys: Keys) -> GgufKeys:
    return _mamba2(config) | _NO_ATTENTION | {"feed_forward_length": 0}


def _scan(config: ModelConfig) -> GgufKeys:
    own = _mixer(config, SelectiveScan)
    return {
        "ssm.conv_kernel": own.taps, "ssm.inner_size": own.inner, "ssm.state_size": own.state_dim,
        "ssm.time_step_rank": own.dt_rank,
    }  # fmt: skip


def mamba(config: ModelConfig, keys: Keys) -> GgufKeys:
    """Return the keys of Mamba, and whether steps, b and c are normalized, as in Falcon-Mamba."""
    norms = _mixer(config, SelectiveScan).norm_eps > 0
    return _scan(config) | _NO_ATTENTION | {"feed_forward_length": 0, "ssm.dt_b_c_rms": norms}


def jamba(config: ModelConfig, keys: Keys) -> GgufKeys:
    return _scan(config) | _kv_heads(config)
