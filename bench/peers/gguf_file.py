"""Write a model folder as a GGUF file and let llama.cpp quantize it. Runs in llama.cpp's virtual environment.

    python gguf_file.py FOLDER OUT.gguf TYPE        TYPE: BF16, F16, Q8_0, Q4_0

The rows of q and k are not put into the order of llama.cpp's rotary embedding: with random weights that is another
random model of the same cost.
"""

from __future__ import annotations

import json
import re
import sys
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

NAMES = {
    "model.embed_tokens": "token_embd",
    "lm_head": "output",
    "model.norm": "output_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate": "ffn_gate_inp",
}
EXPERT = re.compile(r"mlp\.experts\.(\d+)\.(\w+)_proj")
FILE_TYPES = {"F16": 1, "Q4_0": 2, "Q8_0": 7, "BF16": 32}  # llama.h, enum llama_ftype


def renamed(name: str) -> str:
    """Return the GGUF name of a tensor, such as blk.3.ffn_up.weight; all experts of a layer have one name."""
    stem, kind = name.rsplit(".", 1)
    if stem in NAMES:
        return f"{NAMES[stem]}.{kind}"
    _, _, layer, rest = stem.split(".", 3)
    expert = EXPERT.fullmatch(rest)
    return f"blk.{layer}.{f'ffn_{expert[2]}_exps' if expert else NAMES[rest]}.{kind}"


def write(folder: Path, out: Path) -> None:
    """Write matrices in bfloat16 and vectors in float32."""
    gguf: Any = import_module("gguf")
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(out, config["model_type"].replace("_", ""), use_temp_file=True)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_file_type(FILE_TYPES["BF16"])
    if "num_experts" in config:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    add_tokenizer(writer, gguf, folder)
    file = np.memmap(folder / "model.safetensors", np.uint8, "r")
    length = int(file[:8].view(np.uint64)[0])
    header = json.loads(file[8 : 8 + length].tobytes())
    del header["__metadata__"]
    for name, entries in groupby(header.items(), key=lambda named: renamed(named[0])):
        tensors = []
        for _, entry in entries:
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            tensors.append(file[begin:end].reshape(entry["shape"][0], -1))
        if len(entry["shape"]) == 1 or "ffn_gate_inp" in name:
            wide = tensors[0].view(np.uint16).astype(np.uint32) << 16
            writer.add_tensor(name, wide.view(np.float32).reshape(entry["shape"]))
        else:
            rows = np.stack(tensors) if "_exps" in name else tensors[0]
            writer.add_tensor(name, rows, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer: Any, gguf: Any, folder: Path) -> None:
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    tokens = list(model["vocab"])
    end = len(tokens) - 1
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * end + [gguf.TokenType.CONTROL])
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_eos_token_id(end)
    writer.add_bos_token_id(end)
    writer.add_add_bos_token(False)


def main() -> None:
    folder, out, kind = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    whole = out.with_name("BF16.gguf")
    if not whole.exists():
        write(folder, whole.with_suffix(".part"))
        whole.with_suffix(".part").rename(whole)
    if kind != "BF16":
        c: Any = import_module("llama_cpp.llama_cpp")
        params = c.llama_model_quantize_default_params()
        params.ftype = FILE_TYPES[kind]
        part = out.with_suffix(".part")
        status = c.llama_model_quantize(str(whole).encode(), str(part).encode(), params)
        assert status == 0, f"llama_model_quantize: {status}"
        part.rename(out)


if __name__ == "__main__":
    main()
