"""Models by the sizes in their published config.json, for the sizing table, which needs no download."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

from forearm.model.checkpoint.names import parts
from forearm.model.checkpoint.tensor_part import TensorPart, stored_shape
from forearm.model.checkpoint.vector_names import VECTORS
from forearm.model.families.config import ModelConfig
from forearm.model.families.families import read_config

_LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5}
_QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu", "rms_norm_eps": 1e-6}
_QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu", "rms_norm_eps": 1e-6}


def _sizes(
    hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, vocab: int, positions: int
) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "rope_theta": 10000.0,  # changes no size
        "eos_token_id": 2,
        "bos_token_id": 1,
    }


SHAPES: dict[str, dict[str, Any]] = {
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": _LLAMA | _sizes(2048, 5632, 22, 32, 4, 32000, 2048),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": _QWEN2 | _sizes(1536, 8960, 28, 12, 2, 151936, 131072),
    "meta-llama/Llama-3.1-8B-Instruct": _LLAMA | _sizes(4096, 14336, 32, 32, 8, 128256, 131072),
    "Qwen/Qwen3-14B": _QWEN3 | _sizes(5120, 17408, 40, 40, 8, 151936, 40960) | {"head_dim": 128},
    "Qwen/Qwen2.5-32B-Instruct": _QWEN2 | _sizes(5120, 27648, 64, 40, 8, 152064, 32768),
    "meta-llama/Llama-3.3-70B-Instruct": _LLAMA | _sizes(8192, 28672, 80, 64, 8, 128256, 131072),
}


# Two layers with TinyLlama's width, for timing.
SMALL_SHAPE = _LLAMA | _sizes(2048, 5632, 2, 16, 4, 1024, 2048)


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of a checkpoint of floats, by its name as the model's authors have it."""
    by_name: dict[str, list[TensorPart]] = defaultdict(list)
    for part in parts(config, [f"model.{(VECTORS | config.names)['embed']}.weight"]):
        by_name[part.stored].append(part)
    found = {}
    for name, sharing in by_name.items():
        found[name] = stored_shape(sharing)
        if sharing[0].transposed:
            rows, k = found[name]
            experts = sharing[-1].at // sharing[-1].shape[0] + 1  # their matrices follow each other
            found[name] = (experts, k, rows // experts) if experts > 1 else (k, rows)
    return found


def _with_adapters(shapes: dict[str, tuple[int, ...]], rank: int) -> dict[str, tuple[int, ...]]:
    """Return the tensors with adapters of that rank instead of the matrices that they make (pooling/adapters.py)."""
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        module, called, call = name.removesuffix(".weight").partition(".call.")
        if not called:
            found[name] = shape
            continue
        before, _, short = module.rpartition(".")
        adapter = f"{before}.{short if short == 'gate_up_proj' else 'linear_' + short[0]}_adapter_list.{call}"
        found[f"{module}.weight"] = shape
        found |= {f"{adapter}.0.weight": (rank, shape[1]), f"{adapter}.1.weight": (shape[0], rank)}
    return found


def write_shape(config: dict[str, Any], folder: Path) -> Path:
    """Write a model folder of that config in bfloat16; its weights are a sparse file, which takes no disk space."""
    (folder / "config.json").write_text(json.dumps(config))
    header: dict[str, Any] = {}
    end = 0
    for name, shape in _with_adapters(tensor_shapes(read_config(folder)), config.get("adapter_rank", 0)).items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return folder
