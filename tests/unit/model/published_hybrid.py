"""config.json of published models whose layers keep states, as they were on the hub."""

from __future__ import annotations

from typing import Any

# Qwen3.5's and Qwen3-Next's layers.
_DELTA: dict[str, Any] = {
    "attention_bias": False, "attention_dropout": 0.0, "full_attention_interval": 4, "head_dim": 256,
    "hidden_act": "silu", "initializer_range": 0.02, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_num_key_heads": 16, "linear_value_head_dim": 128, "max_position_embeddings": 262144, "mlp_only_layers": [],
    "rms_norm_eps": 1e-06, "use_cache": True,
}  # fmt: skip
_QWEN35: dict[str, Any] = {
    **_DELTA, "attn_output_gate": True, "dtype": "bfloat16", "eos_token_id": 248044, "mamba_ssm_dtype": "float32",
    "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False, "vocab_size": 248320, "rope_parameters": {
        "mrope_interleaved": True, "mrope_section": [11, 11, 10], "rope_type": "default", "rope_theta": 10000000,
        "partial_rotary_factor": 0.25,
    },
}  # fmt: skip
_EXPERTS: dict[str, Any] = {
    "hidden_size": 2048, "linear_num_value_heads": 32, "moe_intermediate_size": 512, "num_attention_heads": 16,
    "num_key_value_heads": 2, "output_router_logits": False, "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 512,
}  # fmt: skip
_TOKENS: dict[str, Any] = {
    "image_token_id": 248056, "video_token_id": 248057, "vision_start_token_id": 248053, "vision_end_token_id": 248054,
}  # fmt: skip


def _three_of_four(layers: int) -> list[str]:
    return ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(layers)]


_ZAMBA_CALLS = [6, *range(11, 78, 6)]  # layers with a call of a shared block

_RECURRENT_GEMMA: dict[str, Any] = {
    "architectures": ["RecurrentGemmaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "attention_window_size": 2048, "block_types": ["recurrent", "recurrent", "attention"], "bos_token_id": 2,
    "conv1d_width": 4, "embeddings_scale_by_sqrt_dim": True, "eos_token_id": 1,
    "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "logits_soft_cap": 30.0,
    "model_type": "recurrent_gemma", "num_key_value_heads": 1, "pad_token_id": 0, "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 256000,
    "w_init_variance_scale": 0.01,
}  # fmt: skip

HYBRID: dict[str, dict[str, Any]] = {
    "LFM3-1.7B": {
        "architectures": ["Lfm3ForCausalLM"], "attention_bias": False, "bos_token_id": 124894, "conv_L_cache": 7,
        "conv_bias": False, "dtype": "bfloat16", "eos_token_id": 124900, "head_dim": 128, "hidden_size": 2048,
        "intermediate_size": 7680, "max_position_embeddings": 128000, "model_type": "lfm3", "norm_eps": 1e-05,
        "num_attention_heads": 16, "num_hidden_layers": 24, "num_key_value_heads": 4, "pad_token_id": 124893,
        "layer_types": ["conv", "conv", *(
            ["full_attention", "conv", "sliding_attention", "conv"] * 6
        )[:22]], "rope_parameters": {
            "full_attention": {"partial_rotary_factor": 0.5, "rope_theta": 1000000.0, "rope_type": "proportional"},
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
        }, "sliding_window": 256, "tie_word_embeddings": True, "use_attention_gate": True, "use_sandwich_norm": True,
        "vocab_size": 128000,
    },
    "Olmo-Hybrid-7B": {  # the values of transformers' class, whose source is this model
        "architectures": ["OlmoHybridForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": None, "dtype": "bfloat16", "eos_token_id": 100257, "hidden_act": "silu", "hidden_size": 3840,
        "initializer_range": 0.02, "intermediate_size": 11008, "layer_types": _three_of_four(32),
        "linear_a_log_max": 16.0, "linear_a_log_min": 0.0, "linear_allow_neg_eigval": True,
        "linear_conv_kernel_dim": 4, "linear_dt_init_floor": 0.0001, "linear_dt_max": 0.1, "linear_dt_min": 0.001,
        "linear_key_head_dim": 96, "linear_num_key_heads": 30, "linear_num_value_heads": 30,
        "linear_value_head_dim": 192, "max_position_embeddings": 65536, "model_type": "olmo_hybrid",
        "num_attention_heads": 30, "num_hidden_layers": 32, "num_key_value_heads": 30, "pad_token_id": 100277,
        "rms_norm_eps": 1e-06, "rope_parameters": {"rope_theta": None, "rope_type": "default"},
        "tie_word_embeddings": False, "use_cache": True, "vocab_size": 100352,
    },
    "LFM2-1.2B": {
        "architectures": ["Lfm2ForCausalLM"], "block_auto_adjust_ff_dim": True, "block_dim": 2048,
        "block_ff_dim": 12288, "block_ffn_dim_multiplier": 1.0, "block_mlp_init_scale": 1.0, "block_multiple_of": 256,
        "block_norm_eps": 1e-05, "block_out_init_scale": 1.0, "block_use_swiglu": True, "block_use_xavier_init": True,
        "bos_token_id": 1, "conv_L_cache": 3, "conv_bias": False, "conv_dim": 2048, "conv_dim_out": 2048,
        "conv_use_xavier_init": True, "eos_token_id": 7, "full_attn_idxs": [2, 5, 8, 10, 12, 14], "hidden_size": 2048,
        "initializer_range": 0.02, "max_position_embeddings": 128000, "model_type": "lfm2", "norm_eps": 1e-05,
        "num_attention_heads": 32, "num_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
        "pad_token_id": 0, "rope_theta": 1000000.0, "theta": 1000000.0, "tie_embedding": True,
        "torch_dtype": "bfloat16", "transformers_version": "4.54.0.dev0", "use_cache": True, "use_pos_enc": True,
        "vocab_size": 65536,
    },
    "LFM2-8B-A1B": {
        "architectures": ["Lfm2MoeForCausalLM"], "bos_token_id": 1, "conv_L_cache": 3, "conv_bias": False,
        "dtype": "bfloat16", "eos_token_id": 7, "hidden_size": 2048, "initializer_range": 0.02,
        "intermediate_size": 7168, "layer_types": [
            "conv", "conv", "full_attention", "conv", "conv", "conv", "full_attention", "conv", "conv", "conv",
            "full_attention", "conv", "conv", "conv", "full_attention", "conv", "conv", "conv", "full_attention",
            "conv", "conv", "full_attention", "conv", "conv",
        ], "max_position_embeddings": 128000, "model_type": "lfm2_moe",
        "moe_intermediate_size": 1792, "norm_eps": 1e-05,
        "norm_topk_prob": True, "num_attention_heads": 32, "num_dense_layers": 2, "num_experts": 32,
        "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8, "pad_token_id": 0,
        "rope_theta": 1000000.0, "routed_scaling_factor": 1.0, "tie_word_embeddings": True,
        "transformers_version": "4.57.0.dev0", "use_cache": True, "use_expert_bias": True, "vocab_size": 65536,
    },
    "granite-4.0-h-tiny": {
        "architectures": ["GraniteMoeHybridForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "attention_multiplier": 0.0078125, "bos_token_id": 100257, "embedding_multiplier": 12, "eos_token_id": 100257,
        "hidden_act": "silu", "hidden_size": 1536, "init_method": "mup", "initializer_range": 0.1,
        "intermediate_size": 512, "layer_types": [
            "attention" if i in (5, 15, 25, 35) else "mamba" for i in range(40)
        ], "logits_scaling": 6, "mamba_chunk_size": 256, "mamba_conv_bias": True, "mamba_d_conv": 4,
        "mamba_d_head": 64, "mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 48,
        "mamba_proj_bias": False, "max_position_embeddings": 131072, "model_type": "granitemoehybrid",
        "normalization_function": "rmsnorm", "num_attention_heads": 12, "num_experts_per_tok": 6,
        "num_hidden_layers": 40, "num_key_value_heads": 4, "num_local_experts": 64, "output_router_logits": False,
        "pad_token_id": 100256, "position_embedding_type": "nope", "residual_multiplier": 0.22, "rms_norm_eps": 1e-05,
        "rope_scaling": None, "rope_theta": 10000, "router_aux_loss_coef": 0.01, "shared_intermediate_size": 1024,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.56.0", "use_cache": True,
        "vocab_size": 100352,
    },
    "Bamba-9B-v2": {
        "architectures": ["BambaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "attn_layer_indices": [9, 18, 27], "attn_rotary_emb": 64, "bos_token_id": 128000, "eos_token_id": 128001,
        "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
        "mamba_chunk_size": 256, "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_head": 64,
        "mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 128,
        "mamba_proj_bias": False, "max_position_embeddings": 262144, "mlp_bias": False, "model_type": "bamba",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "num_logits_to_keep": 1,
        "pad_token_id": 0, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.48.0.dev0",
        "use_cache": True, "vocab_size": 128256, "z_loss_coefficient": 0.0,
    },
    "Falcon-H1-0.5B-Instruct": {
        "architectures": ["FalconH1ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "attention_in_multiplier": 1.0, "attention_out_multiplier": 0.9375, "attn_layer_indices": None,
        "bos_token_id": 1, "embedding_multiplier": 5.656854249492381, "eos_token_id": 11, "head_dim": 64,
        "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 2048,
        "key_multiplier": 0.39062499999999994, "lm_head_multiplier": 0.0390625, "mamba_chunk_size": 128,
        "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_head": 64, "mamba_d_ssm": 1536, "mamba_d_state": 128,
        "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 24, "mamba_norm_before_gate": False,
        "mamba_proj_bias": False, "mamba_rms_norm": False, "mamba_use_mlp": True, "max_position_embeddings": 16384,
        "mlp_bias": False, "mlp_expansion_factor": 8, "mlp_multipliers": [0.8838834764831844, 0.5859375],
        "model_type": "falcon_h1", "num_attention_heads": 8, "num_hidden_layers": 36, "num_key_value_heads": 2,
        "num_logits_to_keep": 1, "pad_token_id": 0, "projectors_bias": False, "rms_norm_eps": 1e-05,
        "rope_scaling": None, "rope_theta": 100000000000.0, "ssm_in_multiplier": 1.25, "ssm_multipliers": [
            0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.3535533905932738,
        ], "ssm_out_multiplier": 0.23570226039551587, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "transformers_version": "4.52.0.dev0", "use_cache": True, "vocab_size": 32784,
    },
    "Nemotron-H-8B-Base-8K": {
        "architectures": ["NemotronHForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "attention_head_dim": 128, "auto_map": {"AutoConfig": "configuration_nemotron_h.NemotronHConfig"},
        "bos_token_id": 1, "chunk_size": 128, "conv_kernel": 4, "eos_token_id": 2, "expand": 2, "hidden_dropout": 0.0,
        "hidden_size": 4096,
        "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
        "initializer_range": 0.02, "intermediate_size": 21504, "layer_norm_epsilon": 1e-05, "mamba_head_dim": 64,
        "mamba_hidden_act": "silu", "mamba_num_heads": 128, "mamba_proj_bias": False,
        "max_position_embeddings": 8192, "mlp_bias": False, "mlp_hidden_act": "relu2", "model_type": "nemotron_h",
        "n_groups": 8, "num_attention_heads": 32, "num_hidden_layers": 52, "num_key_value_heads": 8,
        "num_logits_to_keep": 1, "pad_token_id": 0, "rescale_prenorm_residual": True, "residual_in_fp32": False,
        "rms_norm_eps": 1e-05, "sliding_window": None, "ssm_state_size": 128, "tie_word_embeddings": False,
        "time_step_floor": 0.0001, "time_step_limit": [0.0, float("inf")], "time_step_max": 0.1,
        "time_step_min": 0.001, "torch_dtype": "bfloat16", "transformers_version": "4.48.0.dev0", "use_bias": False,
        "use_cache": True, "use_conv_bias": True, "use_mamba_kernels": True, "vocab_size": 131072,
    },
    "Mamba-Codestral-7B-v0.1": {
        "architectures": ["Mamba2ForCausalLM"], "bos_token_id": 0, "chunk_size": 256, "conv_kernel": 4,
        "eos_token_id": 0, "expand": 2, "head_dim": 64, "hidden_act": "silu", "hidden_size": 4096,
        "initializer_range": 0.1, "intermediate_size": 8192, "layer_norm_epsilon": 1e-05, "model_type": "mamba2",
        "n_groups": 8, "norm_before_gate": True, "num_heads": 128, "num_hidden_layers": 64, "pad_token_id": 0,
        "rescale_prenorm_residual": False, "residual_in_fp32": True, "rms_norm": True, "state_size": 128,
        "tie_word_embeddings": False, "time_step_floor": 0.0001, "time_step_init_scheme": "random",
        "time_step_limit": [0.0, float("inf")], "time_step_max": 0.1, "time_step_min": 0.001, "time_step_rank": 256,
        "time_step_scale": 1.0, "torch_dtype": "bfloat16", "transformers_version": "4.44.0.dev0", "use_bias": False,
        "use_cache": True, "use_conv_bias": True, "vocab_size": 32768,
    },
    "granite-4.0-h-micro": {
        "architectures": ["GraniteMoeHybridForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "attention_multiplier": 0.015625, "bos_token_id": 100257, "embedding_multiplier": 12, "eos_token_id": 100257,
        "hidden_act": "silu", "hidden_size": 2048, "init_method": "mup", "initializer_range": 0.1,
        "intermediate_size": 8192, "layer_types": [
            "attention" if i in (5, 15, 25, 35) else "mamba" for i in range(40)
        ], "logits_scaling": 8, "mamba_chunk_size": 256, "mamba_conv_bias": True, "mamba_d_conv": 4,
        "mamba_d_head": 64, "mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 64,
        "mamba_proj_bias": False, "max_position_embeddings": 131072, "model_type": "granitemoehybrid",
        "normalization_function": "rmsnorm", "num_attention_heads": 32, "num_experts_per_tok": 0,
        "num_hidden_layers": 40, "num_key_value_heads": 8, "num_local_experts": 0, "output_router_logits": False,
        "pad_token_id": 100256, "position_embedding_type": "nope", "residual_multiplier": 0.22, "rms_norm_eps": 1e-05,
        "rope_scaling": None, "rope_theta": 10000, "router_aux_loss_coef": 0.01, "shared_intermediate_size": 8192,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.56.0", "use_cache": True,
        "vocab_size": 100352,
    },
    "Qwen3-Next-80B-A3B-Instruct": {
        **_DELTA, **_EXPERTS, "architectures": ["Qwen3NextForCausalLM"], "bos_token_id": 151643,
        "decoder_sparse_step": 1, "eos_token_id": 151645, "intermediate_size": 5120, "model_type": "qwen3_next",
        "norm_topk_prob": True, "num_experts": 512, "num_experts_per_tok": 10, "num_hidden_layers": 48,
        "partial_rotary_factor": 0.25, "rope_scaling": None, "rope_theta": 10000000, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "transformers_version": "4.57.0.dev0", "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "Qwen3.5-0.8B": {
        **_TOKENS, "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
        "tie_word_embeddings": True, "text_config": {
            **_QWEN35, "hidden_size": 1024, "intermediate_size": 3584, "layer_types": _three_of_four(24),
            "linear_num_value_heads": 16, "model_type": "qwen3_5_text", "num_attention_heads": 8,
            "num_hidden_layers": 24, "num_key_value_heads": 2, "tie_word_embeddings": True,
        },
    },
    "Qwen3.5-27B, its text part alone": {
        **_QWEN35, "architectures": ["Qwen3_5ForCausalLM"], "hidden_size": 5120, "intermediate_size": 17408,
        "layer_types": _three_of_four(64), "linear_num_value_heads": 48, "model_type": "qwen3_5_text",
        "num_attention_heads": 24, "num_hidden_layers": 64, "num_key_value_heads": 4, "tie_word_embeddings": False,
    },
    "Qwen3.5-35B-A3B": {
        **_TOKENS, "architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe",
        "tie_word_embeddings": False, "text_config": {
            **_QWEN35, **_EXPERTS, "layer_types": _three_of_four(40), "model_type": "qwen3_5_moe_text",
            "num_experts": 256, "num_experts_per_tok": 8, "num_hidden_layers": 40, "tie_word_embeddings": False,
        },
    },
    "Qwen3.5-35B-A3B, its text part alone": {
        **_QWEN35, **_EXPERTS, "architectures": ["Qwen3_5MoeForCausalLM"], "layer_types": _three_of_four(40),
        "model_type": "qwen3_5_moe_text", "num_experts": 256, "num_experts_per_tok": 8, "num_hidden_layers": 40,
        "tie_word_embeddings": False,
    },
    "mamba-2.8b-hf": {
        "architectures": ["MambaForCausalLM"], "bos_token_id": 0, "conv_kernel": 4, "d_inner": 5120, "d_model": 2560,
        "eos_token_id": 0, "expand": 2, "fused_add_norm": True, "hidden_act": "silu", "hidden_size": 2560,
        "initializer_range": 0.1, "intermediate_size": 5120, "layer_norm_epsilon": 1e-05, "model_type": "mamba",
        "n_layer": 64, "num_hidden_layers": 64, "pad_token_id": 0, "pad_vocab_size_multiple": 8,
        "rescale_prenorm_residual": False, "residual_in_fp32": True, "rms_norm": True, "ssm_cfg": {}, "state_size": 16,
        "time_step_floor": 0.0001, "time_step_init_scheme": "random", "time_step_max": 0.1, "time_step_min": 0.001,
        "time_step_rank": 160, "time_step_scale": 1.0, "torch_dtype": "float32",
        "transformers_version": "4.39.0.dev0", "use_bias": False, "use_cache": True, "use_conv_bias": True,
        "vocab_size": 50280,
    },
    "falcon-mamba-7b": {
        "architectures": ["FalconMambaForCausalLM"], "bos_token_id": 0, "conv_kernel": 4, "eos_token_id": 11,
        "expand": 16, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.1, "intermediate_size": 8192,
        "layer_norm_epsilon": 1e-05, "mixer_rms_eps": 1e-06, "model_type": "falcon_mamba", "num_hidden_layers": 64,
        "pad_token_id": 11, "rescale_prenorm_residual": False, "residual_in_fp32": True, "state_size": 16,
        "tie_word_embeddings": False, "time_step_floor": 0.0001, "time_step_init_scheme": "random",
        "time_step_max": 0.1, "time_step_min": 0.001, "time_step_rank": 256, "time_step_scale": 1.0,
        "torch_dtype": "bfloat16", "transformers_version": "4.43.0.dev0", "use_bias": False, "use_cache": True,
        "use_conv_bias": True, "use_mambapy": False, "vocab_size": 65024,
    },
    "Jamba-v0.1": {
        "architectures": ["JambaForCausalLM"], "attention_dropout": 0.0, "attn_layer_offset": 4,
        "attn_layer_period": 8, "bos_token_id": 1, "eos_token_id": 2, "expert_layer_offset": 1,
        "expert_layer_period": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
        "intermediate_size": 14336, "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_state": 16,
        "mamba_dt_rank": 256, "mamba_expand": 2, "mamba_inner_layernorms": True, "mamba_proj_bias": False,
        "max_position_embeddings": 262144, "model_type": "jamba", "num_attention_heads": 32, "num_experts": 16,
        "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8, "num_logits_to_keep": 1,
        "output_router_logits": False, "pad_token_id": 0, "rms_norm_eps": 1e-06, "router_aux_loss_coef": 0.001,
        "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "transformers_version": "4.40.0.dev0", "use_cache": True, "use_mamba_kernels": True, "vocab_size": 65536,
    },
    "recurrentgemma-2b": {
        **_RECURRENT_GEMMA, "hidden_size": 2560, "intermediate_size": 15360, "lru_width": 2560,
        "num_attention_heads": 10, "num_hidden_layers": 26,
    },
    "recurrentgemma-9b": {
        **_RECURRENT_GEMMA, "hidden_size": 4096, "intermediate_size": 24576, "lru_width": 4096,
        "num_attention_heads": 16, "num_hidden_layers": 38,
    },
    "Zamba2-7B": {
        "adapter_rank": 128, "add_bias_linear": False, "architectures": ["Zamba2ForCausalLM"], "attention_dropout": 0.0,
        "bos_token_id": 1, "chunk_size": 256, "eos_token_id": 2, "hidden_act": "gelu", "hidden_size": 3584,
        "hybrid_layer_ids": _ZAMBA_CALLS, "initializer_range": 0.02, "intermediate_size": 14336, "kv_channels": 112,
        "layers_block_type": ["hybrid" if i in _ZAMBA_CALLS else "mamba" for i in range(81)], "mamba_d_conv": 4,
        "mamba_d_state": 64, "mamba_expand": 2, "mamba_headdim": 64, "mamba_ngroups": 2,
        "max_position_embeddings": 4096, "model_type": "zamba2", "n_mamba_heads": 112, "num_attention_heads": 32,
        "num_hidden_layers": 81, "num_key_value_heads": 32, "num_logits_to_keep": 1, "num_mem_blocks": 2,
        "num_query_groups": 32, "pad_token_id": 0, "rms_norm_eps": 1e-05, "rope_theta": 10000,
        "time_step_floor": 0.0001, "time_step_max": 0.1, "time_step_min": 0.001, "torch_dtype": "bfloat16",
        "use_cache": True, "use_conv_bias": True, "use_long_context": False, "use_mamba_kernels": True,
        "use_mem_eff_path": True, "use_mem_rope": True, "use_shared_attention_adapter": False, "vocab_size": 32000,
    },
}  # fmt: skip
