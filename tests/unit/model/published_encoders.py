"""config.json files of models that pool, as published, less what says nothing about the maths."""

from __future__ import annotations

from typing import Any

ENCODERS: dict[str, dict[str, Any]] = {
    "all-MiniLM-L6-v2": {
        "architectures": ["BertModel"], "attention_probs_dropout_prob": 0.1, "gradient_checkpointing": False,
        "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 384, "initializer_range": 0.02,
        "intermediate_size": 1536, "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "bert",
        "num_attention_heads": 12, "num_hidden_layers": 6, "pad_token_id": 0, "position_embedding_type": "absolute",
        "transformers_version": "4.8.2", "type_vocab_size": 2, "use_cache": True, "vocab_size": 30522,
    },
    "bge-small-en-v1.5": {
        "architectures": ["BertModel"], "attention_probs_dropout_prob": 0.1, "classifier_dropout": None,
        "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 384, "id2label": {"0": "LABEL_0"},
        "initializer_range": 0.02, "intermediate_size": 1536, "label2id": {"LABEL_0": 0}, "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512, "model_type": "bert", "num_attention_heads": 12, "num_hidden_layers": 12,
        "pad_token_id": 0, "position_embedding_type": "absolute", "torch_dtype": "float32", "type_vocab_size": 2,
        "use_cache": True, "vocab_size": 30522,
    },
    "ms-marco-MiniLM-L6-v2": {
        "architectures": ["BertForSequenceClassification"], "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1, "hidden_size": 384, "id2label": {"0": "LABEL_0"}, "initializer_range": 0.02,
        "intermediate_size": 1536, "label2id": {"LABEL_0": 0}, "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512, "model_type": "bert", "num_attention_heads": 12, "num_hidden_layers": 6,
        "pad_token_id": 0, "position_embedding_type": "absolute", "torch_dtype": "float32",
        "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity", "type_vocab_size": 2,
        "use_cache": True, "vocab_size": 30522,
    },
    "bge-m3": {
        "architectures": ["XLMRobertaModel"], "attention_probs_dropout_prob": 0.1, "bos_token_id": 0,
        "classifier_dropout": None, "eos_token_id": 2, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
        "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 4096, "layer_norm_eps": 1e-05,
        "max_position_embeddings": 8194, "model_type": "xlm-roberta", "num_attention_heads": 16,
        "num_hidden_layers": 24, "output_past": True, "pad_token_id": 1, "position_embedding_type": "absolute",
        "torch_dtype": "float32", "type_vocab_size": 1, "use_cache": True, "vocab_size": 250002,
    },
    "bge-reranker-v2-m3": {
        "architectures": ["XLMRobertaForSequenceClassification"], "attention_probs_dropout_prob": 0.1,
        "bos_token_id": 0, "classifier_dropout": None, "eos_token_id": 2, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1, "hidden_size": 1024, "id2label": {"0": "LABEL_0"}, "initializer_range": 0.02,
        "intermediate_size": 4096, "label2id": {"LABEL_0": 0}, "layer_norm_eps": 1e-05,
        "max_position_embeddings": 8194, "model_type": "xlm-roberta", "num_attention_heads": 16,
        "num_hidden_layers": 24, "output_past": True, "pad_token_id": 1, "position_embedding_type": "absolute",
        "torch_dtype": "float32", "type_vocab_size": 1, "use_cache": True, "vocab_size": 250002,
    },
    "multi-qa-distilbert-cos-v1": {
        "activation": "gelu", "architectures": ["DistilBertModel"], "attention_dropout": 0.1, "dim": 768,
        "dropout": 0.1, "hidden_dim": 3072, "initializer_range": 0.02, "max_position_embeddings": 512,
        "model_type": "distilbert", "n_heads": 12, "n_layers": 6, "pad_token_id": 0, "qa_dropout": 0.1,
        "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": False, "tie_weights_": True, "torch_dtype": "float32",
        "vocab_size": 30522,
    },
    "distilbert-base-uncased-finetuned-sst-2-english": {
        "activation": "gelu", "architectures": ["DistilBertForSequenceClassification"], "attention_dropout": 0.1,
        "dim": 768, "dropout": 0.1, "finetuning_task": "sst-2", "hidden_dim": 3072,
        "id2label": {"0": "NEGATIVE", "1": "POSITIVE"}, "initializer_range": 0.02,
        "label2id": {"NEGATIVE": 0, "POSITIVE": 1}, "max_position_embeddings": 512, "model_type": "distilbert",
        "n_heads": 12, "n_layers": 6, "output_past": True, "pad_token_id": 0, "qa_dropout": 0.1,
        "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": False, "tie_weights_": True, "vocab_size": 30522,
        "torch_dtype": "float32",
    },
    "all-mpnet-base-v2": {
        "architectures": ["MPNetForMaskedLM"], "attention_probs_dropout_prob": 0.1, "bos_token_id": 0,
        "eos_token_id": 2, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768,
        "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-05, "max_position_embeddings": 514,
        "model_type": "mpnet", "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1,
        "relative_attention_num_buckets": 32, "torch_dtype": "float32", "transformers_version": "4.8.2",
        "vocab_size": 30527,
    },
    "mxbai-rerank-large-v1": {
        "architectures": ["DebertaV2ForSequenceClassification"], "attention_probs_dropout_prob": 0.1,
        "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 1024, "id2label": {"0": "LABEL_0"},
        "initializer_range": 0.02, "intermediate_size": 4096, "label2id": {"LABEL_0": 0}, "layer_norm_eps": 1e-07,
        "max_position_embeddings": 512, "max_relative_positions": -1, "model_type": "deberta-v2",
        "norm_rel_ebd": "layer_norm", "num_attention_heads": 16, "num_hidden_layers": 24, "pad_token_id": 0,
        "pooler_dropout": 0, "pooler_hidden_act": "gelu", "pooler_hidden_size": 1024, "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False, "position_buckets": 256, "relative_attention": True, "share_att_key": True,
        "torch_dtype": "float16", "transformers_version": "4.38.1", "type_vocab_size": 0, "vocab_size": 128100,
    },
    "deberta-v3-base": {
        "model_type": "deberta-v2", "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1, "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072,
        "max_position_embeddings": 512, "relative_attention": True, "position_buckets": 256,
        "norm_rel_ebd": "layer_norm", "share_att_key": True, "pos_att_type": "p2c|c2p", "layer_norm_eps": 1e-7,
        "max_relative_positions": -1, "position_biased_input": False, "num_attention_heads": 12,
        "num_hidden_layers": 12, "type_vocab_size": 0, "vocab_size": 128100,
    },
    "sentence-t5-base": {
        "architectures": ["T5EncoderModel"], "d_ff": 3072, "d_kv": 64, "d_model": 768, "decoder_start_token_id": 0,
        "dropout_rate": 0.1, "eos_token_id": 1, "feed_forward_proj": "relu", "initializer_factor": 1.0,
        "is_encoder_decoder": True, "layer_norm_epsilon": 1e-06, "model_type": "t5", "n_positions": 512,
        "num_decoder_layers": 12, "num_heads": 12, "num_layers": 12, "output_past": True, "pad_token_id": 0,
        "relative_attention_num_buckets": 32, "torch_dtype": "float32", "transformers_version": "4.11.0.dev0",
        "use_cache": True, "vocab_size": 32128,
    },
    "gte-modernbert-base": {
        "architectures": ["ModernBertModel"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 50281, "classifier_activation": "gelu", "classifier_bias": False, "classifier_dropout": 0.0,
        "classifier_pooling": "mean", "cls_token_id": 50281, "decoder_bias": True, "deterministic_flash_attn": False,
        "embedding_dropout": 0.0, "eos_token_id": 50282, "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0, "gradient_checkpointing": False, "hidden_activation": "gelu",
        "hidden_size": 768, "initializer_cutoff_factor": 2.0, "initializer_range": 0.02, "intermediate_size": 1152,
        "layer_norm_eps": 1e-05, "local_attention": 128, "local_rope_theta": 10000.0,
        "max_position_embeddings": 8192, "mlp_bias": False, "mlp_dropout": 0.0, "model_type": "modernbert",
        "norm_bias": False, "norm_eps": 1e-05, "num_attention_heads": 12, "num_hidden_layers": 22,
        "pad_token_id": 50283, "position_embedding_type": "absolute", "reference_compile": True,
        "repad_logits_with_grad": False, "sep_token_id": 50282, "sparse_pred_ignore_index": -100,
        "sparse_prediction": False, "torch_dtype": "float16", "vocab_size": 50368,
    },
    "gte-reranker-modernbert-base": {
        "architectures": ["ModernBertForSequenceClassification"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 50281, "classifier_activation": "gelu", "classifier_bias": False, "classifier_dropout": 0.0,
        "classifier_pooling": "mean", "cls_token_id": 50281, "eos_token_id": 50282, "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0, "hidden_activation": "gelu", "hidden_size": 768,
        "id2label": {"0": "LABEL_0"}, "intermediate_size": 1152, "label2id": {"LABEL_0": 0},
        "local_attention": 128, "local_rope_theta": 10000.0, "max_position_embeddings": 8192, "mlp_bias": False,
        "model_type": "modernbert", "norm_bias": False, "norm_eps": 1e-05, "num_attention_heads": 12,
        "num_hidden_layers": 22, "pad_token_id": 50283, "sep_token_id": 50282, "torch_dtype": "float16",
        "vocab_size": 50368,
    },
    "Qwen3-Embedding-0.6B": {
        "architectures": ["Qwen3Model"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643,
        "eos_token_id": 151643, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
        "initializer_range": 0.02, "intermediate_size": 3072, "max_position_embeddings": 32768,
        "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000,
        "sliding_window": None, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True,
        "use_sliding_window": False, "vocab_size": 151669, "matryoshka_dimensions": None, "is_matryoshka": True,
    },
    "embeddinggemma-300m": {
        "_sliding_window_pattern": 6, "architectures": ["Gemma3TextModel"], "attention_bias": False,
        "attention_dropout": 0.0, "attn_logit_softcapping": None, "bos_token_id": 2, "dtype": "float32",
        "eos_token_id": 1, "final_logit_softcapping": None, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 768, "initializer_range": 0.02,
        "intermediate_size": 1152, "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 4,
        "max_position_embeddings": 2048, "model_type": "gemma3_text", "num_attention_heads": 3,
        "num_hidden_layers": 24, "num_key_value_heads": 1, "pad_token_id": 0, "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000.0, "rope_scaling": None, "rope_theta": 1000000.0,
        "sliding_window": 512, "use_bidirectional_attention": True, "use_cache": True, "vocab_size": 262144,
    },
}  # fmt: skip

_OFF = {
    "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": False,
    "pooling_mode_mean_sqrt_len_tokens": False,
}  # fmt: skip
# For each model: its config above, its modules, and the expected result.
MODULES: dict[str, tuple[str, list[tuple[str, dict[str, Any]]], tuple[str, str]]] = {
    "all-MiniLM-L6-v2": (
        "all-MiniLM-L6-v2",
        [("Transformer", {}), ("Pooling", _OFF | {"pooling_mode_mean_tokens": True}), ("Normalize", {})],
        ("mean", "normalize"),
    ),
    "bge-small-en-v1.5": (
        "bge-small-en-v1.5",
        [("Transformer", {}), ("Pooling", _OFF | {"pooling_mode_cls_token": True}), ("Normalize", {})],
        ("cls", "normalize"),
    ),
    "gte-modernbert-base": (
        "gte-modernbert-base",
        [("Transformer", {}), ("Pooling", _OFF | {"pooling_mode_cls_token": True})],
        ("cls", "none"),
    ),
    "all-mpnet-base-v2": (
        "all-mpnet-base-v2",
        [("Transformer", {}), ("Pooling", _OFF | {"pooling_mode_mean_tokens": True}), ("Normalize", {})],
        ("mean", "normalize"),
    ),
    "sentence-t5-base": (
        "sentence-t5-base",
        [
            ("Transformer", {}),
            ("Pooling", _OFF | {"pooling_mode_mean_tokens": True}),
            (
                "Dense",
                {
                    "in_features": 768,
                    "out_features": 768,
                    "bias": False,
                    "activation_function": "torch.nn.modules.linear.Identity",
                },
            ),
            ("Normalize", {}),
        ],
        ("mean", "normalize"),
    ),
    "Qwen3-Embedding-0.6B": (
        "Qwen3-Embedding-0.6B",
        [("Transformer", {}), ("Pooling", _OFF | {"pooling_mode_lasttoken": True}), ("Normalize", {})],
        ("last", "normalize"),
    ),
}

# Configs of models with remote code; transformers' classes lack some of these keys.
NOMIC: dict[str, Any] = {
    "activation_function": "swiglu", "architectures": ["NomicBertModel"], "attn_pdrop": 0.0, "bos_token_id": None,
    "causal": False, "dense_seq_output": True, "embd_pdrop": 0.0, "eos_token_id": None, "fused_bias_fc": True,
    "fused_dropout_add_ln": True, "initializer_range": 0.02, "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 2048, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "model_type": "nomic_bert",
    "n_embd": 768, "n_head": 12, "n_inner": 3072, "n_layer": 12, "n_positions": 8192, "pad_vocab_size_multiple": 64,
    "parallel_block": False, "parallel_block_tied_norm": False, "prenorm": False, "qkv_proj_bias": False,
    "reorder_and_upcast_attn": False, "resid_pdrop": 0.0, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "rotary_scaling_factor": None,
    "scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True, "torch_dtype": "float32",
    "type_vocab_size": 2, "use_cache": True, "use_flash_attn": True, "use_rms_norm": False, "use_xentropy": True,
    "vocab_size": 30528,
}  # fmt: skip
NOMIC_OF_TRANSFORMERS: dict[str, Any] = {
    "architectures": ["NomicBertModel"], "dtype": "float32", "head_dim": 64, "hidden_act": "silu",
    "hidden_size": 768, "intermediate_size": 3072, "layer_norm_eps": 1e-12, "max_position_embeddings": 2048,
    "model_type": "nomic_bert", "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 0,
    "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"}, "type_vocab_size": 2, "vocab_size": 30528,
}  # fmt: skip
GTE: dict[str, Any] = {
    "architectures": ["NewModel"], "attention_probs_dropout_prob": 0.0, "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1, "hidden_size": 768, "intermediate_size": 3072, "layer_norm_eps": 1e-12,
    "layer_norm_type": "layer_norm", "logn_attention_clip1": False, "logn_attention_scale": False,
    "max_position_embeddings": 8192, "model_type": "new", "num_attention_heads": 12, "num_hidden_layers": 12,
    "pack_qkv": True, "pad_token_id": 1, "position_embedding_type": "rope",
    "rope_scaling": {"factor": 8.0, "type": "ntk"}, "rope_theta": 20000, "torch_dtype": "float16",
    "type_vocab_size": 1, "unpad_inputs": False, "use_memory_efficient_attention": False, "vocab_size": 250048,
}  # fmt: skip
