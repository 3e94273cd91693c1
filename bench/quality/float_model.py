"""Convert a quantized .gguf file to a folder of bfloat16 weights: the float model that quality.py compares with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from forearm.errors import ConfigError
from forearm.model.checkpoint.shards import Files, StoredTensor
from forearm.model.gguf.gguf import Gguf, read_gguf
from forearm.model.gguf.gguf_codes import BLOCK_TYPES, decode_rows
from forearm.text.grammars.grammar_tokens import tokenizer_text

Floats = npt.NDArray[np.float32]

_MODEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
}  # fmt: skip
_KEYS = {
    "hidden_size": "embedding_length", "num_hidden_layers": "block_count", "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon", "max_position_embeddings": "context_length",
    "rope_theta": "rope.freq_base",
}  # fmt: skip


def write_float_model(gguf: Path, folder: Path) -> None:
    """Write config.json, tokenizer.json, and model.safetensors with the weights dequantized and rounded to bfloat16.

    Raises: ConfigError unless the architecture is llama, whose names and order of rows are known here.
    """
    model = read_gguf(gguf)
    if model.metadata["general.architecture"] != "llama":
        raise ConfigError(f"{gguf}: architecture {model.metadata['general.architecture']}; only llama is dequantized")
    config = {key: model.metadata[f"llama.{name}"] for key, name in _KEYS.items()} | {
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "vocab_size": model.tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in model.tensors,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "tokenizer.json").write_text(tokenizer_text(gguf)[0])
    files, header, data, at = Files(), dict[str, Any](), [], 0
    for tensor in model.tensors.values():
        values = _in_order_of_halves(model, tensor, _dequantized(files, tensor))
        raw = _bfloat16(values).tobytes()
        header[_name(tensor.name)] = {"dtype": "BF16", "shape": values.shape, "data_offsets": [at, at + len(raw)]}
        data.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.writelines(data)


def _name(stored: str) -> str:
    stem, kind = stored.rsplit(".", 1)
    if stem in _MODEL:
        return f"{_MODEL[stem]}.{kind}"
    _, layer, matrix = stem.split(".")
    return f"model.layers.{layer}.{_LAYER[matrix]}.{kind}"


def _dequantized(files: Files, tensor: StoredTensor) -> Floats:
    if tensor.dtype not in BLOCK_TYPES:
        return files.floats(tensor)
    rows, columns = tensor.shape
    group = BLOCK_TYPES[tensor.dtype].format.group
    stored = files.array(replace(tensor, dtype="U8", shape=(rows, (tensor.end - tensor.begin) // rows)))
    found = decode_rows(tensor.dtype, stored, columns)
    values = found.codes.reshape(rows, -1, group) * found.scales[:, :, None]
    if found.offsets is not None:
        values += found.offsets[:, :, None]
    return values.reshape(rows, columns).astype(np.float32)


def _in_order_of_halves(model: Gguf, tensor: StoredTensor, values: Floats) -> Floats:
    """Return rows of q and k in Hugging Face's order; llama.cpp's converter has interleaved the halves of each head."""
    key = {"attn_q": "head_count", "attn_k": "head_count_kv"}.get(tensor.name.split(".")[-2])
    if key is None or values.ndim != 2:
        return values
    heads = model.metadata[f"llama.attention.{key}"]
    return values.reshape(heads, -1, 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)


def _bfloat16(values: Floats) -> npt.NDArray[np.uint16]:
    """Round to nearest, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)
