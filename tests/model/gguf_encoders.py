"""Encoders written as .gguf files, with the rules by which llama.cpp's converter writes them.

Source: convert_hf_to_gguf.py and conversion/ of ggml-org/llama.cpp; tensors' names: the gguf package.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file
from tests.model.gguf_models import permuted_rows
from tests.unit.model.gguf_files import write_gguf
from tokenizers import Tokenizer

POOLS = {"none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}
_NORMAL, _UNKNOWN, _CONTROL = 1, 2, 3
_SPACE = "\u2581"
_KEYS = {
    "max_position_embeddings": "context_length", "hidden_size": "embedding_length", "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length", "num_attention_heads": "attention.head_count",
    "layer_norm_eps": "attention.layer_norm_epsilon", "type_vocab_size": "token_type_count",
    "num_key_value_heads": "attention.head_count_kv", "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon", "sliding_window": "attention.sliding_window",
    "norm_eps": "attention.layer_norm_epsilon", "local_attention": "attention.sliding_window",
    "global_attn_every_n_layers": "attention.sliding_window_pattern", "hidden_activation": "hidden_activation",
    "relative_attention_num_buckets": "attention.relative_buckets_count",
}  # fmt: skip
_HEADS = {
    "score.weight": "cls.output.weight",
    "head.norm.weight": "cls.norm.weight",
}  # as the converter names a Qwen3-Reranker's
# whose classifier is the last layer
_DIRECT = (
    "BertForSequenceClassification", "DistilBertForSequenceClassification", "ModernBertForSequenceClassification",
    "NeoBERTForSequenceClassification",
)  # fmt: skip
_DISTIL = {"dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads"}
_DISTIL |= {"hidden_dim": "intermediate_size"}
_T5 = {"d_model": "hidden_size", "num_layers": "num_hidden_layers", "num_heads": "num_attention_heads"}
_T5 |= {"d_ff": "intermediate_size", "d_kv": "head_dim", "layer_norm_epsilon": "rms_norm_eps"}


def write_encoder(
    folder: Path,
    architecture: str,
    pool: str | None,
    vocabulary: dict[str, Any],
    quantized: str = "",
    *,
    permuted: Mapping[str, int] = MappingProxyType({}),
    instead: Mapping[str, np.ndarray] = MappingProxyType({}),
    **keys: Any,
) -> Path:
    """Write the checkpoint of a folder as a file.

    quantized: the type of matrices that blocks divide; F32 without. permuted: heads of tensors whose rows get the order
    of interleaved angles. instead: tensors that stand for the feed-forwards of their layers.
    """
    config = json.loads((folder / "config.json").read_text())
    config = {(_DISTIL | _T5).get(name, name): value for name, value in config.items()}
    names = gguf.get_tensor_name_map(_architecture(architecture), config["num_hidden_layers"])
    tensors: dict[str, Any] = {}
    for name, values in load_file(folder / "model.safetensors").items():
        for stored, value in _converted(config, name, np.asarray(values, np.float32)):
            ours = _HEADS.get(stored) or names.get_name(stored, try_suffixes=(".weight", ".bias"))
            assert ours, f"{stored} of {name} has no name"
            layer, _, module = ours.removesuffix(".weight").rpartition(".")
            if module.startswith("ffn") and any(name.startswith(f"{layer}.") for name in instead):
                continue
            value = permuted_rows(value, permuted[module]) if module in permuted else value
            tensors[ours] = _typed(ours, np.ascontiguousarray(value), quantized)
    tensors |= instead
    for number in (2, 3):  # EmbeddingGemma's and ColBERT's, without biases
        if (dense := folder / f"{number}_Dense" / "model.safetensors").is_file():
            tensors[f"dense_{number}.weight"] = load_file(dense)["linear.weight"]
    if pool == "rank" and config["architectures"] == ["Qwen3ForCausalLM"]:
        tensors |= _yes_and_no(tensors, vocabulary["tokenizer.ggml.tokens"])
        keys["classifier.output_labels"] = ["yes", "no"]
    found = {key: config[name] for name, key in _KEYS.items() if config.get(name) is not None}
    found |= {"attention.causal": False} | ({} if pool is None else {"pooling_type": POOLS[pool]}) | keys
    own = {f"{architecture}.{key}": value for key, value in found.items()}
    return write_gguf(folder / f"model{quantized}.gguf", architecture, own | vocabulary, tensors)


def _yes_and_no(tensors: dict[str, Any], tokens: list[str]) -> dict[str, Any]:
    """Return the head that the converter makes of a Qwen3-Reranker's own, which it leaves out."""
    rows = tensors.pop("output.weight", tensors["token_embd.weight"])
    return {"cls.output.weight": rows[[tokens.index("yes"), tokens.index("no")]]}


def _architecture(name: str) -> Any:
    return next(one for one, text in gguf.MODEL_ARCH_NAMES.items() if text == name)


def _converted(config: dict[str, Any], name: str, values: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Return the names that the converter looks up for a tensor, with the tensors."""
    name = name.removeprefix("distilbert.").removeprefix("bert.").removeprefix("roberta.").removeprefix("model.")
    if "pooler" in name or name.endswith("position_ids"):
        return []
    if config["architectures"][0] in _DIRECT:
        name = re.sub(r"^classifier\.", "classifier.out_proj.", name)
    if name == "embeddings.position_embeddings.weight" and config["model_type"] in ("roberta", "xlm-roberta"):
        values = values[config["pad_token_id"] + 1 :]
    if config["model_type"] == "gemma3_text":
        return [(f"model.{name}", values + 1 if name.endswith("norm.weight") else values)]
    return [(name, values)]


def _typed(name: str, values: np.ndarray, quantized: str) -> Any:
    plain = values.ndim != 2 or name.startswith(("position_embd", "token_types")) or values.shape[1] % 32
    if plain or not quantized:
        return values
    return quantized, gguf.quants.quantize(values, gguf.GGMLQuantizationType[quantized])


def word_pieces(file: Path) -> dict[str, Any]:
    """Return the keys of a BERT's tokenizer.json."""
    made = Tokenizer.from_file(str(file))
    listed = sorted(made.get_vocab().items(), key=lambda one: one[1])
    special = {token.content for token in made.get_added_tokens_decoder().values()}
    tokens = [
        token if token in special else token[2:] if token.startswith("##") else _SPACE + token for token, _ in listed
    ]
    kinds = [(_UNKNOWN if t == "[UNK]" else _CONTROL) if t in special else _NORMAL for t, _ in listed]
    ids = {"cls": "[CLS]", "seperator": "[SEP]", "mask": "[MASK]", "padding": "[PAD]", "unknown": "[UNK]"}
    named = {f"tokenizer.ggml.{key}_token_id": made.token_to_id(token) for key, token in ids.items()}
    return {
        "tokenizer.ggml.model": "bert", "tokenizer.ggml.pre": "default", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds, **{key: one for key, one in named.items() if one is not None},
    }  # fmt: skip


def unigrams(pieces: list[tuple[str, float]]) -> dict[str, Any]:
    """Return the keys of an XLM-RoBERTa's vocabulary, whose special tokens are its first four and <mask>."""
    kinds = [{"<unk>": _UNKNOWN}.get(t, _CONTROL) if t.startswith("<") else _NORMAL for t, _ in pieces]
    return {
        "tokenizer.ggml.model": "t5", "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [token for token, _ in pieces],
        "tokenizer.ggml.scores": [score for _, score in pieces], "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.padding_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 3, "tokenizer.ggml.add_space_prefix": True,
    }  # fmt: skip
