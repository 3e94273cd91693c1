"""Checkpoints written as .gguf files by the rules of llama.cpp's converter: names, orders of rows, keys.

Source: convert_hf_to_gguf.py and conversion/ of ggml-org/llama.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from tests.model.gguf_models import VOCABULARY, permuted_rows
from tests.unit.model.gguf_files import write_gguf

from forearm.model.families.keys import read_json

Config = dict[str, Any]
Tensors = Iterator[tuple[str, np.ndarray]]

_OUTER = {
    "embed_tokens": "token_embd", "embeddings": "token_embd", "norm": "output_norm", "norm_f": "output_norm",
    "final_layernorm": "output_norm", "embedding_norm": "token_embd_norm", "lm_head": "output",
    "embed_tokens_per_layer": "per_layer_token_embd", "per_layer_model_projection": "per_layer_model_proj",
    "per_layer_projection_norm": "per_layer_proj_norm", "wte": "token_embd", "wpe": "position_embd",
    "altup_projections": "altup_proj", "altup_unembed_projections": "altup_unembd_proj",
    "ln_f": "output_norm", "word_embeddings": "token_embd", "embed_in": "token_embd", "embed_out": "output",
    "final_layer_norm": "output_norm", "word_embeddings_layernorm": "token_embd_norm",
}  # fmt: skip
_USUAL = {  # sizes under GPT-2's names
    "n_embd": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings", "n_inner": "intermediate_size", "d_model": "hidden_size",
    "n_heads": "num_attention_heads", "n_layers": "num_hidden_layers", "max_seq_len": "max_position_embeddings",
}  # fmt: skip
_SEEING = ("visual", "vision", "projector", "vit.", "mlp_AR", "qwen2_model", "sam_model", "view_seperator")
_MLP = {f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")}
_SHARED = {f"mlp.shared_experts.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")}
_EXPERTS = {f"mlp.experts.{part}_proj": f"ffn_{part}_exps" for part in ("gate", "up", "down")}
_ATTENTION = {f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"} | {"self_attn.o_proj": "attn_output"}
_ATTENTION |= {f"self_attn.{part}_norm": f"attn_{part}_norm" for part in "qk"}
_LLAMA = _MLP | _ATTENTION | {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
_INNER = _LLAMA | _SHARED | _EXPERTS | {"mlp.gate": "ffn_gate_inp"}


@dataclass(frozen=True)
class Conversion:
    """Rules by which the converter writes one family.

    names: modules of a layer that are not Llama's, and tensors outside of layers that belong to no module. keys: the
    architecture's own keys. change: what becomes of a tensor of a layer, with its name; None: it is renamed alone.
    permuted: rows of q and k are reordered. plus_one: 1 is added to norms. fused: q, k and v are written as one tensor.
    scaled: tensors outside of layers that are multiplied with a number of the config. extra: further tensors, such as
    factors of angles. told: a part of what is logged as the file is read; empty: nothing is.
    """

    architecture: str
    keys: Callable[[Config], Config] = lambda config: {}
    names: Mapping[str, str] = field(default_factory=dict)
    change: Callable[[Config, str, np.ndarray], Tensors | None] = lambda config, name, values: None
    permuted: bool = False
    plus_one: bool = False
    fused: bool = False
    scaled: Mapping[str, str] = field(default_factory=dict)
    extra: Callable[[Config], dict[str, np.ndarray]] = lambda config: {}
    told: str = ""


def convert(folder: Path, conversion: Conversion) -> Path:
    """Write the checkpoint in the folder as a float32 file."""
    outer = read_json(folder / "config.json").values
    config = {_USUAL.get(key, key): value for key, value in (outer | outer.get("text_config", {})).items()}
    tensors: dict[str, np.ndarray] = {}
    stacked: dict[str, dict[int, np.ndarray]] = {}
    for name, values in load_file(folder / "model.safetensors").items():
        for ours, converted in _converted(config, conversion, name, values):
            base, _, expert = ours.partition("#")
            if expert:
                stacked.setdefault(base, {})[int(expert)] = converted
            else:
                whole = np.issubdtype(converted.dtype, np.integer)
                tensors[ours] = np.ascontiguousarray(converted, np.int32 if whole else np.float32)
    for base, parts in stacked.items():
        tensors[base] = np.stack([parts[i] for i in range(len(parts))])
    for layer in range(config["num_hidden_layers"] if conversion.fused else 0):
        for end in ("weight", "bias"):
            parts = [tensors.pop(f"blk.{layer}.attn_{part}.{end}") for part in "qkv"]
            tensors[f"blk.{layer}.attn_qkv.{end}"] = np.concatenate(parts)
    beside: dict[str, list[float]] = {}  # a value of each layer
    for name in [name for name in tensors if ".xielu." in name]:
        beside.setdefault(name.split(".", 2)[2], []).append(float(tensors.pop(name)[0]))
    keys = {
        f"{conversion.architecture}.{key}": value
        for key, value in (common_keys(config) | conversion.keys(config)).items()
        if value is not None
    }
    return write_gguf(
        folder / "model.gguf", conversion.architecture, keys | VOCABULARY | beside, tensors | conversion.extra(config)
    )


def _converted(config: Config, conversion: Conversion, name: str, values: np.ndarray) -> Tensors:
    """Yield the file's tensors of one tensor; "#" and a number behind a name: of this expert."""
    path = re.sub(r"^(model\.|backbone\.|language_model\.|transformer\.|gpt_neox\.)+", "", name)
    found = re.fullmatch(r"(?:layers|h|blocks)\.(\d+)\.(.+)", path)
    if any(part in name for part in _SEEING):
        return
    if found is None:
        module, _, end = path.rpartition(".")
        stack = re.fullmatch(r"(altup_\w+)\.(\d+)", module)
        if stack:
            yield f"{_OUTER[stack[1]]}.{end}#{stack[2]}", values
            return
        if path in conversion.names:
            yield conversion.names[path], values
            return
        values = values * config[conversion.scaled[module]] if module in conversion.scaled else values
        yield f"{_OUTER[module]}.{end}", values + (conversion.plus_one and module == "norm" and end == "weight")
        return
    layer, inner = f"blk.{found[1]}.", found[2]
    changed = conversion.change(config, inner, values)
    for own, value in changed if changed is not None else [(inner, values)]:
        module, _, end = own.rpartition(".")
        expert = re.fullmatch(r"(.*\bexperts)\.(\d+)\.(\w+)", module)
        if expert:
            module = f"{expert[1]}.{expert[3]}"
        target = (_INNER | dict(conversion.names)).get(module)
        if target is None:  # `change` has renamed it
            yield layer + own, value
            continue
        if end == "weight" and value.ndim == 1 and conversion.plus_one:
            value = value + 1
        heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}.get(target)
        value = permuted_rows(value, config[heads]) if heads and conversion.permuted else value
        yield f"{layer}{target}.{end}" + (f"#{expert[2]}" if expert else ""), value


def common_keys(config: Config) -> Config:
    """Keys of every architecture."""
    ropes = config.get("rope_parameters") or {}
    rope, sliding = ropes.get("full_attention", ropes), ropes.get("sliding_attention", {})
    hidden, heads = config["hidden_size"], config.get("num_attention_heads", 0)
    head_dim = config.get("head_dim")
    found = {
        "context_length": config.get("max_position_embeddings", 1 << 20), "embedding_length": hidden,
        "block_count": config.get("num_hidden_layers"), "feed_forward_length": config.get("intermediate_size", 0),
        "attention.head_count": heads, "attention.head_count_kv": config.get("num_key_value_heads"),
        "attention.layer_norm_rms_epsilon": config.get("rms_norm_eps", config.get("norm_eps")),
        "attention.layer_norm_epsilon": config.get("layer_norm_eps", config.get("layer_norm_epsilon")),
        "attention.key_length": head_dim, "attention.value_length": head_dim, "vocab_size": config["vocab_size"],
        "rope.freq_base": rope.get("rope_theta"), "rope.freq_base_swa": sliding.get("rope_theta"),
        "expert_count": config.get("num_local_experts", config.get("num_experts", config.get("n_routed_experts"))),
        "expert_used_count": config.get("num_experts_per_tok"), "expert_group_count": config.get("n_group"),
        "expert_group_used_count": config.get("topk_group"),
        "rope.dimension_sections": rope.get("mrope_section"),
    }  # fmt: skip
    if rope.get("rope_type") == "yarn":
        found |= {"rope.scaling.type": "yarn", "rope.scaling.factor": rope["factor"]}
        found["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    if "partial_rotary_factor" in rope:
        found["rope.dimension_count"] = int((head_dim or hidden // heads) * rope["partial_rotary_factor"])
    return found
