"""The weight files of a model folder: their tensors by name, and the bytes, memory-mapped.

numpy is imported where arrays are made: `forearm serve` reads headers alone and starts 0.1 s sooner without it.
Reads safetensors files, or `pytorch_model.bin` (torch_file.py) if there are none. The format of safetensors:
8 bytes of little-endian header length, a JSON header {name: {dtype, shape, data_offsets}}, the data.
Source: the safetensors format, version 0.x (github.com/huggingface/safetensors, README).
"""

from __future__ import annotations

import json
import math
import mmap
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from forearm.config.number_formats import DTypeName
from forearm.errors import ConfigError
from forearm.model.families.keys import check_regular, read_json

if TYPE_CHECKING:
    import numpy.typing as npt

    from forearm.array_types import Float32Array, UInt8Array, UInt16Array

INDEX = "model.safetensors.index.json"
TORCH_INDEX = "pytorch_model.bin.index.json"
TORCH_FILE = re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin")
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
# By the file format's name: forearm's name, and numpy's type of the bits.
FLOATS: dict[str, tuple[DTypeName, str]] = {
    "F32": ("float32", "float32"),
    "F16": ("float16", "uint16"),
    "BF16": ("bfloat16", "uint16"),
    "F64": ("float32", "float64"),  # rounded to float32 as it is read
}
WHOLE = ("I64", "I32")  # of tables of whole numbers
_KINDS = {name: kind for name, (_, kind) in FLOATS.items()} | {
    "I64": "int64", "I32": "int32", "I8": "int8", "U8": "uint8", "F8_E4M3": "uint8", "F8_E8M0": "uint8",
}  # fmt: skip


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a weight file and its place there. begin, end: bytes from the start of the file.

    transposed: if not 0, the file has matrices [k, transposed], one after another, and a row is a column of one.
    """

    name: str
    path: Path
    dtype: str  # the file format's name: F32, F16, BF16, I64, ...
    shape: tuple[int, ...]
    begin: int
    end: int
    transposed: int = 0

    @property
    def float_dtype(self) -> DTypeName:
        """The dtype by forearm's name.

        Raises: ConfigError if it is not a float that the executor reads.
        """
        if self.dtype not in FLOATS:
            raise ConfigError(
                f"{self.path}: tensor {self.name} is {self.dtype}; weights must be F32, F16 or BF16, or quantized in a "
                "way that config.json's quantization_config names"
            )
        return FLOATS[self.dtype][0]


@dataclass(frozen=True)
class Files:
    """Weight files, each mapped at its first use; scales and codes of a matrix may lie in different files."""

    _mappings: dict[Path, Mapping] = field(default_factory=dict)

    def mapping(self, path: Path) -> Mapping:
        """Return the mapping of a file, which is made once."""
        if path not in self._mappings:
            self._mappings[path] = Mapping(path)
        return self._mappings[path]

    def array(self, tensor: StoredTensor) -> npt.NDArray[Any]:
        """Return a whole tensor in its shape, without a copy if its bytes are aligned.

        8-bit floats come as uint8, float16 and bfloat16 as uint16.
        """
        return self.mapping(tensor.path).array(tensor)

    def floats(self, tensor: StoredTensor) -> Float32Array:
        """Return a whole float tensor as float32, in its shape."""
        return widened(self.array(tensor), tensor.float_dtype)

    def release(self, tensor: StoredTensor) -> None:
        """Release the pages of a tensor from memory."""
        self.mapping(tensor.path).release(tensor.begin, tensor.end)


def read_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return every tensor of the folder's files, by name, in the order of the files' bytes. Reads headers only.

    Raises: ConfigError if there are none, or a file is missing, cut short or damaged.
    """
    tensors: dict[str, StoredTensor] = {}
    for path in _files(folder):
        joined(tensors, read_torch(path) if TORCH_FILE.fullmatch(path.name) else _read_header(path))
    return tensors


class Mapping:
    """One file mapped into memory and read front to back; pages that were read can be released."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._map.madvise(mmap.MADV_SEQUENTIAL)

    def rows(self, tensor: StoredTensor, rows: range) -> Float32Array | UInt16Array:
        """Return rows of a matrix (a vector is one row), without a copy if they are neighbours and aligned.

        Rows of a transposed tensor are those of one matrix. Values are float32, or the bits of 16-bit floats (uint16).
        """
        import numpy as np

        width, kind, unit = tensor.shape[-1], np.dtype(FLOATS[tensor.dtype][1]), tensor.transposed or 1
        begin = rows.start // unit * unit  # of a transposed tensor the whole matrix is read
        end = begin + unit if tensor.transposed else rows[-1] + 1 if rows else begin
        start = tensor.begin + begin * width * kind.itemsize
        raw = np.frombuffer(self._map, np.uint8, (end - begin) * width * kind.itemsize, start)
        stored = (raw if start % kind.itemsize == 0 else raw.copy()).view(kind)
        matrix = stored.reshape(width, unit).T if tensor.transposed else stored.reshape(end - begin, width)
        own = np.ascontiguousarray(matrix[rows.start - begin : rows.stop - begin : rows.step])
        return own.astype(np.float32) if kind == np.float64 else own

    def values(self, tensor: StoredTensor, values: range) -> Float32Array | UInt16Array:
        """Return values of a tensor of any shape, counted in the order of its bytes, as `rows` does."""
        import numpy as np

        whole: npt.NDArray[Any] = self.rows(tensor, range(math.prod(tensor.shape[:-1]))).reshape(-1)
        return np.ascontiguousarray(whole[values.start : values.stop : values.step])

    def array(self, tensor: StoredTensor) -> npt.NDArray[Any]:
        """Return a whole tensor in its shape; see Files.array."""
        return self.bytes(tensor).view(_KINDS[tensor.dtype]).reshape(tensor.shape)

    def bytes(self, tensor: StoredTensor) -> UInt8Array:
        """Return a tensor's bytes, copied only if they do not begin at a multiple of eight."""
        import numpy as np

        raw = np.frombuffer(self._map, np.uint8, tensor.end - tensor.begin, tensor.begin)
        return raw if tensor.begin % 8 == 0 else raw.copy()

    def release(self, begin: int, end: int) -> None:
        """Release the pages that lie wholly within these bytes of the file, once they have been read."""
        page = mmap.PAGESIZE
        first, last = -(-begin // page) * page, end // page * page
        if last > first:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)

    def close(self) -> None:
        """Unmap the file; no array of `rows` may be in use any more."""
        self._map.close()


def widened(values: Float32Array | UInt16Array, dtype: str) -> Float32Array:
    """Return float32 or the bits of float16 or bfloat16 as a new float32 array; the conversion is exact."""
    if dtype == "float16":
        return values.view("float16").astype("float32")
    if dtype == "bfloat16":
        return (values.astype("uint32") << 16).view("float32")
    return values.astype("float32")


def _files(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder")
    found = sorted(folder.glob("*.safetensors"))
    if (folder / INDEX).exists():
        yield from _indexed(folder / INDEX, re.compile(r".+\.safetensors"))
    elif found:
        single = folder / "model.safetensors"
        yield from [single] if single in found else found
    elif (folder / TORCH_INDEX).exists():
        yield from _indexed(folder / TORCH_INDEX, TORCH_FILE)
    elif (folder / "pytorch_model.bin").exists():
        yield folder / "pytorch_model.bin"
    elif pickles := sorted(p.name for kind in ("bin", "pt", "pth") for p in folder.glob(f"*.{kind}")):
        raise ConfigError(
            f"{folder} has its weights only as {pickles[0]}, a pickle of a kind that is not read: it could run code. "
            "Take a revision that has safetensors (for a Hugging Face id often --revision refs/pr/1), or convert: "
            'python -c "from transformers import AutoModelForCausalLM as M; '
            f"M.from_pretrained('{folder}').save_pretrained('{folder}')\" where torch is installed"
        )
    else:
        raise ConfigError(f"{folder} has no safetensors files; is it a model folder?")


def _indexed(path: Path, right: re.Pattern[str]) -> list[Path]:
    """Return the files that an index names. Raises: ConfigError for a name that is not `right`."""
    index = read_json(path)
    weight_map = index.object("weight_map")
    if weight_map is None:
        raise index.wrong("weight_map", "an object that names each tensor's file")
    for name in (names := list(weight_map.values.values())):
        if not isinstance(name, str) or Path(name).name != name or not right.fullmatch(name):
            raise ConfigError(f"{path}: {name!r:.200} is not the name of a weight file ({right.pattern})")
    return [path.parent / name for name in sorted(set(names))]


def read_torch(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a file of torch.save, in the order of its bytes. Raises: ConfigError."""
    from forearm.model.checkpoint.torch_file import read_torch_file  # imports zipfile

    found = (StoredTensor(one.name, path, one.dtype, one.shape, one.begin, one.end) for one in read_torch_file(path))
    return {tensor.name: tensor for tensor in found}


def _read_header(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of one file, in the order of its bytes.

    The check is as strict as the safetensors library's: every byte of the data belongs to exactly one tensor.
    Raises: ConfigError naming the file and what is wrong with it.
    """
    check_regular(path)
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
            if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
                raise ConfigError(f"{path} is cut short or no safetensors file ({size} bytes); download it again")
            header = json.loads(file.read(length), object_pairs_hook=partial(_once, path))
    except OSError as problem:
        raise ConfigError(f"{path} can't be read: {problem.strerror}; download the model again") from None
    except (ValueError, RecursionError) as problem:
        raise ConfigError(f"{path}: its header is damaged ({problem}); download it again") from None
    if not isinstance(header, dict):
        raise ConfigError(f"{path}: its header is damaged (not an object); download it again")
    metadata = header.pop("__metadata__", None)
    if metadata is not None and not (isinstance(metadata, dict) and all(isinstance(v, str) for v in metadata.values())):
        raise ConfigError(f"{path}: its __metadata__ is not an object of strings; download it again")
    found = [_stored(path, name, entry, 8 + length) for name, entry in header.items()]
    found.sort(key=lambda tensor: (tensor.begin, tensor.end))
    _check_places(path, found, 8 + length, size)
    return {tensor.name: tensor for tensor in found}


def joined(tensors: dict[str, StoredTensor], more: dict[str, StoredTensor]) -> None:
    """Add the tensors of another file of the same model.

    Raises: ConfigError naming a tensor that both files have, because nothing tells which one is meant.
    """
    for name in sorted(tensors.keys() & more.keys()):
        raise ConfigError(
            f"tensor {name} is in two files, {tensors[name].path} and {more[name].path}; remove the one that does not "
            "belong to the model"
        )
    tensors.update(more)


def _once(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise ConfigError(f"{path}: its header names {name!r:.200} twice; download it again")
        made[name] = value
    return made


_ITEM_BITS = {
    "C64": 64, "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16,
    "U16": 16, "I8": 8, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip


def _stored(path: Path, name: str, entry: object, data: int) -> StoredTensor:
    """Return the tensor of one header entry; `data` is the byte of the file at which the data begins."""
    if not isinstance(entry, dict):
        raise ConfigError(f"{path}: tensor {name}: its header is damaged ({entry!r:.100}); download it again")
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not _counts(shape) or not _counts(offsets) or len(offsets) != 2:
        shown = f"shape {shape!r:.100}, data_offsets {offsets!r:.100}"
        raise ConfigError(f"{path}: tensor {name}: {shown} are not whole numbers from 0 on; download it again")
    if not isinstance(dtype, str) or dtype not in _ITEM_BITS:
        raise ConfigError(f"{path}: tensor {name}: dtype {dtype!r:.100} is none of safetensors'; download it again")
    begin, end = offsets
    if 8 * (end - begin) != math.prod(shape) * _ITEM_BITS[dtype]:
        raise ConfigError(f"{path}: tensor {name}: {end - begin} bytes for {dtype} {list(shape)}; download it again")
    return StoredTensor(name, path, dtype, tuple(shape), data + begin, data + end)


def _counts(values: object) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _check_places(path: Path, found: list[StoredTensor], data: int, size: int) -> None:
    """Refuse tensors that overlap or leave a hole, and data that ends before or after the end of the file."""
    at = data
    for tensor in found:
        if tensor.begin != at:
            what = "overlaps the one before it" if tensor.begin < at else "leaves a hole before it"
            raise ConfigError(
                f"{path}: tensor {tensor.name} {what}: it begins at byte {tensor.begin - data} of the data, the one "
                f"before it ends at {at - data}; download it again"
            )
        at = tensor.end
    if at > size:
        raise ConfigError(
            f"{path} is cut short: tensor {found[-1].name} ends at byte {at}, the file at {size}; download it again"
        )
    if at < size:
        raise ConfigError(f"{path} has {size - at} bytes after its last tensor; download it again")
