"""Checkpoints with a layer that predicts further tokens, and its logits by transformers' own layer.

transformers reads no such layer. It is a model of one layer, which reads rows in place of embeddings: fc of the next
token's embedding and the model's hidden state, both normalized.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tests.model.cases import Case
from tests.model.made_cases import make, randomize
from transformers import AutoModelForCausalLM, PreTrainedModel


@dataclass
class Predicting:
    """A model, the one-layer model behind it, and what joins both.

    norms: weights of the norms of the embedding and of the hidden state, float32 [hidden]. plus_one: they are stored
    minus one. fc: float32 [hidden, 2 * hidden].
    """

    model: PreTrainedModel
    layer: PreTrainedModel
    norms: tuple[torch.Tensor, torch.Tensor]
    plus_one: bool
    fc: torch.Tensor

    def hidden(self, tokens: list[int]) -> torch.Tensor:
        """The model's hidden states behind its final norm, float32 [tokens, hidden]."""
        with torch.no_grad():
            return self.model.model(torch.tensor([tokens])).last_hidden_state[0]

    def logits(self, tokens: list[int], hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits for each position, and its output behind the final norm. tokens: the one after each row of hidden."""
        embedded = self.model.get_input_embeddings()(torch.tensor(tokens))
        rows = torch.cat([self._normed(embedded, 0), self._normed(hidden, 1)], dim=-1) @ self.fc.T
        with torch.no_grad():
            own = self.layer.model(inputs_embeds=rows[None]).last_hidden_state[0]
            return self.model.get_output_embeddings()(own), own

    def _normed(self, rows: torch.Tensor, which: int) -> torch.Tensor:
        eps = self.model.config.rms_norm_eps
        scaled = rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + eps)
        return scaled * (self.norms[which] + float(self.plus_one))


def make_predicting(case: Case, folder: Path, form: str) -> Predicting:
    """Write a case's model with such a layer. form: mtp, as Qwen3.5's, or nextn, as DeepSeek V3's."""
    model = make(case, folder)
    config = deepcopy(model.config)
    layers, config.num_hidden_layers = config.num_hidden_layers, 1
    if hasattr(config, "layer_types"):
        config.layer_types = ["full_attention"]
    if hasattr(config, "first_k_dense_replace"):
        config.first_k_dense_replace = 0
    torch.manual_seed(7)
    layer = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            randomize(name, parameter)
    hidden = config.hidden_size
    norms = (0.2 * torch.randn(hidden) + 1.0, 0.2 * torch.randn(hidden) + 1.0)
    fc = torch.randn(hidden, 2 * hidden) / (2 * hidden) ** 0.5
    own = f"model.layers.{layers}."
    names = {"layer": own, "norm": f"{own}shared_head.norm", "fc": f"{own}eh_proj"}
    names |= {"embedding": f"{own}enorm", "hidden": f"{own}hnorm"}
    if form == "mtp":
        names = {"layer": "mtp.layers.0.", "norm": "mtp.norm", "fc": "mtp.fc"}
        names |= {"embedding": "mtp.pre_fc_norm_embedding", "hidden": "mtp.pre_fc_norm_hidden"}
    tensors = load_file(folder / "model.safetensors")
    state = layer.state_dict()
    for name, values in state.items():
        if name.startswith("model.layers.0."):
            tensors[name.replace("model.layers.0.", names["layer"])] = values.clone()
    beside = {"norm": state["model.norm.weight"], "fc": fc, "embedding": norms[0], "hidden": norms[1]}
    tensors |= {f"{names[name]}.weight": values.clone() for name, values in beside.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return Predicting(model, layer, norms, form == "mtp", fc)
