"""config.json of published models with latent attention, as they were on the hub."""

from __future__ import annotations

from typing import Any

_FACTORS = [
    1.0591234137867171, 1.1241891283591912, 1.2596935748670968, 1.5380380402321725, 2.093982484148734,
    3.1446935121267696, 4.937952647693647, 7.524541999994549, 10.475458000005451, 13.062047352306353,
    14.85530648787323, 15.906017515851266, 16.461961959767827, 16.740306425132907, 16.87581087164081,
    16.940876586213285,
]  # fmt: skip

_GLM_5: dict[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "dtype": "bfloat16",
    "eos_token_id": [154820, 154827, 154829], "ep_size": 1, "first_k_dense_replace": 3, "head_dim": 64,
    "hidden_act": "silu", "hidden_size": 6144, "index_head_dim": 128, "index_n_heads": 32, "index_topk": 2048,
    "indexer_rope_interleave": True, "initializer_range": 0.02, "intermediate_size": 12288, "kv_lora_rank": 512,
    "max_position_embeddings": 202752, "model_type": "glm_moe_dsa", "moe_intermediate_size": 2048,
    "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": True,
    "num_attention_heads": 64, "num_experts_per_tok": 8, "num_hidden_layers": 78, "num_key_value_heads": 64,
    "num_nextn_predict_layers": 1, "pad_token_id": 154820, "pretraining_tp": 1, "q_lora_rank": 2048,
    "qk_head_dim": 256, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05,
    "rope_interleave": True, "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
    "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "tie_word_embeddings": False, "topk_group": 1,
    "topk_method": "noaux_tc", "transformers_version": "5.0.2.dev0", "use_cache": True, "v_head_dim": 256,
    "vocab_size": 154880,
}  # fmt: skip

LATENT: dict[str, dict[str, Any]] = {
    "DeepSeek-V2-Lite": {
        "architectures": ["DeepseekV2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "aux_loss_alpha": 0.001, "bos_token_id": 100000, "eos_token_id": 100001, "ep_size": 1,
        "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
        "intermediate_size": 10944, "kv_lora_rank": 512, "max_position_embeddings": 163840,
        "model_type": "deepseek_v2", "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1,
        "n_routed_experts": 64, "n_shared_experts": 2, "norm_topk_prob": False, "num_attention_heads": 16,
        "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16, "pretraining_tp": 1,
        "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
            "original_max_position_embeddings": 4096, "type": "yarn",
        },
        "rope_theta": 10000, "routed_scaling_factor": 1.0, "scoring_func": "softmax", "seq_aux": True,
        "tie_word_embeddings": False, "topk_group": 1, "topk_method": "greedy", "torch_dtype": "bfloat16",
        "transformers_version": "4.33.1", "use_cache": True, "v_head_dim": 128, "vocab_size": 102400,
    },
    "LongCat-Flash-Chat": {
        "architectures": ["LongcatFlashForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "attention_method": "MLA", "bos_token_id": 1, "eos_token_id": 2, "expert_ffn_hidden_size": 2048,
        "ffn_hidden_size": 12288, "hidden_size": 6144, "initializer_range": 0.006, "kv_lora_rank": 512,
        "max_position_embeddings": 131072, "mla_scale_kv_lora": True, "mla_scale_q_lora": True,
        "model_type": "longcat_flash", "moe_topk": 12, "n_routed_experts": 512, "norm_topk_prob": False,
        "num_attention_heads": 64, "num_layers": 28, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05, "rope_theta": 10000000.0, "routed_scaling_factor": 6.0,
        "router_bias": False, "router_dtype": "float32", "torch_dtype": "bfloat16", "use_cache": True,
        "v_head_dim": 128, "vocab_size": 131072, "zero_expert_num": 256, "zero_expert_type": "identity",
    },
    "DeepSeek-V3": {
        "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu",
        "hidden_size": 7168, "initializer_range": 0.02, "intermediate_size": 18432, "kv_lora_rank": 512,
        "max_position_embeddings": 163840, "model_type": "deepseek_v3", "moe_intermediate_size": 2048,
        "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": True,
        "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
        "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "quantization_config": {
            "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128],
        },
        "rms_norm_eps": 1e-06, "rope_scaling": {
            "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096, "type": "yarn",
        },
        "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "tie_word_embeddings": False,
        "topk_group": 4, "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "transformers_version": "4.33.1",
        "use_cache": True, "v_head_dim": 128, "vocab_size": 129280,
    },
    "DeepSeek-V3.2-Exp": {
        "architectures": ["DeepseekV32ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu",
        "hidden_size": 7168, "index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048,
        "initializer_range": 0.02, "intermediate_size": 18432, "kv_lora_rank": 512,
        "max_position_embeddings": 163840, "model_type": "deepseek_v32", "moe_intermediate_size": 2048,
        "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": True,
        "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
        "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "quantization_config": {
            "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0",
            "weight_block_size": [128, 128],
        },
        "rms_norm_eps": 1e-06, "rope_scaling": {
            "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096, "type": "yarn",
        },
        "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "tie_word_embeddings": False,
        "topk_group": 4, "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "transformers_version": "4.44.2",
        "use_cache": True, "v_head_dim": 128, "vocab_size": 129280,
    },
    "DeepSeek-V4-Flash": {  # sizes as in the tests of other engines; the last ratio is of the layer behind the model's
        "architectures": ["DeepseekV4ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 0, "compress_ratios": [0, 0, *(4, 128) * 20, 4, 0], "compress_rope_theta": 160000,
        "eos_token_id": 1, "expert_dtype": "fp4", "hc_eps": 1e-06, "hc_mult": 4, "hc_sinkhorn_iters": 20,
        "head_dim": 512, "hidden_act": "silu", "hidden_size": 4096, "index_head_dim": 128, "index_n_heads": 64,
        "index_topk": 512, "initializer_range": 0.02, "max_position_embeddings": 1048576,
        "model_type": "deepseek_v4", "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
        "norm_topk_prob": True, "num_attention_heads": 64, "num_experts_per_tok": 6, "num_hash_layers": 3,
        "num_hidden_layers": 43, "num_key_value_heads": 1, "num_nextn_predict_layers": 1, "o_groups": 8,
        "o_lora_rank": 1024, "q_lora_rank": 1024, "qk_rope_head_dim": 64, "quantization_config": {
            "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0",
            "weight_block_size": [128, 128],
        },
        "rms_norm_eps": 1e-06, "rope_scaling": {
            "beta_fast": 32, "beta_slow": 1, "factor": 16, "original_max_position_embeddings": 65536, "type": "yarn",
        },
        "rope_theta": 10000, "routed_scaling_factor": 1.5, "scoring_func": "sqrtsoftplus", "sliding_window": 128,
        "swiglu_limit": 10.0, "tie_word_embeddings": False, "topk_method": "noaux_tc", "torch_dtype": "bfloat16",
        "use_cache": True, "vocab_size": 129280,
    },
    "GLM-5": _GLM_5,
    "GLM-5.2": _GLM_5 | {  # three layers in four see the keys that the one before them has chosen
        "head_dim": 192, "index_share_for_mtp_iteration": True, "index_skip_topk_offset": 3, "index_topk_freq": 4,
        "index_topk_pattern": None, "indexer_types": [
            "full" if i < 3 or i % 4 == 2 else "shared" for i in range(78)
        ], "max_position_embeddings": 1048576, "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 75,
        "moe_router_dtype": "float32", "rope_parameters": {"rope_theta": 8000000, "rope_type": "default"},
        "transformers_version": "5.12.0",
    },
    "GLM-4.7-Flash": {
        "architectures": ["Glm4MoeLiteForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "dtype": "bfloat16", "eos_token_id": [154820, 154827, 154829], "first_k_dense_replace": 1,
        "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 10240, "kv_lora_rank": 512,
        "max_position_embeddings": 202752, "model_type": "glm4_moe_lite", "moe_intermediate_size": 1536, "n_group": 1,
        "n_routed_experts": 64, "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 20,
        "num_experts_per_tok": 4, "num_hidden_layers": 47, "num_key_value_heads": 20, "num_nextn_predict_layers": 1,
        "pad_token_id": 154820, "partial_rotary_factor": 1.0, "q_lora_rank": 768, "qk_nope_head_dim": 192,
        "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 1000000,
        "routed_scaling_factor": 1.8, "tie_word_embeddings": False, "topk_group": 1, "topk_method": "noaux_tc",
        "transformers_version": "5.0.0rc0", "v_head_dim": 256, "vocab_size": 154880,
    },
    "Kimi-Linear-48B-A3B-Instruct": {
        "architectures": ["KimiLinearForCausalLM"], "auto_map": {
            "AutoConfig": "configuration_kimi.KimiLinearConfig", "AutoModel": "modeling_kimi.KimiLinearModel",
            "AutoModelForCausalLM": "modeling_kimi.KimiLinearForCausalLM",
        }, "bos_token_id": 163584, "dtype": "bfloat16", "eos_token_id": 163586, "first_k_dense_replace": 1,
        "head_dim": 72, "hidden_act": "silu", "hidden_size": 2304, "initializer_range": 0.02,
        "intermediate_size": 9216, "kv_lora_rank": 512, "linear_attn_config": {
            "full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "kda_layers": [
                1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26,
            ], "num_heads": 32, "short_conv_kernel_size": 4,
        }, "mla_use_nope": True, "model_max_length": 1048576, "model_type": "kimi_linear",
        "moe_intermediate_size": 1024, "moe_layer_freq": 1, "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid", "num_attention_heads": 32, "num_expert_group": 1, "num_experts": 256,
        "num_experts_per_token": 8, "num_hidden_layers": 27, "num_key_value_heads": 32,
        "num_nextn_predict_layers": 0, "num_shared_experts": 1, "pad_token_id": 163839, "q_lora_rank": None,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05, "rope_scaling": None,
        "rope_theta": 10000.0, "routed_scaling_factor": 2.446, "tie_word_embeddings": False,
        "tokenizer_class": "TikTokenTokenizer", "topk_group": 1, "transformers_version": "4.57.1", "use_cache": True,
        "use_grouped_topk": True, "v_head_dim": 128, "vocab_size": 163840,
    },
    "MiniCPM3-4B": {
        "architectures": ["MiniCPM3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1,
        "dim_model_base": 256, "eos_token_id": [2, 73440], "hidden_act": "silu", "hidden_size": 2560,
        "initializer_range": 0.1, "intermediate_size": 6400, "kv_lora_rank": 256, "max_position_embeddings": 32768,
        "model_type": "minicpm3", "num_attention_heads": 40, "num_hidden_layers": 62, "num_key_value_heads": 40,
        "pad_token_id": 2, "q_lora_rank": 768, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "long_factor": _FACTORS, "original_max_position_embeddings": 32768, "short_factor": _FACTORS,
            "type": "longrope",
        },
        "scale_depth": 1.4, "scale_emb": 12, "torch_dtype": "bfloat16", "transformers_version": "4.41.0",
        "use_cache": True, "vocab_size": 73448,
    },
}  # fmt: skip
