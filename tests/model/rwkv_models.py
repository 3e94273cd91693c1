"""Tiny random models of RWKV-7: folders with fla-hub's keys and names, and files by llama.cpp's converter's rules.

Source: flash-linear-attention's fla/models/rwkv7, and convert_hf_to_gguf.py of ggml-org/llama.cpp.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file
from tests.model.reference import load_weights, logits
from tests.model.transformers_types import NEW_TOKENS, VOCABULARY
from tests.unit.model.gguf_files import write_gguf

TINY: dict[str, Any] = {
    "model_type": "rwkv7", "architectures": ["RWKV7ForCausalLM"], "torch_dtype": "float32", "vocab_size": VOCABULARY,
    "hidden_size": 96, "head_dim": 16, "num_heads": None, "num_hidden_layers": 3, "intermediate_size": 160,
    "hidden_ratio": 4.0, "decay_low_rank_dim": 24, "a_low_rank_dim": 20, "v_low_rank_dim": 12, "gate_low_rank_dim": 40,
    "hidden_act": "sqrelu", "norm_eps": 4e-5, "norm_bias": True, "norm_first": True, "attn": None, "attn_mode": "chunk",
    "max_position_embeddings": 2048, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
    "value_dim": [96] * 3, "fuse_norm": True, "fuse_cross_entropy": True, "use_cache": True, "use_l2warp": False,
    "initializer_range": 0.006,
}  # fmt: skip


def save_rwkv(folder: Path, joint: bool = False, dtype: Any = np.float32, **changes: Any) -> Callable[..., list[int]]:
    """Write a model; return what generates the reference's tokens greedily. joint: the mixes of a layer are one tensor.

    Numbers are as large as in trained models: decays from 0.55 to 0.99, rates from 0.1 to 0.9. The norm of each head's
    results, of 16 numbers, has the epsilon that llama.cpp gives heads of 64.
    """
    config = TINY | changes
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {name: np.ascontiguousarray(one.astype(dtype)) for name, one in _tensors(config, joint).items()},
        folder / "model.safetensors",
    )
    read, weights = load_weights(folder, dtype="float32")

    def generate(prompt: list[int]) -> list[int]:
        tokens = list(prompt)
        for _ in range(NEW_TOKENS):
            tokens.append(int(logits(read, weights, tokens)[-1].argmax()))
        return tokens[len(prompt) :]

    return generate


def _tensors(config: dict[str, Any], joint: bool) -> dict[str, np.ndarray]:
    random, hidden = np.random.default_rng(11), config["hidden_size"]
    made: dict[str, np.ndarray] = {}

    def matrix(name: str, rows: int, k: int, scale: float = 1.0) -> None:
        made[f"{name}.weight"] = random.standard_normal((rows, k)) * scale * k**-0.5

    def norm(name: str) -> None:
        made[f"{name}.weight"] = 1 + 0.2 * random.standard_normal(hidden)
        made[f"{name}.bias"] = 0.2 * random.standard_normal(hidden)

    matrix("model.embeddings", config["vocab_size"], hidden, hidden**0.5)
    matrix("lm_head", config["vocab_size"], hidden, 2.0)
    norm("model.norm")
    norm("model.layers.0.pre_norm")
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}"
        norm(f"{at}.attn_norm")
        norm(f"{at}.ffn_norm")
        norm(f"{at}.attn.g_norm")
        mixes = random.random((6, 1, 1, hidden))
        apart = {f"{at}.attn.x_{name}": mix for name, mix in zip("rwkvag", mixes, strict=True)}
        made |= {f"{at}.attn.x_x": mixes} if joint else apart
        for name in ("k_k", "k_a", "r_k"):
            made[f"{at}.attn.{name}"] = 0.5 + 0.5 * random.standard_normal(hidden)
        made[f"{at}.attn.r_k"] = made[f"{at}.attn.r_k"].reshape(-1, config["head_dim"] or 25)
        for name in "rkvo":
            matrix(f"{at}.attn.{name}_proj", hidden, hidden)
        for name, key in (("w", "decay"), ("a", "a"), ("v", "v"), ("g", "gate")):
            if i or name != "v":
                rank = config[f"{key}_low_rank_dim"]
                matrix(f"{at}.attn.{name}_lora.lora.0", rank, hidden)
                matrix(f"{at}.attn.{name}_lora.lora.2", hidden, rank, 2.0)
                if name != "g":
                    made[f"{at}.attn.{name}_lora.lora.2.bias"] = random.standard_normal(hidden)
        made[f"{at}.ffn.x_k"] = random.random(hidden)
        matrix(f"{at}.ffn.key", config["intermediate_size"], hidden)
        matrix(f"{at}.ffn.value", hidden, config["intermediate_size"])
    return made


_OUTER = {"embeddings": "token_embd", "norm": "output_norm"}
_INNER = {
    "attn_norm": "attn_norm", "ffn_norm": "attn_norm_2", "attn.g_norm": "time_mix_ln", "ffn.key": "channel_mix_key",
    "ffn.value": "channel_mix_value", "ffn.x_k": "channel_mix_lerp_k.weight", "attn.r_proj": "time_mix_receptance",
    "attn.k_proj": "time_mix_key", "attn.v_proj": "time_mix_value", "attn.o_proj": "time_mix_output",
}  # fmt: skip


def convert_rwkv(folder: Path) -> Path:
    """Write a folder's model as a .gguf file, with the pair of the first layer's values that nothing uses."""
    config = json.loads((folder / "config.json").read_text())
    stored, hidden = load_file(folder / "model.safetensors"), config["hidden_size"]
    found: dict[str, np.ndarray] = {}
    for name, tensor in stored.items():
        if name.startswith("lm_head"):
            found["output.weight"] = tensor
            continue
        inner, _, end = name.removeprefix("model.").rpartition(".")
        if inner.endswith("pre_norm"):
            found[f"token_embd_norm.{end}"] = tensor
            continue
        if not inner.startswith("layers."):
            found[f"{_OUTER[inner]}.{end}"] = tensor
            continue
        _, layer, module = inner.split(".", 2)
        found[f"blk.{layer}.{_renamed(module, end)}"] = tensor.reshape(-1) if end == "r_k" else tensor
    for i in range(config["num_hidden_layers"]):
        mixes = [found.pop(f"blk.{i}.attn.x_{name}") for name in "rwkvag"]
        found[f"blk.{i}.time_mix_lerp_fused.weight"] = np.stack(mixes).reshape(6, 1, 1, hidden)
    unused = {"0": (hidden,), "1": (config["a_low_rank_dim"], hidden), "2": (hidden, config["a_low_rank_dim"])}
    found |= {f"blk.0.time_mix_v{n}.weight": np.ones(shape, np.float32) for n, shape in unused.items()}
    tensors = {name: one.astype(np.float32) for name, one in found.items()}
    return write_gguf(folder / "model.gguf", "rwkv7", _keys(config), tensors)


def _renamed(module: str, end: str) -> str:
    if module == "attn" and end.startswith("x_"):
        return f"attn.{end}"
    if module == "attn":
        return f"time_mix_{end}.weight"
    if module == "ffn":
        return "channel_mix_lerp_k.weight"
    if "_lora." in module:
        number = "0" if end == "bias" else "1" if module.endswith(".0") else "2"
        return f"time_mix_{module[5]}{number}.weight"
    return f"{_INNER[module]}.{end}"


def _keys(config: dict[str, Any]) -> dict[str, Any]:
    keys = {
        "context_length": 1 << 20, "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "attention.layer_norm_epsilon": config["norm_eps"], "wkv.head_size": config["head_dim"],
        "attention.decay_lora_rank": config["decay_low_rank_dim"], "attention.iclr_lora_rank": config["a_low_rank_dim"],
        "attention.value_residual_mix_lora_rank": config["v_low_rank_dim"],
        "attention.gate_lora_rank": config["gate_low_rank_dim"], "feed_forward_length": config["intermediate_size"],
        "attention.head_count": 0,
    }  # fmt: skip
    return {f"rwkv7.{name}": value for name, value in keys.items()}
