"""Families with delta attention that forgets by channel, beside latent attention: Kimi Linear and Ling 3.0."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from forearm.model.families.config import ModelConfig
from forearm.model.families.decoder import FamilyInputs
from forearm.model.families.experts import SHARED_EXPERTS
from forearm.model.families.hybrid import LINEAR, kinds_of
from forearm.model.families.keys import Keys
from forearm.model.families.latent import corrected_layers, with_latents
from forearm.model.families.recurrences import GatedDelta
from forearm.model.families.switches import FULL


def kimi_linear(inputs: FamilyInputs) -> ModelConfig:
    """Kimi-Linear-48B-A3B: delta attention that forgets by channel, every fourth layer latent attention; experts."""
    inputs = inputs.with_defaults(
        kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, num_experts=256,
        num_shared_experts=1, moe_intermediate_size=1024, num_experts_per_token=8, num_expert_group=1, topk_group=1,
        moe_renormalize=True, routed_scaling_factor=2.446, first_k_dense_replace=1, rms_norm_eps=1e-5,
        model_max_length=1 << 20,
    )  # fmt: skip
    keys = inputs.keys
    for key, only in (("mla_use_nope", True), ("moe_router_activation_func", "sigmoid")):
        if keys.get(key) not in (None, only):
            raise keys.wrong(key, f"{json.dumps(only)}: no other is computed")
    if not keys.flag("use_grouped_topk", True) and keys.integer("num_expert_group") != 1:
        raise keys.wrong("use_grouped_topk", "true where num_expert_group is not 1")
    return _with_delta(inputs, *_kimi_layers(inputs), interleaved=None, names=_KIMI_NAMES)


def _with_delta(inputs: FamilyInputs, delta: GatedDelta, kinds: list[str], **differs: Any) -> ModelConfig:
    """Return a model with latent attention in layers of the first kind, and delta attention in the others."""
    keys = inputs.keys
    inputs = inputs.with_defaults(**{name: keys.get(own) for name, own in _KIMI_KEYS.items()})
    config = with_latents(inputs, corrected_layers(inputs), **differs)
    pairs = zip(config.layers, kinds, strict=True)
    return replace(config, layers=tuple(one if kind == FULL else replace(one, mixer=delta) for one, kind in pairs))


def bailing_hybrid(inputs: FamilyInputs) -> ModelConfig:
    """Ling 3.0: delta attention that forgets by channel and not too much, every sixth layer gated latent attention."""
    inputs = inputs.with_defaults(
        kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, num_experts=512,
        num_shared_experts=1, moe_intermediate_size=768, num_experts_per_token=8, num_expert_group=8, topk_group=4,
        moe_renormalize=True, routed_scaling_factor=2.5, first_k_dense_replace=2, model_max_length=262144,
        rope_theta=6e6,
    )  # fmt: skip
    keys, layers = inputs.keys, inputs.layers
    heads, taps = keys.integer("num_attention_heads"), keys.integer("short_conv_kernel_size", 4)
    dim = keys.integer("linear_head_dim", keys.integer("head_dim", 128))  # head_dim may be that of rotated values
    every, least = keys.integer("layer_group_size", 6), keys.number("kda_lower_bound", -5.0)
    keys.only(linear_num_heads=heads, linear_conv_kernel_dim=taps)
    for key, value, low, high in (("head_dim", dim, 1, 4096), ("short_conv_kernel_size", taps, 2, 64)):
        if not low <= value <= high:
            raise keys.wrong(key, f"{low} to {high}")
    if every < 1:
        raise keys.wrong("layer_group_size", "at least 1")
    if not -80 < least < 0:
        raise keys.wrong("kda_lower_bound", "more than -80, and less than 0")
    safe = keys.flag("kda_safe_gate", True)
    kinds = kinds_of(inputs, [LINEAR if (i + 1) % every else FULL for i in range(layers)], LINEAR)
    delta = GatedDelta(heads, heads, dim, dim, taps, by_channel=True, least_decay=least if safe else 0.0)
    own = {"attention_gate": "sigmoid", "head_gates": True}
    return _with_delta(inputs, delta, kinds, interleaved=True, names=_BAILING_NAMES, **own)


def _kimi_layers(inputs: FamilyInputs) -> tuple[GatedDelta, list[str]]:
    """Return the delta attention, and the kind of each layer; the published file counts layers from 1."""
    keys, layers = inputs.keys, inputs.layers
    own = keys.object("linear_attn_config") or Keys({}, keys.source)
    sizes = {
        name: own.integer(name, keys.integer(key, default))
        for name, key, default in (
            ("num_heads", "linear_num_heads", 32), ("head_dim", "linear_head_dim", 128),
            ("short_conv_kernel_size", "linear_conv_kernel_dim", 4),
        )
    }  # fmt: skip
    for name, least, most in (("num_heads", 1, 4096), ("head_dim", 1, 4096), ("short_conv_kernel_size", 2, 64)):
        if not least <= sizes[name] <= most:
            raise own.wrong(name, f"{least} to {most}")
    heads, dim, taps = sizes.values()
    full, linear = own.get("full_attn_layers"), own.get("kda_layers")
    kinds = [FULL if i and i % 4 == 0 else LINEAR for i in range(layers)]
    if full is not None and linear is not None:
        numbers = [*full, *linear] if isinstance(full, list) and isinstance(linear, list) else []
        if not all(type(i) is int for i in numbers) or sorted(numbers) != list(range(1, layers + 1)):
            raise own.wrong("kda_layers", f"with full_attn_layers the numbers 1 to {layers}, each once")
        kinds = [FULL if i + 1 in full else LINEAR for i in range(layers)]
    return GatedDelta(heads, heads, dim, dim, taps, gate_rank=dim, by_channel=True), kinds_of(inputs, kinds, LINEAR)


_W = {"gate": "w1", "up": "w3", "down": "w2"}
_KIMI_KEYS = {  # DeepSeek's keys under Kimi Linear's names
    "n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts", "n_group": "num_expert_group",
    "num_experts_per_tok": "num_experts_per_token", "norm_topk_prob": "moe_renormalize",
    "max_position_embeddings": "model_max_length",
}  # fmt: skip
_KIMI_NAMES = {
    "delta": "self_attn", "recurrence.gate_norm": "self_attn.o_norm.weight", "delta_b": "self_attn.b_proj",
    "delta_out": "self_attn.o_proj", "router": "block_sparse_moe.gate",
    "correction": "block_sparse_moe.gate.e_score_correction_bias",
    **{f"delta_{part}": f"self_attn.{part}_proj" for part in "qkv"},
    **{f"recurrence.conv_{part}": f"self_attn.{part}_conv1d.weight" for part in "qkv"},
    **{f"delta_{part}_latent": f"self_attn.{module}_a_proj" for part, module in (("z", "g"), ("a", "f"))},
    **{f"delta_{part}": f"self_attn.{module}_b_proj" for part, module in (("z", "g"), ("a", "f"))},
    **{f"experts.{part}": f"block_sparse_moe.experts.{{expert}}.{w}" for part, w in _W.items()},
    **{f"shared.{part}": f"block_sparse_moe.shared_experts.{part}_proj" for part in _W},
}  # fmt: skip
_BAILING_NAMES = SHARED_EXPERTS | {
    "embed": "word_embeddings", "delta": "attention", "correction": "mlp.gate.expert_bias",
    "recurrence.gate_norm": "attention.o_norm.weight", "k_norm": "attention.kv_a_layernorm",
    **{f"delta_{part}": f"attention.{module}_proj" for part, module in zip("qkvbaz", "qkvbfg", strict=True)},
    **{f"recurrence.conv_{part}": f"attention.{part}_conv1d.weight" for part in "qkv"},
    **dict.fromkeys(("delta_out", "o"), "attention.dense"), **dict.fromkeys(("k_up", "v_up"), "attention.kv_b_proj"),
    "q": "attention.q_proj", "q_gate": "attention.g_proj", "kv_down": "attention.kv_a_proj_with_mqa",
}  # fmt: skip


def as_computed(names: dict[str, str]) -> dict[str, str]:
    """Return the names that transformers computes such a model with, and writes if save_original_format is False."""
    places = {
        "block_sparse_moe.": "mlp.", "attention.dense": "self_attn.o_proj", "expert_bias": "e_score_correction_bias",
        "word_embeddings": "embed_tokens",
    }  # fmt: skip
    found = {"delta": "self_attn", "recurrence.a_log": "self_attn.forget_gate.A_log"}
    found["recurrence.dt_bias"] = "self_attn.forget_gate.dt_bias"
    for part, name in names.items():
        for old, new in places.items():
            name = name.replace(old, new)
        name = f"self_attn.{name.removeprefix('attention.')}" if name.startswith("attention.") else name
        found.setdefault(part, name.replace("self_attn.f_", "self_attn.forget_gate.f_"))
    return found
