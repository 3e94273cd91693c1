"""Cases of Qwen4-Exp: several residual streams, chosen blocks of keys, embeddings of several tokens (cases.py)."""

from __future__ import annotations

from typing import Any

_LINEAR, _INDEXED = "linear_attention", "indexed_attention"
QWEN4: dict[str, Any] = {
    "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 24, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 28,
    "shared_expert_intermediate_size": 40, "hc_lowrank": 20, "indexer_n_heads": 18, "indexer_kv_heads": 1,
    "indexer_head_dim": 16, "indexer_budget": 24, "indexer_compress_ratio": 4, "ngram_vocab_size_base": 50,
    "make_ngram_vocab_size_divisible_by": 8, "split_ngram_parts": 3, "seed": 7,
}  # fmt: skip

QWEN4_ROWS: list[tuple[str, str, dict[str, Any]] | tuple[str, str, dict[str, Any], int, int, int]] = [
    ("qwen4_exp_text", "Qwen4ExpTextConfig", {
        **QWEN4, "num_hidden_layers": 4, "layer_types": [_LINEAR, _INDEXED, _LINEAR, _INDEXED],
        "ple_layer_ids": [3, 1], "heads_per_ngram": 2, "ple_embed_dim": 40,
    }),
    # blocks that no KV block holds a whole number of, keys that several KV blocks hold, the last layer linear
    ("qwen4_exp_text-odd", "Qwen4ExpTextConfig", {
        **QWEN4, "num_hidden_layers": 3, "layer_types": [_INDEXED, _LINEAR, _LINEAR], "hc_count": 3,
        "indexer_budget": 22, "indexer_compress_ratio": 11, "output_gate_type": "sigmoid", "ple_layer_ids": [2, 3],
        "ngram_size": 4, "heads_per_ngram": 3, "ple_conv_kernel_size": 2,
    }),
    ("qwen4_exp_text-long", "Qwen4ExpTextConfig", {
        **QWEN4, "layer_types": [_LINEAR, _INDEXED], "indexer_budget": 640, "indexer_compress_ratio": 16,
        "max_position_embeddings": 1200,
    }, 1040, 3, 0),
    ("qwen4_exp", "Qwen4ExpConfig", {
        "text_config": {
            **QWEN4, "layer_types": [_LINEAR, "full_attention"], "ple_layer_ids": [1], "heads_per_ngram": 4,
            "hc_count": 2, "indexer_compress_ratio": 1,
        },
        "vision_config": {
            "depth": 1, "hidden_size": 32, "out_hidden_size": 72, "intermediate_size": 48, "num_heads": 2,
        },
    }),
]  # fmt: skip
