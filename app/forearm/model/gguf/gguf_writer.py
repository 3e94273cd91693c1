"""Writes a model as one .gguf file, whose matrices are rounded to block types as llama.cpp mixes them.

The loader hands its tensors to GgufWriter as it hands them to the executor, with the importance of columns if they were
calibrated. Each row is rounded and written at once to its place, so that memory is that of a few rows. Of another .gguf
file, tensors that are not rounded are copied as they are.
Source of the mixtures: src/llama-quant.cpp of ggml-org/llama.cpp.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from forearm.array_types import Float32Array, Float64Array, UInt8Array, UInt16Array
from forearm.config.number_formats import INTEGERS, WeightFormat
from forearm.errors import ConfigError
from forearm.model.checkpoint.checkpoint import Checkpoint, open_checkpoint
from forearm.model.checkpoint.names import parts
from forearm.model.checkpoint.shards import Files, widened
from forearm.model.checkpoint.tensor_part import TensorPart
from forearm.model.families.config import Experts, ModelConfig
from forearm.model.families.keys import read_json, text_part
from forearm.model.families.matrices import matrices, uniform_formats
from forearm.model.gguf.conversion.written_families import family_of
from forearm.model.gguf.conversion.written_tensors import (
    column_orders,
    in_file_order,
    shapes_of,
    warn_of_llama_cpp,
    written_names,
)
from forearm.model.gguf.gguf import is_gguf, read_gguf
from forearm.model.gguf.gguf_architectures import ARCHITECTURES
from forearm.model.gguf.gguf_blocks import encode_rows, type_of_rows
from forearm.model.gguf.gguf_codes import FLOATS
from forearm.model.gguf.gguf_config import gguf_config
from forearm.model.gguf.gguf_header import gguf_header
from forearm.model.gguf.gguf_keys import difference, metadata_of
from forearm.model.quantization.rounding import PLAIN, Rounding

ROWS = 64  # of a matrix that a thread rounds at a time
_OLD_KEYS = ("split.", "quantize.", "general.file_type", "general.quantization_version")
_KEPT = ("position_embd", "token_types", "per_layer_model_proj", "altup", "laurel")  # which llama.cpp does not round
_EMBEDDINGS = ("token_embd", "per_layer_token_embd")
_VALUES = ("attn_v", "attn_qkv", "attn_kv_b")  # matrices that have the rows of attention's values


@dataclass(frozen=True)
class Mixture:
    """The types of a file's matrices. more: of the head, and of values and ffn_down in half of the layers if `mixed`.

    number: general.file_type (llama.h, llama_ftype). of_eight: of attn_output beside eight experts, as Mixtral has;
    empty: `most`. Keys and values are then in Q8_0.
    """

    number: int
    most: str
    more: str
    mixed: bool = False
    of_eight: str = ""

    def types(self, columns: Mapping[str, int], config: ModelConfig) -> dict[str, str]:
        """Return the type of each matrix. columns: the length of its rows, by its name in the file."""
        layers = sorted(_layer(name) for name in columns if _module(name) in _VALUES)
        experts = [own.count for layer in config.layers if isinstance(own := layer.feed_forward, Experts)]
        # llama.cpp counts layers that have one, not those of halves, unless there are experts.
        down = sorted({_layer(name) for name in columns if _module(name).startswith("ffn_down")})
        eight, heads = 8 in experts, _EMBEDDINGS if config.tied_head else ("output",)
        found = {}
        for name, width in columns.items():
            module = _module(name)
            more = module in heads
            if self.mixed and module in _VALUES:
                more = _is_sensitive(layers.index(_layer(name)), len(layers))
            if self.mixed and module.startswith("ffn_down"):
                at = _layer(name) if experts else down.index(_layer(name))
                more = _is_sensitive(at, len(config.layers))
            dtype = self.more if more else self.most
            if eight and self.most not in FLOATS and (module in _VALUES or module == "attn_k"):
                dtype = "Q8_0"
            if eight and module == "attn_output":
                dtype = self.of_eight or dtype
            found[name] = type_of_rows(dtype, width)
        return found


def _is_sensitive(layer: int, layers: int) -> bool:
    """Return whether a layer is of the first or last eighth, or every third between (llama.cpp: use_more_bits)."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


MIXTURES = {
    **{name: Mixture(number, name, name) for name, number in (("F32", 0), ("F16", 1), ("BF16", 32))},
    "Q4_0": Mixture(2, "Q4_0", "Q6_K"), "Q8_0": Mixture(7, "Q8_0", "Q8_0"), "Q6_K": Mixture(18, "Q6_K", "Q6_K"),
    "Q4_K_M": Mixture(15, "Q4_K", "Q6_K", True, "Q5_K"), "Q5_K_M": Mixture(17, "Q5_K", "Q6_K", True),
}  # fmt: skip


def float_checkpoint(place: Path, mixture: str) -> Checkpoint:
    """Return the checkpoint in a model folder or .gguf file as floats, to be calibrated where its layers allow it.

    mixture: a name of MIXTURES; those of floats are not calibrated.
    Raises: ConfigError for models that are not written as .gguf files.
    """
    checkpoint = open_checkpoint(place)
    config = checkpoint.config
    if checkpoint.method not in ("", "gguf"):
        raise ConfigError(f"{place}: the checkpoint is quantized already ({checkpoint.method}); name one of floats")
    if not is_gguf(place):
        family_of(config)
    exact = uniform_formats(config, WeightFormat("float32"))
    return replace(checkpoint, formats=exact, calibrated=mixture not in FLOATS and config.layers_stand_alone)


@dataclass(frozen=True)
class _Contents:
    """Contents of a file to be written.

    parts: rows of tensors that the loader gives. shapes: of each tensor, by its name in the file. rounded: the columns
    of matrices that are rounded. copied: type and bytes of tensors that no part fills. config: the file's model.
    factors: as of GgufFamily.
    """

    metadata: dict[str, Any]
    parts: list[TensorPart]
    shapes: dict[str, tuple[int, ...]]
    rounded: dict[str, int]
    copied: dict[str, tuple[str, UInt8Array]]
    config: ModelConfig
    factors: Mapping[str, Float64Array]


class GgufWriter:
    """Takes a model's tensors from the loader in place of an executor, and writes them to a .gguf file.

    checkpoint: of float_checkpoint. path: the new file, in a folder without files; it has the ending .partial until it
    is complete, because it has its full length from the start and could be served. mixture: a name of MIXTURES.
    vocabulary: the metadata of the tokenizer; that of another .gguf file is kept instead.
    Raises: ConfigError if the keys of a .gguf file can't say the model, or the folder has files; OSError for a full
    disk.
    """

    def __init__(
        self, checkpoint: Checkpoint, path: Path, mixture: str, vocabulary: Mapping[str, Any], threads: int
    ) -> None:
        if path.parent.exists() and any(path.parent.iterdir()):
            raise ConfigError(f"{path.parent} has files; name a new folder")
        self._config, own = checkpoint.config, is_gguf(checkpoint.folder)
        contents = _of_file(checkpoint) if own else _of_folder(checkpoint, path.stem)
        self._parts: dict[str, list[TensorPart]] = defaultdict(list)  # by name, in the order of the executor's rows
        for part in sorted(contents.parts, key=lambda part: part.at):
            self._parts[part.name].append(part)
        metadata = contents.metadata | dict(vocabulary) | {"general.file_type": MIXTURES[mixture].number}
        architecture = ARCHITECTURES[metadata["general.architecture"]]
        self._interleaved, self._factors = not own and architecture.interleaved, contents.factors
        self._orders = column_orders(checkpoint.config) if architecture.tiled and not own else {}
        types = MIXTURES[mixture].types(contents.rounded, checkpoint.config)
        types |= {name: dtype for name, (dtype, _) in contents.copied.items()}
        tensors = {name: (types.get(name, "F32"), shape) for name, shape in contents.shapes.items()}
        head, self._places = gguf_header(metadata | {"general.quantization_version": 2}, tensors)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._partial = path, path.with_name(f"{path.name}.partial")
        with self._partial.open("wb") as file:
            file.write(head)
            os.posix_fallocate(file.fileno(), 0, max(place.end for place in self._places.values()))
        self._file, self._threads = np.memmap(self._partial, np.uint8, "r+"), ThreadPoolExecutor(threads, "round")
        for name, (_, stored) in contents.copied.items():
            self._file[self._places[name].begin : self._places[name].end] = stored
        changed = None if own else difference(contents.config, gguf_config(read_gguf(self._partial)))
        if changed is not None:
            self._partial.unlink()
            raise ConfigError(
                f"{checkpoint.folder}: {changed} of this {checkpoint.config.model_type} has no key in a GGUF file of "
                f"the architecture {metadata['general.architecture']}; choose --format {INTEGERS[4]} or "
                f"{INTEGERS[8]}"
            )

    def load_vector(self, name: str, values: Float32Array, row: int = 0) -> None:
        """Write a norm or bias, float32 [rows]: norms with the one, decays as llama.cpp multiplies with them."""
        if name not in self._parts:
            return
        if self._parts[name][0].negative_exp:
            values = -np.exp(values)
        if self._config.norm_plus_one and name.endswith("_norm") and not name.endswith("gate_norm"):
            values = values + np.float32(1)
        self._put(name, row, np.ascontiguousarray(values).view(np.uint8).reshape(-1, 4))

    def load_matrix(
        self, name: str, data: Float32Array | UInt16Array, dtype: str, row: int = 0, rounding: Rounding = PLAIN
    ) -> None:
        """Round rows of a matrix, and write them."""
        if name not in self._parts:
            return
        stored, order = self._places[self._parts[name][0].stored].dtype, self._orders.get(name, slice(None))
        importance = None if rounding.importance is None else rounding.importance[order]
        factor = self._factors.get(name.split(".")[-1])

        def rounded(first: int) -> UInt8Array:
            floats = widened(data[first : first + ROWS], dtype)[:, order]
            if factor is not None:
                own = factor[row + first : row + first + ROWS, None] if factor.ndim else np.float32(factor)
                floats = (floats * own).astype(np.float32)
            return encode_rows(stored, np.ascontiguousarray(floats), importance)

        starts = range(0, len(data), ROWS)
        for first, blocks in zip(starts, self._threads.map(rounded, starts), strict=True):
            self._put(name, row + first, blocks)

    def finish_loading(self) -> None:
        """Write what is still in memory, and give the file its name."""
        self._file.flush()
        self._partial.rename(self._path)

    def _put(self, name: str, row: int, stored: UInt8Array) -> None:
        """Write rows of a tensor, uint8 [rows, bytes of one]; of a vector, each value is one. row: the executor's."""
        own, rows = self._parts[name], np.arange(row, row + len(stored))
        part_of = np.searchsorted([part.at for part in own], rows, "right") - 1
        for i in np.unique(part_of):
            part, mine = own[i], part_of == i
            at = rows[mine] - part.at
            if self._interleaved and name.split(".")[2:3] in (["q"], ["k"]):  # a head's two halves alternate
                of_head, half = at % self._config.head_dim, self._config.head_dim // 2
                at = at - of_head + of_head % half * 2 + of_head // half
            place = self._places[part.stored]
            whole = self._file[place.begin : place.end].reshape(-1, stored.shape[1])
            whole[part.row + at * part.step] = stored[mine]


def _module(name: str) -> str:
    """Return the name of a tensor without its layer."""
    return name.removesuffix(".weight").rpartition(".")[2]


def _layer(name: str) -> int:
    return int(name.split(".")[1])


def _rounded(config: ModelConfig, found: Sequence[TensorPart]) -> dict[str, int]:
    """Return the columns of each tensor that is rounded: all of its parts are rows of matrices that may be."""
    formats = uniform_formats(config, WeightFormat("int8"))
    heads = {spec.name for spec in matrices(config) if spec.role == "mixer_heads"}  # exact in memory, small in files
    rounded = {name for name, format in formats.items() if format.is_quantized or name in heads}
    exact = {part.stored for part in found if part.matrix not in rounded or part.turned}
    kept = {part.stored for part in found if any(name in part.stored for name in _KEPT)}
    return {part.stored: part.shape[1] for part in found if part.stored not in exact | kept}


def _of_file(checkpoint: Checkpoint) -> _Contents:
    """Return the contents of a .gguf file anew: what is not rounded is copied."""
    gguf, files = read_gguf(checkpoint.folder), Files()
    found = [  # other parts are in the metadata
        replace(part, stored=gguf.entries[part.stored][0])
        for part, _ in checkpoint.sources
        if part.stored in gguf.entries
    ]
    rounded = _rounded(checkpoint.config, found)
    copied = {
        gguf.entries[name][0]: (tensor.dtype, files.mapping(tensor.path).bytes(tensor))
        for name, tensor in gguf.tensors.items()
        if gguf.entries[name][0] not in rounded
    }
    metadata = {key: value for key, value in gguf.metadata.items() if not key.startswith(_OLD_KEYS)}
    return _Contents(
        metadata, [part for part in found if part.stored in rounded], dict(gguf.entries.values()), rounded, copied,
        checkpoint.config, {},
    )  # fmt: skip


def _of_folder(checkpoint: Checkpoint, name: str) -> _Contents:
    """Return the contents of a file of the model in a folder; factors of its angles are copied."""
    config, keys = checkpoint.config, read_json(checkpoint.folder / "config.json")
    keys, family = text_part(keys) or keys, family_of(config)
    metadata, factors = metadata_of(config, keys, name)
    own = ARCHITECTURES[family.architecture]
    found = parts(replace(config, names=written_names(config, own, family.names)), {"token_embd.weight"})
    if own.tiled:
        found = [one for part in found for one in in_file_order(config, part)]
    if family.architecture == "falcon-h1":  # whose converter leaves an ending out
        found = [replace(part, stored=part.stored.replace(".ffn_norm.weight", ".ffn_norm")) for part in found]
    copied = {factor: ("F32", values.view(np.uint8)) for factor, values in factors.items()}
    warn_of_llama_cpp(config, family.architecture, found)
    shapes = shapes_of(config, found) | {factor: values.shape for factor, values in factors.items()}
    rounded = _rounded(config, found)
    unused = family.unused(config)  # what no part fills is zeros
    shapes |= unused
    rounded |= {name: shape[1] for name, shape in unused.items() if len(shape) > 1}
    return _Contents(metadata, found, shapes, rounded, copied, *family.factors(config, keys))
