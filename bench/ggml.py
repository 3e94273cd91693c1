"""Floats rounded to ggml's block types, and the demo model as a .gguf file of one type, for quality/accuracy.py.

The K types are rounded plainly here (scales from the largest value of a group); llama.cpp searches for better ones, so
its own files are a little more exact.
Source: ggml-common.h (blocks), github.com/ggml-org/ggml.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFWriter, quants

from forearm.model.checkpoint.shards import Mapping, read_tensors, widened
from forearm.model.families.keys import read_json

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

_FALLBACK = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}  # llama.cpp's, where a row is no multiple of 256
_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def rounded(values: Floats, kind: str) -> tuple[str, Bytes]:
    """The type that these rows get (their length may not allow K types), and uint8 [rows, bytes of a row]."""
    if kind in _FALLBACK and values.shape[1] % 256:
        kind = _FALLBACK[kind]
    if kind not in _FALLBACK:
        return kind, quants.quantize(values, GGMLQuantizationType[kind])
    blocks = values.reshape(-1, 256)
    return kind, {"Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k}[kind](blocks).reshape(len(values), -1)


def _half(values: Floats) -> tuple[Bytes, Floats]:
    """float16 bytes [n, 2], and what they say [n, 1]."""
    half = values.astype(np.float16)
    return half.view(np.uint8).reshape(-1, 2), half.astype(np.float32)


def _divided(values: Floats, by: Floats) -> Floats:
    return np.divide(values, by, out=np.zeros_like(values), where=by != 0)


def _q6_k(blocks: Floats) -> Bytes:
    groups = blocks.reshape(-1, 16, 16)
    wanted = np.abs(groups).max(axis=2) / 31
    stored, d = _half(wanted.max(axis=1, keepdims=True) / 127)
    # d is rounded, coarsely where it is below float16's normal numbers: 128 may come out of it.
    scales = np.rint(_divided(wanted, np.broadcast_to(d, wanted.shape))).clip(0, 127)
    step = np.broadcast_to((d * scales)[:, :, None], groups.shape)
    codes = (np.clip(np.rint(_divided(groups, step)), -32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = (codes[:, :, :2] & 15) | (codes[:, :, 2:] << 4)
    high = (codes >> 4) << np.array([0, 2, 4, 6], np.uint8)[:, None]
    packed = [low.reshape(-1, 128), np.bitwise_or.reduce(high, axis=2).reshape(-1, 64)]
    return np.concatenate([*packed, scales.astype(np.int8).view(np.uint8), stored], axis=1)


def _with_minima(blocks: Floats, most: int) -> tuple[Bytes, npt.NDArray[np.uint8]]:
    """16 bytes of scales and minima, and codes 0 .. most [n, 8, 32]."""
    groups = blocks.reshape(-1, 8, 32)
    least = np.minimum(groups.min(axis=2), 0)
    wanted = (np.maximum(groups.max(axis=2), 0) - least) / most
    stored, d = _half(wanted.max(axis=1, keepdims=True) / 63)
    stored_min, d_min = _half(-least.min(axis=1, keepdims=True) / 63)
    scales = np.rint(_divided(wanted, np.broadcast_to(d, wanted.shape))).clip(0, 63)
    minima = np.rint(_divided(-least, np.broadcast_to(d_min, least.shape))).clip(0, 63)
    step = np.broadcast_to((d * scales)[:, :, None], groups.shape)
    codes = np.clip(np.rint(_divided(groups + (d_min * minima)[:, :, None], step)), 0, most).astype(np.uint8)
    s, m = scales.astype(np.uint8), minima.astype(np.uint8)
    first, second = s[:, :4] | (s[:, 4:] >> 4) << 6, m[:, :4] | (m[:, 4:] >> 4) << 6
    return np.concatenate([stored, stored_min, first, second, (s[:, 4:] & 15) | (m[:, 4:] << 4)], axis=1), codes


def _nibbles(codes: npt.NDArray[np.uint8]) -> Bytes:
    pairs = (codes & 15).reshape(-1, 4, 2, 32)
    return np.asarray(pairs[:, :, 0] | (pairs[:, :, 1] << 4), np.uint8).reshape(-1, 128)


def _q4_k(blocks: Floats) -> Bytes:
    head, codes = _with_minima(blocks, 15)
    return np.concatenate([head, _nibbles(codes)], axis=1)


def _q5_k(blocks: Floats) -> Bytes:
    head, codes = _with_minima(blocks, 31)
    fifth = (codes >> 4) << np.arange(8, dtype=np.uint8)[:, None]
    return np.concatenate([head, np.bitwise_or.reduce(fifth, axis=1), _nibbles(codes)], axis=1)


def write_gguf(folder: Path, path: Path, kind: str) -> None:
    """A Qwen2 folder (the demo model's) as a .gguf file whose matrices are all of this type; tied embeddings too."""
    config = read_json(folder / "config.json").values
    writer = GGUFWriter(path, "qwen2")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    _add_tokenizer(writer, folder)
    mapping = Mapping(folder / "model.safetensors")
    for name, tensor in read_tensors(folder).items():
        rows = tensor.shape[0] if len(tensor.shape) == 2 else 1
        values = widened(mapping.rows(tensor, range(rows)), tensor.float_dtype)
        if len(tensor.shape) == 1:
            writer.add_tensor(_gguf_name(name), values[0])
        else:
            given, blocks = rounded(values, kind)
            writer.add_tensor(_gguf_name(name), blocks, raw_dtype=GGMLQuantizationType[given])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf_name(name: str) -> str:
    outer = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if name in outer:
        return outer[name]
    _, _, layer, inner = name.split(".", 3)
    module, _, end = inner.rpartition(".")
    return f"blk.{layer}.{_NAMES[module]}.{end}"


def _add_tokenizer(writer: GGUFWriter, folder: Path) -> None:
    tokenizer: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    settings = read_json(folder / "tokenizer_config.json").values
    added = {token["content"] for token in tokenizer["added_tokens"]}
    ids: dict[str, int] = tokenizer["model"]["vocab"] | {t["content"]: t["id"] for t in tokenizer["added_tokens"]}
    tokens = sorted(ids, key=ids.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in added else 1 for token in tokens])
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_eos_token_id(ids[settings["eos_token"]])
    writer.add_pad_token_id(ids[settings["pad_token"]])
    writer.add_add_bos_token(False)
    writer.add_chat_template(settings["chat_template"])
