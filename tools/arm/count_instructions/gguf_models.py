"""Write models with 1 and 2 layers as GGUF files: Q4_0, Q6_K where all columns are a multiple of its 256, else BF16.

    python gguf_models.py FOLDER SHAPE...

Embedding and head of Q4_0 and Q6_K are Q8_0, of as many bits as forearm's. llama-quantize makes the head of
Qwen2.5-0.5B Q8_0 too, because its 896 columns are not a multiple of 256; those of the other shapes it makes Q6_K.
"""

from __future__ import annotations

import sys
from importlib import import_module
from itertools import groupby, product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from bench.peers.gguf_file import ARCHITECTURES, renamed
from bench.shapes import POOL, SHAPES, Shape, tensors, vocabulary


def kinds(shape: Shape) -> tuple[str, str]:
    """Return the formats that a shape is written in."""
    columns = [size[1] for _, size, _, _ in tensors(shape) if len(size) == 2]
    return ("Q4_0", "Q6_K") if all(count % 256 == 0 for count in columns) else ("Q4_0", "BF16")


def q6_k(values: npt.NDArray[np.float32], deviation: float) -> npt.NDArray[np.uint8]:
    """Return random blocks of Q6_K in place of the values: gguf's package does not quantize to it.

    A block is 256 codes of 0 to 63, biased by 32, 16 scales of 8 bits, and a scale in float16 of them all.
    """
    rows, columns = values.reshape(-1, values.shape[-1]).shape
    blocks = np.random.default_rng(0).integers(0, 256, (rows, columns // 256, 210), dtype=np.uint8)
    blocks[..., 192:208] = 32
    scale = np.float16(deviation / (32 * 64 / 12**0.5))
    blocks[..., 208:] = np.frombuffer(scale.tobytes(), dtype=np.uint8)
    return blocks.reshape(*values.shape[:-1], -1)


def write(shape: Shape, kind: str, out: Path) -> None:
    """Write one file. kind: the format of its matrices, BF16, Q4_0 or Q6_K."""
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
        code = types.BF16 if kind == "BF16" else types.Q8_0 if head else types[kind]
        data = q6_k(values, deviation) if code == types.Q6_K else gguf.quants.quantize(values, code)
        writer.add_tensor(name, data, raw_dtype=code)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    folder = Path(sys.argv[1])
    for name, layers in product(sys.argv[2:], (1, 2)):
        for kind in kinds(SHAPES[name].cut(layers)):
            out = folder / f"{name}-{kind}-{layers}.gguf"
            if not out.exists():
                write(SHAPES[name].cut(layers), kind, out.with_suffix(".part"))
                out.with_suffix(".part").rename(out)


if __name__ == "__main__":
    main()
