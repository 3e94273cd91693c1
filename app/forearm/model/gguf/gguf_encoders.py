"""Embedding models in .gguf files: names of tensors, and the keys that only they have.

Source: the converter (convert_hf_to_gguf.py, conversion/) and src/models/ of ggml-org/llama.cpp.
"""

from __future__ import annotations

from typing import Any

from forearm.model.gguf import gguf_gemma
from forearm.model.gguf.gguf_metadata import GgufMetadata

# Norms follow each half of a layer.
BERT = {"types": "token_types", "pre_mlp_norm": "attn_output_norm", "output_norm": "layer_output_norm"}
MODERN = {"gate": "ffn_up", "up": "ffn_up", "layers.0.input_norm": "token_embd_norm"}
NEO = {"gate": "ffn_up", "up": "ffn_up", "final_norm": "enc.output_norm"}
T5 = {
    "layers": "enc.blk", "o": "attn_o", "attention_bias": "enc.blk.0.attn_rel_b", "final_norm": "enc.output_norm",
}  # fmt: skip
_NOMIC_MOST = 2048  # tokens of a text in training; the context length of files is what stretched angles would reach


def bert(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add BERT's positions, of which files of RoBERTa, which are of this architecture, leave the unused rows out."""
    values["max_position_embeddings"] = metadata.tensor("position_embd.weight").shape[0]
    return with_types(metadata, values)


def nomic_bert(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add NomicBERT's longest text."""
    values["max_position_embeddings"] = min(values["max_position_embeddings"], _NOMIC_MOST)
    return with_types(metadata, values)


def nomic_bert_moe(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add the experts of NomicBERT 2."""
    for name, key in (("num_experts", "expert_count"), ("num_experts_per_tok", "expert_used_count")):
        values[name] = metadata.size(key)
    values["moe_every_n_layers"] = metadata.size("moe_every_n_layers")
    return with_types(metadata, values)


def modern_bert(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add ModernBERT's windows and the angles of their layers. Files of before 2026 do not name the activation."""
    values |= {
        "hidden_activation": metadata.text("hidden_activation", "gelu"),
        "local_attention": metadata.integer("attention.sliding_window"),
        "global_attn_every_n_layers": metadata.size("attention.sliding_window_pattern", 3),
        "global_rope_theta": values["rope_theta"],
        "local_rope_theta": metadata.number("rope.freq_base_swa", 10_000.0),
        "norm_bias": metadata.any_layer("attn_norm.bias"),
    }
    return with_types(metadata, values)


def neo_bert(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add NeoBERT's own keys: the width of its feed-forward is two thirds of the one that its config.json gives.

    Its q, k and v are by heads, as in the model's own code and its checkpoint, whose rows the converter does not
    reorder.
    """
    values["intermediate_size"] = metadata.tensor("blk.0.ffn_down.weight").shape[1] * 3 // 2
    values["max_length"] = values["max_position_embeddings"]
    return with_types(metadata, values)


def t5_encoder(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add the buckets of distances and the activation of T5's encoder, and whether each layer has its own bias.

    As in llama.cpp, a gated feed-forward has GELU, another one ReLU, and buckets end at a distance of 128.
    """
    values["relative_attention_num_buckets"] = metadata.size("attention.relative_buckets_count")
    gated = metadata.has("enc.blk.0.ffn_gate.weight")
    values["feed_forward_proj"] = "gated-gelu" if gated else "relu"
    with_types(metadata, values)
    return "umt5" if metadata.has("enc.blk.1.attn_rel_b.weight") else "t5"


def embedding_gemma(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add Gemma 3's keys. Tokens see those on both sides."""
    values["use_bidirectional_attention"] = True
    metadata.flag("attention.causal", False)  # marks it as read
    return gguf_gemma.gemma3(metadata, values)


def with_types(metadata: GgufMetadata, values: dict[str, Any]) -> str | None:
    """Add the number of token types. Raises: ConfigError if tokens see those before them alone."""
    types = "token_types.weight"
    metadata.keys.get(f"{metadata.architecture}.token_type_count")  # marks it as read: the tensor has as many rows
    values["type_vocab_size"] = metadata.tensor(types).shape[0] if metadata.has(types) else 0
    if metadata.flag("attention.causal", False):
        raise metadata.wrong("attention.causal", "false: this architecture is of encoders")
    return None
