"""Reads a .gguf file's header: metadata and the places of tensors. Loading maps the data itself (shards.Mapping).

The format, little-endian: magic, version, tensor count, key count; the keys with typed values; for each tensor its
name, sizes (fastest first), type and offset; padding; the data. Every size and offset is checked before it is used.
Source: the GGUF specification, versions 2 and 3 (github.com/ggml-org/ggml, docs/gguf.md).
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forearm.errors import ConfigError
from forearm.model.checkpoint.shards import StoredTensor, joined
from forearm.model.families.keys import check_regular

_SPLIT = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")

_STRING, _ARRAY = 8, 9
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}  # as in struct

# Tensor types by number: name, values in a block, bytes of a block. Source: ggml.h, enum ggml_type; ggml-common.h.
TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip


@dataclass(frozen=True)
class Gguf:
    """One model: the metadata of its (first) file, and the tensors of all its files by name.

    metadata: numbers, strings and booleans by key; arrays are lists. vectors: the places of its arrays of float32.
    entries: name and shape of each tensor as the file has them; in `tensors` a shape has at most two sizes.
    """

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, StoredTensor]
    vectors: dict[str, StoredTensor]
    entries: dict[str, tuple[str, tuple[int, ...]]]


def is_gguf(path: Path) -> bool:
    """Return whether a model's path names a .gguf file, rather than a folder."""
    return path.suffix == ".gguf"


def read_gguf(path: Path, *, merges: bool = True) -> Gguf:
    """Read the header of the file and, if it is the first part of several (-00001-of-00003.gguf), of the others.

    merges: False leaves a tokenizer's merges empty, which are as many strings as its vocabulary.
    Raises: ConfigError if a file is missing, cut short, damaged or of a version that is not supported.
    """
    whole = read_gguf_file(path, merges=merges)
    split = _SPLIT.fullmatch(path.name)
    if split is None:
        return whole
    name, part, parts = split[1], int(split[2]), int(split[3])
    if part != 1:
        raise ConfigError(f"{path} is part {part} of {parts}; give the first, {name}-00001-of-...")
    for part in range(2, parts + 1):
        other = path.with_name(f"{name}-{part:05}-of-{split[3]}.gguf")
        more = read_gguf_file(other)
        joined(whole.tensors, more.tensors)
        whole.entries.update(more.entries)
    return whole


def read_gguf_file(path: Path, *, texts: bool = True, merges: bool = True) -> Gguf:
    """Read the header of a single file, without its further parts.

    texts: False leaves arrays of strings empty, which takes a third of the time: a vocabulary and its merges are long.
    merges: as in read_gguf.
    Raises: ConfigError as read_gguf.
    """
    check_regular(path)
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Header(path, data, texts, merges).read()
    except (OSError, ValueError) as problem:  # an empty file can't be mapped: ValueError
        raise ConfigError(f"{path} can't be read: {problem}; download it again") from None


class _Header:
    """A cursor over the mapped file; every read is checked against its end."""

    def __init__(self, path: Path, data: mmap.mmap, texts: bool, merges: bool) -> None:
        self._path, self._data, self._at = path, data, 0
        self._texts, self._merges = texts, merges

    def read(self) -> Gguf:
        """Read the whole header, up to the data."""
        if self._data[:4] != b"GGUF":
            raise ConfigError(f"{self._path} is not a GGUF file (it starts with {self._data[:4]!r})")
        self._at = 4
        version = self._number("I")
        if version not in (2, 3):
            shown = "big-endian" if version in (2 << 24, 3 << 24) else f"version {version}"
            raise ConfigError(f"{self._path} is a {shown} GGUF file; little-endian versions 2 and 3 are supported")
        tensors, keys = self._count(24), self._count(13)
        metadata: dict[str, Any] = {}
        vectors: dict[str, StoredTensor] = {}
        for _ in range(keys):
            name = self._string()
            kind, at = self._number("I"), self._at
            value = self._value(kind, self._texts and (self._merges or name != "tokenizer.ggml.merges"))
            if name in metadata:
                raise self._damaged(f"key {name} twice")
            metadata[name] = value
            if kind == _ARRAY and NUMBERS.get(struct.unpack_from("<I", self._data, at)[0]) == "f":
                begin = at + 12  # behind the values' type and their number
                vectors[name] = StoredTensor(name, self._path, "F32", (len(value),), begin, self._at)
        places = []
        entries: dict[str, tuple[str, tuple[int, ...]]] = {}
        for _ in range(tensors):
            own, dims = self._string(), self._number("I")
            name = f"{own}.weight" if own.endswith(".ffn_norm") else own  # Falcon-H1's
            if dims > 4:
                raise self._damaged(f"tensor {name} of {dims} dimensions")
            shape = tuple(self._number("Q") for _ in range(dims))[::-1]
            places.append((name, shape, self._number("I"), self._number("Q")))
            entries[name] = own, shape
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise self._damaged(f"general.alignment = {alignment}, which is not a power of 2,")
        start = -(-self._at // alignment) * alignment
        found: dict[str, StoredTensor] = {}
        for place in places:
            if place[0] in found:
                raise self._damaged(f"tensor {place[0]} twice")
            found[place[0]] = self._stored(start, *place)
        self._check_places(list(found.values()), start, alignment)
        return Gguf(self._path, metadata, found, vectors, entries)

    def _check_places(self, tensors: list[StoredTensor], start: int, alignment: int) -> None:
        """Refuse offsets that leave holes between tensors or do not follow the alignment, as llama.cpp does."""
        at: int | None = start
        for tensor in sorted(tensors, key=lambda tensor: (tensor.begin, tensor.end)):
            if (at is not None and tensor.begin != at) or (tensor.begin - start) % alignment:
                raise self._damaged(
                    f"tensor {tensor.name} at offset {tensor.begin - start}, not where the one before it ends,"
                )
            end = -(-(tensor.end - start) // alignment) * alignment
            # The size of a tensor of an unknown type is known only from the offset after it.
            at = None if tensor.dtype.startswith("type ") else start + end

    def _value(self, kind: int, texts: bool) -> Any:
        if kind == _STRING:
            return self._string()
        if kind in NUMBERS:
            return self._number(NUMBERS[kind])
        if kind != _ARRAY:
            raise self._damaged(f"a value of type {kind}")
        kind = self._number("I")
        if kind == _STRING:
            return self._strings(self._count(8), texts)
        if kind not in NUMBERS:
            raise self._damaged(f"an array of type {kind}")
        size = struct.calcsize(f"<{NUMBERS[kind]}")
        count = self._count(size)
        return list(struct.unpack(f"<{count}{NUMBERS[kind]}", self._take(count * size)))

    def _strings(self, count: int, texts: bool) -> list[str]:
        """Read `count` strings in one loop, for speed: a vocabulary and its merges are half a million of them."""
        length_at, data, at, size = struct.Struct("<Q").unpack_from, self._data, self._at, len(self._data)
        found: list[str] = []
        try:
            for _ in range(count):
                begin = at + 8
                at = begin + length_at(data, at)[0]
                if at > size:
                    break
                if texts:
                    found.append(data[begin:at].decode())
        except UnicodeDecodeError:
            raise self._damaged("a string that is not UTF-8") from None
        except struct.error:  # fewer than 8 bytes are left
            at = size + 1
        self._at = at
        self._take(0)
        return found

    def _stored(self, start: int, name: str, shape: tuple[int, ...], kind: int, offset: int) -> StoredTensor:
        dtype, values, size = TYPES.get(kind, (f"type {kind}", 1, 0))
        if not shape or min(shape) < 1 or shape[-1] % values:
            raise self._damaged(f"tensor {name} of shape {list(shape)}, {dtype} in blocks of {values}")
        begin = start + offset
        end = begin + math.prod(shape) // values * size
        if end > len(self._data):
            raise ConfigError(
                f"{self._path} is cut short: tensor {name} ends at byte {end}, the file at {len(self._data)}; "
                "download it again"
            )
        if len(shape) == 3:  # the matrices of all experts: their rows follow each other
            shape = (shape[0] * shape[1], shape[2])
        if name.endswith("ffn_gate_inp_shexp.weight"):  # one row, which is stored as a vector
            shape = (1, *shape[-1:])
        return StoredTensor(name, self._path, dtype, shape, begin, end)

    def _string(self) -> str:
        length = self._count(1)
        try:
            return self._take(length).decode()
        except UnicodeDecodeError:
            raise self._damaged("a string that is not UTF-8") from None

    def _count(self, least: int) -> int:
        """Read a number of items; each takes at least `least` bytes, so the rest of the file bounds the number."""
        count: int = self._number("Q")
        if count * least > len(self._data) - self._at:
            raise self._damaged(f"{count} items of {least} bytes or more")
        return count

    def _number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self._take(struct.calcsize(f"<{code}")))[0]

    def _take(self, size: int) -> bytes:
        begin, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise ConfigError(f"{self._path} is cut short: its header goes on after {len(self._data)} bytes")
        return self._data[begin : self._at]

    def _damaged(self, what: str) -> ConfigError:
        return ConfigError(f"{self._path} is damaged: {what} before byte {self._at}; download it again")
