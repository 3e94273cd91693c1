"""Families with layers of Mamba2 (recurrences.py), alone or beside attention."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from forearm.model.families.config import Activation, Attention, Experts, FeedForward, Mixer, ModelConfig
from forearm.model.families.decoder import FamilyInputs, activation, decoder
from forearm.model.families.experts import granite_feed_forward, routed
from forearm.model.families.keys import Keys
from forearm.model.families.llama_like import granite_scales
from forearm.model.families.recurrences import Mamba2
from forearm.model.families.switches import FULL

_LINEAR = "linear_attention"
_KINDS = {FULL: FULL, "attention": FULL, _LINEAR: _LINEAR, "mamba": _LINEAR}  # the names of transformers 5, and 4
_BAMBA_NAMES = {
    "final_norm": "final_layernorm", "pre_mlp_norm": "pre_ff_layernorm", "gate": "feed_forward.gate_proj",
    "up": "feed_forward.up_proj", "down": "feed_forward.down_proj",
}  # fmt: skip
_PATTERN = {"M": _LINEAR, "*": FULL, "-": "mlp", "E": "moe"}
_NEMOTRON_KEYS = {
    "mamba_n_heads": "mamba_num_heads", "mamba_d_head": "mamba_head_dim", "mamba_n_groups": "n_groups",
    "mamba_d_state": "ssm_state_size", "mamba_d_conv": "conv_kernel", "mamba_conv_bias": "use_conv_bias",
    "mamba_proj_bias": "use_bias", "hidden_act": "mamba_hidden_act",
}  # fmt: skip
_MAMBA2_KEYS = _NEMOTRON_KEYS | {
    "mamba_n_heads": "num_heads", "mamba_d_head": "head_dim", "mamba_d_state": "state_size", "hidden_act": "hidden_act",
}  # fmt: skip
_NEMOTRON_EXPERTS = (
    "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "n_group", "topk_group", "norm_topk_prob",
    "routed_scaling_factor", "moe_shared_expert_intermediate_size", "n_shared_experts", "moe_latent_size",
)  # fmt: skip
_NEMOTRON_NAMES = {
    "embed": "embeddings", "final_norm": "norm_f", "input_norm": "norm", "pre_mlp_norm": "norm", "mamba": "mixer",
    "mamba_z": "mixer.in_proj", "mamba_xbc": "mixer.in_proj", "mamba_dt": "mixer.in_proj",
    "mamba_out": "mixer.out_proj", "q": "mixer.q_proj", "k": "mixer.k_proj", "v": "mixer.v_proj", "o": "mixer.o_proj",
    "up": "mixer.up_proj", "down": "mixer.down_proj", "router": "mixer.gate",
    "correction": "mixer.gate.e_score_correction_bias", "experts.up": "mixer.experts.{expert}.up_proj",
    "experts.down": "mixer.experts.{expert}.down_proj", "shared.up": "mixer.shared_experts.up_proj",
    "shared.down": "mixer.shared_experts.down_proj",
}  # fmt: skip


def granite_hybrid(inputs: FamilyInputs) -> ModelConfig:
    """Granite 4 H and Granite 4 dense: Mamba2 and attention, mostly without positions; experts beside a shared one."""
    inputs = inputs.with_defaults(
        num_local_experts=8, num_experts_per_tok=2, shared_intermediate_size=1024, mamba_d_state=256, mamba_n_heads=128
    )
    keys = inputs.keys
    bias = keys.flag("attention_bias")
    rotated = keys.get("position_embedding_type") == "rope"
    feed_forward, names = granite_feed_forward(keys)
    return decoder(
        inputs,
        mixers=_mixers(inputs, Attention(rope=0 if rotated else None), keys.get("layer_types")),
        ropes=None if rotated else (),
        feed_forwards=[feed_forward] * inputs.layers,
        qkv_bias=bias,
        o_bias=bias,
        **granite_scales(keys),
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


def falcon_h1(inputs: FamilyInputs) -> ModelConfig:
    """Falcon-H1 0.5B to 34B: in every layer attention and Mamba2 beside each other, and a dozen multipliers.

    The one of keys, and that of attention's input, which is also the keys' and the values', are part of the scales of
    scores and of the result.
    """
    inputs = inputs.with_defaults(
        rms_norm_eps=1e-5, num_key_value_heads=8, max_position_embeddings=8192, mamba_d_ssm=1024, mamba_d_state=256,
        mamba_n_heads=128, mlp_multipliers=[1.0, 1.0], ssm_multipliers=[1.0] * 5,
    )  # fmt: skip
    keys = inputs.keys
    for key in ("projectors_bias", "mamba_proj_bias"):
        if keys.flag(key):
            raise keys.wrong(key, "false: biases beside multipliers are not supported")
    before = keys.number("ssm_in_multiplier", 1.0)
    z, x, b, c, dt = (before * one for one in keys.numbers("ssm_multipliers", 5))
    own = mamba2_mixer(
        keys, keys.optional_integer("mamba_d_ssm") or keys.integer("mamba_expand", 2) * keys.integer("hidden_size"),
        norm=keys.flag("mamba_rms_norm"), gate_first=not keys.flag("mamba_norm_before_gate", True),
        z_scale=z, x_scale=x, b_scale=b, c_scale=c, dt_scale=dt, out_scale=keys.number("ssm_out_multiplier", 1.0),
    )  # fmt: skip
    keys.get("mamba_expand")
    gate, down = keys.numbers("mlp_multipliers", 2)
    act = activation(keys, "hidden_act", "silu")
    feed_forward = FeedForward(
        keys.integer("intermediate_size"), act, bias=keys.flag("mlp_bias"), gate_scale=gate, out_scale=down
    )
    into = keys.number("attention_in_multiplier", 1.0)
    attention = Attention(rope=0, out_scale=into * keys.number("attention_out_multiplier", 1.0))
    config = decoder(
        inputs,
        mixers=[attention] * inputs.layers,
        feed_forwards=[feed_forward] * inputs.layers,
        embedding_scale=keys.number("embedding_multiplier", 1.0),
        logits_scale=keys.number("lm_head_multiplier", 1.0),
        names=_BAMBA_NAMES,
    )
    scale = config.attention_scale * into * into * keys.number("key_multiplier", 1.0)
    layers = tuple(replace(layer, beside=own) for layer in config.layers)
    return replace(config, attention_scale=scale, layers=layers)


def mamba2(inputs: FamilyInputs) -> ModelConfig:
    """Mamba2 and Mamba-Codestral: a layer is Mamba2 alone; the files bound no context, so it is 131072 here."""
    inputs = inputs.with_defaults(
        vocab_size=32768, hidden_size=4096, num_hidden_layers=64, num_heads=128, head_dim=64, state_size=128,
        n_groups=8, max_position_embeddings=131072, num_attention_heads=1, num_key_value_heads=1, intermediate_size=1,
    )  # fmt: skip
    keys = inputs.keys
    own = mamba2_mixer(keys, keys.integer("expand", 2) * keys.integer("hidden_size"), _MAMBA2_KEYS)
    return decoder(
        inputs,
        mixers=[own] * inputs.layers,
        feed_forwards=[None] * inputs.layers,
        ropes=(),
        norm_eps=keys.number("layer_norm_epsilon", 1e-5),
        names=_NEMOTRON_NAMES,
    )


def nemotron_h(inputs: FamilyInputs) -> ModelConfig:
    """Nemotron-H and Nemotron 3 Nano: a layer is Mamba2, attention without positions, a feed-forward or experts.

    transformers bounds the steps of a prompt by time_step_min, but not those of a generated token; here as in NVIDIA's
    own code time_step_limit alone bounds both.
    """
    inputs = inputs.with_defaults(
        head_dim=inputs.keys.integer("attention_head_dim", 128), num_key_value_heads=8, intermediate_size=21504,
        mamba_num_heads=128, ssm_state_size=128, n_groups=8, conv_kernel=4, max_position_embeddings=4096,
    )  # fmt: skip
    keys = inputs.keys
    pattern = keys.get("hybrid_override_pattern")
    kinds = [_PATTERN.get(letter, letter) for letter in pattern] if isinstance(pattern, str) else None
    kinds = keys.get("layers_block_type") or keys.get("layer_types") or kinds
    heads = keys.integer("mamba_num_heads")
    own = mamba2_mixer(keys, heads * keys.integer("mamba_head_dim", 64), _NEMOTRON_KEYS)
    act = activation(keys, "mlp_hidden_act", "relu2")
    plain = FeedForward(keys.integer("intermediate_size"), act, gated=False, bias=keys.flag("mlp_bias"))
    halves: dict[str, tuple[Mixer | None, FeedForward | Experts | None]]
    halves = {FULL: (Attention(rope=None), None), _LINEAR: (own, None), "mlp": (None, plain)}
    if isinstance(kinds, list) and "moe" in kinds:
        halves["moe"] = (None, _nemotron_experts(inputs, act))
    for key in _NEMOTRON_EXPERTS:  # transformers writes them for models without experts too
        keys.get(key)
    kinds = [str(kind) for kind in kinds] if isinstance(kinds, list) else []
    layers = [halves.get(_KINDS.get(kind, kind)) for kind in kinds]
    if not layers or None in layers or len(layers) != keys.integer("num_hidden_layers", len(layers)):
        key = "hybrid_override_pattern" if "hybrid_override_pattern" in keys else "layers_block_type"
        raise keys.wrong(key, "the kind of each of num_hidden_layers layers: mamba, attention, mlp or moe (M * - E)")
    return decoder(
        replace(inputs, keys=keys.with_defaults(num_hidden_layers=len(layers))),
        mixers=[layer[0] for layer in layers if layer],
        feed_forwards=[layer[1] for layer in layers if layer],
        ropes=(),
        norm_eps=keys.number("layer_norm_epsilon", 1e-5),
        names=_NEMOTRON_NAMES,
    )


def _nemotron_experts(inputs: FamilyInputs, act: Activation) -> Experts:
    inputs = inputs.with_defaults(
        n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=7688, moe_shared_expert_intermediate_size=7688
    )
    keys = inputs.keys
    bias, shared = keys.flag("mlp_bias"), keys.integer("n_shared_experts", 1)
    if keys.get("moe_latent_size") is not None:
        raise keys.wrong("moe_latent_size", "null: experts of a latent width are not supported")
    if shared != 1:
        raise keys.wrong("n_shared_experts", "1")
    beside = FeedForward(keys.integer("moe_shared_expert_intermediate_size"), act, gated=False, bias=bias)
    experts = routed(
        inputs, "n_routed_experts", "moe_intermediate_size", keys.flag("norm_topk_prob", True), gated=False, bias=bias,
        score="sigmoid", correction=True, groups=keys.integer("n_group", 1), groups_kept=keys.integer("topk_group", 1),
        sum_epsilon=1e-20, scale=keys.positive("routed_scaling_factor", 1.0), shared=beside,
    )  # fmt: skip
    return replace(experts, activation=act)


def _mixers(inputs: FamilyInputs, attention: Attention, kinds: Any) -> list[Mixer]:
    """Return the mixer of each layer. kinds: what config.json says of layers (layer_types); None: all are Mamba2."""
    kinds = [_LINEAR] * inputs.layers if kinds is None else kinds
    if not isinstance(kinds, list) or len(kinds) != inputs.layers or not all(kind in tuple(_KINDS) for kind in kinds):
        raise inputs.keys.wrong("layer_types", f"a list of {inputs.layers} times mamba or attention")
    own = mamba2_mixer(inputs.keys, inputs.keys.integer("mamba_expand", 2) * inputs.keys.integer("hidden_size"))
    return [attention if _KINDS[kind] == FULL else own for kind in kinds]


def mamba2_mixer(keys: Keys, inner: int, names: Mapping[str, str] = MappingProxyType({}), **differs: Any) -> Mamba2:
    """Return the mixer of the keys mamba_* and time_step_limit, whose infinity may be {"__float__": "Infinity"}.

    transformers applies the limits to prompts alone; here every step has them, as the weights were trained.
    inner: width of all heads. names: a family's other names of the keys. differs: other fields of Mamba2.
    Raises: ConfigError if heads and widths do not fit, or the convolution's activation is not silu.
    """

    def name(key: str) -> str:
        return names.get(key, key)

    heads, groups = keys.integer(name("mamba_n_heads")), keys.integer(name("mamba_n_groups"), 1)
    if not 1 <= heads <= inner or inner % heads:
        raise keys.wrong(name("mamba_n_heads"), f"a divisor of the width of all heads ({inner})")
    size = name("mamba_d_head")
    if keys.get(size) != "auto" and keys.integer(size, inner // heads) != inner // heads:
        raise keys.wrong(size, f"the width of all heads, {inner}, / mamba_n_heads ({inner // heads})")
    if not 1 <= groups <= heads or heads % groups:
        raise keys.wrong(name("mamba_n_groups"), f"a divisor of {name('mamba_n_heads')} ({heads})")
    if activation(keys, name("hidden_act"), "silu") != "silu":
        raise keys.wrong(name("hidden_act"), "silu, the activation of Mamba2's convolution")
    limits = keys.get("time_step_limit") or [0.0, math.inf]
    limits = limits if isinstance(limits, list) else []
    limits = [math.inf if one == {"__float__": "Infinity"} else one for one in limits]
    if [type(one) in (int, float) for one in limits] != [True, True] or not 0 <= limits[0] <= limits[1]:
        raise keys.wrong("time_step_limit", "two numbers, of which the first is at least 0 and at most the second")
    state_dim, taps = (
        bounded(keys, name("mamba_d_state"), 1, 4096, 256),
        bounded(keys, name("mamba_d_conv"), 2, 64, 4),
    )
    return Mamba2(
        heads, groups, inner // heads, state_dim, taps, keys.flag(name("mamba_conv_bias"), True),
        keys.flag(name("mamba_proj_bias")), dt_least=float(limits[0]), dt_most=float(limits[1]), **differs,
    )  # fmt: skip


def bounded(keys: Keys, key: str, least: int, most: int, default: int) -> int:
    """Return a whole number from `least` to `most`. Raises: ConfigError."""
    value = keys.integer(key, default)
    if not least <= value <= most:
        raise keys.wrong(key, f"{least} to {most}")
    return value
