"""Writes a .gguf file's header, version 3, as gguf.py reads it.

Whole numbers are UINT32 and those of lists INT32, numbers with a point FLOAT32, wherever the values fit: the types in
which llama.cpp asks for its keys.
Source: the GGUF specification (github.com/ggml-org/ggml, docs/gguf.md).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forearm.model.gguf.gguf import NUMBERS, TYPES

_ALIGNMENT = 32
_NUMBER_OF = {letter: kind for kind, letter in NUMBERS.items()}
_TYPE_OF = {name: (kind, values, size) for kind, (name, values, size) in TYPES.items()}


@dataclass(frozen=True)
class WrittenTensor:
    """A tensor of a file to be written: its type, shape, and bytes begin .. end - 1 of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a row; a vector is one row."""
        return (self.end - self.begin) // math.prod(self.shape[:-1])


def gguf_header(
    metadata: Mapping[str, Any], tensors: Mapping[str, tuple[str, tuple[int, ...]]]
) -> tuple[bytes, dict[str, WrittenTensor]]:
    """Return the bytes before the data, and the place of each tensor.

    metadata: strings, numbers, booleans and lists of one of these. tensors: type and shape by name.
    """
    keys = [_string(key) + _typed(value) for key, value in metadata.items()]
    entries, at = [], 0
    sizes: dict[str, tuple[int, int]] = {}
    for name, (dtype, shape) in tensors.items():
        kind, values, size = _TYPE_OF[dtype]
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        entries.append(_string(name) + dims + struct.pack("<IQ", kind, at))
        sizes[name] = (at, at + math.prod(shape) // values * size)
        at = -(-sizes[name][1] // _ALIGNMENT) * _ALIGNMENT
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)) + b"".join(keys) + b"".join(entries)
    head += bytes(-len(head) % _ALIGNMENT)
    return head, {
        name: WrittenTensor(*tensors[name], len(head) + begin, len(head) + end) for name, (begin, end) in sizes.items()
    }


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _typed(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    if not isinstance(value, list):
        letter = _letter([value], "I")
        return struct.pack(f"<I{letter}", _NUMBER_OF[letter], value)
    if value and isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_string, value))
    letter = _letter(value, "i")
    return struct.pack(f"<IIQ{len(value)}{letter}", 9, _NUMBER_OF[letter], len(value), *value)


def _letter(values: list[Any], whole: str) -> str:
    """Return struct's letter for numbers of one kind. whole: I or i, that of whole numbers that fit it."""
    if values and isinstance(values[0], bool):
        return "?"
    if any(isinstance(value, float) for value in values):
        return "f"
    low, high = (min(values), max(values)) if values else (0, 0)
    if whole == "I" and low >= 0 and high < 1 << 32:
        return "I"
    if low >= -(1 << 31) and high < 1 << 31:
        return "i"
    return "q" if low < 0 else "Q"
