"""Encoders with the layers of a Llama, whose tokens see those on both sides: EuroBERT and NeoBERT."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from forearm.model.families.config import ModelConfig
from forearm.model.families.decoder import FamilyInputs, decoder

_NEO = {
    "embed": "encoder", "layers": "transformer_encoder", "o": "wo", **dict.fromkeys(("gate", "up"), "ffn.w12"),
    "down": "ffn.w3", "input_norm": "attention_norm", "pre_mlp_norm": "ffn_norm", "final_norm": "layer_norm",
}  # fmt: skip
_BOTH_SIDES: dict[str, Any] = {"bidirectional": True, "pooled": True, "tied_head": True}


def eurobert(inputs: FamilyInputs) -> ModelConfig:
    """EuroBERT: EuroBERT-210m to 2.1B, jina-embeddings-v5-nano; in transformers 5, and as its authors published it."""
    inputs = inputs.with_defaults(max_position_embeddings=8192, rms_norm_eps=1e-5)
    keys = inputs.keys
    for key in ("classifier_pooling", "clf_pooling", "mask_token_id", "mask_token", "pad_token", "bos_token"):
        keys.get(key)  # read by pooling.py, or of the tokenizer
    keys.get("eos_token")
    bias = keys.flag("attention_bias")
    return decoder(inputs, mlp_bias=keys.flag("mlp_bias"), qkv_bias=bias, o_bias=bias, **_BOTH_SIDES)


def neobert(inputs: FamilyInputs) -> ModelConfig:
    """NeoBERT, whose checkpoints come with code of their own: q, k and v of a head in turn, gates and ups as one.

    Source: Le Breton et al. 2025, arXiv:2502.19587; the names are those of chandar-lab/NeoBERT.
    """
    keys = inputs.keys
    keys.only(hidden_act="SwiGLU", rms_norm=True, rope=True, ngpt=False)
    for key in ("base_scale", "decoder_init_range", "embedding_init_range", "flash_attention", "kwargs"):
        keys.get(key)  # marks it as read: of training, or of the code beside the model
    for key in ("classifier_init_range", "dim_head", "pretrained_model_name_or_path", "trust_remote_code"):
        keys.get(key)
    inputs = inputs.with_defaults(
        max_position_embeddings=keys.integer("max_length", 1024), rms_norm_eps=keys.number("norm_eps", 1e-6)
    )
    width = int(2 * keys.integer("intermediate_size") / 3)
    heads = keys.integer("num_attention_heads")
    head_dim = keys.integer("hidden_size") // heads
    packed = {part: f"qkv[{i * head_dim}:{head_dim}:{3 * head_dim}]" for i, part in enumerate("qkv")}
    own = inputs.keys.with_values(intermediate_size=-(-width // 8) * 8, num_key_value_heads=heads, head_dim=head_dim)
    return decoder(replace(inputs, keys=own), act="silu", interleaved=True, names=_NEO | packed, **_BOTH_SIDES)
