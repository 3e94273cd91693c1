"""Families with experts and code of their own: DeepSeek's first, Ling 1 and 2, SmallThinker.

Source of names and keys: the modeling and configuration files in the models' own repositories, and vLLM's classes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from forearm.model.families.config import Attention, FeedForward, ModelConfig
from forearm.model.families.decoder import FamilyInputs, activation, decoder, listed_layers
from forearm.model.families.experts import SHARED_EXPERTS, routed
from forearm.model.families.keys import Keys


def deepseek(inputs: FamilyInputs) -> ModelConfig:
    """DeepSeekMoE 16B: Llama with experts weighted by a softmax of all scores, beside shared ones."""
    inputs = inputs.with_defaults(first_k_dense_replace=0, n_shared_experts=0)
    keys = inputs.keys
    keys.only(scoring_func="softmax", topk_method="greedy")
    experts = routed(
        inputs, "n_routed_experts", "moe_intermediate_size", keys.flag("norm_topk_prob"), sum_epsilon=1e-20,
        scale=keys.positive("routed_scaling_factor", 1.0), shared=_shared(inputs, "n_shared_experts"),
    )  # fmt: skip
    bias = keys.flag("attention_bias")
    layers = listed_layers(inputs, experts, keys.integer("first_k_dense_replace"))
    return decoder(inputs, feed_forwards=layers, qkv_bias=bias, o_bias=bias, names=SHARED_EXPERTS)


def bailing_moe(inputs: FamilyInputs) -> ModelConfig:
    """Ling and Ring, lite to plus, and 2.0, mini and flash: experts beside shared ones; q, k and v in one matrix.

    2.0 has corrected sigmoid scores, groups by their two best, norms of q and k, and half of each head rotated.
    """
    inputs = inputs.with_defaults(first_k_dense_replace=0, num_shared_experts=0, norm_topk_prob=True)
    keys = inputs.keys
    keys.only(norm_head=False, use_bias=False, use_rmsnorm=True)
    keys.get("rotary_dim")  # marks it as read: partial_rotary_factor says it, too
    score = keys.text("score_function", "softmax")
    if score not in ("softmax", "sigmoid"):
        raise keys.wrong("score_function", "softmax or sigmoid")
    own: dict[str, Any] = {
        "score": score, "correction": keys.flag("moe_router_enable_expert_bias"),
        "groups": keys.optional_integer("n_group") or 1, "groups_kept": keys.optional_integer("topk_group") or 1,
        "scale": keys.positive("routed_scaling_factor", 1.0), "shared": _shared(inputs, "num_shared_experts"),
    }  # fmt: skip
    renormalized = keys.flag("norm_topk_prob")
    experts = routed(inputs, "num_experts", "moe_intermediate_size", renormalized, sum_epsilon=1e-20, **own)
    return decoder(
        inputs,
        feed_forwards=listed_layers(inputs, experts, keys.integer("first_k_dense_replace")),
        partial=True,
        qk_norm="head" if keys.flag("use_qk_norm") else "none",
        qkv_bias=keys.flag("use_qkv_bias"),
        names=SHARED_EXPERTS | _BAILING,
    )


_BAILING = {
    "embed": "word_embeddings", **dict.fromkeys("qkv", "attention.query_key_value"), "o": "attention.dense",
    "q_norm": "attention.query_layernorm", "k_norm": "attention.key_layernorm", "correction": "mlp.gate.expert_bias",
}  # fmt: skip


def smallthinker(inputs: FamilyInputs) -> ModelConfig:
    """SmallThinker 4B-A0.6B and 21B-A3B: experts with relu, chosen by what a layer reads before its attention.

    The larger one has a window and angles on three layers of four, the smaller one angles on all and no window.
    """
    inputs = inputs.with_defaults(
        head_dim=128, moe_num_primary_experts=32, moe_num_active_primary_experts=4, moe_ffn_hidden_size=768,
        sliding_window_size=4096, rope_theta=1e6, tie_word_embeddings=True,
    )  # fmt: skip
    keys, layers = inputs.keys, inputs.layers
    for key in ("model_name", "sliding_window", "sliding_window_pattern", "moe_layer_layout"):
        keys.get(key)  # marks it as read: a name, and what other keys say
    keys.only(hidden_act="relu")
    width, window = keys.integer("moe_ffn_hidden_size"), keys.integer("sliding_window_size")
    inputs = replace(inputs, keys=keys.with_values(hidden_act="relu", intermediate_size=width))
    experts = routed(
        inputs, "moe_num_primary_experts", "moe_ffn_hidden_size", True, "moe_num_active_primary_experts", ahead=True,
        score="softmax_chosen" if keys.flag("moe_primary_router_apply_softmax") else "sigmoid",
    )  # fmt: skip
    marks = zip(_marks(keys, "rope_layout", layers, 1), _marks(keys, "sliding_window_layout", layers, 0), strict=True)
    return decoder(
        inputs,
        mixers=[Attention(rope=0 if rotated else None, window=slides * window) for rotated, slides in marks],
        feed_forwards=[experts] * layers,
        names=_SMALL_THINKER,
    )


_SMALL_THINKER = {"router": "block_sparse_moe.primary_router"} | {
    f"experts.{part}": f"block_sparse_moe.experts.{{expert}}.{part}" for part in ("gate", "up", "down")
}


def _marks(keys: Keys, key: str, layers: int, default: int) -> list[int]:
    """Return a list of a 0 or 1 for each layer."""
    marks = keys.get(key)
    if marks is None:
        return [default] * layers
    if not isinstance(marks, list) or len(marks) != layers or not all(mark in (0, 1) for mark in marks):
        raise keys.wrong(key, f"a list of {layers} times 0 or 1")
    return marks


def _shared(inputs: FamilyInputs, count: str) -> FeedForward | None:
    """Return the shared experts, which are one; `count` is the key of their number."""
    keys = inputs.keys
    number = keys.optional_integer(count) or 0
    width = keys.optional_integer("moe_shared_expert_intermediate_size") or keys.integer("moe_intermediate_size")
    return FeedForward(number * width, activation(keys, "hidden_act", "silu")) if number > 0 else None
