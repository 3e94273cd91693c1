"""safetensors files made by hand: a header and bytes, whole or broken on purpose."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U8": 1}

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 50,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
}


def llama_shapes(config: dict[str, Any]) -> dict[str, list[int]]:
    """Every tensor of a Llama checkpoint."""
    width, middle = config["hidden_size"], config["intermediate_size"]
    head = width // config["num_attention_heads"]
    key_value = head * config["num_key_value_heads"]
    shapes = {"model.embed_tokens.weight": [config["vocab_size"], width]}
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}"
        shapes |= {
            f"{at}.input_layernorm.weight": [width],
            f"{at}.self_attn.q_proj.weight": [width, width],
            f"{at}.self_attn.k_proj.weight": [key_value, width],
            f"{at}.self_attn.v_proj.weight": [key_value, width],
            f"{at}.self_attn.o_proj.weight": [width, width],
            f"{at}.post_attention_layernorm.weight": [width],
            f"{at}.mlp.gate_proj.weight": [middle, width],
            f"{at}.mlp.up_proj.weight": [middle, width],
            f"{at}.mlp.down_proj.weight": [width, middle],
        }
    return shapes | {"model.norm.weight": [width], "lm_head.weight": [config["vocab_size"], width]}


def write(path: Path, shapes: dict[str, list[int]], dtype: str = "F32") -> None:
    """A safetensors file of these tensors, all zeros and sparse: however big, it takes no disk."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + math.prod(shape) * ITEM_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


def llama(folder: Path, dtype: str = "F32", **changes: Any) -> Path:
    """A folder with config.json and model.safetensors of a Llama, all zeros."""
    config = LLAMA | changes
    (folder / "config.json").write_text(json.dumps(config))
    write(folder / "model.safetensors", llama_shapes(config), dtype)
    return folder
