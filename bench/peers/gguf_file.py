"""Write a model folder as a GGUF file and let llama.cpp quantize it. Runs in llama.cpp's virtual environment.

    python gguf_file.py FOLDER OUT.gguf TYPE STEPS        TYPE: BF16, F16, Q8_0, Q4_0, Q4_K_M; STEPS: llama-steps

Rows of q and k and heads of the delta rule are not put into llama.cpp's order: with random weights that is another
random model of the same cost.
"""

from __future__ import annotations

import json
import re
import subprocess
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
DELTA = {
    "post_attention_layernorm": "post_attention_norm",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.out_proj": "ssm_out",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.A_log": "ssm_a",
}
LFM2 = {
    "model.embedding_norm": "token_embd_norm",
    "operator_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w2": "ffn_down",
    "feed_forward.w3": "ffn_up",
    "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj",
    "conv.conv": "shortconv.conv",
}
ARCHITECTURES = {"qwen3_moe": "qwen3moe", "qwen3_5_text": "qwen35"}  # others have config.json's name
OWN_NAMES = {"qwen3_5_text": DELTA, "lfm2": LFM2}
EXPERT = re.compile(r"mlp\.experts\.(\d+)\.(\w+)_proj")
# llama.h, enum llama_ftype
FILE_TYPES = {"F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q4_K_M": 15, "Q5_K_M": 17, "Q6_K": 18, "BF16": 32}


def renamed(name: str, names: dict[str, str] = NAMES) -> str:
    """Return the GGUF name of a tensor, such as blk.3.ffn_up.weight; all experts of a layer have one name."""
    stem = name.removesuffix(".weight").removesuffix(".bias")
    kind = name[len(stem) :]
    if stem in names:
        return names[stem] + kind
    _, _, layer, rest = stem.split(".", 3)
    expert = EXPERT.fullmatch(rest)
    return f"blk.{layer}.{f'ffn_{expert[2]}_exps' if expert else names[rest]}{kind}"


def add_states(writer: Any, config: dict[str, Any], architecture: str) -> None:
    """Write the keys of layers with a state."""
    if "linear_num_value_heads" in config:
        heads, size = config["linear_num_value_heads"], config["linear_value_head_dim"]
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_ssm_state_size(config["linear_key_head_dim"])
        writer.add_ssm_group_count(config["linear_num_key_heads"])
        writer.add_ssm_time_step_rank(heads)
        writer.add_ssm_inner_size(heads * size)
        rotated = int(config["head_dim"] * config["rope_parameters"]["partial_rotary_factor"])
        writer.add_rope_dimension_count(rotated)
        writer.add_rope_dimension_sections([rotated // 2, 0, 0, 0])
        writer.add_uint32(f"{architecture}.full_attention_interval", config["full_attention_interval"])
    if "conv_L_cache" in config:
        writer.add_shortconv_l_cache(config["conv_L_cache"])
        heads = config["num_key_value_heads"]
        writer.add_head_count_kv([heads * (kind != "conv") for kind in config["layer_types"]])
    else:
        writer.add_head_count_kv(config["num_key_value_heads"])


def write(folder: Path, out: Path) -> None:
    """Write matrices in bfloat16 and vectors in float32."""
    gguf: Any = import_module("gguf")
    config = json.loads((folder / "config.json").read_text())
    family = config["model_type"]
    architecture, names = ARCHITECTURES.get(family, family), NAMES | OWN_NAMES.get(family, {})
    writer = gguf.GGUFWriter(out, architecture)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    add_states(writer, config, architecture)
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
    kernel = config.get("linear_conv_kernel_dim") or config.get("conv_L_cache", 0)
    add_tensors(writer, gguf, folder / "model.safetensors", names, kernel)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tensors(writer: Any, gguf: Any, path: Path, names: dict[str, str], kernel: int) -> None:
    """Add all tensors, which stay in the file until they are written: experts of a matrix are neighbours there.

    kernel: columns of a convolution, which the file has as a vector.
    """
    file = np.memmap(path, np.uint8, "r")
    length = int(file[:8].view(np.uint64)[0])
    header = json.loads(file[8 : 8 + length].tobytes())
    del header["__metadata__"]
    for name, entries in groupby(header.items(), key=lambda named: renamed(named[0], names)):
        tensors = [entry for _, entry in entries]
        shape = tensors[0]["shape"]
        begin, end = 8 + length + tensors[0]["data_offsets"][0], 8 + length + tensors[-1]["data_offsets"][1]
        if len(shape) == 1 or "ffn_gate_inp" in name:
            values = (file[begin:end].view(np.uint16).astype(np.uint32) << 16).view(np.float32)
            values = -np.exp(values) if name.endswith("ssm_a") else values
            writer.add_tensor(name, values.reshape([-1, kernel] if "conv" in name else shape))
        else:
            experts = [len(tensors)] if "_exps" in name else []
            rows = file[begin:end].reshape(*experts, shape[0], -1)
            writer.add_tensor(name, rows, raw_dtype=gguf.GGMLQuantizationType.BF16)


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
    folder, out, kind, steps = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]
    whole = out.with_name("BF16.gguf")
    if not whole.exists():
        write(folder, whole.with_suffix(".part"))
        whole.with_suffix(".part").rename(whole)
    if kind != "BF16":
        part = out.with_suffix(".part")
        subprocess.run([steps, "quantize", whole, part, str(FILE_TYPES[kind])], check=True)
        part.rename(out)


if __name__ == "__main__":
    main()
