"""pytorch_model.bin files: where tensors lie in them, and what in a pickle is refused."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from forearm.errors import ConfigError
from forearm.model.checkpoint.shards import Files, read_tensors
from forearm.model.checkpoint.torch_file import read_torch_file

FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def state_dict() -> OrderedDict[str, Any]:
    """Tensors of several dtypes, a part of another one, and one that is tied."""
    whole = torch.arange(60, dtype=torch.float32).reshape(10, 6)
    state: OrderedDict[str, Any] = OrderedDict(
        {name: torch.randn(3, 5, generator=torch.Generator().manual_seed(1)).to(kind) for name, kind in FLOATS.items()}
    )
    state["ids"] = torch.arange(7)
    state["part"] = whole[2:4]
    state["parameter"] = torch.nn.Parameter(torch.ones(2, 1, 3))
    state["tied"] = state["F32"]
    state["scalar"] = torch.tensor(2.5)
    state["empty"] = torch.zeros(0, 4)
    state["steps"] = 12  # values that are no tensors are skipped
    return state


def test_every_tensor_is_found_where_its_bytes_are(tmp_path: Path) -> None:
    state = state_dict()
    state._metadata = {"": {"version": 1}}  # type: ignore[attr-defined]  # as nn.Module.state_dict has it
    torch.save(state, tmp_path / "pytorch_model.bin")

    found = read_tensors(tmp_path)

    files = Files()
    assert found.keys() == state.keys() - {"steps"}
    for name, tensor in found.items():
        expected = state[name].detach()
        assert tensor.shape == tuple(expected.shape)
        if tensor.dtype in FLOATS:
            np.testing.assert_array_equal(files.floats(tensor), expected.float().numpy())
        else:
            np.testing.assert_array_equal(files.array(tensor), expected.numpy())
    assert found["tied"].begin == found["F32"].begin
    assert [tensor.begin for tensor in found.values()] == sorted(tensor.begin for tensor in found.values())


def test_an_index_leads_to_the_files(tmp_path: Path) -> None:
    names = [f"pytorch_model-0000{number}-of-00002.bin" for number in (1, 2)]
    for number, name in enumerate(names):
        torch.save({f"layer.{number}": torch.full((4,), float(number))}, tmp_path / name)
    index = {"weight_map": {f"layer.{number}": name for number, name in enumerate(names)}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))

    found = read_tensors(tmp_path)

    assert {name: tensor.path.name for name, tensor in found.items()} == index["weight_map"]
    index["weight_map"]["layer.0"] = "../pytorch_model.bin"
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises(ConfigError, match=r"'\.\./pytorch_model.bin' is not the name of a weight file"):
        read_tensors(tmp_path)


def test_safetensors_go_first(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    torch.save({"weight": torch.zeros(2)}, tmp_path / "pytorch_model.bin")
    save_file({"weight": np.ones(2, np.float32)}, tmp_path / "model.safetensors")

    assert read_tensors(tmp_path)["weight"].path.name == "model.safetensors"


class Command:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch unpickled",)


def archive(path: Path, data: bytes, *storages: bytes, byteorder: bytes = b"little") -> Path:
    """A file as torch.save writes it."""
    with zipfile.ZipFile(path, "w") as written:
        written.writestr("archive/data.pkl", data)
        written.writestr("archive/byteorder", byteorder)
        for number, storage in enumerate(storages):
            written.writestr(f"archive/data/{number}", storage)
    return path


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_that_would_run_something_is_refused_by_its_name(
    protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = archive(tmp_path / "pytorch_model.bin", pickle.dumps({"weight": Command()}, protocol))

    with pytest.raises(ConfigError, match=r"a call of (posix|nt)\.system, which a plain state dict does not have"):
        read_torch_file(path)
    assert not (tmp_path / "unpickled").exists()


def transposed(path: Path) -> None:
    torch.save({"weight": torch.zeros(2, 3).T}, path)


def whole_module(path: Path) -> None:
    torch.save(torch.nn.Linear(2, 2), path)


def training(path: Path) -> None:
    torch.save({"model": {"weight": torch.zeros(2)}, "step": 3}, path)


def complex_values(path: Path) -> None:
    torch.save({"weight": torch.zeros(2, dtype=torch.complex64)}, path)


def big_endian(path: Path) -> None:
    archive(path, pickle.dumps({}), byteorder=b"big")


def not_a_zip(path: Path) -> None:
    path.write_bytes(pickle.dumps({"weight": [1.0]}))


def no_pickle(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as written:
        written.writestr("archive/model.json", "{}")


def legacy(path: Path) -> None:
    torch.save({"weight": torch.zeros(2)}, path, _use_new_zipfile_serialization=False)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (transposed, r"not in the order of its shape \(strides \(1, 3\)\)"),
        (whole_module, "a call of|opcode"),
        (training, r"no tensor at its top level \(a training checkpoint\?\)"),
        (complex_values, "a storage of class torch.ComplexFloatStorage|a call of"),
        (big_endian, "big-endian"),
        (not_a_zip, "is damaged, or was written by a torch older than 1.6"),
        (legacy, "is damaged, or was written by a torch older than 1.6"),
        (no_pickle, "it is no torch file"),
    ],
)
def test_what_is_no_plain_state_dict_is_refused(make: Callable[[Path], None], words: str, tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    make(path)

    with pytest.raises(ConfigError, match=words) as refused:
        read_torch_file(path)
    assert str(path) in str(refused.value)


def test_tensors_stay_within_their_storages(tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(4)}, tmp_path / "whole.bin")
    with zipfile.ZipFile(tmp_path / "whole.bin") as whole:
        [data] = [whole.read(name) for name in whole.namelist() if name.endswith("data.pkl")]

    with pytest.raises(ConfigError, match="tensor weight ends after its storage"):
        read_torch_file(archive(tmp_path / "short.bin", data, bytes(15)))
    with pytest.raises(ConfigError, match="storage '0' is missing"):
        read_torch_file(archive(tmp_path / "without.bin", data))


def test_damaged_files_are_refused_and_nothing_else_happens(tmp_path: Path) -> None:
    """Each byte of the pickle, and of the archive's directory, is changed once: an error by name, or tensors within
    the file."""
    buffer = io.BytesIO()
    torch.save({"weight": torch.zeros(4), "bias": torch.zeros(2)}, buffer)
    whole = buffer.getvalue()
    path = tmp_path / "pytorch_model.bin"
    random = np.random.default_rng(7)
    refused = 0
    for at in range(0, len(whole), 3):
        changed = bytearray(whole)
        changed[at] = random.integers(256)
        path.write_bytes(changed)
        try:
            places = read_torch_file(path)
        except ConfigError:
            refused += 1
        else:
            assert all(0 <= place.begin <= place.end <= len(whole) for place in places)
    assert refused > 50
