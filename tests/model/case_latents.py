"""Latent attention whose results have gates: names, configuration classes and settings of cases (cases.py)."""

from __future__ import annotations

from typing import Any

_LATENT = {
    "num_key_value_heads": 6, "kv_lora_rank": 48, "qk_nope_head_dim": 20, "qk_rope_head_dim": 12, "v_head_dim": 28,
    "moe_intermediate_size": 28, "n_routed_experts": 12, "num_experts_per_tok": 4, "index_n_heads": 18,
    "index_head_dim": 32, "index_topk": 24,
}  # fmt: skip
_DOTS3 = {
    **_LATENT, "head_dim": 32, "q_lora_rank": 44, "shared_experts_intermediate_size": 36, "sliding_window": 16,
    "pad_token_id": None, "bos_token_id": 0, "eos_token_id": 1, "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 4, "swa_q_lora_rank": 36, "swa_kv_lora_rank": 64, "swa_head_dim": 40,
    "swa_qk_nope_head_dim": 24, "swa_v_head_dim": 20,
}  # fmt: skip
_EYES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "adapter_in_dim": 32,
    "adapter_out_dim": 72, "mlp_layer_types": ["dense"],
}  # fmt: skip
_EARS = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "feature_size": 16,
    "adapter_input_size": 32, "adapter_out_dim": 72, "downsample_hidden_size": 16,
}  # fmt: skip
_YARN = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 32, "mscale": 1.0,
    "mscale_all_dim": 0.7,
}  # fmt: skip

# Convolved queries and keys in every layer, the last with a window; experts that an MLP chooses, or none of them.
_ZAYA = {
    "head_dim": 12, "num_experts": 5, "moe_intermediate_size": 28, "router_hidden_size": 20, "eos_token_id": 2,
    "bos_token_id": 1,
}  # fmt: skip

GATED: list[tuple[str, str, dict[str, Any]] | tuple[str, str, dict[str, Any], int, int, int]] = [
    ("zaya", "ZayaConfig", {**_ZAYA, "num_hidden_layers": 3}),
    ("zaya-windows", "ZayaConfig", {
        **_ZAYA, "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding"], "num_hidden_layers": 3,
        "sliding_window": 16, "attention_bias": True, "lm_head_bias": True, "tie_word_embeddings": False,
        "cca_time0": 4, "cca_time1": 3, "head_dim": 20, "num_attention_heads": 3, "num_key_value_heads": 1,
        "rope_parameters": {
            "hybrid": {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.6},
            "hybrid_sliding": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0, "partial_rotary_factor": 1.0},
        },
    }),
    # windows whose layers have sizes of their own, beside indexers; the rotated key has a norm, each head a gate
    ("dots3_note_text", "Dots3NoteTextConfig", {**_DOTS3, "num_hidden_layers": 4}, 45, 64, 5),
    ("dots3_note_text-whole", "Dots3NoteTextConfig", {
        **_DOTS3, "use_dsa": False, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "num_hidden_layers": 3, "n_shared_experts": 2, "n_group": 4, "topk_group": 2, "norm_topk_prob": False,
        "routed_scaling_factor": 1.7, "moe_layer_freq": [1, 0, 1], "rope_parameters": _YARN,
    }),
    ("dots3_note", "Dots3NoteConfig", {
        "text_config": {**_DOTS3, "num_hidden_layers": 3}, "vision_config": _EYES, "audio_config": _EARS,
    }, 45, 64, 5),
    # gates of values, made beside queries; gates behind norms
    ("axk2", "AXK2Config", {**_LATENT, "q_lora_rank": 52, "gated_norm_rank": 10, "num_hidden_layers": 3}),
    ("axk2-groups", "AXK2Config", {
        **_LATENT, "q_lora_rank": 36, "gated_norm_rank": 16, "num_hidden_layers": 3, "n_group": 4, "topk_group": 2,
        "attention_bias": True, "mlp_layer_types": ["sparse", "dense", "sparse"], "rope_parameters": _YARN,
    }),
]  # fmt: skip
