"""Families with layers of Mamba2 (config.py's Mamba2) beside attention."""

from __future__ import annotations

import math
from typing import Any

from forearm.model.families.config import Attention, Experts, FeedForward, Mamba2, Mixer, ModelConfig
from forearm.model.families.decoder import FamilyInputs, activation, decoder
from forearm.model.families.keys import Keys
from forearm.model.families.switches import FULL

_LINEAR = "linear_attention"
_KINDS = {FULL: FULL, "attention": FULL, _LINEAR: _LINEAR, "mamba": _LINEAR}  # the names of transformers 5, and 4
_GRANITE_NAMES = {
    "router": "block_sparse_moe.router.layer", "experts.gate": "block_sparse_moe.input_linear[0]",
    "experts.up": "block_sparse_moe.input_linear[1]", "experts.down": "block_sparse_moe.output_linear",
}  # fmt: skip
_BAMBA_NAMES = {
    "final_norm": "final_layernorm", "pre_mlp_norm": "pre_ff_layernorm", "gate": "feed_forward.gate_proj",
    "up": "feed_forward.up_proj", "down": "feed_forward.down_proj",
}  # fmt: skip
_SHARED = {"gate": "shared_mlp.input_linear", "up": "shared_mlp.input_linear", "down": "shared_mlp.output_linear"}


def granite_hybrid(inputs: FamilyInputs) -> ModelConfig:
    """Granite 4 H and Granite 4 dense: Mamba2 and attention, mostly without positions; experts beside a shared one."""
    inputs = inputs.with_defaults(
        num_local_experts=8, num_experts_per_tok=2, shared_intermediate_size=1024, mamba_d_state=256, mamba_n_heads=128
    )
    keys = inputs.keys
    bias, experts = keys.flag("attention_bias"), keys.integer("num_local_experts")
    rotated = keys.get("position_embedding_type") == "rope"
    feed_forward, names = _granite_feed_forward(keys, experts)
    return decoder(
        inputs,
        mixers=_mixers(inputs, Attention(rope=0 if rotated else None), keys.get("layer_types")),
        ropes=None if rotated else (),
        feed_forwards=[feed_forward] * inputs.layers,
        qkv_bias=bias,
        o_bias=bias,
        embedding_scale=keys.number("embedding_multiplier", 1.0),
        attention_scale=keys.number("attention_multiplier", 1.0),
        residual_scale=keys.number("residual_multiplier", 1.0),
        logits_scale=1.0 / keys.positive("logits_scaling", 1.0),
        names=names,
    )


def bamba(inputs: FamilyInputs) -> ModelConfig:
    """Bamba 9B: Mamba2 and a gated feed-forward; in some layers attention, half of each head rotated."""
    inputs = inputs.with_defaults(
        rms_norm_eps=1e-5, num_key_value_heads=8, partial_rotary_factor=0.5, mamba_d_state=256, mamba_n_heads=128
    )
    keys, attends = inputs.keys, inputs.keys.get("attn_layer_indices") or []
    if not isinstance(attends, list) or not all(type(i) is int for i in attends):
        raise keys.wrong("attn_layer_indices", "a list of numbers of layers")
    bias = keys.flag("attention_bias")
    return decoder(
        inputs,
        mixers=_mixers(inputs, Attention(rope=0), [FULL if i in attends else _LINEAR for i in range(inputs.layers)]),
        mlp_bias=keys.flag("mlp_bias"),
        partial=True,
        qkv_bias=bias,
        o_bias=bias,
        names=_BAMBA_NAMES,
    )


def _granite_feed_forward(keys: Keys, count: int) -> tuple[FeedForward | Experts, dict[str, str]]:
    """Return the feed-forward of every layer, which without experts is the shared one alone, and its names."""
    shared = FeedForward(keys.integer("shared_intermediate_size"), activation(keys, "hidden_act", "silu"))
    active = keys.integer("num_experts_per_tok")
    if count == 0:
        return shared, _SHARED
    if not 2 <= count <= 4096:
        raise keys.wrong("num_local_experts", "0, or 2 to 4096")
    if not 1 <= active <= count:
        raise keys.wrong("num_experts_per_tok", f"1 to num_local_experts ({count})")
    experts = Experts(
        keys.integer("intermediate_size"), count, active, shared.activation, score="softmax_chosen", shared=shared
    )
    return experts, _GRANITE_NAMES | {f"shared.{name}": stored for name, stored in _SHARED.items()}


def _mixers(inputs: FamilyInputs, attention: Attention, kinds: Any) -> list[Mixer]:
    """Return the mixer of each layer. kinds: what config.json says of layers (layer_types); None: all are Mamba2."""
    kinds = [_LINEAR] * inputs.layers if kinds is None else kinds
    if not isinstance(kinds, list) or len(kinds) != inputs.layers or not all(kind in _KINDS for kind in kinds):
        raise inputs.keys.wrong("layer_types", f"a list of {inputs.layers} times mamba or attention")
    own = _mamba2(inputs.keys)
    return [attention if _KINDS[kind] == FULL else own for kind in kinds]


def _mamba2(keys: Keys) -> Mamba2:
    """Return the mixer of the keys mamba_* and time_step_limit, whose infinity may be {"__float__": "Infinity"}.

    transformers applies the limits to prompts alone; here every step has them, as the weights were trained.
    Raises: ConfigError if heads and widths do not fit, or the convolution's activation is not silu.
    """
    inner = keys.integer("mamba_expand", 2) * keys.integer("hidden_size")
    heads, groups = keys.integer("mamba_n_heads"), keys.integer("mamba_n_groups", 1)
    if not 1 <= heads <= inner or inner % heads:
        raise keys.wrong("mamba_n_heads", f"a divisor of mamba_expand * hidden_size ({inner})")
    if keys.get("mamba_d_head") != "auto" and keys.integer("mamba_d_head", inner // heads) != inner // heads:
        raise keys.wrong("mamba_d_head", f"mamba_expand * hidden_size / mamba_n_heads ({inner // heads})")
    if not 1 <= groups <= heads or heads % groups:
        raise keys.wrong("mamba_n_groups", f"a divisor of mamba_n_heads ({heads})")
    if activation(keys, "hidden_act", "silu") != "silu":
        raise keys.wrong("hidden_act", "silu, the activation of Mamba2's convolution")
    limits = keys.get("time_step_limit") or [0.0, math.inf]
    limits = [math.inf if one == {"__float__": "Infinity"} else one for one in limits if isinstance(limits, list)]
    if [type(one) in (int, float) for one in limits] != [True, True] or not 0 <= limits[0] <= limits[1]:
        raise keys.wrong("time_step_limit", "two numbers, of which the first is at least 0 and at most the second")
    state_dim, taps = _bounded(keys, "mamba_d_state", 1, 4096, 256), _bounded(keys, "mamba_d_conv", 2, 64, 4)
    return Mamba2(
        heads, groups, inner // heads, state_dim, taps, keys.flag("mamba_conv_bias", True),
        keys.flag("mamba_proj_bias"), dt_least=limits[0], dt_most=limits[1],
    )  # fmt: skip


def _bounded(keys: Keys, key: str, least: int, most: int, default: int) -> int:
    """Return a whole number from `least` to `most`. Raises: ConfigError."""
    value = keys.integer(key, default)
    if not least <= value <= most:
        raise keys.wrong(key, f"{least} to {most}")
    return value
