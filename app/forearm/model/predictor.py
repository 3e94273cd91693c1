"""The layer of a checkpoint that predicts a further token (multi-token prediction), as a draft model of its own.

It reads, for each position, the model's hidden state there, behind the final norm, and the embedding of the next token,
both normalized and joined by one matrix. Its own output, behind its final norm, takes the hidden state's place when it
predicts the token after that. Embedding and head are the model's, whose executor lends them; DeepSeek V3's files have
both a second time. Qwen3-Next and Qwen3.5 name it mtp.; DeepSeek V3,
GLM-4.5, others and .gguf files have it behind the model's layers.

Source: DeepSeek-AI 2024, DeepSeek-V3, arXiv:2412.19437, section 2.2; that the hidden state is the one behind the final
norm: vLLM's modules qwen3_next_mtp and deepseek_mtp.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from forearm.errors import ConfigError
from forearm.model.checkpoint.formats import spec_bytes
from forearm.model.checkpoint.names import stored_module
from forearm.model.checkpoint.shards import Files, StoredTensor
from forearm.model.checkpoint.vector_names import layer_name
from forearm.model.families.config import Attention, LatentAttention, ModelConfig
from forearm.model.families.matrices import matrices
from forearm.model.quantization.codes import CodedMatrix

if TYPE_CHECKING:
    from forearm.model.checkpoint.checkpoint import Checkpoint

_REMEDY = "take the method ngram"
_COMPARED = 64  # rows of two matrices that are compared
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
# Names of an embedding and a head of its own behind the layer's.
_OWN = {"embed": ("embed_tokens", "nextn.embed_tokens"), "head": ("shared_head.head", "nextn.shared_head_head")}


def predictor(config: ModelConfig, stored: Collection[str]) -> ModelConfig:
    """Return the config of the layer that predicts a further token. stored: names of the checkpoint's tensors.

    Raises: ConfigError if the checkpoint has no such layer, or the model is not of one residual stream.
    """
    if not config.layers_stand_alone or config.conv_taps or config.norm_gates or config.norm_residual != "none":
        raise ConfigError(
            f"--speculative-config: method mtp: layers of {config.model_type} hand on more than a residual; {_REMEDY}"
        )
    if config.layer_norm or not config.final_norm:
        raise ConfigError(
            f"--speculative-config: method mtp: {config.model_type} has no RMSNorm before its head; {_REMEDY}"
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
    kept = {name: stored for name, stored in config.names.items() if not name.startswith("layers.")}
    if config.tied_head:
        kept["head"] = stored_module(config, stored, "embed")
    modules = {name.rpartition(".")[0] for name in stored if name.startswith(f"{behind}.")}
    for part, ends_of in _OWN.items():
        for end in ends_of:
            if f"{behind}.{end}" in modules:  # an embedding is named without the prefix of all tensors
                kept[part] = f"{own}.{end}" if part == "embed" else f"{behind}.{end}"
    names = {"layers.0": own} | {name: end.replace("{layer}", own) for name, end in ends.items()}
    layer = replace(config.layers[-1], mixer=attending[-1].mixer)
    return replace(
        config, layers=(layer,), names=kept | names, fuses=True, keeps_hidden=True, embed_norm=True, shared={},
        tied_head=False,
    )  # fmt: skip


def borrowing(layer: Checkpoint, model: Checkpoint) -> Checkpoint:
    """Return the layer with the embedding of the model's executor, and with its head where that has no more bytes than
    one of the layer's own: drafts take as long as their head is read. It keeps tensors that the model's are not.
    """
    head, tied = next(spec for spec in matrices(layer.config) if spec.role == "head"), model.config.tied_head
    lent = {"embed": "embed"} | ({"head": "embed"} if tied else {"head": "head"})
    if spec_bytes(head, model.formats[lent["head"]]) > spec_bytes(head, layer.formats["head"]):
        del lent["head"]
    own, theirs = ({part.name: stored for part, stored in one.sources} for one in (layer, model))
    lent = {name: other for name, other in lent.items() if _same(own[name], theirs[other])}
    kept = {name: format for name, format in layer.formats.items() if name not in lent}
    return replace(
        layer,
        config=replace(layer.config, shared=lent),
        sources=tuple(source for source in layer.sources if source[0].name.removesuffix(".bias") not in lent),
        formats=kept | ({"head": model.formats[lent["head"]]} if "head" in lent else {}),
        borrowed=(head,) if "head" in lent else (),
    )


def _same(one: StoredTensor | CodedMatrix, other: StoredTensor | CodedMatrix) -> bool:
    """Return whether two matrices are the same tensor, or have the same numbers in rows from their first to their last:
    training changes them all.
    """
    if one == other or not (isinstance(one, StoredTensor) and isinstance(other, StoredTensor)):
        return one == other
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    rows = range(0, one.shape[0], max(1, one.shape[0] // _COMPARED))
    first, second = (Files().mapping(matrix.path).rows(matrix, rows) for matrix in (one, other))
    return first.tobytes() == second.tobytes()
