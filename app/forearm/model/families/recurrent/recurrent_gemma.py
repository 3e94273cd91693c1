"""RecurrentGemma: layers of an RG-LRU (recurrences.py), and of attention to a window."""

from __future__ import annotations

import math
from dataclasses import replace

from forearm.model.families.config import Attention, FeedForward, ModelConfig
from forearm.model.families.decoder import FamilyInputs, activation, decoder
from forearm.model.families.gemma import rounded_scale
from forearm.model.families.keys import Keys
from forearm.model.families.recurrences import RgLru
from forearm.model.families.recurrent.mamba2 import bounded

_RECURRENT, _ATTENTION = "recurrent", "attention"
_NAMES = {
    "input_norm": "temporal_pre_norm", "pre_mlp_norm": "channel_pre_norm", "final_norm": "final_norm",
    **{part: f"temporal_block.{part}_proj" for part in "qkvo"},
    **{part: f"mlp_block.{part}_proj" for part in ("gate", "up", "down")},
}  # fmt: skip
_OF_TRAINING = ("_block_types", "final_w_init_variance_scale", "w_init_variance_scale")


def recurrent_gemma(inputs: FamilyInputs) -> ModelConfig:
    """RecurrentGemma 2B and 9B: RG-LRUs and local attention; the files bound no context, so it is 131072 here.

    Norms of 1 + weight, biases of most matrices, half of each head rotated. The scale of embeddings is rounded to
    bfloat16, whatever the weights are. Source: Botev et al. 2024, arXiv:2404.07839.
    """
    inputs = inputs.with_defaults(
        vocab_size=256_000, hidden_size=2560, intermediate_size=7680, num_hidden_layers=26, num_attention_heads=10,
        tie_word_embeddings=True, partial_rotary_factor=0.5, max_position_embeddings=131_072,
    )  # fmt: skip
    keys = inputs.keys
    for key in _OF_TRAINING:
        keys.get(key)  # marks it as read
    keys.only(embeddings_scale_by_sqrt_dim=True)
    act = activation(keys, "hidden_activation", "gelu_pytorch_tanh")
    if act != "gelu_tanh":
        raise keys.wrong("hidden_activation", "gelu_pytorch_tanh, the activation of an RG-LRU's gate")
    attention = Attention(0, window=bounded(keys, "attention_window_size", 1, (1 << 31) - 1, 2048))
    width = bounded(keys, "intermediate_size", 2, 1 << 20, 7680) // 2  # config.json has that of gate and up together
    recurrent = _rg_lru(keys)
    return decoder(
        inputs,
        mixers=[recurrent if kind == _RECURRENT else attention for kind in _kinds(inputs)],
        feed_forwards=[FeedForward(width, act, bias=True)] * inputs.layers,
        partial=True,
        act=act,
        norm_plus_one=True,
        qkv_bias=keys.flag("attention_bias"),
        o_bias=True,
        embedding_scale=rounded_scale(math.sqrt(keys.integer("hidden_size")), replace(inputs, weight_dtype="bfloat16")),
        logits_softcap=keys.positive("logits_soft_cap", 30.0),
        names=_NAMES,
    )


def _rg_lru(keys: Keys) -> RgLru:
    """Return the mixer. Raises: ConfigError if heads do not divide its channels, or a size is out of range."""
    inner = bounded(keys, "lru_width", 1, 1 << 20, keys.integer("hidden_size"))
    heads = keys.integer("num_attention_heads")
    if not 1 <= heads <= inner or inner % heads:
        raise keys.wrong("lru_width", f"a multiple of num_attention_heads ({heads})")
    return RgLru(inner, heads, bounded(keys, "conv1d_width", 2, 64, 4))


def _kinds(inputs: FamilyInputs) -> list[str]:
    """Return the kind of each layer: those of block_types, over and over."""
    kinds = inputs.keys.get("block_types")
    kinds = [_RECURRENT, _RECURRENT, _ATTENTION] if kinds is None else kinds
    if not isinstance(kinds, list) or not kinds or not all(kind in (_RECURRENT, _ATTENTION) for kind in kinds):
        raise inputs.keys.wrong("block_types", f"a list of {_RECURRENT} and {_ATTENTION}")
    return [kinds[i % len(kinds)] for i in range(inputs.layers)]
