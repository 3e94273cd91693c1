"""Writes a model that is rounded while it is loaded as a compressed-tensors checkpoint, which other engines read, too.

The loader hands its tensors to CheckpointWriter as it hands them to the executor, rotated and calibrated. The files
therefore hold the codes and scales that serving the float model would have in memory. Embedding and output head stay
floats. A rotated model has norms of ones and an output head of its own.
Source of the format: quantization/quant_args.py of github.com/vllm-project/compressed-tensors.
"""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
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
from forearm.model.checkpoint.shards import widened
from forearm.model.checkpoint.tensor_part import TensorPart
from forearm.model.families.config import Attention, Experts, FeedForward
from forearm.model.families.keys import read_json
from forearm.model.families.matrices import matrices
from forearm.model.quantization.rounding import PLAIN, Rounding

ROWS = 256  # of a matrix that a thread rounds at a time
_STORED = {"float32": "F32", "int8": "I8", "int32": "I32", "int64": "I64", "float16": "F16", "bfloat16": "BF16"}
_SKIPPED = (".safetensors", ".bin", ".index.json", ".gguf", ".pt", ".pth", ".h5", ".msgpack")  # weights of other forms
Array = npt.NDArray[Any]


class CheckpointWriter:
    """Takes a model's tensors from the loader in place of an executor, and writes them to a model folder.

    Of experts, each must have tensors of its own.

    checkpoint: opened with a --quantization to integers, embeddings not quantized.
    Raises: ConfigError if the model can't be written so, or `folder` has files.
    """

    def __init__(self, checkpoint: Checkpoint, folder: Path, threads: int) -> None:
        if checkpoint.method:
            raise ConfigError(f"{checkpoint.folder} is quantized already ({checkpoint.method}); name a model of floats")
        if not (checkpoint.folder / "config.json").is_file():
            raise ConfigError(f"{checkpoint.folder} has no config.json; name a model folder")
        attends = all(
            type(one.mixer) is Attention and isinstance(one.feed_forward, FeedForward | Experts)
            for one in checkpoint.config.layers
        )
        if not attends or checkpoint.config.modules:
            raise ConfigError(
                f"{checkpoint.folder}: only models of attention and feed-forwards are written; serve it with "
                "--quantization"
            )
        parts = [part for part, _ in checkpoint.sources]
        rows = {part.name: part.rows for spec in matrices(checkpoint.config) for part in spec.parts}
        pieces = any(part.shape[0] != rows.get(part.name, part.shape[0]) for part in parts)
        if checkpoint.config.parallel_residual or pieces or any(part.transposed or part.step > 1 for part in parts):
            raise ConfigError(
                f"{checkpoint.config.model_type}: norms that share a tensor, experts that do, and what is stored in "
                "pieces or by columns, are not written; serve the model with --quantization instead"
            )
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError(f"{folder} has files; name a new folder")
        self._checkpoint, self._folder = checkpoint, folder
        self._parts = {(part.name, part.at): part for part in parts}  # by the first row
        self._expert_rows = rows
        self._kernels = _native.Kernels(_native.tier())
        self._threads = ThreadPoolExecutor(threads, "round")
        self._pieces: dict[str, list[tuple[int, str, Array]]] = defaultdict(list)  # first row, dtype, rows of a tensor

    def load_vector(self, name: str, values: Float32Array, row: int = 0) -> None:
        """Keep a norm or bias, float32 [rows]."""
        self._keep(self._parts[name, row], "", 0, "float32", values)

    def load_matrix(
        self, name: str, data: Float32Array | UInt16Array, dtype: str, row: int = 0, rounding: Rounding = PLAIN
    ) -> None:
        """Round rows of a matrix as the executor's load_matrix does, and keep codes and scales."""
        row, begin = row % self._expert_rows[name], row // self._expert_rows[name] * self._expert_rows[name]
        part = self._parts[name, begin]
        format = self._checkpoint.formats[part.matrix]
        if not format.is_quantized:
            return self._keep(part, "", row, *self._floats(data, dtype))

        def rounded(first: int) -> tuple[Int8Array, Float32Array]:
            rows = widened(data[first : first + ROWS], dtype)
            group = format.group or rows.shape[1]
            return self._kernels.round(
                rows, format.dtype, group, format.scale_dtype, rounding.importance, rounding.feedback
            )

        for first, (codes, scales) in zip(
            range(0, len(data), ROWS), self._threads.map(rounded, range(0, len(data), ROWS)), strict=True
        ):
            at = row + first
            if _packed(format):
                self._keep(part, "_packed", at, "int32", packed(codes, format.bits))
            else:
                self._keep(part, "", at, "int8", codes)
            half = format.scale_dtype == "float16"
            self._keep(part, "_scale", at, format.scale_dtype, scales.astype(np.float16) if half else scales)
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
        tensors: list[tuple[str, str, Array]] = []
        for name, pieces in self._pieces.items():
            ordered = sorted(pieces, key=lambda piece: piece[0])
            tensors.append(
                (name, ordered[0][1], np.ascontiguousarray(np.concatenate([rows for _, _, rows in ordered])))
            )
        counts: dict[tuple[str, int], int] = defaultdict(int)  # rows of a tensor of packed codes, by name and columns
        for part in self._parts.values():
            if part.matrix and _packed(self._checkpoint.formats[part.matrix]):
                counts[part.stored, part.shape[1]] += part.shape[0]
        for (stored, columns), count in counts.items():
            tensors.append((f"{stored}_shape", "int64", np.array([count, columns], np.int64)))
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        at = 0
        for name, dtype, values in tensors:
            places = [at, at := at + values.nbytes]
            header[name] = {"dtype": _STORED[dtype], "shape": values.shape, "data_offsets": places}
        head = json.dumps(header).encode()
        head += b" " * (-len(head) % 8)
        with (self._folder / "model.safetensors").open("wb") as file:
            file.write(len(head).to_bytes(8, "little") + head)
            for _, _, values in tensors:
                file.write(values.data)

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

    def _keep(self, part: TensorPart, suffix: str, row: int, dtype: str, values: Array) -> None:
        embedding = self._parts["embed", 0].stored
        own_head = part.name == "head" and part.stored == embedding  # of a rotated model: its file has a tied head
        stored = "lm_head.weight" if own_head else part.stored
        self._pieces[stored + suffix].append((part.row + row, dtype, values))

    def _settings(self) -> dict[str, Any]:
        """Return quantization_config: the most common format is of all Linear modules, others name theirs."""
        modules: dict[WeightFormat, list[str]] = defaultdict(list)
        ignored = {"lm_head"}
        for part in self._parts.values():
            if not part.matrix:
                continue
            format, module = self._checkpoint.formats[part.matrix], part.stored.removesuffix(".weight")
            if format.is_quantized:
                modules[replace(format, wide=False)].append(module)  # which a file does not say
            elif part.layer is not None:
                ignored.add(module)
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
