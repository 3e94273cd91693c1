"""Round floats to ggml's block types and write the demo model as a .gguf file of one type, for quality/accuracy.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFWriter, quants

from forearm.model.checkpoint.shards import Mapping, read_tensors, widened
from forearm.model.families.keys import read_json
from forearm.model.gguf.gguf_blocks import ENCODED, encode_rows, type_of_rows

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def rounded(values: Floats, kind: str) -> tuple[str, Bytes]:
    """Return the type of these rows (their length may not allow K types), and uint8 [rows, bytes of a row]."""
    kind = type_of_rows(kind, values.shape[1])
    if kind in ENCODED:
        return kind, encode_rows(kind, values)
    return kind, quants.quantize(values, GGMLQuantizationType[kind])


def write_gguf(folder: Path, path: Path, kind: str) -> None:
    """Write a Qwen2 folder (the demo model's) as a .gguf file with all matrices of this type, the embedding too."""
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
