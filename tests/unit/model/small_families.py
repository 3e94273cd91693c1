"""Small models of families whose layers have experts, states, latents or look both ways: folders of random weights.

Without torch and transformers: the tensors are those that the family itself asks for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from forearm.model.checkpoint.names import parts
from forearm.model.checkpoint.tensor_part import TensorPart
from forearm.model.checkpoint.vector_names import VECTORS
from forearm.model.families.config import Experts, ModelConfig
from forearm.model.families.encoders.encoders import ENCODERS
from forearm.model.families.families import read_config
from forearm.model.families.recurrences import RgLru
from forearm.model.pooling.plan import PoolingAsked
from forearm.model.pooling.pooling import pooling_plan

_SIZES: dict[str, Any] = {
    "vocab_size": 48, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2,
    "torch_dtype": "float32", "tie_word_embeddings": False,
}  # fmt: skip
_MAMBA = {
    "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 12, "mamba_n_groups": 2, "mamba_d_conv": 4,
    "mamba_expand": 2, "mamba_conv_bias": True, "mamba_proj_bias": False, "time_step_limit": [0.0, 9.0],
}  # fmt: skip
_DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 4, "head_dim": 16, "full_attention_interval": 2, "partial_rotary_factor": 0.25,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"], "num_experts": 5,
    "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 16,
}  # fmt: skip
_LATENT = {
    "kv_lora_rank": 32, "q_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 20,
    "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1, "moe_intermediate_size": 24, "n_group": 4,
    "topk_group": 2, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5, "norm_topk_prob": True,
    "num_key_value_heads": 4, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "rope_scaling": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 32, "beta_slow": 1,
        "mscale": 1.0, "mscale_all_dim": 1.0,
    },
}  # fmt: skip
_EXPERTS = {
    "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True,
    "decoder_sparse_step": 1, "mlp_only_layers": [1], "head_dim": 16,
}  # fmt: skip
_BERT = {
    "model_type": "bert", "architectures": ["BertModel"], "hidden_act": "gelu", "layer_norm_eps": 1e-12,
    "type_vocab_size": 2, "pad_token_id": 0, "position_embedding_type": "absolute",
}  # fmt: skip
_GEMMA = {
    "head_dim": 8, "sliding_window": 8, "hidden_size_per_layer_input": 8, "rms_norm_eps": 1e-6,
    "vocab_size_per_layer_input": 48, "num_kv_shared_layers": 1, "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2, "final_logit_softcapping": 30.0,
    "tie_word_embeddings": True,
}  # fmt: skip

# config.json of each, besides _SIZES.
SMALL: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], **_EXPERTS},
    "gpt_oss": {
        "model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "num_local_experts": 4, "head_dim": 16,
        "num_experts_per_tok": 2, "sliding_window": 8, "swiglu_limit": 7.0, "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "truncate": False,
        },
    },
    "llama4": {
        "model_type": "llama4_text", "architectures": ["Llama4ForCausalLM"], "num_local_experts": 4, "head_dim": 16,
        "num_experts_per_tok": 1, "intermediate_size_mlp": 48, "attention_chunk_size": 8, "floor_scale": 16,
        "attn_scale": 0.4, "interleave_moe_layer_step": 2, "no_rope_layers": [1, 1, 0],
        "attn_temperature_tuning": True, "moe_layers": [1, 2],
        "layer_types": ["chunked_attention", "chunked_attention", "full_attention"],
    },
    "deepseek_v3": {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], **_LATENT},
    "glm4_moe_lite": {
        "model_type": "glm4_moe_lite", "architectures": ["Glm4MoeLiteForCausalLM"], **_LATENT, "rope_scaling": None,
        "mlp_layer_types": ["dense", "sparse", "sparse"],
    },
    "lfm2_moe": {
        "model_type": "lfm2_moe", "architectures": ["Lfm2MoeForCausalLM"], "conv_L_cache": 3, "conv_bias": False,
        "layer_types": ["conv", "full_attention", "conv"], "norm_eps": 1e-5, "num_dense_layers": 1, "num_experts": 6,
        "num_experts_per_tok": 2, "moe_intermediate_size": 24, "use_expert_bias": True, "routed_scaling_factor": 1.5,
    },
    "kimi_linear": {
        "model_type": "kimi_linear", "architectures": ["KimiLinearForCausalLM"], "kv_lora_rank": 32,
        "q_lora_rank": None, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 20, "num_experts": 8,
        "num_experts_per_token": 3, "moe_intermediate_size": 24, "num_key_value_heads": 4, "model_max_length": 64,
        "linear_attn_config": {
            "num_heads": 3, "head_dim": 12, "short_conv_kernel_size": 4, "kda_layers": [1, 3], "full_attn_layers": [2],
        },
    },
    "qwen3_next": {"model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"], **_DELTA},
    "qwen3_5": {
        "model_type": "qwen3_5_moe", "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "text_config": {**_SIZES, **_DELTA, "num_key_value_heads": 2, "model_type": "qwen3_5_moe_text"},
    },
    "qwen4_exp": {
        "model_type": "qwen4_exp_text", "architectures": ["Qwen4ExpForCausalLM"], **_DELTA, "hc_count": 2,
        "hc_lowrank": 6, "indexer_n_heads": 3, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 8,
        "indexer_compress_ratio": 4, "ple_layer_ids": [1], "heads_per_ngram": 2, "ngram_vocab_size_base": 20,
        "make_ngram_vocab_size_divisible_by": 8,
    },
    "granite_h": {
        "model_type": "granitemoehybrid", "architectures": ["GraniteMoeHybridForCausalLM"], **_MAMBA,
        "layer_types": ["mamba", "attention", "mamba"], "num_local_experts": 4, "num_experts_per_tok": 2,
        "shared_intermediate_size": 24, "position_embedding_type": "nope", "embedding_multiplier": 6.0,
        "logits_scaling": 4.0, "residual_multiplier": 0.3, "attention_multiplier": 0.2,
    },
    "bamba": {
        "model_type": "bamba", "architectures": ["BambaForCausalLM"], **_MAMBA, "attn_layer_indices": [1],
        "rms_norm_eps": 1e-5,
    },
    "falcon_h1": {
        "model_type": "falcon_h1", "architectures": ["FalconH1ForCausalLM"], **_MAMBA, "mamba_d_ssm": 64,
        "mlp_multipliers": [0.8, 0.6], "ssm_multipliers": [0.7, 0.5, 0.9, 1.1, 0.8], "key_multiplier": 0.7,
        "ssm_in_multiplier": 1.25, "mamba_rms_norm": True, "attention_in_multiplier": 1.1, "lm_head_multiplier": 0.5,
    },
    "nemotron_h": {
        "model_type": "nemotron_h", "architectures": ["NemotronHForCausalLM"], "hybrid_override_pattern": "M-*E",
        "num_hidden_layers": 4, "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 12,
        "conv_kernel": 4, "expand": 2, "attention_head_dim": 16, "n_routed_experts": 5, "num_experts_per_tok": 2,
        "moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 16, "n_group": 1, "topk_group": 1,
        "mlp_hidden_act": "relu2", "use_conv_bias": True, "use_bias": False, "time_step_limit": [0.0, 9.0],
    },
    "mamba2": {
        "model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"], "num_heads": 4, "head_dim": 16, "n_groups": 2,
        "state_size": 12, "conv_kernel": 4, "expand": 2, "use_bias": True, "use_conv_bias": True,
        "layer_norm_epsilon": 1e-5,
    },
    "falcon_mamba": {
        "model_type": "falcon_mamba", "architectures": ["FalconMambaForCausalLM"], "intermediate_size": 64,
        "state_size": 12, "conv_kernel": 4, "time_step_rank": 5, "use_bias": True, "layer_norm_epsilon": 1e-5,
        "mixer_rms_eps": 1e-6,
    },
    "jamba": {
        "model_type": "jamba", "architectures": ["JambaForCausalLM"], "mamba_d_state": 12, "mamba_d_conv": 4,
        "mamba_dt_rank": 5, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 4, "num_experts_per_tok": 2,
    },
    "recurrent_gemma": {
        "model_type": "recurrent_gemma", "architectures": ["RecurrentGemmaForCausalLM"], "lru_width": 48,
        "attention_window_size": 8, "block_types": ["recurrent", "attention"], "num_key_value_heads": 1,
    },
    "rwkv7": {
        "model_type": "rwkv7", "architectures": ["RWKV7ForCausalLM"], "head_dim": 8, "decay_low_rank_dim": 12,
        "a_low_rank_dim": 9, "v_low_rank_dim": 5, "gate_low_rank_dim": 16,
    },
    "zaya": {
        "model_type": "zaya", "architectures": ["ZayaForCausalLM"], "head_dim": 12, "num_experts": 4,
        "moe_intermediate_size": 24, "router_hidden_size": 20, "layer_types": ["hybrid", *["hybrid_sliding"] * 2],
        "sliding_window": 8, "num_experts_per_tok": 1,
    },
    "zamba2": {
        "model_type": "zamba2", "architectures": ["Zamba2ForCausalLM"], "num_hidden_layers": 3, "n_mamba_heads": 4,
        "layers_block_type": ["mamba", "hybrid", "hybrid"], "num_mem_blocks": 1, "mamba_d_state": 12, "adapter_rank": 8,
        "use_shared_attention_adapter": True, "hidden_act": "gelu", "num_key_value_heads": 4, "rms_norm_eps": 1e-5,
    },
    "kolibri1": {
        "model_type": "kolibri1", "architectures": ["Kolibri1ForCausalLM"], "sliding_window": 8,
        "shared_expert_intermediate_size": 16, "num_key_value_heads": 2,
        **{key: value for key, value in _EXPERTS.items() if key != "decoder_sparse_step"},
    },
    "hy_v4": {
        "model_type": "hy_v4", "architectures": ["HYV4ForCausalLM"], **_LATENT, "index_n_heads": 4,
        "index_head_dim": 16, "index_topk": 8, "hc_mult": 2,
    },
    "dots3_note": {
        "model_type": "dots3_note", "architectures": ["Dots3NoteForConditionalGeneration"],
        **{key: value for key, value in _LATENT.items() if key != "rope_scaling"}, "index_n_heads": 4,
        "index_head_dim": 16, "index_topk": 8, "sliding_window_size": 8, "swa_num_attention_heads": 2,
        "swa_num_key_value_heads": 2, "swa_q_lora_rank": 16, "swa_kv_lora_rank": 16, "swa_head_dim": 20,
        "swa_qk_nope_head_dim": 12, "swa_v_head_dim": 12, "moe_shared_expert_intermediate_size": 20,
    },
    "axk2": {
        "model_type": "axk2", "architectures": ["AXK2ForCausalLM"], **_LATENT, "index_n_heads": 4,
        "index_head_dim": 16, "index_topk": 8, "gated_norm_rank": 6,
    },
    "minimax_m3": {
        "model_type": "minimax_m3_vl_text", "architectures": ["MiniMaxM3VLForCausalLM"], "head_dim": 16,
        "num_key_value_heads": 2, "index_n_heads": 2, "index_head_dim": 16, "index_block_size": 32,
        "index_topk_blocks": 1, "dense_intermediate_size": 40, "shared_intermediate_size": 24, "num_local_experts": 4,
        "num_experts_per_tok": 2, "layer_types": ["full_attention", *["minimax_m3_sparse"] * 2],
        "mlp_layer_types": ["dense", "sparse", "sparse"],
    },
    "inkling": {
        "model_type": "inkling_text", "architectures": ["InklingForCausalLM"], "head_dim": 8, "num_key_value_heads": 2,
        "swa_num_attention_heads": 2, "swa_num_key_value_heads": 1, "swa_head_dim": 12, "sliding_window_size": 8,
        "d_rel": 4, "rel_extent": 12, "log_scaling_n_floor": 16, "n_routed_experts": 5, "num_experts_per_tok": 2,
        "n_shared_experts": 2, "moe_intermediate_size": 24, "route_scale": 1.5, "logits_mup_width_multiplier": 2.0,
        "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding"], "mlp_layer_types": ["dense", "sparse", "sparse"],
    },
    "step3p5": {
        "model_type": "step3p5", "architectures": ["Step3p5ForCausalLM"], "head_dim": 16, "num_attention_groups": 2,
        "moe_num_experts": 4, "moe_top_k": 2, "moe_intermediate_size": 24, "share_expert_dim": 16, "sliding_window": 8,
        "moe_layers_enum": "1,2", "num_nextn_predict_layers": 1, "rope_theta": [5e5, 1e4, 1e4, 1e4],
        "layer_types": ["full_attention", *["sliding_attention"] * 3], "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0],
        "attention_other_setting": {"num_attention_heads": 6}, "swiglu_limits": [0.0, 0.0, 7.0, 0.0],
        "swiglu_limits_shared": [0.0, 0.0, 16.0, 0.0],
    },
    "longcat_flash": {
        "model_type": "longcat_flash", "architectures": ["LongcatFlashForCausalLM"], "num_layers": 1,
        "ffn_hidden_size": 64, "expert_ffn_hidden_size": 24, "n_routed_experts": 4, "zero_expert_num": 3, "moe_topk": 2,
        "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    },
    "gemma4": {
        "model_type": "gemma4_text", "architectures": ["Gemma4ForCausalLM"], **_GEMMA, "enable_moe_block": True,
        "global_head_dim": 16,
        "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 24, "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "gemma3n": {
        "model_type": "gemma3n_text", "architectures": ["Gemma3nForCausalLM"], **_GEMMA, "altup_num_inputs": 3,
        "laurel_rank": 8, "altup_correct_scale": True, "activation_sparsity_pattern": [0.95, 0.5, 0.0, 0.0],
        "intermediate_size": [40, 40, 48, 40],
    },
    "bert": _BERT,
    "roberta": {
        **_BERT, "model_type": "xlm-roberta", "architectures": ["XLMRobertaModel"], "pad_token_id": 1,
        "max_position_embeddings": 66,
    },
    "deberta": {
        **_BERT, "model_type": "deberta-v2", "architectures": ["DebertaV2Model"], "relative_attention": True,
        "share_att_key": True, "norm_rel_ebd": "layer_norm", "pos_att_type": "p2c|c2p", "position_buckets": 16,
        "position_biased_input": False, "type_vocab_size": 0, "max_relative_positions": -1,
    },
    "deberta-1": {
        **_BERT, "model_type": "deberta", "architectures": ["DebertaModel"], "relative_attention": True,
        "pos_att_type": "p2c|c2p", "position_biased_input": False, "type_vocab_size": 0, "max_relative_positions": 16,
    },
    "albert": {
        **_BERT, "model_type": "albert", "architectures": ["AlbertModel"], "embedding_size": 24, "num_hidden_groups": 2,
        "inner_group_num": 2, "hidden_act": "gelu_new",
    },
    "esm": {
        "model_type": "esm", "architectures": ["EsmModel"], "layer_norm_eps": 1e-5, "mask_token_id": 40,
        "pad_token_id": 1, "position_embedding_type": "rotary", "token_dropout": True, "emb_layer_norm_before": True,
    },
    "mpnet": {
        **_BERT, "model_type": "mpnet", "architectures": ["MPNetModel"], "relative_attention_num_buckets": 32,
        "max_position_embeddings": 66,
    },
    "t5": {
        "model_type": "t5", "architectures": ["T5EncoderModel"], "d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 2,
        "num_heads": 4, "feed_forward_proj": "gated-gelu", "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 20, "is_encoder_decoder": True,
    },
    "modernbert": {
        "model_type": "modernbert", "architectures": ["ModernBertModel"], "local_attention": 8,
        "global_attn_every_n_layers": 2, "global_rope_theta": 1e5, "local_rope_theta": 1e4, "norm_bias": False,
    },
    "nomic": {
        "model_type": "nomic_bert", "architectures": ["NomicBertModel"], "n_embd": 32, "n_head": 4, "n_layer": 2,
        "n_inner": 40, "rotary_emb_base": 1000, "activation_function": "swiglu", "max_trained_positions": 64,
        "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "type_vocab_size": 2,
    },
}  # fmt: skip
# Files beside config.json of a model that sentence-transformers describes.
_MODULES: dict[str, Any] = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ],
    "1_Pooling/config.json": {
        "word_embedding_dimension": 32, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True,
    },
    "sentence_bert_config.json": {"max_seq_length": 32, "do_lower_case": True},
}  # fmt: skip


def write_small(folder: Path, family: str) -> None:
    """The model's config.json and model.safetensors; BERT's with the files of sentence-transformers."""
    own = SMALL[family]
    groups = {} if own["model_type"] in ENCODERS else {"num_key_value_heads": 2}
    config_json = own if "text_config" in own else {**_SIZES, **groups, **own}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_json))
    for name, value in (_MODULES if family == "bert" else {}).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(value))
    config = read_config(folder, pooled=pooling_plan(folder, PoolingAsked()) is not None)
    embed = (VECTORS | config.names)["embed"]
    write_tensors(folder / "model.safetensors", shapes_of(config, "" if config.pooled else "model.", embed))


def shapes_of(config: ModelConfig, prefix: str, embed: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors that a family reads, by their names in a file."""
    shapes: dict[str, tuple[int, ...]] = {}
    for part in parts(config, {f"{prefix}{embed}.weight"}):
        shape = part.stored_shape
        rows = part.of_rows or shape[0]
        if part.of_rows is None and part.stored in shapes:
            rows += _rows(shapes[part.stored], config, part)
        shapes[part.stored] = _stored((rows, *shape[1:]), config, part)
    return shapes


def _stored(shape: tuple[int, ...], config: ModelConfig, part: TensorPart) -> tuple[int, ...]:
    if not part.transposed:
        return shape
    count = _experts(config, part)
    return (count, shape[1], shape[0] // count) if count > 1 else shape[::-1]


def _rows(stored: tuple[int, ...], config: ModelConfig, part: TensorPart) -> int:
    return stored[-1] * _experts(config, part) if part.transposed else stored[0]


def _experts(config: ModelConfig, part: TensorPart) -> int:
    mixer = config.layers[part.layer or 0].mixer
    if isinstance(mixer, RgLru):
        return mixer.gate_heads
    own = config.layers[part.layer or 0].feed_forward
    return own.count if isinstance(own, Experts) and ".experts." in part.name else 1


def random_tensors(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, npt.NDArray[np.float32]]:
    """Numbers around 0, of a size that no layer makes larger."""
    random = np.random.default_rng(5)
    return {
        name: random.standard_normal(shape, np.float32) * np.float32(shape[-1] ** -0.5 if len(shape) > 1 else 0.5)
        for name, shape in shapes.items()
    }


def write_tensors(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """A safetensors file of random float32."""
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    data = b"".join(values.tobytes() for values in random_tensors(shapes).values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
