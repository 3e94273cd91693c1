"""Checks of config.json's keys that change the results: values that the executor does not compute are refused."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forearm.config.number_formats import DTYPES, DTypeName
from forearm.errors import ConfigError
from forearm.model.checkpoint.shards import FLOATS, read_tensors
from forearm.model.families.config import Attention, Experts, ModelConfig
from forearm.model.families.keys import Keys

log = logging.getLogger(__name__)

FULL, SLIDING = "full_attention", "sliding_attention"

# Keys that change the results, with the only values that the executor computes. They are checked if the family itself
# did not read them.
_ONLY: dict[str, tuple[Any, ...]] = {
    "is_encoder_decoder": (None, False),
    "add_cross_attention": (None, False),
    "use_bidirectional_attention": (None, False),
    "clip_qkv": (None,),
    "num_experts": (None, 0),
    "shared_expert_intermediate_size": (None, 0),
    "num_local_experts": (None, 0, 1),
    "moe_num_experts": (None, 0),
    "n_routed_experts": (None, 0),
    "moe_gate": (None, "topk"),
    "moe_use_aux_free": (None, True),
    "dual_chunk_attention_config": (None,),
    "attention_chunk_size": (None,),
    "block_use_swiglu": (None, True),
    "use_mrope": (None, False),
    "attn_output_gate": (None, True),
    "output_gate_type": (None, "swish", "silu"),
    "alibi": (None, False),
    "position_embedding_type": (None, "rope", "absolute"),
    "qk_layernorm": (None, False),
    "kv_lora_rank": (None,),
    "moe_layer_freq": (None, 1),
    "llama_4_scaling": (None,),
    "adapter_config": (None,),
    "attention_bias": (None, False),
    "mlp_bias": (None, False),
    "lm_head_bias": (None, False),
    "cross_attention_hidden_size": (None,),
    "full_attn_mod": (None, 1),
    "interpolate_factor": (None, 1),
    "normalization_function": (None, "rmsnorm"),
    "mamba_use_mlp": (None, True),
    "attn_layer_indices": (None,),
    "mamba_proj_bias": (None, False),
    "apply_residual_connection_post_layernorm": (None, False),
}
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")  # names of one number

# Keys that do not change inference: they concern training, files and tokenizers.
_IGNORED = {
    "aux_loss_alpha", "ep_size", "qk_head_dim", "seq_aux",
    "_attn_implementation", "_attn_implementation_autoset", "_diffusers_version", "_name_or_path",
    "activation_dropout", "architectures", "attention_dropout", "attention_probs_dropout_prob", "classifier_bias",
    "classifier_activation", "classifier_dropout", "classifier_from_token", "classifier_pooling", "cls_token_id",
    "decoder_bias", "deterministic_flash_attn", "embedding_dropout", "hidden_dropout_prob",
    "initializer_cutoff_factor", "is_matryoshka", "layer_norm_eps", "matryoshka_dimensions", "mlp_dropout",
    "output_past", "reference_compile", "repad_logits_with_grad", "sbert_ce_default_activation_function",
    "sentence_transformers", "sparse_pred_ignore_index", "sparse_prediction", "use_flash_attn",
    "block_dim", "block_mlp_init_scale", "block_out_init_scale", "block_use_xavier_init", "conv_dim", "conv_dim_out",
    "conv_use_xavier_init", "num_heads", "theta", "use_pos_enc", "block_norm_eps",
    "attention_softmax_in_fp32", "attn_implementation", "auto_map", "bad_words_ids",
    "begin_suppress_tokens", "boi_token_id", "boi_token_index", "bos_token_id", "cache_implementation",
    "chunk_size_feed_forward", "compression_config", "decoder_start_token_id", "dropout", "dtype", "embd_pdrop",
    "eoi_token_id", "eoi_token_index", "eos_token_id", "finetuning_task", "forced_bos_token_id", "forced_eos_token_id",
    "gradient_checkpointing", "head_dim", "hidden_act", "hidden_activation", "hidden_dropout", "id2label",
    "image_token_id", "image_token_index", "init_std", "initializer_range", "is_decoder", "label2id",
    "layer_types", "layerdrop", "layers_block_type", "max_length", "max_window_layers", "mm_tokens_per_image",
    "model_type", "name_or_path", "no_rope_layer_interval", "num_labels", "num_nextn_predict_layers", "original_dtype",
    "moe_capacity", "num_mtp_layers", "experts_per_token", "initial_context_length", "mtp_num_hidden_layers",
    "index_share_for_mtp_iteration", "moe_router_dtype", "mtp_loss_scaling_factor",  # of GLM-5.2 and Ling 3.0
    "mtp_use_dedicated_embeddings", "mamba_ssm_dtype", "language_model_only", "mlp_only_layers",
    "original_max_position_embeddings", "output_attentions", "output_router_logits", "router_aux_loss_coef",
    "router_jitter_noise", "input_jitter_noise", "output_hidden_states", "pad_to_multiple_of",
    "pad_token_id", "partial_rotary_factor", "prefix", "pretraining_tp", "problem_type", "pruned_heads",
    "quantization_config",
    "reorder_and_upcast_attn", "scale_attention_softmax_in_fp32", "scale_attn_weights",
    "qa_dropout", "resid_pdrop", "return_dict", "rope_local_base_freq", "rope_parameters", "rope_scaling", "rope_theta",
    "sep_token_id", "seq_classif_dropout", "sliding_window", "suppress_tokens",
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
    "task_specific_params", "text_config",
    "tie_encoder_decoder", "tie_weights_", "tokenizer_class", "torch_dtype", "torchscript", "transformers_version",
    "layer_switch", "order_of_interleaved_layers", "rotary_pct", "use_embedding_sharing", "use_gated_activation",
    "mtp_layer_types", "mtp_mlp_layer_types",
    "use_parallel_block", "use_parallel_embedding", "eod_token_id", "org_vocab_size", "pad_id", "eod_id", "bos_id",
    "residual_dropout", "unsloth_fixed", "unsloth_version", "use_cache", "use_return_dict", "use_sliding_window",
    "video_token_id", "vision_config", "vision_end_token_id", "vision_start_token_id", "vision_token_id",
    "word_embed_proj_dim", "mamba_chunk_size", "init_method",
    "attn_pdrop", "for_llm_compressor", "attn_rotary_emb", "num_logits_to_keep", "rotary", "z_loss_coefficient",
    "mlp_expansion_factor", "chunk_size", "expand", "rescale_prenorm_residual", "residual_in_fp32", "time_step_floor",
    "time_step_max", "time_step_min", "time_step_rank", "use_mamba_kernels", "mamba_ssm_cache_dtype", "rms_norm_eps",
    "norm_before_gate", "rms_norm", "time_step_init_scheme", "time_step_scale", "use_mambapy", "use_associative_scan",
    "fused_add_norm", "pad_vocab_size_multiple", "ssm_cfg",  # of the first files of Mamba
    "moe_shared_expert_overlap", "mtp_layers_block_type", "mtp_hybrid_override_pattern",
    "inference_runner", "max_batch_size", "max_sequence_length", "pad_key_length", "pre_allocate_kv_cache",
    "validate_runner_input",
    "dense_act_fn", "dropout_rate", "initializer_factor", "is_gated_act", "num_decoder_layers",  # T5's
    "scale_decoder_outputs",
    "linear_a_log_max", "linear_a_log_min", "linear_dt_init_floor", "linear_dt_max", "linear_dt_min",  # of training
    "audio_config", "embedding_initializer_range", "altup_coef_clip", "altup_lr_multiplier",  # of training, Gemma 3n's
    "embed_dropout", "resid_dropout",  # GPT-Neo's
    "pooling",  # of a Cohere Compass that embeds
    "cls_dropout", "pooler_dropout", "pooler_hidden_act",  # DeBERTa's
    "_num_labels", "classifier_dropout_prob", "down_scale_factor", "gap_size", "net_structure_type",  # ALBERT's
    "num_memory_blocks", "summary_last_dropout", "mask_token_id", "enable_recompute", "padding_idx", "pooler",
}  # fmt: skip


def check_architecture(keys: Keys, pooled: bool = False) -> None:
    """Refuse an architecture that is not a causal language model, such as a classifier, whose head has other tensors.

    pooled: permit the heads of embedding models, masked language models and classifiers too.
    """
    names = keys.get("architectures") or []
    if not isinstance(names, list):
        raise keys.wrong("architectures", "a list of one name")
    if pooled:
        served = (
            "ForCausalLM",
            "ForConditionalGeneration",
            "Model",
            "ForMaskedLM",
            "ForPreTraining",
            "ForSequenceClassification",
            "ForTokenClassification",
            "HF_ColBERT",
            "NeoBERT",
            "NeoBERTLMHead",
            "XLMRobertaLoRA",  # of models made of jina-embeddings-v3
        )
        if names and not str(names[0]).endswith(served):
            raise keys.wrong("architectures", f"a ...{', ...'.join(served[2:])} or ...{served[0]}")
        return
    generating = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "Omni_Reasoning_V3")  # the last: Nemotron's
    if names and not any(str(n).endswith(generating) for n in names):
        raise keys.wrong("architectures", "a ...ForCausalLM; models with other heads are not served")


def checkpoint_dtype(inner: Keys, outer: Keys, folder: Path) -> DTypeName:
    """Return the dtype of the stored weights: the one in config.json, or else the first float tensor's."""
    for keys in (inner, outer):
        for key in ("dtype", "torch_dtype"):
            if keys.get(key) is not None:
                name = keys.text(key)
                if name not in DTYPES:
                    raise keys.wrong(key, "float32, float16 or bfloat16")
                return DTYPES[name]
    for tensor in read_tensors(folder).values():
        if tensor.dtype in FLOATS:
            return tensor.float_dtype
    raise ConfigError(f"{folder}: no float tensor in its files")


def check_unread(outer: Keys, inner: Keys) -> None:
    """Refuse unread keys that change the results, and log the unknown keys in one line.

    Raises: ConfigError naming the first key whose value the executor does not compute.
    """
    for keys in (outer, inner):
        experts = {key: keys.values[key] for key in _EXPERTS if key in keys.values and key in keys.read}
        for key in sorted(set(_ONLY) & (set(keys.values) - keys.read)):
            names = experts if key in _EXPERTS else {}
            if keys.values[key] in (*_ONLY[key], *names.values()):
                continue
            if names:
                raise keys.wrong(key, " or ".join(f"{json.dumps(count)}, as {name}" for name, count in names.items()))
            raise keys.wrong(key, f"{' or '.join(json.dumps(v) for v in _ONLY[key])}: more is not supported")
    kinds = inner.values.get("layer_types")
    read = "layer_types" in inner.read  # by a family that has other types
    if (
        kinds is not None
        and not read
        and not (isinstance(kinds, list) and all(kind in (FULL, SLIDING) for kind in kinds))
    ):
        raise inner.wrong("layer_types", f"a list of {FULL} and {SLIDING}")
    unknown = sorted(set(inner.values) - inner.read - _IGNORED - set(_ONLY))
    if unknown:
        log.warning("%s: keys this version does not know, and leaves out: %s", inner.source, ", ".join(unknown))


def check_flat(settings: Keys) -> None:
    """Refuse rope settings by layer type in a family whose layers all have the same angles."""
    for key, value in settings.values.items():
        if isinstance(value, dict):
            raise settings.wrong(key, "absent: this family has one set of angles")


MOST_POSITIONS = (1 << 30) - 1  # of the executor
_MOST_EXPERTS = 1 << 17  # of all layers; the largest models of 2026 have about 25,000
# Bounds of sizes, the executor's own, far beyond the largest models of 2026: the memory for objects computed from them
# (angles, a list of layers) stays small whatever a file contains.
BOUNDS = {
    "vocab_size": 1 << 26, "hidden_size": 1 << 20, "intermediate_size": 1 << 20, "num_hidden_layers": 1 << 10,
    "num_attention_heads": 1 << 12, "num_key_value_heads": 1 << 12, "head_dim": 1 << 12, "ffn_dim": 1 << 20,
    "max_position_embeddings": MOST_POSITIONS, "original_max_position_embeddings": MOST_POSITIONS,
    "sliding_window": (1 << 31) - 1, "local_attention": MOST_POSITIONS, "attention_chunk_size": (1 << 31) - 1,
    "floor_scale": MOST_POSITIONS, "type_vocab_size": 1 << 10, "moe_intermediate_size": 1 << 20,
    "share_expert_dim": 1 << 20, "num_attention_groups": 1 << 12,  # Step 3.5's names
    "dim": 1 << 20, "hidden_dim": 1 << 20, "n_heads": 1 << 12, "n_layers": 1 << 10,  # DistilBERT's names
    "d_model": 1 << 20, "d_ff": 1 << 20, "d_kv": 1 << 12, "num_layers": 1 << 10,  # T5's names
    "n_embd": 1 << 20, "n_inner": 1 << 20, "n_head": 1 << 12, "n_layer": 1 << 10,  # GPT-2's names
    "n_positions": MOST_POSITIONS, "seq_length": MOST_POSITIONS, "max_seq_len": MOST_POSITIONS, "rotary_dim": 1 << 12,
}  # fmt: skip


def check_bounds(keys: Keys) -> None:
    """Refuse sizes beyond BOUNDS before anything is computed from them.

    Raises: ConfigError naming the key, its value and the bound.
    """
    given = Keys(keys.values, keys.source)  # a copy, because reading here does not count as read
    for key, most in BOUNDS.items():
        if key.endswith("intermediate_size") and isinstance(given.get(key), list):
            continue  # one for each layer: its family reads them
        value = given.optional_integer(key)
        least = 0 if key in ("sliding_window", "type_vocab_size") else 1
        if value is not None and not least <= value <= most:
            raise keys.wrong(key, f"{least} to {most}")


def check_sizes(config: ModelConfig, keys: Keys) -> None:
    """Refuse sizes and factors that no transformer can have.

    Raises: ConfigError naming the key.
    """
    for key, value in (
        ("vocab_size", config.vocab_size),
        ("hidden_size", config.hidden),
        ("num_attention_heads", config.heads),
        ("num_key_value_heads", config.kv_heads),
        ("num_hidden_layers", len(config.layers)),
        ("max_position_embeddings", config.max_positions),
        ("head_dim", config.head_dim),
    ):
        if value < 1:
            raise keys.wrong(key, "at least 1")
    if not 0 <= config.norm_eps < 1:
        key = next((key for key in ("layer_norm_eps", "norm_eps", "norm_epsilon") if key in keys), "rms_norm_eps")
        raise keys.wrong(key, "0 or more, and less than 1")
    for key, factor in (
        ("attn_logit_softcapping", config.attention_softcap),
        ("final_logit_softcapping", config.logits_softcap),
    ):
        if factor < 0:
            raise keys.wrong(key, "more than 0, or null")
    experts = sum(layer.feed_forward.count for layer in config.layers if isinstance(layer.feed_forward, Experts))
    if experts > _MOST_EXPERTS:
        raise keys.wrong("num_hidden_layers", f"less: all layers have {experts} experts, of at most {_MOST_EXPERTS}")
    if config.heads % config.kv_heads:
        raise keys.wrong("num_key_value_heads", f"a divisor of num_attention_heads ({config.heads})")
    rotated = (m for m in (layer.mixer for layer in config.layers) if isinstance(m, Attention) and m.rope is not None)
    for head_dim, rope in {(config.heads_of(mixer)[2], mixer.rope or 0) for mixer in rotated}:
        if head_dim % 2 or 2 * len(config.ropes[rope].inv_freq) > head_dim:
            raise keys.wrong("head_dim", "even, and at least the rotated part of a head")
    if any(isinstance(layer.mixer, Attention) and layer.mixer.window < 0 for layer in config.layers):
        raise keys.wrong("sliding_window", "at least 1, or null")


def layer_types(keys: Keys, default: Sequence[str], known: Sequence[str] = (FULL, SLIDING)) -> Sequence[str]:
    """Return one of the known kinds for each layer: the file's layer_types, or `default`."""
    given = keys.get("layer_types")
    if given is None:
        return default
    if not isinstance(given, list) or len(given) != len(default) or not all(kind in known for kind in given):
        raise keys.wrong("layer_types", f"a list of {len(default)} times {' or '.join(known)}")
    return given
