"""The layer of a checkpoint that predicts a further token (multi-token prediction), as a draft model of its own.

It reads, for each position, the model's hidden state there, behind the final norm, and the embedding of the next token,
both normalized and joined by one matrix. Its own output, behind its final norm, takes the hidden state's place when it
predicts the token after that. Embedding and head are the model's. Qwen3-Next and Qwen3.5 name it mtp.; DeepSeek V3,
GLM-4.5, others and .gguf files have it behind the model's layers.

Source: DeepSeek-AI 2024, DeepSeek-V3, arXiv:2412.19437, section 2.2; that the hidden state is the one behind the final
norm: vLLM's modules qwen3_next_mtp and deepseek_mtp.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from forearm.array_types import Float32Array
from forearm.errors import ConfigError
from forearm.model.checkpoint.names import stored_module
from forearm.model.checkpoint.shards import Files, StoredTensor
from forearm.model.checkpoint.vector_names import layer_name
from forearm.model.families.config import Attention, LatentAttention, ModelConfig

if TYPE_CHECKING:
    from forearm.model.checkpoint.checkpoint import Checkpoint

_REMEDY = "take the method ngram"
# Names of what stands around the layer.
_OF_QWEN = {
    "fuse": "mtp.fc", "embed_norm": "mtp.pre_fc_norm_embedding", "hidden_norm": "mtp.pre_fc_norm_hidden",
    "final_norm": "mtp.norm",
}  # fmt: skip
_BEHIND = {
    "fuse": "{layer}.eh_proj", "embed_norm": "{layer}.enorm", "hidden_norm": "{layer}.hnorm",
    "final_norm": "{layer}.shared_head.norm",
}  # fmt: skip
_OF_GGUF = {
    "fuse": "{layer}.nextn.eh_proj", "embed_norm": "{layer}.nextn.enorm", "hidden_norm": "{layer}.nextn.hnorm",
    "final_norm": "{layer}.nextn.shared_head_norm",
}  # fmt: skip


def predictor(config: ModelConfig, stored: Collection[str]) -> ModelConfig:
    """Return the config of the layer that predicts a further token. stored: names of the checkpoint's tensors.

    Raises: ConfigError if the checkpoint has no such layer, or the model is not of one residual stream.
    """
    if not config.layers_stand_alone or config.conv_taps or config.norm_gates or config.norm_residual != "none":
        raise ConfigError(
            f"--speculative-config: method mtp: layers of {config.model_type} hand on more than a residual; {_REMEDY}"
        )
    attending = [layer for layer in config.layers if isinstance(layer.mixer, Attention | LatentAttention)]
    behind = f"{stored_module(config, stored, 'layers')}.{len(config.layers)}"
    own, ends = layer_name(config.names, len(config.layers)), _BEHIND
    if any(name.startswith("mtp.fc.") for name in stored):
        own, ends = "mtp.layers.0", _OF_QWEN
    elif any(name.startswith(f"{behind}.nextn.eh_proj.") for name in stored):
        ends = _OF_GGUF
    elif not any(name.startswith(f"{behind}.eh_proj.") for name in stored):
        raise ConfigError(
            "--speculative-config: method mtp: the checkpoint has no layer that predicts further tokens (mtp.fc, or "
            "eh_proj behind the model's layers); quantized copies often lack it: take the original, or the method ngram"
        )
    names = {"layers.0": own} | {name: end.replace("{layer}", own) for name, end in ends.items()}
    kept = {name: stored for name, stored in config.names.items() if not name.startswith("layers.")}
    layer = replace(config.layers[-1], mixer=attending[-1].mixer)
    return replace(
        config, layers=(layer,), names=kept | names, fuses=True, keeps_hidden=True, embed_norm=True, shared={},
    )  # fmt: skip


def final_norm(checkpoint: Checkpoint) -> Callable[[Float32Array], Float32Array]:
    """Return the final norm of a model, an RMSNorm, as a function of rows [rows, hidden].

    Raises: ConfigError if it is another norm.
    """
    config = checkpoint.config
    found = [(part, stored) for part, stored in checkpoint.sources if part.name == "final_norm"]
    if config.layer_norm or len(found) != 1 or not isinstance(stored := found[0][1], StoredTensor):
        raise ConfigError(
            f"--speculative-config: method mtp: {config.model_type} has no RMSNorm before its head; {_REMEDY}"
        )
    weights = found[0][0].vector(Files().mapping(stored.path), stored) + np.float32(config.norm_plus_one)
    eps = np.float32(config.norm_eps)

    def normed(rows: Float32Array) -> Float32Array:
        means = np.einsum("ij,ij->i", rows, rows) / np.float32(rows.shape[1])
        scaled: Float32Array = rows * (weights / np.sqrt(means + eps)[:, None])
        return scaled

    return normed
