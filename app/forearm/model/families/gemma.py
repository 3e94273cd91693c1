"""Gemma: norms of 1 + weight, scaled embeddings, tanh GELU, a tied head."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from forearm.model.families.config import Attention, ModelConfig
from forearm.model.families.decoder import FamilyInputs, activation, decoder, ropes_by_layer_type, windows_of


def gemma(inputs: FamilyInputs) -> ModelConfig:
    """Gemma 1 and CodeGemma: norms before each half of a layer. Files that say gelu mean its tanh form."""
    inputs = inputs.with_defaults(head_dim=256, num_key_value_heads=16)
    keys = inputs.keys
    act = activation(keys, "hidden_activation" if keys.get("hidden_activation") else "hidden_act", "gelu_pytorch_tanh")
    return _gemma(
        inputs,
        act="gelu_tanh" if act == "gelu_erf" else act,
        norm_placement="pre",
        attention_scale=keys.integer("head_dim") ** -0.5,
        names={},
    )


def gemma2(inputs: FamilyInputs) -> ModelConfig:
    """Gemma 2: norms around both halves, softcaps, a window on every other layer."""
    inputs = inputs.with_defaults(head_dim=256, num_key_value_heads=4, sliding_window=4096)
    return _gemma(
        inputs,
        windows=windows_of(inputs, [i % 2 == 0 for i in range(inputs.layers)]),
        attention_softcap=inputs.keys.optional_number("attn_logit_softcapping", 50.0) or 0.0,
        logits_softcap=inputs.keys.optional_number("final_logit_softcapping", 30.0) or 0.0,
    )


def gemma3(inputs: FamilyInputs) -> ModelConfig:
    """Gemma 3's text model, alone or inside the multimodal one: q and k norms; sliding layers have their own angles."""
    inputs = inputs.with_defaults(
        vocab_size=262_208, num_attention_heads=8, num_key_value_heads=4, head_dim=256, sliding_window=4096,
        max_position_embeddings=131_072, sliding_window_pattern=6,
    )  # fmt: skip
    keys = inputs.keys
    if keys.optional_number("attn_logit_softcapping"):
        raise keys.wrong("attn_logit_softcapping", "null: transformers' Gemma 3 does not apply it")
    pattern = keys.integer("_sliding_window_pattern", keys.integer("sliding_window_pattern"))
    windows = windows_of(inputs, [(i + 1) % pattern != 0 for i in range(inputs.layers)])
    both_ways = inputs.pooled and keys.flag("use_bidirectional_attention")  # EmbeddingGemma: half a window to each side
    windows = [w // 2 + 1 if both_ways and w else w for w in windows]
    return _gemma(
        inputs,
        mixers=[Attention(rope=1 if w else 0, window=w) for w in windows],
        ropes=ropes_by_layer_type(inputs, full=("rope_theta", 1e6), sliding=("rope_local_base_freq", 1e4)),
        qk_norm="head",
        bidirectional=both_ways,
        logits_softcap=keys.optional_number("final_logit_softcapping") or 0.0,
    )


def _gemma(inputs: FamilyInputs, **differs: Any) -> ModelConfig:
    """Return a Gemma 2 or 3: four norms of 1 + weight in each layer, scaled embeddings, tanh GELU, a tied head."""
    inputs = inputs.with_defaults(tie_word_embeddings=True, query_pre_attn_scalar=256)
    keys = inputs.keys
    keys.get("hidden_act")  # marks it as read: older files repeat hidden_activation in it
    bias = keys.flag("attention_bias")
    common: dict[str, Any] = {
        "norm_placement": "sandwich",
        "norm_plus_one": True,
        "act": activation(keys, "hidden_activation", "gelu_pytorch_tanh"),
        "attention_scale": keys.positive("query_pre_attn_scalar") ** -0.5,
        "embedding_scale": _rounded(math.sqrt(keys.integer("hidden_size")), inputs),
        "qkv_bias": bias,
        "o_bias": bias,
        "names": {"pre_mlp_norm": "pre_feedforward_layernorm", "post_mlp_norm": "post_feedforward_layernorm"},
    }
    return decoder(inputs, **common | differs)


def _rounded(value: float, inputs: FamilyInputs) -> float:
    """Round to the weights' dtype, as Gemma rounds its scale of embeddings: sqrt(3072) is 55.5 in bfloat16."""
    dtype = inputs.weight_dtype or inputs.checkpoint_dtype
    if dtype == "float16":
        return float(np.float16(value))
    if dtype == "bfloat16":  # to nearest, ties to even, on the upper 16 bits of the float32
        bits = int(np.float32(value).view(np.uint32))
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        return float(np.uint32(bits).view(np.float32))
    return float(np.float32(value))
