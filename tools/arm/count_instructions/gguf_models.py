"""Write models with 1 and 2 layers as GGUF files: BF16 of a dense shape, and Q4_0 with the head in Q8_0.

    python gguf_models.py FOLDER SHAPE...

llama-quantize makes the head of Qwen2.5-0.5B Q8_0 too, because its 896 columns are no multiple of Q6_K's 256. Those of
Qwen3-30B-A3B are; its head is Q8_0 here, of as many bits as forearm's.
"""

from __future__ import annotations

import sys
from importlib import import_module
from itertools import groupby, product
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from bench.peers.gguf_file import ARCHITECTURES, renamed
from bench.shapes import POOL, SHAPES, Shape, tensors, vocabulary


def write(shape: Shape, kind: str, out: Path) -> None:
    """Write one file. kind: the format of its matrices, BF16 or Q4_0."""
    gguf: Any = import_module("gguf")
    writer = gguf.GGUFWriter(out, ARCHITECTURES.get(shape.architecture, shape.architecture))
    writer.add_context_length(shape.max_positions)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    if "num_experts" in shape.others:
        writer.add_expert_count(shape.others["num_experts"])
        writer.add_expert_used_count(shape.others["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(shape.others["moe_intermediate_size"])
    words, merges = vocabulary(shape.vocab)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(words)
    writer.add_token_merges([" ".join(pair) for pair in merges[:1]])  # no text is tokenized
    writer.add_eos_token_id(shape.vocab - 1)
    pool = np.random.default_rng(0).normal(0, 1, POOL).astype(np.float32)
    types = gguf.GGMLQuantizationType
    for name, experts in groupby(tensors(shape), key=lambda tensor: renamed(tensor[0])):
        parts = list(experts)
        size, mean, deviation = parts[0][1:]
        size = (len(parts), *size) if len(parts) > 1 else size
        values = np.resize(pool, size) * np.float32(deviation) + np.float32(mean)
        if len(size) == 1 or "ffn_gate_inp" in name:
            writer.add_tensor(name, values)
            continue
        head = name.startswith(("token_embd", "output"))
        code = types.BF16 if kind == "BF16" else types.Q8_0 if head else types.Q4_0
        writer.add_tensor(name, gguf.quants.quantize(values, code), raw_dtype=code)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    folder = Path(sys.argv[1])
    for name, layers in product(sys.argv[2:], (1, 2)):
        for kind in ("Q4_0",) if "num_experts" in SHAPES[name].others else ("BF16", "Q4_0"):
            out = folder / f"{name}-{kind}-{layers}.gguf"
            if not out.exists():
                write(SHAPES[name].cut(layers), kind, out.with_suffix(".part"))
                out.with_suffix(".part").rename(out)


if __name__ == "__main__":
    main()
