"""Checkpoints of families with code of their own, made of models of transformers that compute the same.

Names, keys and orders of rows are those of the files that the models' authors published.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from tests.model.cases import Case
from tests.model.gguf_conversions_dense import apertus_angles
from tests.model.gguf_converter import Config, Conversion, Tensors
from tests.model.gguf_models import permuted_rows
from tests.model.made_cases import make
from transformers import AutoModelForCausalLM

Weights = dict[str, np.ndarray]
HEADS, HEAD_DIM = 6, 12
EXPERTS = 8


@dataclass(frozen=True)
class OwnCode:
    """One family. case: the model of transformers.

    prepare: changes its weights, so that both can say the same. names: modules of the published files, by transformers'
    names. keys: config.json of the published files, of transformers' own. pack: joins or cuts tensors. conversion: by
    which llama.cpp's converter writes the published files, or transformers' (of_case).
    """

    case: Case
    keys: Callable[[Config], Config]
    conversion: Conversion
    of_case: bool = True
    names: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[Weights], None] = lambda weights: None
    pack: Callable[[Weights], Weights] = lambda weights: weights

    def made(self, folder: Path) -> tuple[Any, Path, Path]:
        """Write both checkpoints; return transformers' model, its folder, and the other one."""
        ours, theirs = folder / "own", folder / "transformers"
        make(self.case, theirs)
        weights = load_file(theirs / "model.safetensors")
        self.prepare(weights)
        save_file(weights, theirs / "model.safetensors", {"format": "pt"})
        config = json.loads((theirs / "config.json").read_text())
        model = AutoModelForCausalLM.from_pretrained(theirs, attn_implementation="eager", dtype=torch.float32).eval()
        ours.mkdir()
        stored = {_renamed(name, self.names): np.ascontiguousarray(v) for name, v in self.pack(weights).items()}
        save_file(stored, ours / "model.safetensors", {"format": "pt"})
        (ours / "config.json").write_text(json.dumps(_published(config, self.keys(config))))
        return model, theirs, ours


def _renamed(name: str, names: Mapping[str, str]) -> str:
    for old, new in names.items():
        name = name.replace(old, new)
    return name


def _published(config: Config, own: Config) -> Config:
    """Return config.json as published: keys with None are left out; angles are told by keys of their own."""
    common = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
              "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "hidden_act", "tie_word_embeddings",
              "bos_token_id", "eos_token_id")  # fmt: skip
    rope = dict(config["rope_parameters"])
    found = {key: config[key] for key in common if key in config} | {"torch_dtype": "float32"}
    found |= {"rope_theta": rope.pop("rope_theta")}
    if rope.get("rope_type", "default") != "default":
        found["rope_scaling"] = rope
    return {key: value for key, value in (found | own).items() if value is not None}


def _packed(weights: Weights, module: str, order: Callable[[list[np.ndarray]], np.ndarray] = np.concatenate) -> Weights:
    """Return the weights with q, k and v of each layer in one tensor."""
    found = dict(weights)
    for name in weights:
        part = re.fullmatch(r"(.*self_attn\.)q_proj\.(weight|bias)", name)
        if part:
            three = [found.pop(f"{part[1]}{one}_proj.{part[2]}") for one in "qkv"]
            found[f"{part[1]}{module}.{part[2]}"] = order(three)
    return found


def _grouped(parts: list[np.ndarray]) -> np.ndarray:
    """Return the queries of each key head, the key head and its values, key head by key head."""
    few = len(parts[1]) // HEAD_DIM
    groups = [part.reshape(few, -1, *part.shape[1:]) for part in parts]
    return np.concatenate(groups, axis=1).reshape(-1, *parts[0].shape[1:])


def _half_shared(weights: Weights) -> None:
    """Set the gate of a shared expert to one half."""
    for name, values in weights.items():
        if "shared_expert_gate" in name:
            values[:] = 0


def _without_gate(weights: Weights) -> Weights:
    """Return the weights without that gate, whose half is in the shared expert."""
    found = {name: values for name, values in weights.items() if "shared_expert_gate" not in name}
    return {n: v / 2 if "shared_expert.down" in n else v for n, v in found.items()}


def _moe(config: Config, **own: Any) -> Config:
    return {
        "moe_intermediate_size": config["moe_intermediate_size"], "num_experts_per_tok": config["num_experts_per_tok"],
        "norm_topk_prob": config["norm_topk_prob"], "num_key_value_heads": config["num_key_value_heads"], **own,
    }  # fmt: skip


_QWEN2_MOE = {
    "num_experts": EXPERTS, "num_experts_per_tok": 3, "moe_intermediate_size": 20, "qkv_bias": False,
    "shared_expert_intermediate_size": 40, "num_hidden_layers": 3, "mlp_only_layers": [0],
}  # fmt: skip
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
_SHEXP = {f"mlp.shared_expert.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")}


def _routed(config: Config) -> Config:
    """Keys of the converter for DeepSeek and Ling 1, of Qwen2-MoE's."""
    return {
        "expert_feed_forward_length": config["moe_intermediate_size"], "expert_shared_count": 2,
        "leading_dense_block_count": 1, "expert_weights_scale": 1.0, "rope.scaling.type": "none",
        "expert_weights_norm": config["norm_topk_prob"] or None,
    }  # fmt: skip


def _halved(config: Config, name: str, values: np.ndarray) -> Tensors | None:
    """Yield a shared expert with its half; its gate is not written."""
    if "shared_expert_gate" in name:
        return iter(())
    return iter([("ffn_down_shexp.weight", values / 2)]) if "shared_expert.down" in name else None


# --- Llama-Nemotron: layers without a half or both, with fewer key heads, of other widths ---

_BLOCKS = [  # key heads, width
    (6, 512), (0, 256), (2, 512), (0, 0), (6, 0), (6, 256),
]  # fmt: skip


def _cut(weights: Weights) -> None:
    """Zero what halves of layers add and columns behind a width; repeat key heads where fewer are published."""
    for i, (few, width) in enumerate(_BLOCKS):
        at = f"model.layers.{i}."
        if not few:
            weights[f"{at}self_attn.o_proj.weight"][:] = 0
        weights[f"{at}mlp.down_proj.weight"][:, width:] = 0
        for part in "kv" if 0 < few < HEADS else "":
            heads = weights[f"{at}self_attn.{part}_proj.weight"].reshape(few, -1, HEAD_DIM, 72)
            heads[:] = heads[:, :1]


def _left_out(weights: Weights) -> Weights:
    """Return the weights without those halves, heads and columns."""
    found = dict(weights)
    for i, (few, width) in enumerate(_BLOCKS):
        at = f"model.layers.{i}."
        gone = ["self_attn.", "input_layernorm"] * (not few) + ["mlp.", "post_attention_layernorm"] * (not width)
        for name in [name for name in found if gone and name.startswith(tuple(at + one for one in gone))]:
            del found[name]
        for part in ("gate", "up") if width else ():
            found[f"{at}mlp.{part}_proj.weight"] = found[f"{at}mlp.{part}_proj.weight"][:width]
        if width:
            found[f"{at}mlp.down_proj.weight"] = found[f"{at}mlp.down_proj.weight"][:, :width]
        for part in "kv" if 0 < few < HEADS else "":
            name = f"{at}self_attn.{part}_proj.weight"
            found[name] = found[name].reshape(few, -1, HEAD_DIM, 72)[:, 0].reshape(-1, 72)
    return found


def _blocks(config: Config) -> Config:
    """Widths are 2/3 of ffn_mult * hidden, 48 here, rounded up to 256."""
    own = [
        {
            "attention": {"n_heads_in_group": HEADS // few if few else None, "no_op": not few, "sparsify": None},
            "ffn": {"ffn_mult": (width - 16) / 48 if width else None, "no_op": not width},
        }
        for few, width in _BLOCKS
    ]
    return {"model_type": "nemotron-nas", "block_configs": own, "intermediate_size": None, "num_key_value_heads": None}


def _deci(config: Config) -> Config:
    return {
        "attention.head_count": [HEADS * bool(few) for few, _ in _BLOCKS], "attention.key_length": HEAD_DIM,
        "attention.head_count_kv": [few for few, _ in _BLOCKS], "attention.value_length": HEAD_DIM,
        "feed_forward_length": [width for _, width in _BLOCKS], "rope.dimension_count": HEAD_DIM,
        "rope.freq_base": config["rope_theta"],
    }  # fmt: skip


def _reordered(config: Config, name: str, values: np.ndarray) -> Tensors | None:
    part = re.fullmatch(r"self_attn\.([qk])_proj\.weight", name)
    return iter([(f"attn_{part[1]}.weight", permuted_rows(values, len(values) // HEAD_DIM))]) if part else None


# --- the families ---


def _llama(name: str, config: str = "LlamaConfig", **settings: Any) -> Case:
    return Case(name, config, settings)


def _minicpm_keys(config: Config) -> Config:
    return {
        "embedding_scale": config["embedding_multiplier"], "residual_scale": config["residual_multiplier"],
        "logit_scale": config["logits_scaling"],
    }  # fmt: skip


def _bailing2(config: Config) -> Config:
    own = {"model_type": "bailing_moe", "score_function": "sigmoid", "moe_router_enable_expert_bias": True}
    own |= {key: config[key] for key in ("n_group", "topk_group", "routed_scaling_factor", "first_k_dense_replace")}
    own |= {"num_experts": config["n_routed_experts"], "num_shared_experts": config["n_shared_experts"]}
    return _moe(config, use_qk_norm=True, partial_rotary_factor=0.5, head_dim=config["head_dim"], **own)


def _bailing2_keys(config: Config) -> Config:
    return {
        "expert_feed_forward_length": config["moe_intermediate_size"], "expert_gating_func": 2,
        "expert_shared_feed_forward_length": config["moe_intermediate_size"],
        "expert_weights_scale": config["routed_scaling_factor"], "expert_weights_norm": config["norm_topk_prob"],
        "expert_shared_count": config["num_shared_experts"], "rope.freq_base": config["rope_theta"],
        "leading_dense_block_count": config["first_k_dense_replace"],
        "rope.dimension_count": int(config["head_dim"] * config["partial_rotary_factor"]),
    }  # fmt: skip


def _correction(config: Config, name: str, values: np.ndarray) -> Tensors | None:
    return iter([("exp_probs_b.bias", values)]) if name.endswith("expert_bias") else None


_EXAONE = {
    "model.embed_tokens": "transformer.wte", "model.layers": "transformer.h", "model.norm": "transformer.ln_f",
    "input_layernorm": "ln_1", "post_attention_layernorm": "ln_2", "self_attn.o_proj": "attn.attention.out_proj",
    "self_attn": "attn.attention", "mlp.gate_proj": "mlp.c_fc_0", "mlp.up_proj": "mlp.c_fc_1",
    "mlp.down_proj": "mlp.c_proj",
}  # fmt: skip
_INTERNLM2 = {
    "embed_tokens": "tok_embeddings", "lm_head": "output", "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm", "self_attn.o_proj": "attention.wo", "self_attn": "attention",
    "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2",
}  # fmt: skip
_QWEN = {
    "model.embed_tokens": "transformer.wte", "model.layers": "transformer.h", "model.norm": "transformer.ln_f",
    "input_layernorm": "ln_1", "post_attention_layernorm": "ln_2", "self_attn.o_proj": "attn.c_proj",
    "self_attn": "attn", "mlp.gate_proj": "mlp.w2", "mlp.up_proj": "mlp.w1", "mlp.down_proj": "mlp.c_proj",
}  # fmt: skip
_BAILING = {
    "embed_tokens": "word_embeddings", "self_attn.o_proj": "attention.dense", "self_attn.q_norm":
    "attention.query_layernorm", "self_attn.k_norm": "attention.key_layernorm", "self_attn": "attention",
    "e_score_correction_bias": "expert_bias", "mlp.shared_expert.": "mlp.shared_experts.",
}  # fmt: skip
_QWEN_FILE = {
    "ln_1": "attn_norm", "ln_2": "ffn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
    "mlp.w1": "ffn_up", "mlp.w2": "ffn_gate", "mlp.c_proj": "ffn_down",
}  # fmt: skip
_BAILING_FILE = {
    "attention.query_key_value": "attn_qkv", "attention.dense": "attn_output",
    "attention.query_layernorm": "attn_q_norm", "attention.key_layernorm": "attn_k_norm",
}  # fmt: skip

FAMILIES: list[OwnCode] = [
    OwnCode(
        _llama("exaone", rope_parameters=_LLAMA3, num_hidden_layers=3),
        lambda config: {
            "model_type": "exaone", "num_hidden_layers": None, "num_layers": 3, "hidden_act": None,
            "activation_function": "silu", "rms_norm_eps": None, "layer_norm_epsilon": config["rms_norm_eps"],
        },
        Conversion("exaone", extra=apertus_angles), names=_EXAONE,
    ),
    OwnCode(
        _llama("internlm2"), lambda config: {"model_type": "internlm2", "bias": False},
        Conversion("internlm2", permuted=True), names=_INTERNLM2,
        pack=lambda weights: _packed(weights, "wqkv", _grouped),
    ),
    OwnCode(
        _llama("internlm2-biases", attention_bias=True), lambda config: {"model_type": "internlm2", "bias": True},
        Conversion("internlm2", permuted=True), names=_INTERNLM2,
        pack=lambda weights: _packed(weights, "wqkv", _grouped),
    ),
    OwnCode(
        _llama("minicpm", "GraniteConfig", num_hidden_layers=4, embedding_multiplier=12.0, residual_multiplier=0.7,
               logits_scaling=4.5, attention_multiplier=HEAD_DIM**-0.5, tie_word_embeddings=True),
        lambda config: {"model_type": "minicpm", "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 16},
        Conversion("minicpm", _minicpm_keys, permuted=True),
    ),
    OwnCode(
        _llama("baichuan", num_key_value_heads=6), lambda config: {"model_type": "baichuan"},
        Conversion("baichuan", lambda config: {"tensor_data_layout": "Meta AI original pth"}, permuted=True),
        pack=lambda weights: _packed(weights, "W_pack"),
    ),
    OwnCode(
        _llama("qwen", "Qwen2Config", num_key_value_heads=6),
        lambda config: {
            "model_type": "qwen", "intermediate_size": 200, "kv_channels": HEAD_DIM, "no_bias": True,
            "layer_norm_epsilon": config["rms_norm_eps"], "rms_norm_eps": None, "use_dynamic_ntk": True,
            "use_logn_attn": True, "rotary_emb_base": 1e4, "rope_theta": None, "seq_length": 128, "hidden_act": None,
        },
        Conversion("qwen", lambda config: {"rope.freq_base": config["rotary_emb_base"]}, _QWEN_FILE), of_case=False,
        names=_QWEN, pack=lambda weights: _packed(weights, "c_attn"),
    ),
    OwnCode(
        _llama("nemotron-nas", num_hidden_layers=len(_BLOCKS), num_key_value_heads=6, intermediate_size=512),
        _blocks, Conversion("deci", _deci, change=_reordered), of_case=False, prepare=_cut, pack=_left_out,
    ),
    OwnCode(
        _llama("deepseek", "Qwen2MoeConfig", **_QWEN2_MOE, norm_topk_prob=False),
        lambda config: _moe(config, model_type="deepseek", n_routed_experts=EXPERTS, n_shared_experts=2,
                            first_k_dense_replace=1, moe_layer_freq=1, scoring_func="softmax"),
        Conversion("deepseek", _routed, _SHEXP, _halved, permuted=True), prepare=_half_shared, pack=_without_gate,
        names={"mlp.shared_expert.": "mlp.shared_experts."},
    ),
    OwnCode(
        _llama("bailing_moe", "Qwen2MoeConfig", **_QWEN2_MOE, norm_topk_prob=True),
        lambda config: _moe(config, model_type="bailing_moe", num_experts=EXPERTS, num_shared_experts=2,
                            first_k_dense_replace=1, norm_head=False, use_bias=False, use_qkv_bias=False),
        Conversion("bailingmoe", _routed, _SHEXP, _halved, permuted=True), prepare=_half_shared, names=_BAILING,
        pack=lambda weights: _packed(_without_gate(weights), "query_key_value"),
    ),
    OwnCode(
        Case("bailing_moe_v2", "Glm4MoeConfig", {
            "n_routed_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "n_group": 3,
            "topk_group": 2, "routed_scaling_factor": 1.7, "n_shared_experts": 2, "use_qk_norm": True, "head_dim": 24,
            "num_hidden_layers": 3,
        }),
        _bailing2, Conversion("bailingmoe2", _bailing2_keys, _BAILING_FILE, _correction), of_case=False, names=_BAILING,
        pack=lambda weights: _packed(weights, "query_key_value"),
    ),
]  # fmt: skip
