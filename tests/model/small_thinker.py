"""SmallThinker, put together of modules of transformers: SmolLM3's layers, experts of Mixtral or MiniMax-M2.

The router of a layer's experts gets what the layer got, before its norm and its attention: a hook hands it over.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from tests.model.cases import Case
from tests.model.gguf_converter import Config, Conversion
from tests.model.made_cases import randomize
from tests.model.own_code import EXPERTS, OwnCode
from transformers import MiniMaxM2Config, MixtralConfig, SmolLM3ForCausalLM
from transformers.models.minimax_m2.modeling_minimax_m2 import MiniMaxM2SparseMoeBlock
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

WIDTH, WINDOW = 24, 16


@dataclass(frozen=True)
class SmallThinker(OwnCode):
    """One checkpoint. softmax: of the chosen experts' logits, otherwise sigmoids. marks: layers with a window."""

    softmax: bool = False
    marks: list[int] = field(default_factory=list)

    def made(self, folder: Path) -> tuple[Any, Path, Path]:
        torch.manual_seed(self.case.seed)
        config = self.case.make_config()
        config._attn_implementation = "eager"
        model = SmolLM3ForCausalLM(config)
        for layer in model.model.layers:
            layer.mlp = self._experts(layer, config.hidden_size)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                randomize(name, parameter if parameter.dim() < 3 else parameter.flatten(0, 1))
        folder.mkdir(parents=True, exist_ok=True)
        stored = dict(self._stored(model))
        save_file(stored, folder / "model.safetensors", {"format": "pt"})
        (folder / "config.json").write_text(json.dumps(self.keys(config.to_dict())))
        return model.eval(), folder, folder

    def _experts(self, layer: Any, hidden: int) -> Any:
        sizes = {
            "hidden_size": hidden, "intermediate_size": WIDTH, "num_local_experts": EXPERTS, "num_experts_per_tok": 3,
            "hidden_act": "relu",
        }  # fmt: skip
        block = (
            MixtralSparseMoeBlock(MixtralConfig(**sizes))
            if self.softmax
            else MiniMaxM2SparseMoeBlock(MiniMaxM2Config(**sizes))
        )
        read: list[torch.Tensor] = []
        layer.register_forward_pre_hook(lambda module, given: read.append(given[0]))
        block.gate.register_forward_pre_hook(lambda module, given: (read.pop(), *given[1:]))
        return block

    def _stored(self, model: Any) -> Any:
        """Yield the tensors by the names of the published files."""
        for name, parameter in model.named_parameters():
            values = parameter.detach().numpy()
            name = name.replace("mlp.gate.weight", "block_sparse_moe.primary_router.weight")
            base, experts, part = name.partition("mlp.experts.")
            if not experts:
                yield name, np.ascontiguousarray(values)
                continue
            for i, one in enumerate(values):
                at = f"{base}block_sparse_moe.experts.{i}"
                pieces = (
                    {"down": one} if part == "down_proj" else dict(zip(("gate", "up"), np.split(one, 2), strict=True))
                )
                yield from ((f"{at}.{own}.weight", np.ascontiguousarray(rows)) for own, rows in pieces.items())


def _published(marks: list[int], softmax: bool) -> Any:
    def keys(config: Config) -> Config:
        common = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                  "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings", "bos_token_id", "eos_token_id",
                  "head_dim")  # fmt: skip
        return {key: config[key] for key in common} | {
            "model_type": "smallthinker", "torch_dtype": "float32", "rope_theta": 1.5e6, "rope_scaling": None,
            "rope_layout": marks if any(marks) else [1] * len(marks), "sliding_window_layout": marks,
            "sliding_window_size": WINDOW, "moe_num_primary_experts": EXPERTS, "moe_num_active_primary_experts": 3,
            "moe_ffn_hidden_size": WIDTH, "moe_primary_router_apply_softmax": softmax,
        }  # fmt: skip

    return keys


def _file(marks: list[int], softmax: bool) -> Any:
    def keys(config: Config) -> Config:
        return {
            "expert_count": EXPERTS, "expert_used_count": 3, "expert_feed_forward_length": WIDTH,
            "feed_forward_length": WIDTH, "expert_gating_func": 1 if softmax else 2, "rope.freq_base": 1.5e6,
            "attention.sliding_window": WINDOW if any(marks) else None,
        }  # fmt: skip

    return keys


_NAMES = {"block_sparse_moe.primary_router": "ffn_gate_inp"} | {
    f"block_sparse_moe.experts.{part}": f"ffn_{part}_exps" for part in ("gate", "up", "down")
}


def small_thinker(marks: list[int], softmax: bool) -> SmallThinker:
    """A model with windows of 16 tokens on the layers marked 1; where there are any, the others have no positions."""
    kinds = ["sliding_attention" if mark else "full_attention" for mark in marks]
    settings = {
        "head_dim": 12, "num_hidden_layers": len(marks), "sliding_window": WINDOW, "use_sliding_window": any(marks),
        "layer_types": kinds, "no_rope_layers": marks if any(marks) else [1] * len(marks),
        "tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1.5e6},
    }  # fmt: skip
    case = Case("smallthinker" if any(marks) else "smallthinker-biases", "SmolLM3Config", settings)
    conversion = Conversion("smallthinker", _file(marks, softmax), _NAMES)
    keys = _published(marks, softmax)
    return SmallThinker(case, keys, conversion, of_case=False, softmax=softmax, marks=marks)


SMALL_THINKERS = [small_thinker([0, 1, 1, 1, 0], softmax=False), small_thinker([0, 0, 0], softmax=True)]
