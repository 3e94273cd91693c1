"""config.json as published for families with LayerNorm, parallel halves of a layer, or queries treated otherwise."""

from __future__ import annotations

from typing import Any

_COMMON = {"use_cache": True, "initializer_range": 0.02, "attention_dropout": 0.0}
_BF16 = {**_COMMON, "torch_dtype": "bfloat16"}
_GPT: dict[str, Any] = {
    "activation_function": "gelu_new", "bos_token_id": 50256, "eos_token_id": 50256, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "summary_activation": None, "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True,
}  # fmt: skip
_FALCON: dict[str, Any] = {
    **_BF16, "alibi": False, "apply_residual_connection_post_layernorm": False, "architectures": ["FalconForCausalLM"],
    "bias": False, "bos_token_id": 11, "eos_token_id": 11, "hidden_dropout": 0.0, "layer_norm_epsilon": 1e-05,
    "model_type": "falcon", "multi_query": True, "new_decoder_architecture": False, "parallel_attn": True,
    "vocab_size": 65024,
}  # fmt: skip
_SCOUT: dict[str, Any] = {
    **_BF16, "attention_bias": False, "attention_chunk_size": 8192, "attn_scale": 0.1, "attn_temperature_tuning": True,
    "bos_token_id": 200000, "eos_token_id": [200001, 200007, 200008], "floor_scale": 8192,
    "for_llm_compressor": False, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
    "interleave_moe_layer_step": 1, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
    "max_position_embeddings": 10485760, "model_type": "llama4_text", "no_rope_layers": [],
    "num_attention_heads": 40, "num_experts_per_tok": 1, "num_hidden_layers": 48, "num_key_value_heads": 8,
    "num_local_experts": 16, "output_router_logits": False, "pad_token_id": 200018, "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    }, "rope_theta": 500000.0, "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0, "use_qk_norm": True,
    "vocab_size": 202048,
}  # fmt: skip

_GEMMA3N: dict[str, Any] = {
    "activation_sparsity_pattern": [0.95] * 10 + [0.0] * 20, "altup_active_idx": 0, "altup_coef_clip": 120.0,
    "altup_correct_scale": True, "altup_lr_multiplier": 1.0, "altup_num_inputs": 4, "attention_bias": False,
    "attention_dropout": 0.0, "final_logit_softcapping": 30.0, "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2048, "hidden_size_per_layer_input": 256,
    "initializer_range": 0.02, "intermediate_size": [8192] * 30, "laurel_rank": 64,
    "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 6, "max_position_embeddings": 32768,
    "model_type": "gemma3n_text", "num_attention_heads": 8, "num_hidden_layers": 30, "num_key_value_heads": 2,
    "num_kv_shared_layers": 10, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000.0, "rope_scaling": None,
    "rope_theta": 1000000.0, "sliding_window": 512, "torch_dtype": "bfloat16", "use_cache": True,
    "vocab_size": 262400, "vocab_size_per_layer_input": 262144,
}  # fmt: skip

LAYER_NORM: dict[str, dict[str, Any]] = {
    "gemma-3n-E2B-it, its text part alone": {
        **_GEMMA3N, "architectures": ["Gemma3nForCausalLM"], "eos_token_id": [1, 106], "bos_token_id": 2,
    },
    "gemma-3n-E4B-it, its text part alone": {
        **_GEMMA3N, "architectures": ["Gemma3nForCausalLM"], "activation_sparsity_pattern": [0.95] * 10 + [0.0] * 25,
        "intermediate_size": [16384] * 35, "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
        "num_hidden_layers": 35, "num_kv_shared_layers": 15,
    },
    "phi-2": {
        **_COMMON, "architectures": ["PhiForCausalLM"], "bos_token_id": 50256, "embd_pdrop": 0.0,
        "eos_token_id": 50256, "hidden_act": "gelu_new", "hidden_size": 2560, "intermediate_size": 10240,
        "layer_norm_eps": 1e-05, "max_position_embeddings": 2048, "model_type": "phi", "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 32, "partial_rotary_factor": 0.4, "qk_layernorm": False,
        "resid_pdrop": 0.1, "rope_scaling": None, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "torch_dtype": "float16", "vocab_size": 51200,
    },
    "stablelm-2-1_6b": {
        **_COMMON, "architectures": ["StableLmForCausalLM"], "bos_token_id": 100257, "eos_token_id": 100257,
        "hidden_act": "silu", "hidden_dropout": 0.0, "hidden_size": 2048, "intermediate_size": 5632,
        "layer_norm_eps": 1e-05, "max_position_embeddings": 4096, "model_type": "stablelm",
        "num_attention_heads": 32, "num_hidden_layers": 24, "num_key_value_heads": 32, "partial_rotary_factor": 0.25,
        "rope_scaling": None, "rope_theta": 10000, "tie_word_embeddings": False, "torch_dtype": "float16",
        "use_qkv_bias": True, "vocab_size": 100352,
    },
    "stablelm-2-12b": {
        **_BF16, "architectures": ["StableLmForCausalLM"], "bos_token_id": 100257, "eos_token_id": 100257,
        "hidden_act": "silu", "hidden_dropout": 0.0, "hidden_size": 5120, "intermediate_size": 13824,
        "layer_norm_eps": 1e-05, "max_position_embeddings": 4096, "model_type": "stablelm",
        "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8, "partial_rotary_factor": 0.25,
        "qk_layernorm": True, "rope_theta": 10000, "tie_word_embeddings": False, "use_parallel_residual": True,
        "use_qkv_bias": False, "vocab_size": 100352,
    },
    "OLMo-7B-hf": {
        **_COMMON, "architectures": ["OlmoForCausalLM"], "attention_bias": False, "clip_qkv": None,
        "eos_token_id": 50279, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 11008,
        "max_position_embeddings": 2048, "model_type": "olmo", "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 32, "pad_token_id": 1, "rope_scaling": None, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "torch_dtype": "float32", "vocab_size": 50304,
    },
    "c4ai-command-r-plus": {
        **_COMMON, "architectures": ["CohereForCausalLM"], "attention_bias": False, "bos_token_id": 5,
        "eos_token_id": 255001, "hidden_act": "silu", "hidden_size": 12288, "intermediate_size": 33792,
        "layer_norm_eps": 1e-05, "logit_scale": 0.8333333333333334, "max_position_embeddings": 131072,
        "model_type": "cohere", "num_attention_heads": 96, "num_hidden_layers": 64, "num_key_value_heads": 8,
        "pad_token_id": 0, "rope_theta": 75000000.0, "torch_dtype": "float16", "use_qk_norm": True,
        "vocab_size": 256000,
    },
    "c4ai-command-r7b-12-2024": {
        **_BF16, "architectures": ["Cohere2ForCausalLM"], "attention_bias": False, "bos_token_id": 5,
        "cache_implementation": "hybrid", "eos_token_id": 255001, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 4096, "intermediate_size": 14336, "layer_norm_eps": 1e-05, "layer_switch": 4,
        "logit_scale": 0.25, "max_position_embeddings": 132096, "model_type": "cohere2", "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "order_of_interleaved_layers": "local_attn_first",
        "pad_token_id": 0, "position_embedding_type": "rope_gptj", "rope_scaling": None, "rope_theta": 50000,
        "rotary_pct": 1.0, "sliding_window": 4096, "sliding_window_pattern": 4, "use_embedding_sharing": True,
        "use_gated_activation": True, "use_parallel_block": True, "use_parallel_embedding": True,
        "vocab_size": 256000,
    },
    "pythia-160m": {
        "architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "gelu",
        "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-05,
        "max_position_embeddings": 2048, "model_type": "gpt_neox", "num_attention_heads": 12, "num_hidden_layers": 12,
        "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": False, "torch_dtype": "float16",
        "transformers_version": "4.24.0", "use_cache": True, "use_parallel_residual": True, "vocab_size": 50304,
    },
    "gpt2": {
        **_GPT, "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "embd_pdrop": 0.1, "model_type": "gpt2",
        "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}, "vocab_size": 50257,
        "torch_dtype": "float32",
    },
    "starcoderbase-1b": {
        **_GPT, "activation_function": "gelu_pytorch_tanh", "architectures": ["GPTBigCodeForCausalLM"],
        "attention_softmax_in_fp32": True, "attn_pdrop": 0.1, "bos_token_id": 0, "embd_pdrop": 0.1, "eos_token_id": 0,
        "inference_runner": 0, "max_batch_size": None, "max_sequence_length": None, "model_type": "gpt_bigcode",
        "multi_query": True, "n_embd": 2048, "n_head": 16, "n_inner": 8192, "n_layer": 24, "n_positions": 8192,
        "pad_key_length": True, "pre_allocate_kv_cache": False, "resid_pdrop": 0.1,
        "scale_attention_softmax_in_fp32": True, "scale_attn_weights": True, "torch_dtype": "float32",
        "use_cache": True, "validate_runner_input": True, "vocab_size": 49152,
    },
    "gpt-j-6b": {
        **_GPT, "architectures": ["GPTJForCausalLM"], "attn_pdrop": 0.0, "embd_pdrop": 0.0,
        "gradient_checkpointing": False, "model_type": "gptj", "n_embd": 4096, "n_head": 16, "n_inner": None,
        "n_layer": 28, "n_positions": 2048, "resid_pdrop": 0.0, "rotary": True, "rotary_dim": 64,
        "scale_attn_weights": True, "tie_word_embeddings": False, "tokenizer_class": "GPT2Tokenizer",
        "torch_dtype": "float16", "use_cache": True, "vocab_size": 50400,
    },
    "codegen-350M-mono": {
        **_GPT, "architectures": ["CodeGenForCausalLM"], "attn_pdrop": 0.0, "bos_token_id": 1, "embd_pdrop": 0.0,
        "gradient_checkpointing": False, "model_type": "codegen", "n_ctx": 2048, "n_embd": 1024, "n_head": 16,
        "n_inner": None, "n_layer": 20, "n_positions": 2048, "resid_pdrop": 0.0, "rotary_dim": 32,
        "scale_attn_weights": True, "tie_word_embeddings": False, "tokenizer_class": "GPT2Tokenizer",
        "torch_dtype": "float16", "use_cache": True, "vocab_size": 51200,
    },
    "gpt-neo-125m": {
        **_GPT, "architectures": ["GPTNeoForCausalLM"], "attention_dropout": 0, "attention_layers": [
            "global", "local", "global", "local", "global", "local", "global", "local", "global", "local", "global",
            "local",
        ], "attention_types": [[["global", "local"], 6]], "embed_dropout": 0, "gradient_checkpointing": False,
        "hidden_size": 768, "intermediate_size": None, "max_position_embeddings": 2048, "model_type": "gpt_neo",
        "num_heads": 12, "num_layers": 12, "resid_dropout": 0, "torch_dtype": "float32",
        "transformers_version": "4.9.0.dev0", "use_cache": True, "vocab_size": 50257, "window_size": 256,
    },
    "biogpt": {
        "activation_dropout": 0.0, "architectures": ["BioGptForCausalLM"], "attention_probs_dropout_prob": 0.1,
        "bos_token_id": 0, "eos_token_id": 2, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 1024,
        "initializer_range": 0.02, "intermediate_size": 4096, "layer_norm_eps": 1e-12, "layerdrop": 0.0,
        "max_position_embeddings": 1024, "model_type": "biogpt", "num_attention_heads": 16, "num_hidden_layers": 24,
        "pad_token_id": 1, "scale_embedding": True, "torch_dtype": "float32", "use_cache": True, "vocab_size": 42384,
    },
    "falcon-7b-instruct": {**_FALCON, "hidden_size": 4544, "num_attention_heads": 71, "num_hidden_layers": 32},
    "falcon-40b-instruct": {
        **_FALCON, "hidden_size": 8192, "new_decoder_architecture": True, "num_attention_heads": 128,
        "num_hidden_layers": 60, "num_kv_heads": 8,
    },
    "Apertus-8B-Instruct-2509": {
        **_BF16, "architectures": ["ApertusForCausalLM"], "attention_bias": False, "bos_token_id": 1,
        "eos_token_id": 68, "hidden_act": "xielu", "hidden_dropout": 0.0, "hidden_size": 4096,
        "intermediate_size": 21504, "max_position_embeddings": 65536, "mlp_bias": False, "model_type": "apertus",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "pad_token_id": 3,
        "post_norm": False, "qk_norm": True, "rms_norm_eps": 1e-05, "rope_scaling": {
            "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
            "rope_type": "llama3", "type": "llama3",
        }, "rope_theta": 12000000, "tie_word_embeddings": False, "vocab_size": 131072,
    },
    "Llama-4-Scout-17B-16E-Instruct": {
        "architectures": ["Llama4ForConditionalGeneration"], "boi_token_index": 200080, "eoi_token_index": 200081,
        "image_token_index": 200092, "model_type": "llama4", "text_config": _SCOUT, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "vision_config": {
            "attention_dropout": 0.0, "hidden_act": "gelu", "hidden_size": 1408, "image_size": 336,
            "initializer_range": 0.02, "intermediate_size": 5632, "model_type": "llama4_vision_model",
            "multi_modal_projector_bias": False, "norm_eps": 1e-05, "num_attention_heads": 16, "num_channels": 3,
            "num_hidden_layers": 34, "patch_size": 14, "pixel_shuffle_ratio": 0.5, "projector_dropout": 0.0,
            "projector_input_dim": 4096, "projector_output_dim": 4096, "rope_theta": 10000,
            "vision_feature_layer": -1, "vision_feature_select_strategy": "default", "vision_output_dim": 4096,
        },
    },
    "Llama-4-Maverick, its text part alone": {
        **_SCOUT, "architectures": ["Llama4ForCausalLM"], "interleave_moe_layer_step": 2,
        "max_position_embeddings": 1048576, "moe_layers": list(range(1, 48, 2)), "num_local_experts": 128,
        "rope_scaling": None, "use_qk_norm": False, "attn_temperature_tuning": False,
    },
    "Ministral-3-3B": {
        **_COMMON, "architectures": ["Ministral3ForCausalLM"], "bos_token_id": 1, "dtype": "bfloat16",
        "eos_token_id": 2, "head_dim": 128, "hidden_act": "silu", "hidden_size": 3072, "intermediate_size": 9216,
        "max_position_embeddings": 262144, "model_type": "ministral3", "num_attention_heads": 32,
        "num_hidden_layers": 26, "num_key_value_heads": 8, "pad_token_id": 11, "rms_norm_eps": 1e-05,
        "rope_parameters": {
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0, "llama_4_scaling_beta": 0.1, "mscale": 1.0,
            "mscale_all_dim": 1.0, "original_max_position_embeddings": 16384, "rope_theta": 1000000.0,
            "rope_type": "yarn", "type": "yarn",
        }, "sliding_window": None, "tie_word_embeddings": True, "vocab_size": 131072,
    },
    "Hunyuan-1.8B-Instruct": {
        **_BF16, "architectures": ["HunYuanDenseV1ForCausalLM"], "attention_bias": False, "bos_token_id": 120000,
        "eod_token_id": 120020, "eos_token_id": 120020, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
        "intermediate_size": 6144, "max_position_embeddings": 262144, "model_type": "hunyuan_v1_dense",
        "num_attention_heads": 16, "num_hidden_layers": 32, "num_key_value_heads": 4, "pad_token_id": 120002,
        "rms_norm_eps": 1e-05, "rope_scaling": {
            "alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
            "type": "dynamic",
        }, "rope_theta": 10000.0, "tie_word_embeddings": True, "use_qk_norm": True, "vocab_size": 120818,
    },
}  # fmt: skip
