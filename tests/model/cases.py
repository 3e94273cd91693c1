"""Tiny random models of every family, made by transformers' own classes: what the parity tests run on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import transformers
from tests.model.case_inkling import INKLING
from tests.model.case_latents import GATED
from tests.model.case_qwen4 import QWEN4_ROWS
from tests.model.case_settings import ROWS
from tests.model.case_text_parts import TEXT_PARTS
from transformers import PreTrainedConfig


@dataclass(frozen=True)
class Case:
    """One checkpoint and one prompt.

    config: name of transformers' configuration class; settings: its arguments.
    prompt: tokens; where the model's window, block of 32 or chunk of 512 keys should be crossed, longer.
    greedy: tokens to go on with, greedily. max_model_len: None is the model's own.
    """

    name: str
    config: str
    settings: dict[str, Any] = field(default_factory=dict)
    prompt: int = 45
    greedy: int = 64
    seed: int = 0
    dtype: str = "float32"
    max_model_len: int | None = None
    shard: str = "5GB"

    def make_config(self) -> PreTrainedConfig:
        """transformers' configuration."""
        sizes = _OPT_SIZES if self.config in _AS_OPT else _SIZES
        if "text_config" in self.settings:
            text = {"text_config": sizes | self.settings["text_config"], "pad_token_id": 0}
            return getattr(transformers, self.config)(**(self.settings | text))
        return getattr(transformers, self.config)(**(sizes | self.settings))

    def tokens(self) -> list[int]:
        """The prompt."""
        vocab = (_SIZES | self.settings)["vocab_size"]
        return [int(t) for t in np.random.default_rng(self.seed).integers(0, vocab, self.prompt)]


_SIZES: dict[str, Any] = {
    "vocab_size": 331, "hidden_size": 72, "intermediate_size": 100, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_OPT_SIZES = {k: v for k, v in _SIZES.items() if k not in ("intermediate_size", "num_key_value_heads")}

_AS_OPT = ("OPTConfig", "GPT2Config", "GPTJConfig", "CodeGenConfig", "GPTNeoXConfig", "GPTBigCodeConfig",
           "GPTNeoConfig", "BioGptConfig", "BloomConfig", "MptConfig", "DbrxConfig", "PersimmonConfig",
           "GPTNeoXJapaneseConfig", "ModernBertDecoderConfig")  # fmt: skip


_DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 24,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def _llama(name: str, **settings: Any) -> Case:
    return Case(f"llama-{name}", "LlamaConfig", settings)


def _rope(name: str, settings: dict[str, Any], **more: Any) -> Case:
    theta = settings.pop("rope_theta", 10_000.0)
    return Case(f"llama-rope-{name}", "LlamaConfig", {"rope_parameters": {"rope_theta": theta, **settings}}, **more)


_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
_LONG = {
    "rope_type": "longrope", "rope_theta": 10_000.0, "short_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 2.0],
    "long_factor": [1.0, 1.5, 2.0, 3.0, 5.0, 9.0],
}  # fmt: skip
_PHI = {"num_attention_heads": 6, "pad_token_id": 0, "original_max_position_embeddings": 128}
_GEMMA = {"head_dim": 20, "query_pre_attn_scalar": 20, "sliding_window": 16, "num_hidden_layers": 4}
_GEMMA3_ROPES = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
}
_LATENT = {
    "num_key_value_heads": 6, "kv_lora_rank": 48, "qk_nope_head_dim": 20, "qk_rope_head_dim": 12, "v_head_dim": 28,
}  # fmt: skip
_SLIDES, _FULL = ["sliding_attention"] * 2, ["full_attention"]
_GEMMA4 = {
    "head_dim": 20, "global_head_dim": 28, "sliding_window": 16, "num_hidden_layers": 4,
    "hidden_size_per_layer_input": 0, "layer_types": [*_SLIDES, *_FULL * 2],
}  # fmt: skip
_GEMMA4_E = {
    **_GEMMA4, "num_hidden_layers": 7, "hidden_size_per_layer_input": 20, "vocab_size_per_layer_input": 331,
    "layer_types": [*_SLIDES, *(_FULL + _SLIDES[:1]) * 2, *_FULL],
}  # fmt: skip
_LFM2 = {"norm_eps": 1e-5, "block_multiple_of": 20}
_GRANITE_H = {
    "embedding_multiplier": 6.0, "logits_scaling": 4.0, "residual_multiplier": 0.3, "attention_multiplier": 0.2,
    "tie_word_embeddings": True, "shared_intermediate_size": 88, "mamba_n_heads": 6, "mamba_d_head": 24,
    "mamba_d_state": 20, "mamba_chunk_size": 16,
}  # fmt: skip
_FALCON_H1 = {
    "mamba_d_ssm": 120, "mamba_n_heads": 6, "mamba_d_head": 20, "mamba_d_state": 20, "mamba_chunk_size": 16,
}  # fmt: skip
_NEMOTRON_H = {
    "head_dim": 20, "mamba_num_heads": 6, "mamba_head_dim": 20, "n_groups": 2, "ssm_state_size": 20, "chunk_size": 16,
    "time_step_min": 1e-30,
}  # fmt: skip
_MROPE = {"rope_type": "default", "rope_theta": 1_000_000.0, "mrope_section": [2, 2, 2]}
_VISION = {
    "depth": 1, "embed_dim": 32, "hidden_size": 72, "out_hidden_size": 72, "intermediate_size": 48, "num_heads": 2,
    "fullatt_block_indexes": [0], "deepstack_visual_indexes": [0],
}  # fmt: skip

CASES: list[Case] = [
    # Llama: grouped, single and full sets of key heads; head sizes 8 to 256; tied; biases; sharded
    replace(_llama("gqa"), seed=1),
    replace(_llama("sharded-mqa-tied", num_key_value_heads=1, tie_word_embeddings=True), shard="50KB"),
    _llama("mha-40", hidden_size=40, num_attention_heads=5, num_key_value_heads=5),
    _llama("biases", attention_bias=True, mlp_bias=True, hidden_act="gelu"),
    _llama("theta", rms_norm_eps=1e-3, rope_parameters={"rope_type": "default", "rope_theta": 7.0}),
    *(
        _llama(f"head-{d}", head_dim=d, hidden_size=48, num_attention_heads=4, num_key_value_heads=2, vocab_size=97)
        for d in (24, 64, 80, 96, 128, 256)
    ),
    _rope("linear", {"rope_type": "linear", "factor": 4.0}),
    _rope("llama3", dict(_LLAMA3)),
    _rope("dynamic-short", {"rope_type": "dynamic", "factor": 4.0}),
    _rope("dynamic-long", {"rope_type": "dynamic", "factor": 4.0}, prompt=400, greedy=0, max_model_len=400),
    _rope("yarn", {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}),
    _rope(
        "yarn-mscale",
        {
            "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "beta_fast": 16.0,
            "beta_slow": 2.0, "mscale": 0.7, "mscale_all_dim": 1.4, "truncate": False,
        },
    ),
    Case("llama-chunks", "LlamaConfig", {"max_position_embeddings": 1200}, prompt=1040, greedy=3),
    # Qwen
    Case("qwen2", "Qwen2Config"),
    Case("qwen2-tied-window", "Qwen2Config", {
        "tie_word_embeddings": True, "use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1,
        "num_hidden_layers": 3,
    }),
    Case("qwen2-yarn", "Qwen2Config", {"rope_parameters": {
        "rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6, "original_max_position_embeddings": 64,
    }}),
    Case("qwen3", "Qwen3Config", {"head_dim": 32}),
    Case("qwen3-tied-bias", "Qwen3Config", {"head_dim": 20, "tie_word_embeddings": True, "attention_bias": True}),
    # experts: with a shared one, dense layers among them, weights of the chosen alone or of all
    Case("qwen2-moe", "Qwen2MoeConfig", {
        "num_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40,
    }, seed=1),
    Case("qwen3-moe", "Qwen3MoeConfig", {
        "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 40, "norm_topk_prob": True,
        "head_dim": 32, "num_hidden_layers": 3, "mlp_only_layers": [1],
    }),
    Case("olmoe", "OlmoeConfig", {"num_experts": 8, "num_experts_per_tok": 2}),
    Case("mixtral", "MixtralConfig", {"num_local_experts": 5, "num_experts_per_tok": 2}, seed=1),
    Case("glm4-moe", "Glm4MoeConfig", {
        "n_routed_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "n_group": 3, "topk_group": 2,
        "routed_scaling_factor": 1.7, "n_shared_experts": 2, "use_qk_norm": True, "attention_bias": True,
        "head_dim": 24, "num_hidden_layers": 3,
    }),
    Case("glm4-moe-one-group", "Glm4MoeConfig", {
        "n_routed_experts": 9, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "norm_topk_prob": False,
        "head_dim": 16,
    }),
    Case("ernie-moe", "Ernie4_5_MoeConfig", {
        "moe_num_experts": 12, "moe_k": 3, "moe_intermediate_size": 24, "moe_num_shared_experts": 2,
        "num_hidden_layers": 4, "moe_layer_end_index": 2, "tie_word_embeddings": True,
    }),
    Case("ernie-moe-alone", "Ernie4_5_MoeConfig", {
        "moe_num_experts": 7, "moe_k": 2, "moe_intermediate_size": 40, "moe_num_shared_experts": 0,
        "num_hidden_layers": 4, "moe_layer_interval": 2, "use_bias": True, "tie_word_embeddings": False,
    }),
    Case("gpt-oss", "GptOssConfig", {
        "num_local_experts": 8, "num_experts_per_tok": 3, "head_dim": 20, "num_hidden_layers": 3, "sliding_window": 16,
        "rms_norm_eps": 1e-5, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 150_000.0, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "truncate": False, "original_max_position_embeddings": 64,
        },
    }),
    Case("granite-moe", "GraniteMoeConfig", {
        "num_local_experts": 10, "num_experts_per_tok": 3, "intermediate_size": 40, "embedding_multiplier": 6.0,
        "logits_scaling": 4.0, "residual_multiplier": 0.3, "attention_multiplier": 0.2, "tie_word_embeddings": True,
    }),
    Case("granite-moe-shared", "GraniteMoeSharedConfig", {
        "num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 24, "shared_intermediate_size": 56,
        "logits_scaling": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.3, "attention_bias": True,
    }),
    Case("phimoe", "PhimoeConfig", {
        "num_local_experts": 6, "intermediate_size": 40, "attention_bias": True, "lm_head_bias": True,
        "router_jitter_noise": 0.3,
    }),
    Case("phimoe-longrope", "PhimoeConfig", {
        "num_local_experts": 5, "intermediate_size": 24, "sliding_window": 20, "num_hidden_layers": 3,
        "rope_parameters": {
            **_LONG, "short_mscale": 1.2, "long_mscale": 1.3, "original_max_position_embeddings": 128, "factor": 2.0,
        },
    }, max_model_len=128),
    # Mistral
    Case("mistral-window", "MistralConfig", {"sliding_window": 16}),
    Case("mistral-nemo", "MistralConfig", {"sliding_window": None, "head_dim": 32}),
    # Phi-3: fused tensors, longrope, partly rotated heads
    Case("phi3", "Phi3Config", dict(_PHI)),
    Case("phi3-window-tied", "Phi3Config", {**_PHI, "sliding_window": 17, "tie_word_embeddings": True}),
    Case("phi3-partial", "Phi3Config", {**_PHI, "hidden_size": 96, "partial_rotary_factor": 0.75}),
    Case("phi3-longrope-short", "Phi3Config", {**_PHI, "rope_parameters": dict(_LONG)}, max_model_len=128),
    Case("phi3-longrope-long", "Phi3Config", {**_PHI, "rope_parameters": dict(_LONG)}, prompt=140),
    # Gemma: softcaps, norms of 1 + weight, windows shorter than the prompt
    Case("gemma2", "Gemma2Config", dict(_GEMMA)),
    Case("gemma2-head-256", "Gemma2Config", {**_GEMMA, "head_dim": 256, "num_hidden_layers": 2}),
    Case("gemma2-caps", "Gemma2Config", {
        **_GEMMA, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 8.0, "query_pre_attn_scalar": 7,
    }),
    Case("gemma3", "Gemma3TextConfig", {**_GEMMA, "num_hidden_layers": 7, "rope_parameters": _GEMMA3_ROPES}),
    Case("gemma3-mqa", "Gemma3TextConfig", {**_GEMMA, "num_key_value_heads": 1, "final_logit_softcapping": 9.0}),
    # Gemma 4: other heads on full attention, values that are keys, shared keys; an embedding of each layer; experts
    Case("gemma4", "Gemma4TextConfig", {**_GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 1}),
    Case("gemma4-shared", "Gemma4TextConfig", {
        **_GEMMA4, "num_hidden_layers": 7, "num_kv_shared_layers": 3, "output_hidden_states": True,
        "use_double_wide_mlp": True, "final_logit_softcapping": 9.0, "head_dim": 12, "num_attention_heads": 5,
        "num_key_value_heads": 1, "layer_types": [*_SLIDES, *(_FULL + _SLIDES[:1]) * 2, *_FULL],
    }),
    Case("gemma4-per-layer", "Gemma4TextConfig", {**_GEMMA4_E, "num_kv_shared_layers": 3, "use_double_wide_mlp": True}),
    Case("gemma4-multimodal", "Gemma4Config", {"text_config": _GEMMA4_E, "vision_config": None, "audio_config": None}),
    Case("gemma4-experts", "Gemma4TextConfig", {
        **_GEMMA4, "enable_moe_block": True, "num_experts": 7, "top_k_experts": 3, "moe_intermediate_size": 44,
    }),
    # other families
    Case("olmo2", "Olmo2Config"),
    Case("olmo2-mha-bias", "Olmo2Config", {"num_key_value_heads": 6, "attention_bias": True}),
    Case("smollm3", "SmolLM3Config", {"num_hidden_layers": 4, "pad_token_id": 0}),
    Case("smollm3-window", "SmolLM3Config", {
        "num_hidden_layers": 3, "pad_token_id": 0, "no_rope_layers": [0, 1, 0], "use_sliding_window": True,
        "sliding_window": 13, "tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True,
    }),
    Case("granite", "GraniteConfig", {
        "embedding_multiplier": 6.0, "logits_scaling": 4.0, "residual_multiplier": 0.3, "attention_multiplier": 0.2,
        "tie_word_embeddings": True, "attention_bias": True,
    }),
    Case("ernie-interleaved", "Ernie4_5Config", {"head_dim": 24, "use_bias": True}),
    Case("internlm3", "InternLM3Config", {"head_dim": 16, "rope_parameters": {
        "rope_type": "dynamic", "factor": 6.0, "rope_theta": 5e5,
    }}),
    Case("internlm3-biases", "InternLM3Config", {"head_dim": 16, "attention_bias": True, "mlp_bias": True}),
    Case("ministral", "MinistralConfig", {"num_hidden_layers": 3, "head_dim": 20, "sliding_window": 16, "layer_types": [
        "sliding_attention", "full_attention", "sliding_attention",
    ]}),
    Case("arcee", "ArceeConfig"),
    Case("arcee-biases", "ArceeConfig", {"attention_bias": True, "mlp_bias": True, "head_dim": 20}),
    Case("seed_oss", "SeedOssConfig", {"head_dim": 20}, seed=3),
    Case("seed_oss-o-bias", "SeedOssConfig", {"head_dim": 32, "attention_out_bias": True, "mlp_bias": True}, seed=1),
    Case("helium", "HeliumConfig", {"head_dim": 12}),
    Case("glm", "GlmConfig", {"head_dim": 24}),
    Case("glm4", "Glm4Config", {"head_dim": 24}),
    Case("glm4-no-bias", "Glm4Config", {"head_dim": 16, "attention_bias": False, "tie_word_embeddings": True}),
    Case("gemma", "GemmaConfig", {"head_dim": 20}),
    Case("gemma-mqa", "GemmaConfig", {"head_dim": 256, "num_key_value_heads": 1, "hidden_act": "gelu"}),
    Case("olmo3", "Olmo3Config", {
        "num_hidden_layers": 5, "sliding_window": 16, "pad_token_id": 0, "rope_parameters": {
            "full_attention": {
                "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 500_000.0,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 500_000.0},
        },
    }),
    Case("exaone4", "Exaone4Config", {"num_hidden_layers": 5, "sliding_window": 16}, seed=5),
    Case("exaone4-full", "Exaone4Config", {"sliding_window": None, "layer_types": ["full_attention"] * 2}),
    Case("starcoder2", "Starcoder2Config", {"sliding_window": 20}),
    Case("starcoder2-no-bias", "Starcoder2Config", {"use_bias": False, "tie_word_embeddings": False}),
    Case("nemotron", "NemotronConfig"),
    Case("nemotron-biases", "NemotronConfig", {"attention_bias": True, "mlp_bias": True, "head_dim": 20}),
    # short convolutions beside attention: last and first, of other widths, with biases
    Case("lfm2", "Lfm2Config", {
        **_LFM2, "num_hidden_layers": 4, "layer_types": ["conv", "full_attention", "conv", "conv"],
    }),
    Case("lfm2-biases", "Lfm2Config", {
        **_LFM2, "num_hidden_layers": 3, "layer_types": ["full_attention", "conv", "full_attention"],
        "conv_bias": True, "conv_L_cache": 4, "tie_word_embeddings": False, "block_auto_adjust_ff_dim": False,
    }),
    Case("lfm2-moe", "Lfm2MoeConfig", {
        "norm_eps": 1e-5, "num_hidden_layers": 4, "layer_types": ["conv", "full_attention", "conv", "conv"],
        "num_experts": 9, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "num_dense_layers": 1,
        "routed_scaling_factor": 1.5,
    }),
    # the gated delta rule beside attention with gates; last and first, of odd sizes, with experts
    Case("qwen3-next", "Qwen3NextConfig", {
        **_DELTA, "num_hidden_layers": 4, "head_dim": 20, "num_experts": 9, "num_experts_per_tok": 3,
        "moe_intermediate_size": 40, "shared_expert_intermediate_size": 24, "mlp_only_layers": [1],
    }),
    Case("qwen3-next-odd", "Qwen3NextConfig", {
        **_DELTA, "num_hidden_layers": 3, "head_dim": 24, "mlp_only_layers": [0, 1, 2], "linear_key_head_dim": 20,
        "linear_value_head_dim": 13, "linear_num_key_heads": 3, "linear_num_value_heads": 3, "rms_norm_eps": 1e-5,
        "linear_conv_kernel_dim": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    }, prompt=70, seed=3),
    Case("qwen3.5-text", "Qwen3_5TextConfig", {
        **_DELTA, "num_hidden_layers": 5, "head_dim": 24, "num_key_value_heads": 3,
    }),
    Case("qwen3.5-tied", "Qwen3_5TextConfig", {
        **_DELTA, "head_dim": 32, "tie_word_embeddings": True, "linear_num_value_heads": 6,
        "layer_types": ["full_attention", "linear_attention"], "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.5,
        },
    }),
    Case("qwen3.5-moe-text", "Qwen3_5MoeTextConfig", {
        **_DELTA, "num_hidden_layers": 4, "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 40, "shared_expert_intermediate_size": 48,
    }, seed=1),
    # parallel halves of a layer, norms of each head, LayerNorm without bias or weights
    Case("phi", "PhiConfig", {"hidden_size": 96, "num_key_value_heads": 6}),
    Case("phi-gqa-rotated", "PhiConfig", {"num_key_value_heads": 3, "num_hidden_layers": 3, "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5,
    }}),
    Case("stablelm", "StableLmConfig", {"hidden_size": 96, "use_qkv_bias": True}),
    Case("stablelm-parallel", "StableLmConfig", {
        "hidden_size": 96, "use_parallel_residual": True, "qk_layernorm": True, "num_hidden_layers": 3,
    }),
    Case("stablelm-norms", "StableLmConfig", {"hidden_size": 144, "qk_layernorm": True, "tie_word_embeddings": True}),
    Case("olmo", "OlmoConfig", {"eos_token_id": 2}),
    Case("olmo-clipped", "OlmoConfig", {"clip_qkv": 0.9, "num_key_value_heads": 6, "eos_token_id": 2}),
    Case("cohere", "CohereConfig", {"logit_scale": 0.3}),
    Case("cohere-norms", "CohereConfig", {"use_qk_norm": True, "num_hidden_layers": 3, "attention_bias": True}),
    Case("cohere2", "Cohere2Config", {"num_hidden_layers": 5, "sliding_window": 16, "logit_scale": 0.5}),
    # queries that grow with the position; q and k normalized after their rotation
    Case("ministral3", "Ministral3Config", {"head_dim": 20, "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 16,
        "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.4,
    }}, seed=6),
    Case("hunyuan", "HunYuanDenseV1Config", {"head_dim": 20, "tie_word_embeddings": True}),
    Case("hunyuan-alpha", "HunYuanDenseV1Config", {"head_dim": 12, "attention_bias": True, "rope_parameters": {
        "rope_type": "dynamic", "rope_theta": 1e4, "factor": 1.0, "alpha": 50.0,
    }}, seed=2),
    # Mamba2 beside attention: last and first, several groups, biases, with and without experts and positions
    Case("granite-h", "GraniteMoeHybridConfig", {
        **_GRANITE_H, "num_hidden_layers": 4, "num_local_experts": 9, "num_experts_per_tok": 3,
        "intermediate_size": 40, "layer_types": ["mamba", "attention", "mamba", "mamba"],
    }),
    Case("granite-h-groups", "GraniteMoeHybridConfig", {
        **_GRANITE_H, "num_hidden_layers": 3, "num_local_experts": 0, "num_experts_per_tok": 0,
        "layer_types": ["attention", "mamba", "attention"], "position_embedding_type": "rope", "mamba_n_groups": 3,
        "mamba_d_conv": 3, "mamba_conv_bias": False, "mamba_proj_bias": True, "attention_bias": True,
        "tie_word_embeddings": False, "mamba_n_heads": 12, "mamba_d_head": 12,
    }),
    Case("bamba", "BambaConfig", {
        "num_hidden_layers": 3, "attn_layer_indices": [1], "mamba_n_heads": 12, "mamba_d_head": 12,
        "mamba_n_groups": 2, "mamba_d_state": 20, "mamba_chunk_size": 16, "rms_norm_eps": 1e-5,
    }),
    Case("falcon-h1", "FalconH1Config", {
        **_FALCON_H1, "num_hidden_layers": 3, "embedding_multiplier": 3.0, "lm_head_multiplier": 0.3,
        "mlp_multipliers": [0.8, 0.6], "key_multiplier": 0.7, "attention_in_multiplier": 1.2,
        "attention_out_multiplier": 0.9, "ssm_in_multiplier": 1.25, "ssm_out_multiplier": 0.4,
        "ssm_multipliers": [0.7, 0.5, 0.9, 1.1, 0.8], "tie_word_embeddings": True,
    }),
    Case("falcon-h1-norm", "FalconH1Config", {
        **_FALCON_H1, "mamba_rms_norm": True, "mamba_n_groups": 2, "mlp_bias": True, "head_dim": 20,
    }),
    Case("falcon-h1-norm-first", "FalconH1Config", {
        **_FALCON_H1, "mamba_rms_norm": True, "mamba_norm_before_gate": False, "mamba_conv_bias": False,
    }),
    # layers of one half: two mixers and two feed-forwards in a row, the last a feed-forward, a mixer or experts
    Case("nemotron-h", "NemotronHConfig", {
        **_NEMOTRON_H, "num_hidden_layers": 6,
        "layers_block_type": ["mamba", "mlp", "attention", "mamba", "mlp", "mlp"],
    }),
    Case("nemotron-h-mixer", "NemotronHConfig", {
        **_NEMOTRON_H, "layers_block_type": ["mlp", "attention", "mlp", "mamba"], "num_hidden_layers": 4, "n_groups": 1,
        "use_bias": True, "mlp_bias": True,
    }),
    Case("nemotron-h-moe", "NemotronHConfig", {
        **_NEMOTRON_H, "layers_block_type": ["mamba", "moe", "attention", "moe"], "num_hidden_layers": 4,
        "n_routed_experts": 9, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "routed_scaling_factor": 1.5,
        "moe_shared_expert_intermediate_size": 56,
    }),
    Case("mamba2", "Mamba2Config", {
        "num_hidden_layers": 3, "num_heads": 12, "head_dim": 12, "n_groups": 3, "state_size": 20, "chunk_size": 16,
        "use_bias": True, "tie_word_embeddings": True,
    }),
    # an RG-LRU beside attention to a window: last and first, heads of channels that end inside panels or not
    Case("recurrent-gemma", "RecurrentGemmaConfig", {
        "num_hidden_layers": 5, "num_key_value_heads": 1, "attention_window_size": 16,
    }, seed=6),
    Case("recurrent-gemma-wider", "RecurrentGemmaConfig", {
        "num_hidden_layers": 4, "block_types": ["attention", "recurrent", "recurrent"], "lru_width": 96,
        "attention_window_size": 40, "conv1d_width": 3, "attention_bias": True, "logits_soft_cap": 12.0,
        "tie_word_embeddings": False, "rope_parameters": {
            "rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0,
        },
    }),
    # latent attention: with and without a latent of queries, groups of experts, yarn with mscale
    Case("deepseek-v2-lite", "DeepseekV2Config", {
        **_LATENT, "q_lora_rank": None, "n_routed_experts": 9, "num_experts_per_tok": 3, "n_shared_experts": 2,
        "moe_intermediate_size": 28, "first_k_dense_replace": 1, "num_hidden_layers": 3, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 32,
            "beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707,
        },
    }),
    Case("deepseek-v2-groups", "DeepseekV2Config", {
        **_LATENT, "q_lora_rank": 40, "n_routed_experts": 12, "num_experts_per_tok": 3, "n_shared_experts": 1,
        "moe_intermediate_size": 28, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2,
        "routed_scaling_factor": 1.6, "attention_bias": True,
    }),
    Case("deepseek-v3", "DeepseekV3Config", {
        **_LATENT, "q_lora_rank": 44, "n_routed_experts": 12, "num_experts_per_tok": 4, "n_shared_experts": 1,
        "moe_intermediate_size": 28, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1, "num_hidden_layers": 3,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64,
            "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
        },
    }),
    Case("deepseek-v3-halves", "DeepseekV3Config", {
        **_LATENT, "q_lora_rank": 36, "rope_interleave": False, "first_k_dense_replace": 2, "attention_bias": True,
        "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 28,
        "max_position_embeddings": 1200,
    }, prompt=1040, greedy=3),
    Case("glm4-moe-lite", "Glm4MoeLiteConfig", {
        **_LATENT, "q_lora_rank": 52, "n_routed_experts": 10, "num_experts_per_tok": 3, "moe_intermediate_size": 28,
        "num_hidden_layers": 3, "qk_nope_head_dim": 28, "v_head_dim": 40,
    }),
    Case("minicpm3", "MiniCPM3Config", {
        **_LATENT, "q_lora_rank": 36, "scale_emb": 6, "dim_model_base": 40, "scale_depth": 1.1, "v_head_dim": None,
    }),
    Case("minicpm3-plain", "MiniCPM3Config", {
        **_LATENT, "q_lora_rank": None, "scale_emb": 1, "dim_model_base": None, "scale_depth": None,
        "tie_word_embeddings": False,
    }),
    # the text part of multimodal models
    Case("mistral3", "Mistral3Config", {"text_config": {"model_type": "mistral", "head_dim": 20}, "vision_config": {
        "model_type": "pixtral", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
        "num_attention_heads": 2, "image_size": 28, "patch_size": 14,
    }}),
    *(
        Case(name, config, {"text_config": {"rope_parameters": _MROPE}, "vision_config": _VISION})
        for name, config in (("qwen2_vl", "Qwen2VLConfig"), ("qwen2_5_vl", "Qwen2_5_VLConfig"))
    ),
    Case("qwen3_vl", "Qwen3VLConfig", {
        "text_config": {"head_dim": 24, "rope_parameters": {**_MROPE, "mrope_section": [4, 4, 4]}},
        "vision_config": _VISION,
    }),
    Case("qwen3.5", "Qwen3_5Config", {  # heads of published sizes
        "text_config": {
            **_DELTA, "head_dim": 256, "num_attention_heads": 2, "num_key_value_heads": 1, "linear_num_key_heads": 1,
            "linear_num_value_heads": 2, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
            "num_hidden_layers": 4, "rope_parameters": {
                "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_interleaved": True,
                "mrope_section": [12, 10, 10],
            },
        },
        "vision_config": {"model_type": "qwen3_5_vision", **_VISION},
    }),
    Case("qwen3.5-moe", "Qwen3_5MoeConfig", {
        "text_config": {
            **_DELTA, "head_dim": 16, "num_hidden_layers": 4, "num_experts": 8, "num_experts_per_tok": 2,
            "moe_intermediate_size": 40, "shared_expert_intermediate_size": 48,
        },
        "vision_config": {"model_type": "qwen3_5_moe_vision", **_VISION},
    }),
    *(Case(*row) for row in (*ROWS, *GATED, *INKLING, *TEXT_PARTS, *QWEN4_ROWS)),
    Case("opt", "OPTConfig", {"ffn_dim": 100, "word_embed_proj_dim": 72}),
    Case("opt-gelu-untied", "OPTConfig", {
        "ffn_dim": 90, "word_embed_proj_dim": 72, "activation_function": "gelu", "tie_word_embeddings": False,
    }),
]  # fmt: skip

HALF_CASES: list[Case] = [
    replace(case, name=f"{case.name}-{dtype}", dtype=dtype) for dtype in ("bfloat16", "float16") for case in CASES
    if case.name in ("llama-gqa", "llama-head-128", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "opt", "olmo2",
        "qwen3.5-text", "bitnet")
]  # fmt: skip
