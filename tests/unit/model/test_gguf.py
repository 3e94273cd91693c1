"""A .gguf header: what the file says, and files that are cut short or damaged anywhere."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from tests.unit.model.gguf_files import random_blocks, write_gguf

from forearm.errors import ConfigError
from forearm.model.checkpoint.shards import Mapping
from forearm.model.gguf.gguf import read_gguf

KEYS = {
    "llama.block_count": 2,
    "llama.rope.freq_base": 7.5,
    "llama.some.flag": True,
    "tokenizer.ggml.tokens": ["a", "\u2581b", "<0x0A>"],
    "tokenizer.ggml.scores": [0.5, -1.0, 2.0],
}


def written(folder: Path) -> Path:
    floats = np.arange(6, dtype=np.float32).reshape(2, 3)
    blocks = random_blocks("Q4_K", 4, 512)
    return write_gguf(folder / "m.gguf", "llama", KEYS, {"floats": floats, "blocks": ("Q4_K", blocks)})


def test_metadata_and_tensors_are_what_was_written(tmp_path: Path) -> None:
    gguf = read_gguf(written(tmp_path))

    assert {key: gguf.metadata[key] for key in KEYS} == KEYS
    assert gguf.metadata["general.architecture"] == "llama"
    assert {name: (t.dtype, t.shape) for name, t in gguf.tensors.items()} == {
        "floats": ("F32", (2, 3)),
        "blocks": ("Q4_K", (4, 512)),
    }
    values = Mapping(gguf.path).rows(gguf.tensors["floats"], range(2))
    assert values.tolist() == [[0, 1, 2], [3, 4, 5]]
    stored = gguf.path.read_bytes()[gguf.tensors["blocks"].begin : gguf.tensors["blocks"].end]
    assert stored == random_blocks("Q4_K", 4, 512).tobytes()


def test_parts_of_a_split_model_are_read_together(tmp_path: Path) -> None:
    for part, name in ((1, "a"), (2, "b")):
        write_gguf(tmp_path / f"m-{part:05}-of-00002.gguf", "llama", KEYS, {name: np.zeros((1, 4), np.float32)})

    assert set(read_gguf(tmp_path / "m-00001-of-00002.gguf").tensors) == {"a", "b"}
    with pytest.raises(ConfigError, match="part 2 of 2; give the first"):
        read_gguf(tmp_path / "m-00002-of-00002.gguf")
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    with pytest.raises(ConfigError, match=r"m-00002-of-00002\.gguf can't be read"):
        read_gguf(tmp_path / "m-00001-of-00002.gguf")


def test_a_file_cut_short_anywhere_is_one_clear_line(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole = path.read_bytes()

    for size in [0, 3, 4, 8, 20, *range(24, len(whole) - 1, 7), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(ConfigError, match=r"m\.gguf (is|can't)") as caught:
            read_gguf(path)
        assert "\n" not in str(caught.value)


def test_damage_is_refused_or_changes_a_value_but_never_breaks_the_reader(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole = bytearray(path.read_bytes())
    refused = 0

    for at in range(400):
        for value in (0xFF, whole[at] ^ 0x10):
            path.write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
            try:
                read_gguf(path)
            except ConfigError:
                refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    ("at", "stored", "message"),
    [
        (0, b"GGML", r"is not a GGUF file \(it starts with b'GGML'\)"),
        (4, struct.pack("<I", 1), "version 1 GGUF file"),
        (4, struct.pack(">I", 3), "big-endian GGUF file"),
        (8, struct.pack("<Q", 1 << 60), "damaged: 1152921504606846976 items"),
        (16, struct.pack("<Q", 1 << 40), "damaged"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, at: int, stored: bytes, message: str) -> None:
    path = written(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:at] + stored + whole[at + len(stored) :])

    with pytest.raises(ConfigError, match=message):
        read_gguf(path)
