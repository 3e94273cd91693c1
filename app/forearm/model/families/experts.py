"""Families whose layers have experts: Mixtral, Qwen2-MoE, Qwen3-MoE, OLMoE."""

from __future__ import annotations

from typing import Any

from forearm.model.families.config import Experts, FeedForward, ModelConfig
from forearm.model.families.decoder import FamilyInputs, activation, decoder
from forearm.model.families.llama_like import qwen_windows


def mixtral(inputs: FamilyInputs) -> ModelConfig:
    """Mixtral 8x7B and 8x22B: Mistral whose layers have experts, weighted by a softmax of the chosen ones."""
    inputs = inputs.with_defaults(num_local_experts=8, num_experts_per_tok=2, num_key_value_heads=8)
    keys = inputs.keys
    window = keys.optional_integer("sliding_window") or 0
    experts = _experts(inputs, "num_local_experts", "intermediate_size", renormalized=True)
    return decoder(
        inputs, windows=[window] * inputs.layers, feed_forwards=[experts] * inputs.layers, names=_MIXTRAL_NAMES
    )


def qwen2_moe(inputs: FamilyInputs) -> ModelConfig:
    """Qwen1.5-MoE, Qwen2-57B-A14B: Qwen2 with experts and a shared expert, whose result has a gate."""
    inputs = inputs.with_defaults(
        num_experts=60, num_experts_per_tok=4, moe_intermediate_size=1408, shared_expert_intermediate_size=5632
    )
    shared = FeedForward(inputs.keys.integer("shared_expert_intermediate_size"), _act(inputs))
    layers = _sparse_layers(inputs, shared=shared, shared_gate=True)
    bias = inputs.keys.flag("qkv_bias", True)
    return decoder(inputs, windows=qwen_windows(inputs), feed_forwards=layers, qkv_bias=bias)


def qwen3_moe(inputs: FamilyInputs) -> ModelConfig:
    """Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder: Qwen3 with experts."""
    inputs = inputs.with_defaults(num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768)
    bias = inputs.keys.flag("attention_bias")
    layers = _sparse_layers(inputs)
    return decoder(
        inputs, windows=qwen_windows(inputs), feed_forwards=layers, qk_norm="head", qkv_bias=bias, o_bias=bias
    )


def olmoe(inputs: FamilyInputs) -> ModelConfig:
    """OLMoE 1B-7B: experts in every layer; q and k are normalized over all heads."""
    inputs = inputs.with_defaults(num_experts=64, num_experts_per_tok=8, rms_norm_eps=1e-5)
    bias = inputs.keys.flag("attention_bias")
    experts = _experts(inputs, "num_experts", "intermediate_size", inputs.keys.flag("norm_topk_prob"))
    return decoder(inputs, feed_forwards=[experts] * inputs.layers, qk_norm="full", qkv_bias=bias, o_bias=bias)


_MIXTRAL_NAMES = {"router": "block_sparse_moe.gate"} | {
    f"experts.{part}": f"block_sparse_moe.experts.{{expert}}.{name}"
    for part, name in (("gate", "w1"), ("up", "w3"), ("down", "w2"))
}


def _act(inputs: FamilyInputs) -> Any:
    return activation(inputs.keys, "hidden_act", "silu")


def _experts(inputs: FamilyInputs, count: str, width: str, renormalized: bool, **differs: Any) -> Experts:
    """Return the experts of a layer; `count` and `width` are config.json's keys."""
    keys = inputs.keys
    number, active = keys.integer(count), keys.integer("num_experts_per_tok")
    if not 2 <= number <= 4096:
        raise keys.wrong(count, "2 to 4096")
    if not 1 <= active <= number:
        raise keys.wrong("num_experts_per_tok", f"1 to {count} ({number})")
    return Experts(keys.integer(width), number, active, _act(inputs), renormalized=renormalized, **differs)


def _sparse_layers(inputs: FamilyInputs, **differs: Any) -> list[FeedForward | Experts]:
    """Return Qwen's layers: experts in every decoder_sparse_step-th one, but not in mlp_only_layers."""
    keys = inputs.keys
    step, dense = keys.integer("decoder_sparse_step", 1), keys.get("mlp_only_layers") or []
    if step < 1:
        raise keys.wrong("decoder_sparse_step", "at least 1")
    if not isinstance(dense, list):
        raise keys.wrong("mlp_only_layers", "a list of numbers of layers")
    count = "num_local_experts" if "num_local_experts" in keys else "num_experts"  # transformers 5 writes the first
    experts = _experts(inputs, count, "moe_intermediate_size", keys.flag("norm_topk_prob"), **differs)
    plain = FeedForward(keys.integer("intermediate_size"), _act(inputs))
    return [plain if i in dense or (i + 1) % step else experts for i in range(inputs.layers)]
