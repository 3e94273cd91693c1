"""Inkling: names, configuration classes and settings of cases (cases.py)."""

from __future__ import annotations

from typing import Any

_FULL, _SLIDES = "hybrid", "hybrid_sliding"
_SIZES = {
    "head_dim": 20, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 1, "swa_head_dim": 28, "d_rel": 8,
    "rel_extent": 24, "sliding_window_size": 16, "moe_intermediate_size": 28, "n_routed_experts": 9,
    "num_experts_per_tok": 3,
}  # fmt: skip
_EYES = {"hidden_size": 32, "num_hidden_layers": 4, "patch_size": 6, "temporal_patch_size": 2}
_EARS = {"n_mel_bins": 4, "mel_vocab_size": 8}

INKLING: list[tuple[str, str, dict[str, Any]] | tuple[str, str, dict[str, Any], int, int, int]] = [
    # both kinds of both halves, heads of their own in windows, queries that grow, two shared experts
    ("inkling_text", "InklingTextConfig", {
        **_SIZES, "num_hidden_layers": 4, "layer_types": [_SLIDES, _FULL, _FULL, _SLIDES],
        "mlp_layer_types": ["dense", "sparse", "dense", "sparse"], "log_scaling_n_floor": 20, "log_scaling_alpha": 0.4,
        "logits_mup_width_multiplier": 3.0, "route_scale": 1.7,
    }),
    # rows of the vocabulary that are no tokens, convolutions of two taps, one shared expert
    ("inkling", "InklingConfig", {
        "text_config": {
            **_SIZES, "vocab_size": 384, "unpadded_vocab_size": 331, "num_hidden_layers": 3, "local_layer_ids": [0, 1],
            "conv_kernel_size": 2, "n_shared_experts": 1, "num_experts_per_tok": 1, "swa_head_dim": 20,
            "logits_mup_width_multiplier": 2.0, "route_scale": 1.5, "intermediate_size": 28,
            "dense_intermediate_size": 100, "dense_mlp_idx": 1,
        }, "vision_config": _EYES, "audio_config": _EARS,
    }),
    # chunks of 512 keys, of which a bias reaches over two
    ("inkling-chunks", "InklingTextConfig", {
        **_SIZES, "num_hidden_layers": 2, "layer_types": [_FULL, _SLIDES], "rel_extent": 700, "sliding_window_size": 40,
        "log_scaling_n_floor": 300, "max_position_embeddings": 1200, "logits_mup_width_multiplier": 2.0,
        "route_scale": 2.0,
    }, 1040, 3, 0),
]  # fmt: skip
