"""Tensors of .gguf files that are written: their names and shapes, and orders of rows and columns that differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from forearm.model.checkpoint.tensor_part import TensorPart
from forearm.model.checkpoint.vector_names import VECTORS
from forearm.model.families.config import ModelConfig
from forearm.model.families.recurrences import GatedDelta, SelectiveScan, ShortConv
from forearm.model.gguf.gguf_architectures import NAMES, GgufArchitecture


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
