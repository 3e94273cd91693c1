"""config.json of published models whose layers keep states, as they were on the hub."""

from __future__ import annotations

from typing import Any

HYBRID: dict[str, dict[str, Any]] = {
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
}  # fmt: skip
