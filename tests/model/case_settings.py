"""Names, configuration classes and settings of further cases (cases.py)."""

from __future__ import annotations

from typing import Any

_LLAMA4 = {
    "head_dim": 20, "intermediate_size_mlp": 100, "intermediate_size": 40, "num_local_experts": 7,
    "attention_chunk_size": 24, "floor_scale": 16, "attn_scale": 0.4, "rms_norm_eps": 1e-5,
}  # fmt: skip

_GEMMA3N = {
    "head_dim": 20, "sliding_window": 16, "num_hidden_layers": 6, "num_kv_shared_layers": 2, "laurel_rank": 12,
    "hidden_size_per_layer_input": 20, "vocab_size_per_layer_input": 300, "layer_types": [
        "sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention",
        "full_attention",
    ], "activation_sparsity_pattern": [0.95, 0.8, 0.0, 0.5, 0.0, 0.3], "altup_num_inputs": 4,
}  # fmt: skip

_LATENT = {
    "num_key_value_heads": 6, "kv_lora_rank": 48, "qk_nope_head_dim": 20, "qk_rope_head_dim": 12, "v_head_dim": 28,
}  # fmt: skip
_HY = {
    "q_lora_rank": 52, "head_dim": 12, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
    "index_n_heads": 8, "index_head_dim": 32, "index_topk": 24, "swiglu_limit": 0.3,
}  # fmt: skip
_LONGCAT = {"q_lora_rank": 52, "head_dim": 12, "ffn_hidden_size": 100, "expert_ffn_hidden_size": 28}
_ZAMBA2 = {
    "num_hidden_layers": 5, "num_key_value_heads": 6, "mamba_d_state": 20, "n_mamba_heads": 6, "chunk_size": 16,
    "adapter_rank": 9, "time_step_min": 1e-30, "layers_block_type": [
        "linear_attention", "hybrid", "hybrid", "linear_attention", "hybrid",
    ],
}  # fmt: skip
_M3 = {
    "head_dim": 16, "index_n_heads": 2, "index_head_dim": 32, "index_block_size": 32, "intermediate_size": 28,
    "dense_intermediate_size": 100, "shared_intermediate_size": 44, "num_local_experts": 8, "num_experts_per_tok": 3,
}  # fmt: skip
_HALF = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
_SLIDES_THEN_FULL = ["sliding_attention", "full_attention"]
_GEMMA4 = {"head_dim": 20, "global_head_dim": 28, "sliding_window": 16}
_KIMI = {
    **_LATENT,
    "num_local_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
}  # fmt: skip

_MIMO = {
    "head_dim": 36, "v_head_dim": 20, "sliding_window": 16, "n_routed_experts": 8, "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
}  # fmt: skip
# with few heads all products of a key can be negative, and entries with a score of 0 are chosen among by chance
_V4 = {
    "num_key_value_heads": 1, "head_dim": 48, "partial_rotary_factor": 0.25, "q_lora_rank": 44, "o_groups": 3,
    "o_lora_rank": 28, "index_n_heads": 18, "index_head_dim": 32, "n_routed_experts": 10, "num_experts_per_tok": 3,
    "moe_intermediate_size": 28, "intermediate_size": 28,
}  # fmt: skip
_SPARSE, _HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"

_EYES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip
_MROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 3]}
_GLM_EYES = {"depth": 1, "hidden_size": 32, "num_heads": 2, "out_hidden_size": 72, "image_size": 28}


ROWS: list[tuple[str, str, dict[str, Any]] | tuple[str, str, dict[str, Any], int, int, int]] = [
    # GPT-2, GPT-J and GPT-NeoX: fused tensors stored by columns, by head or by groups of heads
    ("gpt2", "GPT2Config", {}),
    ("gpt2-untied", "GPT2Config", {
        "n_inner": 100, "activation_function": "relu", "tie_word_embeddings": False, "scale_attn_weights": False,
        "num_hidden_layers": 3,
    }),
    ("gpt_bigcode", "GPTBigCodeConfig", {}),
    ("gpt_bigcode-by-head", "GPTBigCodeConfig", {
        "n_inner": 100, "multi_query": False, "tie_word_embeddings": False, "num_hidden_layers": 3,
    }),
    ("gptj", "GPTJConfig", {"rotary_dim": 6}),
    ("gptj-n-inner", "GPTJConfig", {"rotary_dim": 12, "n_inner": 100, "num_hidden_layers": 3}),
    ("codegen", "CodeGenConfig", {"rotary_dim": 4, "num_attention_heads": 4, "hidden_size": 48}),
    ("codegen-8", "CodeGenConfig", {"rotary_dim": 10, "num_attention_heads": 8, "hidden_size": 80, "n_inner": 100}),
    # xIELU; experts of scaled inputs, chunks of 24 keys, queries that grow with the position
    ("apertus", "ApertusConfig", {}),
    ("apertus-biases", "ApertusConfig", {
        "attention_bias": True, "num_hidden_layers": 3, "tie_word_embeddings": True, "rope_parameters": {
            "rope_type": "default", "rope_theta": 5e4,
        },
    }),
    ("llama4-text", "Llama4TextConfig", {
        **_LLAMA4, "num_hidden_layers": 4, "interleave_moe_layer_step": 2, "attention_bias": True,
    }),
    ("llama4-experts-of-two", "Llama4TextConfig", {
        **_LLAMA4, "num_experts_per_tok": 2, "use_qk_norm": False, "no_rope_layers": [0, 1], "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    }),
    ("llama4", "Llama4Config", {
        "text_config": {**_LLAMA4, "attn_temperature_tuning": False, "num_hidden_layers": 3},
        "vision_config": {
            "hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2,
            "image_size": 28, "patch_size": 14, "vision_output_dim": 32, "projector_input_dim": 32,
            "projector_output_dim": 32,
        },
    }),
    # several residual streams, cut gates, a table of each layer with fewer rows than tokens
    ("gemma3n-text", "Gemma3nTextConfig", _GEMMA3N),
    ("gemma3n-three", "Gemma3nTextConfig", {
        **_GEMMA3N, "altup_num_inputs": 3, "altup_correct_scale": False, "num_hidden_layers": 12, "layer_types": None,
        "activation_sparsity_pattern": None, "intermediate_size": [100, 84] * 6, "num_key_value_heads": 1,
        "num_kv_shared_layers": 5, "final_logit_softcapping": 50.0, "hidden_size_per_layer_input": 12,
    }),
    # decays of channels, latent attention without positions
    ("kimi-linear", "KimiLinearConfig", {
        **_KIMI, "num_hidden_layers": 5, "linear_num_heads": 3, "linear_head_dim": 20, "n_shared_experts": 2,
    }),
    ("kimi-linear-groups", "KimiLinearConfig", {
        **_KIMI, "q_lora_rank": 40, "n_group": 4, "topk_group": 2, "norm_topk_prob": False, "num_hidden_layers": 3,
        "linear_attn_config": {
            "full_attn_layers": [2], "kda_layers": [1, 3], "num_heads": 5, "head_dim": 16, "short_conv_kernel_size": 3,
        },
    }, 45, 64, 2),
    ("bailing_hybrid", "BailingHybridConfig", {
        **_KIMI, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 20, "layer_group_size": 3,
        "num_hidden_layers": 7, "n_shared_experts": 2, "n_group": 4, "topk_group": 2,
    }),
    ("bailing_hybrid-unbounded", "BailingHybridConfig", {
        **_KIMI, "head_dim": 16, "kda_safe_gate": False, "short_conv_kernel_size": 3, "n_group": 1, "topk_group": 1,
        "num_hidden_layers": 3, "layer_types": ["full_attention", "linear_attention", "full_attention"],
        "first_k_dense_replace": 1, "norm_topk_prob": False,
    }, 45, 64, 1),
    # models that see, for text alone
    ("qwen3_vl_moe", "Qwen3VLMoeConfig", {
        "text_config": {
            "head_dim": 24, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
            "rope_parameters": {**_MROPE, "partial_rotary_factor": 1.0, "mrope_section": [4, 4, 4]},
        },
        "vision_config": {**_GLM_EYES, "deepstack_visual_indexes": [0], "num_position_embeddings": 16},
    }),
    *((name, config, {
        "text_config": {"rope_parameters": {**_MROPE, "mrope_section": [1, 1, 1]}}, "vision_config": _GLM_EYES,
    }) for name, config in (("glm4v", "Glm4vConfig"), ("glm46v", "Glm46VConfig"))),
    ("glm4v_moe", "Glm4vMoeConfig", {
        "text_config": {
            "head_dim": 24, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
            "first_k_dense_replace": 1, "rope_parameters": _MROPE,
        },
        "vision_config": _GLM_EYES,
    }),
    *((name, config, {"text_config": {"model_type": text}, "vision_config": _EYES}) for name, config, text in (
        ("internvl", "InternVLConfig", "qwen2"),
        ("llava_next", "LlavaNextConfig", "mistral"), ("llava_onevision", "LlavaOnevisionConfig", "qwen2"),
        ("idefics3", "Idefics3Config", "llama"), ("smolvlm", "SmolVLMConfig", "llama"),
        ("exaone4_5", "Exaone4_5_Config", "exaone4"), ("lfm2_vl", "Lfm2VlConfig", "lfm2"),
    )),
    ("ovis2", "Ovis2Config", {"text_config": {"model_type": "qwen2"}, "vision_config": {**_EYES, "vocab_size": 64}}),
    ("llava", "LlavaConfig", {"text_config": {"model_type": "llama"}, "vision_config": _EYES}, 45, 64, 2),
    ("minicpmv4_6", "MiniCPMV4_6Config", {
        "text_config": {
            "model_type": "qwen3_5_text", "head_dim": 16, "num_hidden_layers": 4, "linear_num_key_heads": 2,
            "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 24,
        },
        "vision_config": _EYES,
    }, 45, 64, 1),
    # families made of others' parts
    ("iquestcoder", "IQuestCoderConfig", {"head_dim": 16}),
    ("cwm", "CwmConfig", {"head_dim": 16, "num_hidden_layers": 4, "sliding_window": 20}),
    ("jais2", "Jais2Config", {}),
    ("hyperclovax", "HyperCLOVAXConfig", {
        "logits_scaling": 0.25, "residual_multiplier": 0.3, "embedding_multiplier": 6.0,
    }),
    ("hyperclovax-pre", "HyperCLOVAXConfig", {"use_post_norm": False, "attention_multiplier": 0.2}),
    # transformers empties the padding token's row of the embedding when it loads a Youtu
    ("youtu", "YoutuConfig", {**_LATENT, "q_lora_rank": 32, "pad_token_id": None}),
    ("youtu-plain", "YoutuConfig", {**_LATENT, "q_lora_rank": None, "rope_interleave": False, "pad_token_id": None}),
    ("vaultgemma", "VaultGemmaConfig", {
        "head_dim": 20, "query_pre_attn_scalar": 20, "sliding_window": 16, "num_hidden_layers": 4,
    }),
    ("gemma4_unified_text", "Gemma4UnifiedTextConfig", {
        **_GEMMA4, "num_hidden_layers": 4, "layer_types": [*_SLIDES_THEN_FULL * 2], "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
    }),
    ("gemma4_unified", "Gemma4UnifiedConfig", {
        "text_config": {**_GEMMA4, "layer_types": _SLIDES_THEN_FULL}, "vision_config": None, "audio_config": None,
    }),
    ("phi4_multimodal", "Phi4MultimodalConfig", {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        "vision_config": {**_EYES, "crop_size": 28}, "audio_config": {
            "hidden_size": 32, "intermediate_size": 48, "num_blocks": 1, "num_attention_heads": 2, "input_size": 20,
            "ext_pw_out_channel": 32, "depthwise_separable_out_channel": 32, "nemo_conv_channels": 8,
        },
    }),
    ("minimax_m2", "MiniMaxM2Config", {
        "head_dim": 16, "num_local_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 40, "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5,
        },
    }),
    ("hunyuan_v1_moe", "HunYuanMoEV1Config", {
        "num_experts": 8, "moe_topk": 3, "head_dim": 16, "intermediate_size": 40,
    }, 45, 64, 1),
    ("hy_v3", "HYV3Config", {
        "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "attention_bias": True,
        "num_shared_experts": 2, "num_hidden_layers": 3,
    }),
    ("dots1", "Dots1Config", {
        "head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 2, "norm_topk_prob": True,
        "moe_intermediate_size": 24, "first_k_dense_replace": 1, "num_hidden_layers": 3, "sliding_window": 16,
        "max_window_layers": 2, "routed_scaling_factor": 1.5,
    }),
    ("solar_open", "SolarOpenConfig", {
        "head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
        "attention_bias": True,
    }),
    ("exaone_moe", "ExaoneMoeConfig", {
        "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "num_shared_experts": 2, "n_group": 2,
        "topk_group": 1, "num_hidden_layers": 5, "sliding_window": 16,
    }),
    ("kolibri1", "Kolibri1Config", {
        "head_dim": 16, "num_experts": 9, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 36, "num_hidden_layers": 5, "sliding_window": 16, "norm_topk_prob": True,
    }),
    ("kolibri1-one-expert", "Kolibri1Config", {
        "head_dim": 16, "num_experts": 9, "num_experts_per_tok": 1, "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 36, "sliding_window": 20, "layer_types": _SLIDES_THEN_FULL,
    }),
    ("afmoe", "AfmoeConfig", {
        "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "num_hidden_layers": 5,
        "sliding_window": 16, "mup_enabled": True, "route_scale": 1.7,
    }),
    ("granite_swa", "GraniteSWAConfig", {
        "num_hidden_layers": 5, "sliding_window": 16, "layer_rope_theta": [0, 100.0, 1e4, 100.0, 0],
        "residual_multiplier": 0.3,
    }),
    ("granitemoe_swa", "GraniteMoeSWAConfig", {
        "num_hidden_layers": 5, "sliding_window": 16, "num_local_experts": 6, "num_experts_per_tok": 2,
        "intermediate_size": 24, "shared_intermediate_size": 56, "logits_scaling": 3.0,
    }),
    ("laguna", "LagunaConfig", {
        "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "num_hidden_layers": 4,
        "sliding_window": 16, "layer_types": _SLIDES_THEN_FULL * 2, "shared_expert_intermediate_size": 40,
        "num_attention_heads_per_layer": [4, 8, 2, 4], "moe_routed_scaling_factor": 1.6, "rope_parameters": {
            "full_attention": {
                "rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0, "original_max_position_embeddings": 64,
                "partial_rotary_factor": 0.5,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
        },
    }),
    ("laguna-per-element", "LagunaConfig", {
        "head_dim": 20, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
        "gating": "per-element", "shared_expert_intermediate_size": 24, "mlp_layer_types": ["sparse", "dense"],
    }, 45, 64, 2),
    # transformers writes the three convolutions of OLMo Hybrid in equal parts, which are right for equal sizes alone
    ("olmo_hybrid", "OlmoHybridConfig", {
        "num_hidden_layers": 4, "linear_key_head_dim": 20, "linear_value_head_dim": 20,
    }, 45, 64, 2),
    ("olmo_hybrid-plain", "OlmoHybridConfig", {
        "num_hidden_layers": 3, "layer_types": ["full_attention", "linear_attention", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": None}, "linear_allow_neg_eigval": False,
        "linear_key_head_dim": 12, "linear_value_head_dim": 12, "linear_conv_kernel_dim": 3,
    }, 45, 64, 1),
    # norms before o and down, relu squared with a gate
    ("bitnet", "BitNetConfig", {}),
    ("bitnet-biases-tied", "BitNetConfig", {
        "attention_bias": True, "tie_word_embeddings": True, "num_hidden_layers": 3, "num_key_value_heads": 6,
    }),
    ("mellum", "MellumConfig", {
        "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "num_hidden_layers": 4,
        "sliding_window": 16, "layer_types": _SLIDES_THEN_FULL * 2, "mlp_layer_types": ["dense", *["sparse"] * 3],
    }),
    ("aria_text", "AriaTextConfig", {
        "moe_num_experts": 8, "moe_topk": 3, "intermediate_size": 24, "moe_num_shared_experts": 2,
    }),
    ("aria", "AriaConfig", {
        "text_config": {"moe_num_experts": 6, "moe_topk": 2, "intermediate_size": 40}, "vision_config": _EYES,
        "projector_patch_to_query_dict": {4: 4},
    }),
    ("lfm3", "Lfm3Config", {
        "head_dim": 12, "num_hidden_layers": 5, "sliding_window": 16, "layer_types": [
            "conv", "full_attention", "conv", "sliding_attention", "conv",
        ],
    }),
    ("lfm3-pre", "Lfm3Config", {
        "head_dim": 16, "num_hidden_layers": 4, "sliding_window": 16, "use_sandwich_norm": False, "conv_bias": True,
        "use_attention_gate": False, "conv_L_cache": 3, "tie_word_embeddings": False,
    }),
    ("cohere_compass_text", "CohereCompassTextConfig", {
        "head_dim": 12, "num_hidden_layers": 4, "sliding_window": 16, "attention_bias": True,
        "layer_types": _SLIDES_THEN_FULL * 2, "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 2]},
            "full_attention": {"rope_type": "default", "rope_theta": 5e5, "mrope_section": [2, 2, 2]},
        },
    }),
    # with few heads all products of a key can be negative, and keys with a score of 0 are chosen among by chance
    ("deepseek_v32", "DeepseekV32Config", {
        **_LATENT, "index_n_heads": 18, "index_head_dim": 32, "index_topk": 24, "q_lora_rank": 44,
        "n_routed_experts": 12, "num_experts_per_tok": 4, "moe_intermediate_size": 28, "n_group": 4, "topk_group": 2,
        "first_k_dense_replace": 1, "num_hidden_layers": 3, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64,
            "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
        },
    }, 45, 64, 5),
    ("glm_moe_dsa", "GlmMoeDsaConfig", {
        **_LATENT, "index_n_heads": 18, "index_head_dim": 16, "index_topk": 40, "q_lora_rank": 52,
        "n_routed_experts": 10, "num_experts_per_tok": 3, "moe_intermediate_size": 28, "num_hidden_layers": 4,
        "first_k_dense_replace": 1, "indexer_types": ["full", "full", "shared", "shared"],
    }),
    ("glm_moe_dsa-long", "GlmMoeDsaConfig", {
        **_LATENT, "index_n_heads": 18, "index_head_dim": 48, "index_topk": 1010, "q_lora_rank": 52,
        "n_routed_experts": 10, "num_experts_per_tok": 3, "moe_intermediate_size": 28, "first_k_dense_replace": 1,
        "max_position_embeddings": 1200,
    }, 1040, 3, 0),
    ("deepseek_v4", "DeepseekV4Config", {
        **_V4, "compress_rates": {_SPARSE: 4, _HEAVY: 16}, "index_topk": 6, "sliding_window": 20,
        "layer_types": ["sliding_attention", _SPARSE, _HEAVY, _SPARSE], "num_hidden_layers": 4, "num_hash_layers": 2,
    }),
    ("deepseek_v4-streams", "DeepseekV4Config", {
        **_V4, "compress_rates": {_SPARSE: 6, _HEAVY: 10}, "index_topk": 5, "sliding_window": 40, "hc_mult": 3,
        "hc_sinkhorn_iters": 3, "swiglu_limit": 0.7, "num_hidden_layers": 4, "num_hash_layers": 0, "o_groups": 1,
        "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    }),
    ("deepseek_v4-long", "DeepseekV4Config", {
        **_V4, "layer_types": [_HEAVY, _SPARSE], "index_topk": 130, "max_position_embeddings": 1200,
    }, 1040, 3, 0),
    ("flint", "FlintConfig", {
        "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "num_hidden_layers": 5,
        "sliding_window": 16, "shared_expert_intermediate_size": 40,
    }),
    ("cohere2_moe", "Cohere2MoeConfig", {
        "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 3, "num_hidden_layers": 5, "sliding_window": 16,
        "first_k_dense_replace": 1, "prefix_dense_intermediate_size": 56, "num_shared_experts": 1, "logit_scale": 0.5,
        "expert_selection_fn": "sigmoid",
    }),
    ("cohere2_moe-rms", "Cohere2MoeConfig", {
        "head_dim": 16, "num_experts": 6, "num_hidden_layers": 4, "sliding_window": 16, "rms_norm_eps": 1e-6,
        "num_shared_experts": 2, "shared_expert_combination_strategy": "sum", "intermediate_size": 40,
    }),
    ("gpt_neo", "GPTNeoConfig", {
        "num_hidden_layers": 4, "window_size": 16, "attention_types": [[["global", "local"], 2]],
    }),
    ("gpt_neo-wide", "GPTNeoConfig", {
        "num_hidden_layers": 3, "intermediate_size": 100, "attention_types": [[["local"], 1], [["global"], 2]],
        "tie_word_embeddings": False,
    }),
    ("biogpt", "BioGptConfig", {"intermediate_size": 100}),
    ("falcon", "FalconConfig", {}),
    ("falcon-alibi", "FalconConfig", {
        "alibi": True, "multi_query": False, "parallel_attn": False, "bias": True, "num_attention_heads": 8,
        "hidden_size": 80,
    }),
    ("falcon-alibi-grouped", "FalconConfig", {
        "alibi": True, "num_kv_heads": 4, "new_decoder_architecture": True, "num_attention_heads": 8,
        "hidden_size": 144,
    }),
    ("bloom", "BloomConfig", {"num_hidden_layers": 3}),
    ("bloom-untied", "BloomConfig", {"n_head": 8, "tie_word_embeddings": False}),
    ("bloom-long", "BloomConfig", {"max_position_embeddings": 600}, 560, 6, 0),
    ("mpt", "MptConfig", {}),
    ("mpt-clamped", "MptConfig", {
        "num_attention_heads": 12, "tie_word_embeddings": False, "num_hidden_layers": 3, "attn_config": {
            "clip_qkv": 1.5, "softmax_scale": 0.2,
        },
    }),
    # q, k and v fused; the rows of all experts in one tensor, those of their last matrix as columns
    ("dbrx", "DbrxConfig", {
        "d_model": 72, "attn_config": {"kv_n_heads": 2, "clip_qkv": 1.5, "rope_theta": 5e4},
        "ffn_config": {"ffn_hidden_size": 44, "moe_num_experts": 8, "moe_top_k": 3},
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e4},
    }),
    ("dbrx-plain", "DbrxConfig", {
        "d_model": 72, "attn_config": {"kv_n_heads": 3, "clip_qkv": 100, "rope_theta": 1e4}, "num_hidden_layers": 3,
        "ffn_config": {
            "ffn_hidden_size": 36, "moe_num_experts": 4, "moe_top_k": 1, "moe_normalize_expert_weights": None,
            "ffn_act_fn": {"name": "gelu"},
        },
    }),
    ("gpt_neox_japanese", "GPTNeoXJapaneseConfig", {"num_hidden_layers": 3}),
    ("gpt_neox_japanese-part", "GPTNeoXJapaneseConfig", {
        "tie_word_embeddings": False, "rotary_pct": 0.5, "rotary_emb_base": 5000, "intermediate_multiple_size": 2,
        "hidden_act": "relu",
    }),
    # norms with biases that all heads share
    ("persimmon", "PersimmonConfig", {"intermediate_size": 100, "num_hidden_layers": 3}),
    ("persimmon-plain", "PersimmonConfig", {
        "intermediate_size": 100, "qk_layernorm": False, "hidden_act": "gelu", "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 25000.0, "partial_rotary_factor": 1.0},
    }),
    # a layer and a norm between the last norm and the head, which has a bias though it is the embedding
    ("modernbert-decoder", "ModernBertDecoderConfig", {
        "intermediate_size": 100, "num_hidden_layers": 4, "local_attention": 24, "cls_token_id": 1, "sep_token_id": 2,
    }),
    ("modernbert-decoder-biases", "ModernBertDecoderConfig", {
        "intermediate_size": 100, "local_attention": 40, "norm_bias": True, "attention_bias": True, "mlp_bias": True,
        "classifier_bias": True, "classifier_activation": "relu", "tie_word_embeddings": False, "cls_token_id": 1,
        "sep_token_id": 2, "decoder_bias": False, "hidden_activation": "silu",
        "layer_types": ["sliding_attention", "full_attention"],
    }),
    ("falcon-grouped", "FalconConfig", {
        "num_kv_heads": 2, "new_decoder_architecture": True, "bias": True, "num_hidden_layers": 3,
    }),
    ("falcon-one-norm", "FalconConfig", {
        "num_kv_heads": 3, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1, "ffn_hidden_size": 100,
        "tie_word_embeddings": False,
    }),
    ("falcon-in-turn", "FalconConfig", {"multi_query": False, "parallel_attn": False, "bias": True}),
    # values narrower than keys, more key heads and sinks in windows
    ("mimo_v2_flash", "MiMoV2FlashConfig", {
        **_MIMO, "num_key_value_heads": 3, "num_hidden_layers": 7, "n_group": 4, "topk_group": 2,
    }),
    ("mimo_v2_flash-unscaled", "MiMoV2FlashConfig", {
        **_MIMO, "num_attention_heads": 8, "v_head_dim": 28, "attention_value_scale": None, "attention_bias": True,
        "norm_topk_prob": False, "routed_scaling_factor": 1.7, "num_hidden_layers": 3, "mlp_layer_types": [
            "sparse", "dense", "sparse",
        ], "layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 1.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        },
    }),
    ("axk1", "AXK1Config", {
        **_LATENT, "q_lora_rank": 52, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
        "n_group": 4, "topk_group": 2, "mlp_layer_types": ["dense", "sparse", "sparse"], "num_hidden_layers": 3,
    }),
    # blocks of keys that are chosen for each kv head, of prompts longer than all of these
    ("minimax_m3", "MiniMaxM3VLTextConfig", {
        **_M3, "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"], "index_topk_blocks": 3,
        "mlp_layer_types": ["dense", "sparse", "sparse"], "num_hidden_layers": 3, "routed_scaling_factor": 1.7,
        "max_position_embeddings": 512, "rope_parameters": _HALF,
    }, 290),
    ("minimax_m3_vl", "MiniMaxM3VLConfig", {
        "text_config": {
            **_M3, "layer_types": ["minimax_m3_sparse", "full_attention"], "index_topk_blocks": 2,
            "mlp_layer_types": ["dense", "sparse"], "rope_parameters": _HALF,
        }, "vision_config": _EYES, "projector_hidden_size": 32,
    }, 120),
    ("minimax_m3-two-local", "MiniMaxM3VLTextConfig", {
        **_M3, "layer_types": ["minimax_m3_sparse"] * 2, "index_topk_blocks": 2, "index_local_blocks": 2,
        "index_block_size": 64, "max_position_embeddings": 512, "num_local_experts": 5,
    }, 290),
    # chosen keys beside gates and sinks, of several residual streams that are not mixed
    ("hy_v4", "HYV4Config", {
        **_LATENT, **_HY, "num_hidden_layers": 4, "indexer_types": ["full", "shared", "full", "shared"],
    }),
    ("hy_v4-two-streams", "HYV4Config", {
        **_LATENT, **_HY, "num_hidden_layers": 3, "hc_mult": 2, "hc_magnitude": 1.3, "hc_eps": 1e-3,
        "swiglu_limit": 0.8, "indexer_types": ["full", "shared", "shared"], "norm_topk_prob": False,
    }),
    # two attentions in a layer, experts on a shortcut, some of which pass a row on
    ("longcat_flash", "LongcatFlashConfig", {
        **_LATENT, **_LONGCAT, "num_hidden_layers": 4, "n_routed_experts": 7, "zero_expert_num": 5, "moe_topk": 4,
    }),
    ("longcat_flash-no-zeros", "LongcatFlashConfig", {
        **_LATENT, **_LONGCAT, "num_hidden_layers": 4, "n_routed_experts": 6, "zero_expert_num": 0, "moe_topk": 2,
        "attention_bias": True, "routed_scaling_factor": 1.3, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64,
            "mscale": 1.0, "mscale_all_dim": 1.0,
        },
    }),
    ("nanochat", "NanoChatConfig", {}),
    ("nanochat-biases", "NanoChatConfig", {
        "attention_bias": True, "final_logit_softcapping": None, "num_hidden_layers": 3, "tie_word_embeddings": True,
    }),
    # lightning attention; norms that replace the residual, which is multiplied
    ("minimax", "MiniMaxConfig", {"intermediate_size": 40, "num_hidden_layers": 5, "block_size": 16}, 45, 64, 1),
    ("minimax-factors", "MiniMaxConfig", {
        "intermediate_size": 40, "num_hidden_layers": 4, "head_dim": 20, "num_experts_per_tok": 3, **{
            f"{part}_alpha_factor": 3.5 for part in ("full_attn", "linear_attn", "mlp")
        }, "full_attn_beta_factor": 0.8, "linear_attn_beta_factor": 1.3, "mlp_beta_factor": 0.9, "layer_types": [
            "linear_attention", "linear_attention", "full_attention", "linear_attention",
        ],
    }),
    # the selective scan: alone, with biases, with norms, beside attention and experts
    ("mamba", "MambaConfig", {"num_hidden_layers": 3}, 45, 64, 1),
    ("mamba-biases", "MambaConfig", {
        "use_bias": True, "use_conv_bias": False, "conv_kernel": 3, "state_size": 20, "expand": 1, "time_step_rank": 20,
        "tie_word_embeddings": False,
    }, 45, 64, 1),
    ("falcon_mamba", "FalconMambaConfig", {"num_hidden_layers": 3, "mixer_rms_eps": 1e-3}, 45, 64, 1),
    ("jamba", "JambaConfig", {
        "num_hidden_layers": 6, "attn_layer_period": 3, "attn_layer_offset": 1, "num_experts": 5, "mamba_dt_rank": 9,
        "intermediate_size": 40,
    }),
    ("jamba-dense", "JambaConfig", {
        "num_hidden_layers": 3, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 1,
        "mamba_proj_bias": True, "mamba_conv_bias": False, "tie_word_embeddings": True,
    }),
    # a shared block of attention beside layers of Mamba2, with adapters of each call
    ("zamba2", "Zamba2Config", {**_ZAMBA2, "num_mem_blocks": 2}, 45, 64, 1),
    ("zamba2-adapted", "Zamba2Config", {
        **_ZAMBA2, "use_shared_attention_adapter": True, "use_mem_rope": True, "mamba_ngroups": 2,
        "num_hidden_layers": 3, "layers_block_type": ["hybrid", "hybrid", "linear_attention"],
    }, 45, 64, 1),
    ("flex_olmo", "FlexOlmoConfig", {"num_experts_per_tok": 3, "intermediate_size": 40}),
    ("gpt_neox", "GPTNeoXConfig", {"hidden_size": 96, "intermediate_size": 100}),
    ("gpt_neox-in-turn", "GPTNeoXConfig", {
        "intermediate_size": 100, "use_parallel_residual": False, "attention_bias": False, "num_hidden_layers": 3,
        "tie_word_embeddings": True, "rope_parameters": {
            "rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0,
        },
    }),
]  # fmt: skip
