"""Writes a model as one .gguf file, whose matrices are rounded to block types as llama.cpp mixes them.

The loader hands its tensors to GgufWriter as it hands them to the executor, with the importance of columns if they were
calibrated. Each row is rounded and written at once to its place, so that memory is that of a few rows.
Source of the mixtures: src/llama-quant.cpp of ggml-org/llama.cpp.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from forearm.array_types import Float32Array, UInt8Array, UInt16Array
from forearm.config.number_formats import INTEGERS, WeightFormat
from forearm.errors import ConfigError
from forearm.model.checkpoint.checkpoint import Checkpoint, open_checkpoint
from forearm.model.checkpoint.names import parts
from forearm.model.checkpoint.shards import Files, widened
from forearm.model.checkpoint.tensor_part import TensorPart
from forearm.model.families.config import Attention, FeedForward, ModelConfig
from forearm.model.families.keys import read_json, text_part
from forearm.model.families.matrices import uniform_formats
from forearm.model.gguf.gguf import is_gguf, read_gguf
from forearm.model.gguf.gguf_architectures import ARCHITECTURES, NAMES
from forearm.model.gguf.gguf_blocks import encode_rows, type_of_rows
from forearm.model.gguf.gguf_config import gguf_config
from forearm.model.gguf.gguf_header import gguf_header
from forearm.model.gguf.gguf_keys import architecture_of, difference, metadata_of
from forearm.model.quantization.rounding import PLAIN, Rounding

ROWS = 64  # of a matrix that a thread rounds at a time
_OLD_KEYS = ("split.", "quantize.", "general.file_type", "general.quantization_version")


@dataclass(frozen=True)
class Mixture:
    """The types of a file's matrices. more: of the head, and of attn_v and ffn_down in half of the layers if `mixed`.

    number: general.file_type (llama.h, llama_ftype).
    """

    number: int
    most: str
    more: str
    mixed: bool = False

    def type_of(self, name: str, columns: int, layers: int, tied: bool) -> str:
        """Return the type of a matrix. tied: the embedding is the head, too."""
        first, _, module = name.removesuffix(".weight").rpartition(".")
        more = module == ("token_embd" if tied else "output")
        if self.mixed and module in ("attn_v", "ffn_down"):
            layer, eighth = int(first.removeprefix("blk.")), layers // 8
            more = layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
        return type_of_rows(self.more if more else self.most, columns)


MIXTURES = {
    "Q4_0": Mixture(2, "Q4_0", "Q6_K"), "Q8_0": Mixture(7, "Q8_0", "Q8_0"), "Q6_K": Mixture(18, "Q6_K", "Q6_K"),
    "Q4_K_M": Mixture(15, "Q4_K", "Q6_K", True), "Q5_K_M": Mixture(17, "Q5_K", "Q6_K", True),
}  # fmt: skip


def float_checkpoint(place: Path) -> Checkpoint:
    """Return the checkpoint in a model folder or .gguf file as floats, to be calibrated where its layers allow it.

    Raises: ConfigError for models that are not written as .gguf files.
    """
    checkpoint = open_checkpoint(place)
    config = checkpoint.config
    if checkpoint.method not in ("", "gguf"):
        raise ConfigError(f"{place}: the checkpoint is quantized already ({checkpoint.method}); name one of floats")
    dense = all(type(one.mixer) is Attention and type(one.feed_forward) is FeedForward for one in config.layers)
    if not dense or config.modules or config.per_layer:
        raise ConfigError(f"{place}: GGUF files are written of models of attention and dense feed-forwards alone")
    if not is_gguf(place):
        architecture_of(config)
    exact = uniform_formats(config, WeightFormat("float32"))
    return replace(checkpoint, formats=exact, calibrated=config.layers_stand_alone)


class GgufWriter:
    """Takes a model's tensors from the loader in place of an executor, and writes them to a .gguf file.

    checkpoint: of float_checkpoint. path: the new file, in a folder without files. mixture: a name of MIXTURES.
    vocabulary: the metadata of the tokenizer; that of another .gguf file is kept instead.
    Raises: ConfigError if the keys of a .gguf file can't say the model, or the folder has files; OSError for a full
    disk.
    """

    def __init__(
        self, checkpoint: Checkpoint, path: Path, mixture: str, vocabulary: Mapping[str, Any], threads: int
    ) -> None:
        if path.parent.exists() and any(path.parent.iterdir()):
            raise ConfigError(f"{path.parent} has files; name a new folder")
        self._head_dim, own = checkpoint.config.head_dim, is_gguf(checkpoint.folder)
        metadata, copied, found = _copied(checkpoint) if own else _described(checkpoint, path.stem)
        self._parts = {part.name: part for part in found}
        self._interleaved = not own and ARCHITECTURES[metadata["general.architecture"]].interleaved
        metadata |= dict(vocabulary) | {"general.file_type": MIXTURES[mixture].number}
        tensors = _types(self._parts.values(), checkpoint.config, MIXTURES[mixture])
        tensors |= {name: ("F32", values.shape) for name, values in copied.items()}
        head, self._places = gguf_header(metadata | {"general.quantization_version": 2}, tensors)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(head)
            os.posix_fallocate(file.fileno(), 0, max(place.end for place in self._places.values()))
        self._file, self._threads = np.memmap(path, np.uint8, "r+"), ThreadPoolExecutor(threads, "round")
        for name, values in copied.items():
            self._rows(name)[:] = values.reshape(len(values), -1).view(np.uint8)
        changed = None if own else difference(checkpoint.config, gguf_config(read_gguf(path)))
        if changed is not None:
            path.unlink()
            raise ConfigError(
                f"{checkpoint.folder}: {changed} of this {checkpoint.config.model_type} has no key in a GGUF file of "
                f"the architecture {metadata['general.architecture']}; choose --format {INTEGERS[4]} or "
                f"{INTEGERS[8]}"
            )

    def load_vector(self, name: str, values: Float32Array, row: int = 0) -> None:
        """Write a norm or bias, float32 [rows]."""
        if name in self._parts:
            self._put(name, row, np.ascontiguousarray(values).view(np.uint8).reshape(-1, 4))

    def load_matrix(
        self, name: str, data: Float32Array | UInt16Array, dtype: str, row: int = 0, rounding: Rounding = PLAIN
    ) -> None:
        """Round rows of a matrix, and write them."""
        stored = self._places[self._parts[name].stored].dtype

        def rounded(first: int) -> UInt8Array:
            return encode_rows(stored, widened(data[first : first + ROWS], dtype), rounding.importance)

        starts = range(0, len(data), ROWS)
        for first, blocks in zip(starts, self._threads.map(rounded, starts), strict=True):
            self._put(name, row + first, blocks)

    def finish_loading(self) -> None:
        """Write what is still in memory."""
        self._file.flush()

    def _put(self, name: str, row: int, stored: UInt8Array) -> None:
        rows = np.arange(row, row + len(stored))
        if self._interleaved and name.split(".")[2:3] in (["q"], ["k"]):  # the values of a head's two halves alternate
            of_head, half = rows % self._head_dim, self._head_dim // 2
            rows = rows - of_head + of_head % half * 2 + of_head // half
        part = self._parts[name]
        self._rows(part.stored)[part.row + rows] = stored

    def _rows(self, name: str) -> UInt8Array:
        """Return a tensor of the file, uint8 [rows, bytes of a row]; a vector has a row for each value."""
        place = self._places[name]
        return self._file[place.begin : place.end].reshape(place.shape[0], -1)


def _copied(checkpoint: Checkpoint) -> tuple[dict[str, Any], dict[str, Float32Array], list[TensorPart]]:
    """Return the metadata of a .gguf file, its tensors that no matrix or vector is made of, and the places of those."""
    gguf, files = read_gguf(checkpoint.folder), Files()
    found = [part for part, _ in checkpoint.sources if part.stored in gguf.tensors]  # others are in the metadata
    used = {part.stored for part in found}
    copied = {name: files.floats(tensor) for name, tensor in gguf.tensors.items() if name not in used}
    return {key: value for key, value in gguf.metadata.items() if not key.startswith(_OLD_KEYS)}, copied, found


def _described(checkpoint: Checkpoint, name: str) -> tuple[dict[str, Any], dict[str, Float32Array], list[TensorPart]]:
    """Return the metadata of the model in a folder, factors of its angles, and the places of its parts in the file."""
    keys = read_json(checkpoint.folder / "config.json")
    metadata, factors = metadata_of(checkpoint.config, text_part(keys) or keys, name)
    named = replace(checkpoint.config, names=NAMES | dict(ARCHITECTURES[metadata["general.architecture"]].names))
    return metadata, factors, parts(named, {"token_embd.weight"})


def _types(
    found: Iterable[TensorPart], config: ModelConfig, mixture: Mixture
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return type and shape of each tensor that the parts fill."""
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for part in found:
        rows = max(part.row + part.shape[0], tensors[part.stored][1][0] if part.stored in tensors else 0)
        matrix = len(part.shape) == 2
        dtype = mixture.type_of(part.stored, part.shape[1], len(config.layers), config.tied_head) if matrix else "F32"
        tensors[part.stored] = (dtype, (rows, *part.shape[1:]))
    return tensors
