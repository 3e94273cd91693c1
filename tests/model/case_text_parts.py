"""Further multimodal models, for text alone: names, configuration classes and settings of cases (cases.py)."""

from __future__ import annotations

from typing import Any

_EYES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip
_SIGLIP = {"model_type": "siglip_vision_model", **_EYES}  # fast_vlm's and perception_lm's own eyes are a package's
_EARS = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "d_model": 32,
    "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 48,
}  # fmt: skip
_CONVOLUTIONS = {
    "model_type": "vibevoice_acoustic_tokenizer_encoder", "hidden_size": 8, "num_filters": 2, "depths": [1] * 7,
}  # fmt: skip
_GLM_EYES = {"depth": 1, "hidden_size": 32, "num_heads": 2, "out_hidden_size": 72, "image_size": 28}
_GLM = {"rope_parameters": {
    "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 1],
}}  # fmt: skip
_QWEN3_5 = {
    "model_type": "qwen3_5_text", "head_dim": 16, "num_hidden_layers": 4, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 24,
}  # fmt: skip
_KIMI = {
    "num_key_value_heads": 6, "kv_lora_rank": 48, "qk_nope_head_dim": 20, "qk_rope_head_dim": 12, "v_head_dim": 28,
    "q_lora_rank": 32, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
    "moe_intermediate_size": 24, "first_k_dense_replace": 1,
}  # fmt: skip
_MISTRAL4_ROPE = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0, "original_max_position_embeddings": 16, "beta_fast": 32.0,
    "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip
_NEMOTRON_H = {
    "head_dim": 20, "mamba_num_heads": 6, "mamba_head_dim": 20, "n_groups": 2, "ssm_state_size": 20, "chunk_size": 16,
    "time_step_min": 1e-30, "layers_block_type": ["mamba", "attention"],
}  # fmt: skip
_SPEECH = {
    "encoder_config": {"hidden_dim": 32, "num_layers": 1, "num_heads": 2, "dim_head": 16, "output_dim": 20},
    "projector_config": {
        "model_type": "blip_2_qformer", "hidden_size": 32, "encoder_hidden_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "intermediate_size": 48,
    },
}  # fmt: skip
_VQ = {"embed_dim": 8, "codebook_size": 16, "base_channels": 32, "channel_multiplier": [1, 1], "latent_channels": 16}
_OMNI_EYES = {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "intermediate_size": 48}
_MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 2]}
# The eyes' position embeddings are of image_size / patch_size squared patches, which two convolutions halve.
_STEP_EYES = {**_EYES, "image_size": 56, "patch_size": 14, "mlp_ratio": 1.5, "max_position_embeddings": 16}
_SLIDES = "sliding_attention"
_STEP = {
    "head_dim": 16, "moe_intermediate_size": 24, "share_expert_dim": 40, "sliding_window": 16,
}  # fmt: skip

# transformers' own text models scale logits, which these models of it leave out (Granite's speech models too): logits
# agree where the scale is 1, tokens anyway.
_COHERE = {"logit_scale": 1.0}

TEXT_PARTS: list[tuple[str, str, dict[str, Any]] | tuple[str, str, dict[str, Any], int, int, int]] = [
    *((name, config, {"text_config": {"model_type": text}, "vision_config": _EYES}) for name, config, text in (
        ("deepseek_vl", "DeepseekVLConfig", "llama"), ("got_ocr2", "GotOcr2Config", "qwen2"),
        ("idefics2", "Idefics2Config", "mistral"), ("lighton_ocr", "LightOnOcrConfig", "qwen3"),
        ("llava_next_video", "LlavaNextVideoConfig", "llama"), ("pp_chart2table", "PPChart2TableConfig", "qwen2"),
        ("qianfan_ocr", "QianfanOCRConfig", "qwen3"),
        ("video_llava", "VideoLlavaConfig", "llama"), ("vipllava", "VipLlavaConfig", "llama"),
    )),
    ("video_llama_3", "VideoLlama3Config", {
        "text_config": {"model_type": "qwen2"}, "vision_config": _EYES,
    }, 45, 64, 2),
    ("deepseek_vl_hybrid", "DeepseekVLHybridConfig", {
        "text_config": {"model_type": "llama"}, "vision_config": _EYES,
        "high_res_vision_config": {**_EYES, "output_channels": 16, "mlp_dim": 48, "global_attn_indexes": [0]},
    }),
    ("janus", "JanusConfig", {
        "text_config": {"model_type": "llama"}, "vision_config": {**_EYES, "projection_dim": 32},
        "vq_config": {
            "embed_dim": 8, "num_embeddings": 16, "base_channels": 32, "channel_multiplier": [1, 1],
            "num_res_blocks": 1, "latent_channels": 16, "num_patches": 2,
        },
    }),
    ("aya_vision", "AyaVisionConfig", {"text_config": _COHERE, "vision_config": _EYES}),
    ("cohere2_vision", "Cohere2VisionConfig", {"text_config": _COHERE, "vision_config": _EYES}),
    ("fast_vlm", "FastVlmConfig", {"text_config": {"model_type": "qwen2"}, "vision_config": _SIGLIP}),
    ("perception_lm", "PerceptionLMConfig", {
        "text_config": {"model_type": "llama"}, "vision_config": {**_SIGLIP, "model_args": {"embed_dim": 32}},
    }),
    ("glm_ocr", "GlmOcrConfig", {"text_config": _GLM, "vision_config": _GLM_EYES}),
    ("glmga", "GlmgaConfig", {"text_config": _GLM, "vision_config": _GLM_EYES}),
    ("minicpm_ocr", "MiniCPMOcrConfig", {"text_config": _QWEN3_5, "vision_config": _EYES}),
    ("minicpmv4_7", "MiniCPMV4_7Config", {"text_config": _QWEN3_5, "vision_config": _EYES}, 45, 64, 1),
    ("mistral4", "Mistral3Config", {
        "text_config": {
            **_KIMI, "model_type": "mistral4", "rope_parameters": {**_MISTRAL4_ROPE, "llama_4_scaling_beta": 0.4},
        },
        "vision_config": _EYES,
    }),
    ("mistral4-dense", "Mistral3Config", {
        "text_config": {
            **_KIMI, "model_type": "mistral4", "q_lora_rank": None, "norm_topk_prob": False, "n_group": 1,
            "routed_scaling_factor": 1.5, "rope_parameters": _MISTRAL4_ROPE,
        },
        "vision_config": _EYES,
    }),
    ("kimi_k25", "Kimi_K25Config", {"text_config": _KIMI, "vision_config": _EYES}),
    ("nemotron_h_omni", "NemotronH_Omni_Reasoning_V3_Config", {
        "text_config": _NEMOTRON_H, "vision_config": {**_EYES, "video_temporal_patch_size": 2},
        "projector_hidden_size": 32, "vision_hidden_size": 32,
    }),
    ("granite4_vision", "Granite4VisionConfig", {
        "text_config": {"model_type": "granite4_vision_text", "embedding_multiplier": 6.0, "attention_bias": True},
        "vision_config": {**_EYES, "hidden_size": 64, "projection_dim": 32}, "downsample_rate": "1/2",
        "deepstack_layer_map": [], "spatial_target_layers": [0, 1],
    }),
    ("granite_docling", "GraniteDoclingConfig", {
        "text_config": {"residual_multiplier": 0.3}, "vision_config": {**_EYES, "out_hidden_size": 72},
    }),
    ("hunyuan_vl", "HunYuanVLConfig", {
        "text_config": {"head_dim": 12, "rope_parameters": {
            "rope_type": "dynamic", "rope_theta": 1e4, "factor": 1.0, "alpha": 50.0, "mrope_section": [2, 2, 1, 1],
        }}, "vision_config": _EYES,
    }),
    ("hyperclovax_vision_v2", "HyperCLOVAXVisionV2Config", {
        "text_config": {"logits_scaling": 0.25}, "vision_config": _GLM_EYES,
    }),
    ("paddleocr_vl", "PaddleOCRVLConfig", {
        "text_config": {"head_dim": 24, "rope_parameters": {**_MROPE, "mrope_section": [4, 4, 4]}},
        "vision_config": _EYES,
    }),
    ("emu3", "Emu3Config", {"text_config": {}, "vq_config": _VQ, "vocabulary_map": {"<image>": 5}}),
    ("deepseek_ocr2", "DeepseekOcr2Config", {
        "text_config": {
            "n_routed_experts": 9, "num_experts_per_tok": 3, "n_shared_experts": 2, "moe_intermediate_size": 28,
            "mlp_layer_types": ["dense", "sparse", "sparse"], "num_hidden_layers": 3,
        },
        "vision_config": {
            "sam_config": {**_EYES, "output_channels": 16, "mlp_dim": 48, "global_attn_indexes": [0]},
            "encoder_config": {**_EYES, "num_key_value_heads": 2},
        },
    }),
    ("cohere_compass", "CohereCompassConfig", {
        "text_config": {
            "head_dim": 12, "logit_scale": 0.5, "num_hidden_layers": 4, "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention"] * 2, "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 2]},
                "full_attention": None,
            },
        },
        "vision_config": _OMNI_EYES | {"out_hidden_size": 72, "deepstack_visual_indexes": [0]},
    }),
    ("cosmos3_omni", "Cosmos3OmniConfig", {
        "text_config": {
            "model_type": "qwen3_vl_text", "head_dim": 24, "rope_parameters": {**_MROPE, "mrope_section": [4, 4, 4]},
        },
        "vision_config": {"model_type": "qwen3_vl_vision", **_OMNI_EYES, "out_hidden_size": 72,
                          "deepstack_visual_indexes": [0]},
    }),
    ("cosmos3_edge", "Cosmos3EdgeConfig", {
        "text_config": {"head_dim": 12, "rope_parameters": _MROPE, "attention_bias": True},
        "vision_config": {**_EYES, "num_patches": 16},
    }),
    ("lfm3_vl", "Lfm3VlConfig", {
        "text_config": {"model_type": "lfm3", "head_dim": 12, "num_hidden_layers": 3, "sliding_window": 16},
        "vision_config": _EYES,
    }),
    ("mllama", "MllamaConfig", {
        "text_config": {"num_hidden_layers": 5, "cross_attention_layers": [1, 3], "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }},
        "vision_config": {
            **_EYES, "attention_heads": 2, "num_global_layers": 1, "vision_output_dim": 64,
            "intermediate_layers_indices": [0],
        },
    }),
    # heads and angles by kind of layer, gates of heads, limits by layer; of published keys, with a layer that predicts
    ("step3p7", "Step3p7Config", {
        "text_config": {
            **_STEP, "num_hidden_layers": 5, "num_nextn_predict_layers": 1, "moe_num_experts": 9, "moe_top_k": 3,
            "layer_types": ["full_attention", _SLIDES, _SLIDES, "full_attention", _SLIDES, _SLIDES],
            "attention_other_setting": {"num_attention_heads": 8}, "moe_layers_enum": "2,3,4",
            "rope_theta": [5e5, 1e4, 1e4, 5e5, 1e4, 1e4], "partial_rotary_factors": [0.5, 1.0, 1.0, 0.5, 1.0, 1.0],
            "rope_scaling": {
                "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 8.0,
                "original_max_position_embeddings": 64,
            },
            "swiglu_limits": [0.0, 0.0, 0.3, 0.0, 0.5, 0.0], "swiglu_limits_shared": [0.4, 0.0, 0.0, 0.6, 0.2, 0.0],
            "moe_router_scaling_factor": 1.8,
        }, "vision_config": _STEP_EYES,
    }),
    ("step3p7-yarn", "Step3p7Config", {
        "text_config": {
            **_STEP, "head_dim": 20, "num_hidden_layers": 3, "n_routed_experts": 8, "num_experts_per_tok": 2,
            "layer_types": [_SLIDES, "full_attention", _SLIDES], "num_sliding_attention_heads": 4,
            "mlp_layer_types": ["sparse", "dense", "sparse"], "query_pre_attn_scalar": 11, "rope_parameters": {
                "full_attention": {
                    "rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0, "original_max_position_embeddings": 64,
                }, _SLIDES: {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.4},
            }, "swiglu_limits": [None, 0.2, 0.3],
        }, "vision_config": _STEP_EYES,
    }),
    ("step3p7-full", "Step3p7Config", {
        "text_config": {**_STEP, "num_hidden_layers": 4, "n_routed_experts": 6, "num_experts_per_tok": 1},
        "vision_config": _STEP_EYES, "tie_word_embeddings": True,
    }),
    # models that hear
    ("qwen3_asr", "Qwen3ASRConfig", {
        "text_config": {"model_type": "qwen3", "head_dim": 16}, "audio_config": _EARS, "eos_token_id": 2,
    }),
    ("glmasr", "GlmAsrConfig", {"text_config": {"model_type": "llama"}, "audio_config": _EARS}),
    ("fun_asr_nano", "FunAsrNanoConfig", {
        "text_config": {"model_type": "qwen3", "head_dim": 16}, "audio_config": _EARS,
        "adaptor_config": {"hidden_size": 72, "num_hidden_layers": 1, "intermediate_size": 18},
    }),
    *((name, config, {
        "text_config": {"model_type": "qwen2"}, "audio_config": {"model_type": "audioflamingo3_encoder", **_EARS},
    }) for name, config in (("audioflamingo3", "AudioFlamingo3Config"), ("musicflamingo", "MusicFlamingoConfig"))),
    ("moss_transcribe_diarize", "MossTranscribeDiarizeConfig", {
        "text_config": {"model_type": "qwen3", "head_dim": 16}, "audio_config": _EARS,
    }),
    ("vibevoice_asr", "VibeVoiceAsrConfig", {
        "text_config": {"model_type": "qwen2"}, "acoustic_tokenizer_encoder_config": _CONVOLUTIONS,
        "semantic_tokenizer_encoder_config": _CONVOLUTIONS,
    }),
    ("fuyu", "FuyuConfig", {"text_config": {"model_type": "persimmon"}, "patch_size": 14}),
    ("qwen2_audio", "Qwen2AudioConfig", {"text_config": {"model_type": "qwen2"}, "audio_config": _EARS}),
    ("voxtral", "VoxtralConfig", {"text_config": {"model_type": "llama"}, "audio_config": _EARS}),
    ("granite_speech", "GraniteSpeechConfig", {"text_config": {"embedding_multiplier": 6.0}, **_SPEECH}),
    ("granite_speech_plus", "GraniteSpeechPlusConfig", {"text_config": {"residual_multiplier": 0.3}, **_SPEECH}),
    ("qwen2_5_omni", "Qwen2_5OmniThinkerConfig", {
        "text_config": {"rope_parameters": _MROPE}, "vision_config": {**_OMNI_EYES, "out_hidden_size": 72},
        "audio_config": {**_EARS, "output_dim": 72},
    }),
    ("qwen3_omni_moe", "Qwen3OmniMoeThinkerConfig", {
        "text_config": {
            "head_dim": 24, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
            "rope_parameters": {**_MROPE, "mrope_section": [4, 4, 4]},
        },
        "vision_config": {**_OMNI_EYES, "out_hidden_size": 72, "deepstack_visual_indexes": [0]},
        "audio_config": {**_EARS, "output_dim": 72, "downsample_hidden_size": 16},
    }),
]  # fmt: skip
