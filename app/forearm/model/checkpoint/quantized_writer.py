"""Writes a model that is rounded while it is loaded as a compressed-tensors checkpoint, which other engines read, too.

The loader hands its tensors to CheckpointWriter as it hands them to the executor, rotated and calibrated. The files
therefore hold the codes and scales that serving the float model would have in memory. Embedding and output head stay
floats. A rotated model has norms of ones and an output head of its own; of others all that is not rounded is copied.
Source of the format: quantization/quant_args.py of github.com/vllm-project/compressed-tensors.
"""

from __future__ import annotations

import json
import math
import shutil
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from forearm import _native
from forearm.array_types import Float32Array, Int8Array, UInt16Array
from forearm.config.number_formats import WeightFormat
from forearm.errors import ConfigError
from forearm.model.checkpoint.checkpoint import Checkpoint
from forearm.model.checkpoint.formats import Source
from forearm.model.checkpoint.names import parts
from forearm.model.checkpoint.shards import Files, StoredTensor, read_tensors, widened
from forearm.model.checkpoint.tensor_part import TensorPart
from forearm.model.families.keys import read_json
from forearm.model.families.matrices import matrices
from forearm.model.pooling.adapters import AdaptedTensor
from forearm.model.quantization.rounding import PLAIN, Rounding, expert_slices

ROWS = 256  # of a matrix that a thread rounds at a time
_STORED = {"float32": "F32", "int8": "I8", "int32": "I32", "int64": "I64", "float16": "F16", "bfloat16": "BF16"}
_SKIPPED = (".safetensors", ".bin", ".index.json", ".gguf", ".pt", ".pth", ".h5", ".msgpack")  # weights of other forms
Array = npt.NDArray[Any]
KeptRows = tuple[range, str, Array]  # rows of a tensor, their dtype and values


class CheckpointWriter:
    """Takes a model's tensors from the loader in place of an executor, and writes them to a model folder.

    Each expert gets tensors of its own, as in checkpoints that other engines quantize. Unless the model is rotated,
    tensors that are not rounded are copied, also those that nothing reads: a part that sees, or layers that predict
    further tokens.

    checkpoint: opened with a --quantization to integers, embeddings not quantized.
    Raises: ConfigError if the model can't be written so, or `folder` has files.
    """

    def __init__(self, checkpoint: Checkpoint, folder: Path, threads: int) -> None:
        if checkpoint.method:
            raise ConfigError(f"{checkpoint.folder} is quantized already ({checkpoint.method}); name a model of floats")
        if not (checkpoint.folder / "config.json").is_file():
            raise ConfigError(f"{checkpoint.folder} has no config.json; name a model folder")
        if checkpoint.config.modules:
            raise ConfigError(
                f"{checkpoint.folder}: only models that forearm computes itself are written; serve it with "
                "--quantization"
            )
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError(f"{folder} has files; name a new folder")
        self._checkpoint, self._folder = checkpoint, folder
        self._spec_of = {part.name: spec for spec in matrices(checkpoint.config) for part in spec.parts}
        self._expert_rows = {part.name: part.rows for spec in self._spec_of.values() for part in spec.parts}
        self._parts: dict[str, list[TensorPart]] = defaultdict(list)  # by name, in the order of the executor's rows
        for part, _ in sorted(checkpoint.sources, key=lambda source: source[0].at):
            self._parts[part.name].append(part)
        rounded = self._rounded_tensors()
        stored = {} if checkpoint.rotated else read_tensors(checkpoint.folder)
        self._copied = {name: tensor for name, tensor in stored.items() if name not in rounded}
        if not checkpoint.rotated:
            names = self._copied.keys() | {name for sharing in rounded.values() for name in self._names(sharing)}
            if missing := {part.stored for part in parts(checkpoint.config, names)} - names:
                raise self._refused(min(missing))
        self._kernels = _native.Kernels(_native.tier())
        self._threads = ThreadPoolExecutor(threads, "round")
        self._pieces: dict[str, list[KeptRows]] = defaultdict(list)  # these three by the name of a tensor
        self._packed_columns: dict[str, int] = {}
        self._format_of: dict[str, WeightFormat] = {}

    def _rounded_tensors(self) -> dict[str, list[TensorPart]]:
        """Return the parts of each tensor that is rounded. Raises: ConfigError for what could not be read again."""
        sharing: dict[str, list[Source]] = defaultdict(list)
        for source in self._checkpoint.sources:
            sharing[source[0].stored].append(source)
        found: dict[str, list[TensorPart]] = {}
        for name, sources in sharing.items():
            own, stored = [part for part, _ in sources if part.name != "head"] or [sources[0][0]], sources[0][1]
            rounded = [bool(part.matrix) and self._checkpoint.formats[part.matrix].is_quantized for part in own]
            whole = sum(part.shape[0] for part in own) == stored.shape[0]
            if self._checkpoint.rotated and not whole:
                raise self._refused(name)
            if not any(rounded):
                continue
            spec = self._spec_of[own[rounded.index(True)].name]
            of_its_own = not spec.bias if spec.experts > 1 else not own[0].transposed
            if not (whole and all(rounded) and of_its_own) or isinstance(stored, AdaptedTensor):
                raise self._refused(name)
            found[name] = own
        return found

    def _names(self, sharing: Sequence[TensorPart]) -> set[str]:
        """Return the names of the tensors that are written of one: that of all experts is divided."""
        name = sharing[0].name
        if self._spec_of[name].experts == 1:
            return {sharing[0].stored}
        rows = self._expert_rows[name]
        return {_of_expert(one, row // rows) for one in sharing for row in range(one.at, one.at + one.shape[0], rows)}

    def _refused(self, name: str) -> ConfigError:
        return ConfigError(
            f"{self._checkpoint.config.model_type}: {name} is not written, as it could not be read again (matrices "
            "stored by columns, with adapters or shared by layers, experts with biases or of other names); serve the "
            "model with --quantization instead"
        )

    def load_vector(self, name: str, values: Float32Array, row: int = 0) -> None:
        """Keep a norm or bias, float32 [rows]."""
        self._keep(name, row, "", "float32", values)

    def load_matrix(
        self, name: str, data: Float32Array | UInt16Array, dtype: str, row: int = 0, rounding: Rounding = PLAIN
    ) -> None:
        """Round rows of a matrix as the executor's load_matrix does, and keep codes and scales."""
        format = self._checkpoint.formats[self._spec_of[name].name]
        if not format.is_quantized:
            return self._keep(name, row, "", *self._floats(data, dtype))

        def rounded(span: slice) -> tuple[Int8Array, Float32Array]:
            rows = widened(data[span], dtype)
            group = format.group or rows.shape[1]
            return self._kernels.round(
                rows, format.dtype, group, format.scale_dtype, rounding.importance, rounding.feedback
            )

        spans = [
            slice(first, min(first + ROWS, own.stop))
            for _, own in expert_slices(self._expert_rows[name], row, len(data))
            for first in range(own.start, own.stop, ROWS)
        ]
        for span, (codes, scales) in zip(spans, self._threads.map(rounded, spans), strict=True):
            at = row + span.start
            if _packed(format):
                self._keep(name, at, "_packed", "int32", packed(codes, format.bits), codes.shape[1])
            else:
                self._keep(name, at, "", "int8", codes)
            half = format.scale_dtype == "float16"
            self._keep(name, at, "_scale", format.scale_dtype, scales.astype(np.float16) if half else scales)
        return None

    def finish_loading(self) -> None:
        """Write config.json, the tensors, and the other files of the model folder.

        Raises: OSError if the folder can't be written.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(self._checkpoint.folder.iterdir()):
            if path.is_file() and path.name != "config.json" and not path.name.endswith(_SKIPPED):
                shutil.copyfile(path, self._folder / path.name)
        config = read_json(self._checkpoint.folder / "config.json").values
        changed: dict[str, Any] = {"quantization_config": self._settings()}
        if not self._checkpoint.config.tied_head:
            changed["tie_word_embeddings"] = False
        text = {"text_config": config["text_config"] | changed} if "text_config" in config else {}
        (self._folder / "config.json").write_text(json.dumps(dict(config) | text | changed, indent=2) + "\n")
        for name, k in self._packed_columns.items():
            shape = np.array([_row_count(self._pieces[f"{name}_packed"]), k], np.int64)
            self._pieces[f"{name}_shape"] = [(range(2), "int64", shape)]
        self._write({**self._pieces, **self._copied})

    def _write(self, tensors: Mapping[str, Sequence[KeptRows] | StoredTensor]) -> None:
        """Write tensors by name, of values in memory or of bytes in another file."""
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        at, files = 0, Files()
        for name, tensor in tensors.items():
            if isinstance(tensor, StoredTensor):
                dtype, shape, size = tensor.dtype, tensor.shape, tensor.end - tensor.begin
            else:
                _, kind, values = tensor[0]
                dtype, shape = _STORED[kind], (_row_count(tensor), *values.shape[1:])
                size = math.prod(shape) * values.itemsize
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at := at + size]}
        head = json.dumps(header).encode()
        head += b" " * (-len(head) % 8)
        with (self._folder / "model.safetensors").open("wb") as file:
            file.write(len(head).to_bytes(8, "little") + head)
            for tensor in tensors.values():
                if isinstance(tensor, StoredTensor):
                    file.write(files.mapping(tensor.path).bytes(tensor).data)
                    files.release(tensor)
                else:
                    file.write(_joined(tensor).data)

    def _floats(self, data: Float32Array | UInt16Array, dtype: str) -> tuple[str, Array]:
        """Return dtype and values of rows that stay floats: the model's dtype, also after a rotation in float32."""
        wanted = self._checkpoint.weight_dtype
        if dtype == wanted or wanted == "float32":
            return dtype, np.array(data)
        values = widened(data, dtype)
        if wanted == "float16":
            return wanted, values.astype(np.float16)
        bits = values.view(np.uint32)  # bfloat16: to nearest, ties to even
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        return wanted, rounded.astype(np.uint16)

    def _keep(self, name: str, row: int, suffix: str, dtype: str, values: Array, k: int = 0) -> None:
        """Keep rows of a tensor, from row `row` of the executor's on. k: columns of packed codes."""
        same = self._parts[name]
        part = same[bisect_right(same, row, key=lambda one: one.at) - 1]
        if part.stored in self._copied:
            return
        stored, own = part.stored, part.rows(row - part.at, row - part.at + len(values))
        if name == "head" and stored == self._parts["embed"][0].stored:  # of a rotated model: its file has a tied head
            stored = "lm_head.weight"
        if name in self._spec_of and self._spec_of[name].experts > 1:
            expert, first = divmod(row, self._expert_rows[name])
            stored, own = _of_expert(part, expert), range(first, first + len(values))
        self._pieces[stored + suffix].append((own, dtype, values))
        if k:
            self._packed_columns[stored] = k
        if part.matrix:
            self._format_of[stored] = self._checkpoint.formats[part.matrix]

    def _settings(self) -> dict[str, Any]:
        """Return quantization_config: the most common format is of all Linear modules, others name theirs."""
        modules: dict[WeightFormat, list[str]] = defaultdict(list)
        ignored = {"lm_head"}
        for stored, format in self._format_of.items():
            if format.is_quantized:
                modules[replace(format, wide=False)].append(stored.removesuffix(".weight"))  # no file says wide
            elif stored != self._parts["embed"][0].stored:
                ignored.add(stored.removesuffix(".weight"))
        floats = (name for name, tensor in self._copied.items() if len(tensor.shape) == 2 and name.endswith(".weight"))
        ignored |= {name.removesuffix(".weight") for name in floats}
        ordered = sorted(modules.items(), key=lambda item: -len(item[1]))
        groups = {
            f"group_{i}": {"targets": sorted(set(names)) if i else ["Linear"], **_scheme(format)}
            for i, (format, names) in enumerate(ordered)
        }
        formats = {group["format"] for group in groups.values()}
        return {
            "quant_method": "compressed-tensors", "quantization_status": "compressed", "kv_cache_scheme": None,
            "format": formats.pop() if len(formats) == 1 else "mixed-precision", "ignore": sorted(ignored),
            "config_groups": groups,
        }  # fmt: skip


def _of_expert(part: TensorPart, expert: int) -> str:
    """Return the name of an expert's own tensor: the checkpoint's, or in place of one of all experts a usual one."""
    block, _, own = part.stored.rpartition("experts.")
    if own.startswith(f"{expert}."):
        return part.stored
    role = part.name.rpartition(".")[2]
    return f"{block}experts.{expert}.{role}_proj.weight"


def _row_count(pieces: Sequence[KeptRows]) -> int:
    return max(rows[-1] + 1 for rows, _, _ in pieces)


def _joined(pieces: Sequence[KeptRows]) -> Array:
    """Return the values of a tensor that was kept in pieces."""
    whole = np.empty((_row_count(pieces), *pieces[0][2].shape[1:]), pieces[0][2].dtype)
    for rows, _, values in pieces:
        whole[rows.start : rows.stop : rows.step] = values
    return whole


def packed(codes: Int8Array, bits: int) -> npt.NDArray[np.int32]:
    """Pack codes [rows, k] as bits.unpacked reads them, int32 [rows, ceil(k * bits / 32)]."""
    stored = np.zeros((len(codes), -(-codes.shape[1] * bits // 32) * 32 // bits), np.uint8)
    stored[:, : codes.shape[1]] = codes.view(np.uint8) + np.uint8(1 << (bits - 1))
    if bits == 4:
        stored = (stored[:, 0::2] & 15) | (stored[:, 1::2] << 4)
    return np.ascontiguousarray(stored).view(np.int32)


def _packed(format: WeightFormat) -> bool:
    """Return whether codes are stored in words: those of W8A8 are bytes, with a scale for each row."""
    return format.is_quantized and (format.bits < 8 or format.group > 0)


def _scheme(format: WeightFormat) -> dict[str, Any]:
    """Return the config group of a format. Activations of packed codes are floats, as all readers know them."""
    weights = {
        "num_bits": format.bits, "type": "int", "symmetric": True, "dynamic": False,
        "strategy": "group" if format.group else "channel", "group_size": format.group or None, "actorder": None,
        "observer": "minmax", "block_structure": None,
    }  # fmt: skip
    inputs = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": True, "strategy": "token", "group_size": None}
    packed = _packed(format)
    return {
        "format": "pack-quantized" if packed else "int-quantized", "weights": weights,
        "input_activations": None if packed else inputs, "output_activations": None,
    }  # fmt: skip
