"""config.json as published for families added after the first thirteen, and for the text part of multimodal models."""

from __future__ import annotations

from typing import Any

_COMMON = {"use_cache": True, "initializer_range": 0.02, "attention_dropout": 0.0, "torch_dtype": "bfloat16"}
_QWEN_VL = {
    **_COMMON, "bos_token_id": 151643, "eos_token_id": 151645, "vision_start_token_id": 151652,
    "vision_end_token_id": 151653, "vision_token_id": 151654, "image_token_id": 151655, "video_token_id": 151656,
    "hidden_act": "silu", "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "sliding_window": 32768, "tie_word_embeddings": True, "use_sliding_window": False, "vocab_size": 151936,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
}  # fmt: skip
_GLM = {
    **_COMMON, "attention_bias": True, "eos_token_id": [151329, 151336, 151338], "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 13696, "num_attention_heads": 32, "num_hidden_layers": 40,
    "num_key_value_heads": 2, "pad_token_id": 151329, "partial_rotary_factor": 0.5, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "vocab_size": 151552,
}  # fmt: skip

DENSE: dict[str, dict[str, Any]] = {
    "AFM-4.5B": {
        **_COMMON, "architectures": ["ArceeForCausalLM"], "attention_bias": False, "bos_token_id": 128000,
        "eos_token_id": 128001, "head_dim": 128, "hidden_act": "relu2", "hidden_size": 2560,
        "intermediate_size": 18432, "max_position_embeddings": 65536, "mlp_bias": False, "model_type": "arcee",
        "num_attention_heads": 20, "num_hidden_layers": 36, "num_key_value_heads": 4, "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 20.0, "mscale": 1.0,
            "original_max_position_embeddings": 4096, "rope_type": "yarn",
        }, "rope_theta": 10000.0, "tie_word_embeddings": False, "vocab_size": 128004,
    },
    "bitnet-b1.58-2B-4T": {
        "architectures": ["BitNetForCausalLM"], "auto_map": {
            "AutoConfig": "configuration_bitnet.BitNetConfig",
            "AutoModelForCausalLM": "modeling_bitnet.BitNetForCausalLM",
        }, "bos_token_id": 128000, "eos_token_id": 128001, "hidden_act": "relu2", "hidden_size": 2560,
        "initializer_range": 0.02, "intermediate_size": 6912, "max_position_embeddings": 4096, "model_type": "bitnet",
        "num_attention_heads": 20, "num_hidden_layers": 30, "num_key_value_heads": 5, "quantization_config": {
            "linear_class": "autobitlinear", "quant_method": "bitnet", "quantization_mode": "offline",
        }, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "use_cache": True, "vocab_size": 128256,
    },
    "Seed-OSS-36B-Instruct": {
        **_COMMON, "architectures": ["SeedOssForCausalLM"], "attention_bias": True, "attention_dropout": 0.1,
        "attention_out_bias": False, "bos_token_id": 0, "eos_token_id": 2, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 5120, "intermediate_size": 27648, "max_position_embeddings": 524288, "mlp_bias": False,
        "model_type": "seed_oss", "num_attention_heads": 80, "num_hidden_layers": 64, "num_key_value_heads": 8,
        "pad_token_id": 1, "residual_dropout": 0.1, "rms_norm_eps": 1e-06, "rope_scaling": {"rope_type": "default"},
        "rope_theta": 10000000.0, "tie_word_embeddings": False, "vocab_size": 155136,
    },
    "Ministral-8B-Instruct-2410": {
        **_COMMON, "architectures": ["MinistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 12288, "layer_types": [
            *["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"] * 9
        ], "max_position_embeddings": 131072, "model_type": "ministral", "num_attention_heads": 32,
        "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 100000000.0,
        "sliding_window": 32768, "tie_word_embeddings": False, "vocab_size": 131072,
    },
    "internlm3-8b-instruct": {
        **_COMMON, "architectures": ["InternLM3ForCausalLM"], "bias": False, "bos_token_id": 1, "eos_token_id": 2,
        "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 10240,
        "max_position_embeddings": 32768, "model_type": "internlm3", "num_attention_heads": 32,
        "num_hidden_layers": 48, "num_key_value_heads": 2, "pad_token_id": 2, "qkv_bias": False,
        "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 6.0, "rope_type": "dynamic"}, "rope_theta": 50000000,
        "tie_word_embeddings": False, "vocab_size": 128512,
    },
    "helium-1-preview-2b": {
        **_COMMON, "architectures": ["HeliumForCausalLM"], "attention_bias": False, "bos_token_id": 1,
        "eos_token_id": 2, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2560, "intermediate_size": 7040,
        "max_position_embeddings": 4096, "mlp_bias": False, "model_type": "helium", "num_attention_heads": 20,
        "num_hidden_layers": 24, "num_key_value_heads": 20, "pad_token_id": 3, "rms_norm_eps": 1e-08,
        "rope_theta": 100000.0, "tie_word_embeddings": False, "vocab_size": 48000,
    },
    "glm-4-9b-chat-hf": {
        **_GLM, "architectures": ["GlmForCausalLM"], "max_position_embeddings": 131072, "model_type": "glm",
        "rms_norm_eps": 1.5625e-07,
    },
    "GLM-4-9B-0414": {
        **_GLM, "architectures": ["Glm4ForCausalLM"], "max_position_embeddings": 32768, "model_type": "glm4",
        "rms_norm_eps": 1e-05,
    },
    "gemma-2b-it": {
        **_COMMON, "architectures": ["GemmaForCausalLM"], "attention_bias": False, "bos_token_id": 2,
        "eos_token_id": 1, "head_dim": 256, "hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 2048, "intermediate_size": 16384, "max_position_embeddings": 8192, "model_type": "gemma",
        "num_attention_heads": 8, "num_hidden_layers": 18, "num_key_value_heads": 1, "pad_token_id": 0,
        "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 10000.0, "vocab_size": 256000,
    },
    "Olmo-3-7B-Instruct": {
        **_COMMON, "architectures": ["Olmo3ForCausalLM"], "attention_bias": False, "eos_token_id": 100257,
        "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 11008, "layer_types": [
            *["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"] * 8
        ], "max_position_embeddings": 65536, "model_type": "olmo3", "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 32, "pad_token_id": 100277, "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0, "factor": 8.0,
            "original_max_position_embeddings": 8192, "rope_type": "yarn",
        }, "rope_theta": 500000, "sliding_window": 4096, "tie_word_embeddings": False, "vocab_size": 100278,
    },
    "EXAONE-4.0-32B": {
        **_COMMON, "architectures": ["Exaone4ForCausalLM"], "bos_token_id": 1, "eos_token_id": 361, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 27392, "layer_types": [
            *["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"] * 16
        ], "max_position_embeddings": 131072, "model_type": "exaone4", "num_attention_heads": 40,
        "num_hidden_layers": 64, "num_key_value_heads": 8, "pad_token_id": 0, "rms_norm_eps": 1e-05, "rope_scaling": {
            "factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        }, "rope_theta": 1000000, "sliding_window": 4096, "sliding_window_pattern": "LLLG",
        "tie_word_embeddings": False, "vocab_size": 102400,
    },
    "starcoder2-3b": {
        **_COMMON, "activation_function": "gelu", "architectures": ["Starcoder2ForCausalLM"],
        "attention_dropout": 0.1, "attention_softmax_in_fp32": True, "bos_token_id": 0, "embedding_dropout": 0.1,
        "eos_token_id": 0, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 3072,
        "initializer_range": 0.018042195912175804, "intermediate_size": 12288, "layer_norm_epsilon": 1e-05,
        "max_position_embeddings": 16384, "mlp_type": "default", "model_type": "starcoder2", "norm_epsilon": 1e-05,
        "norm_type": "layer_norm", "num_attention_heads": 24, "num_hidden_layers": 30, "num_key_value_heads": 2,
        "residual_dropout": 0.1, "rope_theta": 999999.4420358813, "scale_attention_softmax_in_fp32": True,
        "scale_attn_weights": True, "sliding_window": 4096, "use_bias": True, "vocab_size": 49152,
    },
    "Minitron-4B-Base": {
        **_COMMON, "architectures": ["NemotronForCausalLM"], "attention_bias": False, "bos_token_id": 2,
        "eos_token_id": 3, "head_dim": 128, "hidden_act": "relu2", "hidden_size": 3072, "initializer_range": 0.0134,
        "intermediate_size": 9216, "max_position_embeddings": 4096, "mlp_bias": False, "model_type": "nemotron",
        "norm_eps": 1e-05, "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "partial_rotary_factor": 0.5, "rope_theta": 10000.0, "tie_word_embeddings": False, "vocab_size": 256000,
    },
    "Mistral-Small-3.1-24B-Instruct-2503": {
        "architectures": ["Mistral3ForConditionalGeneration"], "image_token_index": 10, "model_type": "mistral3",
        "multimodal_projector_bias": False, "projector_hidden_act": "gelu", "spatial_merge_size": 2, "text_config": {
            **_COMMON, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 32768,
            "max_position_embeddings": 131072, "model_type": "mistral", "num_attention_heads": 32,
            "num_hidden_layers": 40, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000000.0,
            "sliding_window": None, "vocab_size": 131072,
        }, "torch_dtype": "bfloat16", "vision_config": {
            "attention_dropout": 0.0, "head_dim": 64, "hidden_act": "silu", "hidden_size": 1024, "image_size": 1540,
            "intermediate_size": 4096, "model_type": "pixtral", "num_attention_heads": 16, "num_channels": 3,
            "num_hidden_layers": 24, "patch_size": 14, "rope_theta": 10000.0,
        }, "vision_feature_layer": -1,
    },
    "Qwen2-VL-2B-Instruct": {
        **_QWEN_VL, "architectures": ["Qwen2VLForConditionalGeneration"], "hidden_size": 1536,
        "intermediate_size": 8960, "max_position_embeddings": 32768, "max_window_layers": 28,
        "model_type": "qwen2_vl", "num_attention_heads": 12, "num_hidden_layers": 28, "vision_config": {
            "depth": 32, "embed_dim": 1280, "hidden_size": 1536, "in_chans": 3, "mlp_ratio": 4, "num_heads": 16,
            "patch_size": 14, "spatial_merge_size": 2, "spatial_patch_size": 14, "temporal_patch_size": 2,
        },
    },
    "Qwen2.5-VL-3B-Instruct": {
        **_QWEN_VL, "architectures": ["Qwen2_5_VLForConditionalGeneration"], "hidden_size": 2048,
        "intermediate_size": 11008, "max_position_embeddings": 128000, "max_window_layers": 70,
        "model_type": "qwen2_5_vl", "num_attention_heads": 16, "num_hidden_layers": 36, "vision_config": {
            "depth": 32, "fullatt_block_indexes": [7, 15, 23, 31], "hidden_act": "silu", "hidden_size": 1280,
            "in_chans": 3, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 2048, "patch_size": 14,
            "spatial_merge_size": 2, "spatial_patch_size": 14, "temporal_patch_size": 2, "tokens_per_second": 2,
            "window_size": 112,
        },
    },
    "Qwen3-VL-2B-Instruct": {
        "architectures": ["Qwen3VLForConditionalGeneration"], "image_token_id": 151655, "model_type": "qwen3_vl",
        "text_config": {
            "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643, "dtype": "bfloat16",
            "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
            "initializer_range": 0.02, "intermediate_size": 6144, "max_position_embeddings": 262144,
            "model_type": "qwen3_vl_text", "num_attention_heads": 16, "num_hidden_layers": 28,
            "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": {
                "mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default",
            }, "rope_theta": 5000000, "tie_word_embeddings": True, "use_cache": True, "vocab_size": 151936,
        }, "tie_word_embeddings": True, "video_token_id": 151656, "vision_config": {
            "deepstack_visual_indexes": [5, 11, 17], "depth": 24, "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": 1024, "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 4096,
            "model_type": "qwen3_vl", "num_heads": 16, "num_position_embeddings": 2304, "out_hidden_size": 2048,
            "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2,
        }, "vision_end_token_id": 151653, "vision_start_token_id": 151652,
    },
    "Qwen3-VL-30B-A3B-Instruct": {
        "architectures": ["Qwen3VLMoeForConditionalGeneration"], "image_token_id": 151655,
        "model_type": "qwen3_vl_moe", "text_config": {
            "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643, "decoder_sparse_step": 1,
            "dtype": "bfloat16", "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
            "initializer_range": 0.02, "intermediate_size": 6144, "max_position_embeddings": 262144,
            "mlp_only_layers": [], "model_type": "qwen3_vl_moe_text", "moe_intermediate_size": 768,
            "norm_topk_prob": True, "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
            "num_hidden_layers": 48, "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_scaling": {
                "mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default",
            }, "rope_theta": 5000000, "use_cache": True, "vocab_size": 151936,
        }, "tie_word_embeddings": False, "video_token_id": 151656, "vision_end_token_id": 151653,
        "vision_start_token_id": 151652,
    },
}  # fmt: skip
