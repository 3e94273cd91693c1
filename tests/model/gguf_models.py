"""Models of transformers written as .gguf files, as llama.cpp's converter writes them.

Matrices may be blocks of any type: random ones, whose numbers the model in transformers then gets.
Source: convert_hf_to_gguf.py of ggml-org/llama.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.unit.model.gguf_files import random_blocks, write_gguf
from transformers import PreTrainedConfig, PreTrainedModel

from forearm.model.gguf.gguf_codes import decode_rows

TypeOf = Callable[[str], str]  # the GGUF type of each matrix, by its name in the file

_OUTER = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.embedding_norm": "token_embd_norm",
}
_INNER = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.qkv_proj": "attn_qkv", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    # LFM2's
    "self_attn.out_proj": "attn_output", "self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm",
    "operator_norm": "attn_norm", "ffn_norm": "ffn_norm", "feed_forward.w1": "ffn_gate", "feed_forward.w3": "ffn_up",
    "feed_forward.w2": "ffn_down", "conv.conv": "shortconv.conv", "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj",
}  # fmt: skip
_AFTER = {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip
_ARCHITECTURES = {
    "mistral": "llama", "gemma3_text": "gemma3", "mixtral": "llama", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe",
    "gpt_oss": "gpt-oss",
}  # fmt: skip
_EXPERTS = {
    "mlp.gate": "ffn_gate_inp", "mlp.router": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    **{f"mlp.shared_expert.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")},
}  # fmt: skip
_PERMUTED = ("llama", "granite", "smollm3")
VOCABULARY = {
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "<|im_end|>", "a"],
    "tokenizer.ggml.token_type": [2, 3, 3, 3, 1],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}


def write_model(model: PreTrainedModel, path: Path, type_of: TypeOf = lambda name: "F32") -> Path:
    """The model as a file; where a matrix is of blocks, the model's own becomes what they say."""
    config = model.config
    architecture = _ARCHITECTURES.get(config.model_type, config.model_type)
    tensors: dict[str, Any] = {}
    for name, parameter in model.named_parameters():
        if ".mlp.experts." in name:
            tensors |= expert_tensors(name, parameter, type_of, config.model_type == "gpt_oss")
            continue
        ours = gguf_name(name, config.model_type)
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
        permuted = heads.get(ours.split(".")[-2], 0) if architecture in _PERMUTED else 0
        if parameter.shape[0] == 1:  # the shared expert's gate
            tensors[ours] = parameter.detach().numpy()[0]
            continue
        if parameter.dim() == 3:  # the taps of a convolution
            tensors[ours] = parameter.detach().numpy()[:, 0]
            continue
        tensors[ours] = _tensor(parameter, type_of(ours), permuted, config.model_type.startswith("gemma"))
    return write_gguf(path, architecture, keys_of(config, architecture) | VOCABULARY, tensors | factors_of(config))


def expert_tensors(name: str, parameter: torch.Tensor, type_of: TypeOf, own_order: bool) -> dict[str, Any]:
    """Return the tensors of all experts, [experts, rows, k] each, of gate_up_proj or down_proj in transformers.

    own_order: they are [experts, k, rows], rows of gate and up alternate, and there are biases (gpt-oss).
    """
    layer, fused = name.split(".")[2], "gate_up_proj" in name
    parts = dict(zip(("gate", "up"), parameter.chunk(2, dim=1), strict=True)) if fused else {"down": parameter}
    if own_order:
        rows = parameter if name.endswith("bias") else parameter.transpose(1, 2)
        parts = {"gate": rows[:, 0::2], "up": rows[:, 1::2]} if fused else {"down": rows}
    found: dict[str, Any] = {}
    for part, values in parts.items():
        ours = f"blk.{layer}.ffn_{part}_exps.{'bias' if name.endswith('bias') else 'weight'}"
        if name.endswith("bias"):
            found[ours] = np.ascontiguousarray(values.detach().numpy())
            continue
        rows = values.detach().reshape(-1, values.shape[-1]).clone()
        stored = _tensor(rows, type_of(ours), 0, False)
        with torch.no_grad():
            values.copy_(rows.view_as(values))
        if isinstance(stored, tuple):
            found[ours] = (stored[0], stored[1].reshape(*values.shape[:2], -1))
        else:
            found[ours] = stored.reshape(values.shape)
    return found


def gguf_name(name: str, model_type: str) -> str:
    """A parameter's name in the file."""
    module, _, end = name.rpartition(".")
    if module in _OUTER:
        return f"{_OUTER[module]}.{end}"
    _, _, layer, inner = module.split(".", 3)
    if end == "sinks":
        return f"blk.{layer}.attn_sinks.weight"
    table = _INNER | _EXPERTS | (_AFTER if model_type in ("gemma2", "gemma3_text", "olmo2", "gpt_oss") else {})
    return f"blk.{layer}.{table[inner]}.{end}"


def permuted_rows(rows: Any, heads: int) -> Any:
    """Each head's halves interleaved, for angles that turn neighbours."""
    return rows.reshape(heads, 2, len(rows) // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def restored_rows(rows: Any, heads: int) -> Any:
    """`permuted_rows` undone."""
    return rows.reshape(heads, len(rows) // heads // 2, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _tensor(parameter: torch.Tensor, dtype: str, heads: int, plus_one: bool) -> Any:
    values = parameter.detach().numpy()
    if values.ndim == 1:
        values = values + 1 if plus_one else values
        return np.ascontiguousarray(permuted_rows(values, heads) if heads else values)
    if dtype in ("F32", "F16", "BF16"):
        with torch.no_grad():
            parameter.copy_(parameter.to({"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[dtype]))
        rows = np.ascontiguousarray(permuted_rows(parameter.detach().numpy(), heads) if heads else values)
        if dtype == "BF16":
            return "BF16", (rows.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return rows.astype(np.float16) if dtype == "F16" else rows
    stored = blocks_like(values, dtype)
    rows = numbers(dtype, stored, values.shape[1])
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(restored_rows(rows, heads) if heads else rows))
    return dtype, stored


def numbers(dtype: str, stored: np.ndarray, columns: int) -> np.ndarray:
    """The numbers that rows of blocks stand for; tests/unit/model/test_gguf_codes.py: within 2^-11 of ggml's."""
    kept = decode_rows(dtype, stored, columns)
    group = columns // kept.scales.shape[1]
    rows: np.ndarray = kept.codes * np.repeat(kept.scales, group, axis=1)
    return rows if kept.offsets is None else rows + np.repeat(kept.offsets, group, axis=1)


def blocks_like(values: np.ndarray, dtype: str) -> np.ndarray:
    """Random blocks whose numbers spread as these values do."""
    seed = int(abs(float(values[0, 0])) * 1e6)
    spread = float(numbers(dtype, random_blocks(dtype, *values.shape, seed=seed), values.shape[1]).std())
    return random_blocks(dtype, *values.shape, size=float(values.std()) / spread, seed=seed)


def keys_of(config: PreTrainedConfig, architecture: str) -> dict[str, Any]:
    """The architecture's keys."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    found: dict[str, Any] = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": getattr(config, "rms_norm_eps", None) or config.norm_eps,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "vocab_size": config.vocab_size,
    }
    ropes = config.rope_parameters
    _rope(found, ropes.get("full_attention", ropes), config, head_dim)
    if architecture == "granite":
        found |= {"embedding_scale": config.embedding_multiplier, "residual_scale": config.residual_multiplier}
        found |= {"attention.scale": config.attention_multiplier, "logit_scale": config.logits_scaling}
    if experts := getattr(config, "num_experts", getattr(config, "num_local_experts", 0)):
        found |= {"expert_count": experts, "expert_used_count": config.num_experts_per_tok}
    for key, ours in (("moe", "expert"), ("shared_expert", "expert_shared")):
        if width := getattr(config, f"{key}_intermediate_size", 0):
            found[f"{ours}_feed_forward_length"] = width
    if architecture == "lfm2":
        attends = [kind == "full_attention" for kind in config.layer_types]
        found["attention.head_count_kv"] = [one * config.num_key_value_heads for one in attends]
        found["shortconv.l_cache"] = config.conv_L_cache
    if architecture in ("gemma2", "gemma3", "phi3", "gpt-oss") or config.model_type == "mistral":
        found["attention.sliding_window"] = config.sliding_window or 0
    if architecture == "gemma2":
        found["attn_logit_softcapping"] = config.attn_logit_softcapping
    if getattr(config, "final_logit_softcapping", None):
        found["final_logit_softcapping"] = config.final_logit_softcapping
    return {f"{architecture}.{key}": value for key, value in found.items()}


def _rope(found: dict[str, Any], rope: dict[str, Any], config: PreTrainedConfig, head_dim: int) -> None:
    found["rope.freq_base"] = float(rope["rope_theta"])
    found["rope.dimension_count"] = int(head_dim * rope.get("partial_rotary_factor", 1.0))
    kind = rope.get("rope_type", "default")
    if kind in ("linear", "yarn"):
        found |= {"rope.scaling.type": kind, "rope.scaling.factor": rope["factor"]}
    if kind == "yarn":
        found["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    if config.model_type == "phi3":
        found["rope.scaling.original_context_length"] = config.original_max_position_embeddings
    if kind == "longrope":
        original = config.original_max_position_embeddings
        scale = config.max_position_embeddings / original
        found["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0


def factors_of(config: PreTrainedConfig) -> dict[str, np.ndarray]:
    """Llama 3's and Phi-3's stretched angles, which are tensors in these files."""
    rope = config.rope_parameters
    if rope.get("rope_type") == "longrope":
        return {
            "rope_factors_long.weight": np.array(rope["long_factor"], np.float32),
            "rope_factors_short.weight": np.array(rope["short_factor"], np.float32),
        }
    if rope.get("rope_type") != "llama3":
        return {}
    head_dim = config.hidden_size // config.num_attention_heads
    factors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / head_dim)
        turns = rope["original_max_position_embeddings"] / wavelength
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        if turns > high:
            factors.append(1.0)
        elif turns < low:
            factors.append(rope["factor"])
        else:
            smooth = (turns - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return {"rope_freqs.weight": np.array(factors, np.float32)}
