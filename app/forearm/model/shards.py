"""The safetensors files of a model folder: what tensors there are, and their bytes, memory-mapped.

Format: 8 bytes of little-endian header length, a JSON header {name: {dtype, shape, data_offsets}}, the data.
Source: the safetensors format, version 0.x (github.com/huggingface/safetensors, README).
"""

from __future__ import annotations

import json
import math
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from forearm.errors import ConfigError
from forearm.model.config import DTypeName
from forearm.model.keys import read_json

INDEX = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_FLOATS: dict[str, tuple[DTypeName, type[np.generic]]] = {
    "F32": ("float32", np.float32),
    "F16": ("float16", np.uint16),
    "BF16": ("bfloat16", np.uint16),
}
_KINDS: dict[str, type[np.generic]] = {name: kind for name, (_, kind) in _FLOATS.items()} | {
    "I64": np.int64, "I32": np.int32, "I8": np.int8, "U8": np.uint8, "F8_E4M3": np.uint8, "F8_E8M0": np.uint8,
}  # fmt: skip


@dataclass(frozen=True)
class StoredTensor:
    """Where one tensor lies. begin, end: bytes from the start of the file."""

    name: str
    path: Path
    dtype: str  # as the format has it: F32, F16, BF16, I64, ...
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def float_dtype(self) -> DTypeName:
        """Its dtype as forearm calls it.

        Raises: ConfigError if it is not a float the executor reads.
        """
        if self.dtype not in _FLOATS:
            raise ConfigError(
                f"{self.path}: tensor {self.name} is {self.dtype}; weights must be F32, F16 or BF16, or quantised in a "
                "way that config.json's quantization_config names"
            )
        return _FLOATS[self.dtype][0]


@dataclass(frozen=True)
class Files:
    """Files mapped as they are asked for: a quantised matrix may have its scales in another file than its codes."""

    _mappings: dict[Path, Mapping] = field(default_factory=dict)

    def mapping(self, path: Path) -> Mapping:
        """That file, mapped once."""
        if path not in self._mappings:
            self._mappings[path] = Mapping(path)
        return self._mappings[path]

    def array(self, tensor: StoredTensor) -> npt.NDArray[Any]:
        """All of a tensor in its shape, without a copy where its bytes are aligned; 8-bit floats are uint8, bfloat16
        uint16."""
        return self.mapping(tensor.path).array(tensor)

    def floats(self, tensor: StoredTensor) -> npt.NDArray[np.float32]:
        """All of a float tensor as float32, in its shape."""
        return widened(self.array(tensor), tensor.float_dtype)

    def release(self, tensor: StoredTensor) -> None:
        """Give back the pages of this tensor."""
        self.mapping(tensor.path).release(tensor.begin, tensor.end)


def read_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of the folder's safetensors files, by name, in the order of the files' bytes. Reads headers only.

    Raises: ConfigError if there are none (never unpickling instead), or a file is missing, cut short or damaged.
    """
    tensors: dict[str, StoredTensor] = {}
    for path in _files(folder):
        tensors |= _read_header(path)
    return tensors


def first_float_dtype(folder: Path) -> DTypeName:
    """The dtype of the first float tensor; for config.json files that do not say."""
    for tensor in read_tensors(folder).values():
        if tensor.dtype in _FLOATS:
            return tensor.float_dtype
    raise ConfigError(f"{folder}: no float tensor in its safetensors files")


class Mapping:
    """One file mapped into memory, read front to back; what was read can be let go of."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._map.madvise(mmap.MADV_SEQUENTIAL)

    def rows(self, tensor: StoredTensor, begin: int, end: int) -> npt.NDArray[np.float32] | npt.NDArray[np.uint16]:
        """Rows begin .. end - 1 of a matrix (a vector is one row), without a copy where its bytes are aligned.

        float32, or uint16 holding the bits of float16 or bfloat16.
        """
        width = tensor.shape[-1]
        kind = np.dtype(_FLOATS[tensor.dtype][1])
        start = tensor.begin + begin * width * kind.itemsize
        raw = np.frombuffer(self._map, np.uint8, (end - begin) * width * kind.itemsize, start)
        aligned = raw if start % kind.itemsize == 0 else raw.copy()
        return aligned.view(kind).reshape(end - begin, width)

    def array(self, tensor: StoredTensor) -> npt.NDArray[Any]:
        """All of a tensor in its shape; see Files.array."""
        kind = np.dtype(_KINDS[tensor.dtype])
        return self.bytes(tensor).view(kind).reshape(tensor.shape)

    def bytes(self, tensor: StoredTensor) -> npt.NDArray[np.uint8]:
        """All of a tensor's bytes, copied only where they do not begin at a multiple of eight."""
        raw = np.frombuffer(self._map, np.uint8, tensor.end - tensor.begin, tensor.begin)
        return raw if tensor.begin % 8 == 0 else raw.copy()

    def release(self, begin: int, end: int) -> None:
        """Give back the pages that lie wholly within these bytes of the file: they have been read."""
        page = mmap.PAGESIZE
        first, last = -(-begin // page) * page, end // page * page
        if last > first:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)

    def close(self) -> None:
        """Unmap, once no array of `rows` is left."""
        self._map.close()


def widened(values: npt.NDArray[np.float32] | npt.NDArray[np.uint16], dtype: str) -> npt.NDArray[np.float32]:
    """float32 values of float32, or of the bits of float16 or bfloat16. Exact; a new array."""
    if dtype == "float16":
        return values.view(np.float16).astype(np.float32)
    if dtype == "bfloat16":
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.array(values, dtype=np.float32)


def _files(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder")
    if (folder / INDEX).exists():
        index = read_json(folder / INDEX)
        weight_map = index.object("weight_map")
        if weight_map is None:
            raise index.wrong("weight_map", "an object that names each tensor's file")
        names = list(weight_map.values.values())
        for name in names:
            if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
                raise ConfigError(f"{folder / INDEX}: {name!r:.200} is not the name of a safetensors file")
        yield from (folder / name for name in sorted(set(names)))
        return
    found = sorted(folder.glob("*.safetensors"))
    single = folder / "model.safetensors"
    if not found:
        raise ConfigError(_nothing_here(folder))
    yield from [single] if single in found else found


def _nothing_here(folder: Path) -> str:
    pickles = sorted(p.name for p in (*folder.glob("pytorch_model*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")))
    if not pickles:
        return f"{folder} has no safetensors files; is it a model folder?"
    return (
        f"{folder} has its weights only as {pickles[0]}, a pickle, which runs code when it is read and is never opened "
        "here. Take a revision that has safetensors (for a Hugging Face id often --revision refs/pr/1), or convert: "
        'python -c "from transformers import AutoModelForCausalLM as M; '
        f"M.from_pretrained('{folder}').save_pretrained('{folder}')\" where torch is installed"
    )


def _read_header(path: Path) -> dict[str, StoredTensor]:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
            if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
                raise ConfigError(f"{path} is cut short or no safetensors file ({size} bytes); download it again")
            header = json.loads(file.read(length))
    except OSError as problem:
        raise ConfigError(f"{path} can't be read: {problem.strerror}; download the model again") from None
    except (ValueError, RecursionError) as problem:
        raise ConfigError(f"{path}: its header is damaged ({problem}); download it again") from None
    return {name: _stored(path, name, entry, 8 + length, size) for name, entry in _by_offset(path, header)}


def _by_offset(path: Path, header: object) -> list[tuple[str, dict[str, object]]]:
    if not isinstance(header, dict):
        raise ConfigError(f"{path}: its header is damaged (not an object); download it again")
    entries = [(n, e) for n, e in header.items() if n != "__metadata__"]
    try:
        return sorted(entries, key=lambda item: int(item[1]["data_offsets"][0]))
    except (KeyError, TypeError, ValueError, IndexError):
        raise ConfigError(f"{path}: its header is damaged (data_offsets); download it again") from None


_ITEM_BITS = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
    "I8": 8, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
}  # fmt: skip


def _stored(path: Path, name: str, entry: dict[str, object], data: int, size: int) -> StoredTensor:
    try:
        dtype = str(entry["dtype"])
        shape = tuple(int(v) for v in entry["shape"])  # type: ignore[attr-defined]
        begin, end = (int(v) for v in entry["data_offsets"])  # type: ignore[attr-defined]
    except (KeyError, TypeError, ValueError):
        raise ConfigError(f"{path}: tensor {name}: its header is damaged; download it again") from None
    if data + end > size:
        raise ConfigError(
            f"{path} is cut short: tensor {name} ends at byte {data + end}, the file at {size}; download it again"
        )
    expected = math.prod(shape) * _ITEM_BITS.get(dtype, 0) // 8
    if dtype in _ITEM_BITS and (min((*shape, 0)) < 0 or begin < 0 or end - begin != expected):
        raise ConfigError(f"{path}: tensor {name}: {end - begin} bytes for {dtype} {list(shape)}; download it again")
    return StoredTensor(name, path, dtype, shape, data + begin, data + end)
