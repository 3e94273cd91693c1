"""A header that is written: forearm and gguf-py read the same keys, of the types that llama.cpp asks for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFValueType

from forearm.model.gguf.gguf import read_gguf, read_gguf_file
from forearm.model.gguf.gguf_header import gguf_header

KEYS = {
    "general.architecture": "llama", "a.count": 7, "a.below": -3, "a.large": 1 << 40, "a.part": 0.5, "a.yes": True,
    "a.names": ["x", "é", ""], "a.kinds": [1, -2, 3], "a.scores": [0.5, -1.0], "a.flags": [True, False], "a.none": [],
}  # fmt: skip
TYPES = {
    "a.count": GGUFValueType.UINT32, "a.below": GGUFValueType.INT32, "a.large": GGUFValueType.UINT64,
    "a.part": GGUFValueType.FLOAT32, "a.yes": GGUFValueType.BOOL,
}  # fmt: skip


def test_a_header_is_read_back(tmp_path: Path) -> None:
    head, places = gguf_header(KEYS, {"one": ("F32", (5,)), "two": ("Q8_0", (3, 64)), "three": ("F16", (2, 2))})
    values = np.arange(5, dtype=np.float32)
    data = bytearray(head) + bytes(max(place.end for place in places.values()) - len(head))
    data[places["one"].begin : places["one"].end] = values.tobytes()
    (tmp_path / "a.gguf").write_bytes(data)

    ours, theirs = read_gguf(tmp_path / "a.gguf"), GGUFReader(tmp_path / "a.gguf")

    assert ours.metadata == KEYS
    short = read_gguf_file(tmp_path / "a.gguf", texts=False)
    assert short.metadata == KEYS | {"a.names": []}
    assert short.tensors == ours.tensors
    assert {name: theirs.fields[name].types[0] for name in TYPES} == TYPES
    assert theirs.fields["a.kinds"].types == [GGUFValueType.ARRAY, GGUFValueType.INT32]
    assert theirs.fields["a.scores"].types == [GGUFValueType.ARRAY, GGUFValueType.FLOAT32]
    assert {(t.name, t.dtype, t.shape) for t in ours.tensors.values()} == {
        ("one", "F32", (5,)), ("two", "Q8_0", (3, 64)), ("three", "F16", (2, 2))
    }  # fmt: skip
    assert [(t.begin, t.end) for t in ours.tensors.values()] == [(p.begin, p.end) for p in places.values()]
    assert np.array_equal(theirs.tensors[0].data, values)
    assert all(place.begin % 32 == 0 for place in places.values())
