"""Tensors of .gguf files that are written: their names and shapes, and orders of rows and columns that differ."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from forearm.config.number_formats import INTEGERS
from forearm.model.checkpoint.tensor_part import TensorPart
from forearm.model.checkpoint.vector_names import VECTORS
from forearm.model.families.config import ModelConfig
from forearm.model.families.matrices import matrices
from forearm.model.families.recurrences import GatedDelta, SelectiveScan, ShortConv
from forearm.model.gguf.gguf_architectures import NAMES, GgufArchitecture

log = logging.getLogger(__name__)
# Matrices whose biases llama.cpp's loader knows, by architecture. It opens no file that has another tensor ("wrong
# number of tensors"). Source: src/models/ and create_tensor_qkv of ggml-org/llama.cpp in llama-cpp-python 0.3.36.
_QKV = ("attn_q", "attn_k", "attn_v", "attn_qkv")
_WITHOUT_QKV = ("falcon", "gemma4", "deepseek2")
_NEVER_OPENED = ("gptj",)  # a name that llama.cpp knows, for which it makes no model
_WITH_BIASES = {
    architecture: modules.split()
    for architectures, modules in (
        ("llama mistral3 granite granitemoe granitehybrid falcon-h1", "attn_output ffn_gate ffn_up ffn_down"),
        ("gpt2 starcoder starcoder2 gptneox bloom mpt jais2 nemotron", "attn_output ffn_up ffn_down"),
        ("nemotron_h nemotron_h_moe", "attn_output ffn_up ffn_down"),
        ("phi2", "attn_output ffn_up ffn_down output"),
        ("gpt-oss", "attn_output ffn_gate_inp ffn_gate_exps ffn_up_exps ffn_down_exps"),
        ("phimoe", "attn_output output"),
        ("ernie4_5 ernie4_5-moe", "attn_output"),
        ("qwen2", "output"),
        ("mamba jamba", "ssm_dt"),
    )
    for architecture in architectures.split()
}


def written_names(config: ModelConfig, own: GgufArchitecture, differ: Mapping[str, str]) -> dict[str, str]:
    """Return the names of the file's tensors, by ModelConfig.names. differ: those of this family."""
    names = NAMES | dict(own.names) | {"k_up": "attn_k_b[all]", "v_up": "attn_v_b[all]"} | dict(differ)
    for key in own.rows:
        _, bracket, place = config.names[key].partition("[")
        names[key] += bracket + place
    stored = VECTORS | config.names
    if config.parallel_residual and stored["input_norm"] == stored["pre_mlp_norm"]:
        names["pre_mlp_norm"] = names["input_norm"]
    elif config.parallel_residual and own.families == ("falcon",):  # attention's own norm has another name
        names |= {"input_norm": "attn_norm_2", "pre_mlp_norm": "attn_norm"}
    return names


def columns_of(config: ModelConfig, name: str) -> int:
    """Return the columns of a vector that files have as a matrix; 0: they have it as a vector. name: the executor's."""
    if name.startswith("stream_"):
        return config.hidden
    if not name.startswith("layers."):
        return 0
    _, number, key = name.split(".", 2)
    if config.alt_up:
        streams = config.alt_up.streams
        return {"alt_up_router": config.hidden, "alt_up_predict": streams, "alt_up_correct": streams}.get(key, 0)
    layer = config.layers[int(number)]
    mixer, mamba2 = layer.mixer, layer.mamba2
    if key in ("q_norm", "k_norm") and config.qk_norm == "each_head":
        return config.head_dim
    if mamba2 is not None:
        return {"conv": mamba2.taps, "a_log": 1, "d": 1, "gate_norm": mamba2.inner // mamba2.groups}.get(key, 0)
    if isinstance(mixer, SelectiveScan):
        return {"conv": mixer.taps, "a_log": mixer.state_dim}.get(key, 0)
    return mixer.taps if key == "conv" and isinstance(mixer, GatedDelta | ShortConv) else 0


def in_file_order(config: ModelConfig, part: TensorPart) -> list[TensorPart]:
    """Return a part in pieces, one of each value head, whose order in files is another one (GatedDelta.tiled)."""
    own = None if part.layer is None else config.layers[part.layer].mixer
    if not isinstance(own, GatedDelta):
        return [part]
    keys, each = own.key_heads, own.value_heads // own.key_heads
    begin = {"conv": 2 * keys * own.key_dim * own.taps}.get(key := part.name.split(".", 2)[2], 0)
    heads = dict.fromkeys(("delta_b", "delta_a", "dt_bias", "a_log"), 1)
    heads |= {"delta_v": own.value_dim, "delta_z": own.value_dim, "conv": own.value_dim * own.taps}
    if (rows := heads.get(key)) is None:
        return [part]
    pieces = [replace(part, shape=(begin,))] if begin else []
    for head in range(own.value_heads):
        there = begin + (head % each * keys + head // each) * rows
        shape, at = (rows, *part.shape[1:]), part.at + begin + head * rows
        pieces.append(replace(part, shape=shape, row=part.row + there, at=at))
    return pieces


def column_orders(config: ModelConfig) -> dict[str, npt.NDArray[np.intp]]:
    """Return the order of columns of matrices that multiply with the results of value heads, by executor's name."""
    found = {}
    for i, layer in enumerate(config.layers):
        if isinstance(own := layer.mixer, GatedDelta):
            columns = np.arange(own.value_heads * own.value_dim).reshape(own.key_heads, -1, own.value_dim)
            found[f"layers.{i}.delta_out"] = columns.swapaxes(0, 1).reshape(-1)
    return found


def warn_of_llama_cpp(config: ModelConfig, architecture: str, found: Sequence[TensorPart]) -> None:
    """Log a warning if llama.cpp will not open a file with these parts, which forearm opens."""
    names = {part.name for spec in matrices(config) for part in spec.parts}
    biases = [
        part.stored for part in found if part.name.removesuffix(".bias") in names and part.stored.endswith(".bias")
    ]
    known = [*([] if architecture in _WITHOUT_QKV else _QKV), *_WITH_BIASES.get(architecture, [])]
    unknown = [bias for bias in biases if bias.removesuffix(".bias").rpartition(".")[2] not in known]
    missing = f"of the architecture {architecture}" if architecture in _NEVER_OPENED else ""
    if unknown and not missing:
        missing = f"of the architecture {architecture} with {unknown[0]}, which this {config.model_type} has"
    if missing:
        log.warning(
            "llama.cpp opens no file %s: forearm alone will read this one; for vLLM, too, choose --format %s or %s",
            missing,
            INTEGERS[4],
            INTEGERS[8],
        )


def shapes_of(config: ModelConfig, found: Sequence[TensorPart]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor, whose rows several parts may share.

    A table of each layer has zeros for the tokens that it does not know, as the converter writes it for llama.cpp.
    """
    specs = {part.name: spec for spec in matrices(config) for part in spec.parts}
    rows: dict[str, int] = defaultdict(int)
    for part in found:
        rows[part.stored] = max(rows[part.stored], part.row + (part.shape[0] - 1) * part.step + 1)
    shapes: dict[str, tuple[int, ...]] = {}
    for part in found:
        count, columns = rows[part.stored], part.shape[1:]
        count = config.vocab_size if part.name == "embed_per_layer" else count
        spec, width = specs.get(part.name.removesuffix(".bias")), columns_of(config, part.name)
        if part.name.endswith(".shared_gate"):  # one row, which is stored as a vector
            shapes[part.stored] = columns
        elif spec is not None and spec.experts > 1:
            shapes[part.stored] = (spec.experts, count // spec.experts, *columns)
        elif width:
            shapes[part.stored] = (count // width, width, *columns)
        else:
            shapes[part.stored] = (count, *columns)
    return shapes
