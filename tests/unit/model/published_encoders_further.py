"""config.json files of further encoders, as published, less what says nothing about the maths."""

from __future__ import annotations

from typing import Any

_OF_BERT: dict[str, Any] = {
    "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "initializer_range": 0.02,
    "torch_dtype": "float32",
}  # fmt: skip
_BASE = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 12}
_OF_ROBERTA = {
    "bos_token_id": 0, "eos_token_id": 2, "layer_norm_eps": 1e-05, "max_position_embeddings": 514, "pad_token_id": 1,
    "type_vocab_size": 1,
}  # fmt: skip

FURTHER: dict[str, dict[str, Any]] = {
    "sentence-camembert-base": {
        **_OF_BERT, **_BASE, **_OF_ROBERTA, "architectures": ["CamembertModel"], "bos_token_id": 5, "eos_token_id": 6,
        "classifier_dropout": None, "model_type": "camembert", "output_past": True, "use_cache": True,
        "position_embedding_type": "absolute", "vocab_size": 32005,
    },
    "data2vec-text-base": {
        **_OF_BERT, **_BASE, **_OF_ROBERTA, "architectures": ["Data2VecTextForMaskedLM"], "classifier_dropout": None,
        "model_type": "data2vec-text", "position_embedding_type": "absolute", "use_cache": True, "vocab_size": 50265,
    },
    "ms-marco-electra-base": {
        **_OF_BERT, **_BASE, "architectures": ["ElectraForSequenceClassification"], "embedding_size": 768,
        "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512, "model_type": "electra", "pad_token_id": 0,
        "position_embedding_type": "absolute",
        "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity",
        "summary_activation": "gelu", "summary_last_dropout": 0.1, "summary_type": "first", "summary_use_proj": True,
        "type_vocab_size": 2, "vocab_size": 30522,
    },
    "electra-small-discriminator": {
        **_OF_BERT, "architectures": ["ElectraForPreTraining"], "embedding_size": 128, "hidden_size": 256,
        "intermediate_size": 1024, "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "electra",
        "num_attention_heads": 4, "num_hidden_layers": 12, "pad_token_id": 0, "summary_activation": "gelu",
        "summary_last_dropout": 0.1, "summary_type": "first", "summary_use_proj": True, "type_vocab_size": 2,
        "vocab_size": 30522,
    },
    "paraphrase-albert-small-v2": {
        **_OF_BERT, "_num_labels": 2, "architectures": ["AlbertModel"], "attention_probs_dropout_prob": 0,
        "bos_token_id": 2, "classifier_dropout_prob": 0.1, "down_scale_factor": 1, "embedding_size": 128,
        "eos_token_id": 3, "gap_size": 0, "hidden_act": "gelu", "hidden_dropout_prob": 0, "hidden_size": 768,
        "inner_group_num": 1, "intermediate_size": 3072, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
        "model_type": "albert", "net_structure_type": 0, "num_attention_heads": 12, "num_hidden_groups": 1,
        "num_hidden_layers": 6, "num_memory_blocks": 0, "pad_token_id": 0, "position_embedding_type": "absolute",
        "type_vocab_size": 2, "vocab_size": 30000,
    },
    "ernie-3.0-base-zh": {
        **_OF_BERT, **_BASE, "architectures": ["ErnieForMaskedLM"], "enable_recompute": False, "layer_norm_eps": 1e-05,
        "max_position_embeddings": 2048, "model_type": "ernie", "pad_token_id": 0, "task_type_vocab_size": 3,
        "type_vocab_size": 4, "use_task_id": True, "use_cache": True, "vocab_size": 40000,
    },
    "ernie-2.0-classifier": {
        **_OF_BERT, **_BASE, "architectures": ["ErnieForSequenceClassification"], "layer_norm_eps": 1e-05,
        "max_position_embeddings": 512, "model_type": "ernie", "pad_token_id": 0, "task_type_vocab_size": 3,
        "type_vocab_size": 4, "use_task_id": False, "vocab_size": 30522,
    },
    "xlm-roberta-xl": {
        **_OF_BERT, **_OF_ROBERTA, "architectures": ["XLMRobertaXLForMaskedLM"], "hidden_size": 2560,
        "intermediate_size": 10240, "model_type": "xlm-roberta-xl", "num_attention_heads": 32, "num_hidden_layers": 36,
        "position_embedding_type": "absolute", "use_cache": True, "vocab_size": 250880,
    },
    "efficient_mlm_m0.40": {
        **_OF_BERT, **_OF_ROBERTA, "architectures": ["RobertaPreLayerNormForMaskedLM"], "classifier_dropout": None,
        "hidden_size": 1024, "intermediate_size": 4096, "model_type": "roberta-prelayernorm",
        "num_attention_heads": 16, "num_hidden_layers": 24, "position_embedding_type": "absolute", "vocab_size": 50265,
    },
    "rembert": {
        **_OF_BERT, "architectures": ["RemBertModel"], "attention_probs_dropout_prob": 0, "bos_token_id": 312,
        "classifier_dropout_prob": 0.1, "eos_token_id": 313, "hidden_dropout_prob": 0, "hidden_size": 1152,
        "input_embedding_size": 256, "intermediate_size": 4608, "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512, "model_type": "rembert", "num_attention_heads": 18, "num_hidden_layers": 32,
        "output_embedding_size": 1664, "pad_token_id": 0, "tie_word_embeddings": False, "type_vocab_size": 2,
        "use_cache": True, "vocab_size": 250300,
    },
    "esm2_t6_8M_UR50D": {
        "architectures": ["EsmForMaskedLM"], "attention_probs_dropout_prob": 0.0, "classifier_dropout": None,
        "emb_layer_norm_before": False, "esmfold_config": None, "hidden_act": "gelu", "hidden_dropout_prob": 0.0,
        "hidden_size": 320, "initializer_range": 0.02, "intermediate_size": 1280, "is_folding_model": False,
        "layer_norm_eps": 1e-05, "mask_token_id": 32, "max_position_embeddings": 1026, "model_type": "esm",
        "num_attention_heads": 20, "num_hidden_layers": 6, "pad_token_id": 1, "position_embedding_type": "rotary",
        "token_dropout": True, "torch_dtype": "float32", "use_cache": True, "vocab_list": None, "vocab_size": 33,
    },
    "EuroBERT-210m": {
        "architectures": ["EuroBertForMaskedLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token": "<|begin_of_text|>", "bos_token_id": 128000, "clf_pooling": "late", "eos_token": "<|end_of_text|>",
        "eos_token_id": 128001, "head_dim": 64, "hidden_act": "silu", "hidden_dropout": 0.0, "hidden_size": 768,
        "initializer_range": 0.02, "intermediate_size": 3072, "mask_token": "<|mask|>", "mask_token_id": 128002,
        "max_position_embeddings": 8192, "mlp_bias": False, "model_type": "eurobert", "num_attention_heads": 12,
        "num_hidden_layers": 12, "num_key_value_heads": 12, "pad_token": "<|end_of_text|>", "pad_token_id": 128001,
        "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 250000,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": False, "vocab_size": 128256,
    },
    "megatron-bert-uncased-345m": {
        **_OF_BERT, "hidden_size": 1024, "intermediate_size": 4096, "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512, "model_type": "megatron-bert", "num_attention_heads": 16,
        "num_hidden_layers": 24, "pad_token_id": 0, "position_embedding_type": "absolute", "type_vocab_size": 2,
        "use_cache": True, "vocab_size": 29056,
    },
    "deberta-base-mnli": {
        **_OF_BERT, **_BASE, "architectures": ["DebertaForSequenceClassification"],
        "id2label": {"0": "CONTRADICTION", "1": "NEUTRAL", "2": "ENTAILMENT"},
        "label2id": {"CONTRADICTION": 0, "ENTAILMENT": 2, "NEUTRAL": 1}, "layer_norm_eps": 1e-07,
        "max_position_embeddings": 512, "max_relative_positions": -1, "model_type": "deberta",
        "padding_idx": 0, "pad_token_id": 0, "pooler": {"dropout": 0, "hidden_act": "gelu"}, "pooler_dropout": 0,
        "pooler_hidden_act": "gelu", "pooler_hidden_size": 768, "pos_att_type": ["c2p", "p2c"],
        "position_biased_input": False, "relative_attention": True, "type_vocab_size": 0, "vocab_size": 50265,
    },
}  # fmt: skip
