"""Short names of models: what they stand for, and the size that suits a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from forearm.errors import ConfigError
from forearm.model.checkpoint import hub
from forearm.model.families.encoders.encoders import ENCODERS
from forearm.model.families.families import FAMILIES
from forearm.model.gguf.gguf_architectures import ARCHITECTURES
from forearm.model.gguf.short_names import SHORT_NAMES, full_name

GIB = 1 << 30


def test_each_name_is_of_a_family_that_is_read_from_gguf() -> None:
    gguf = {family for one in ARCHITECTURES.values() for family in one.families}

    assert len(SHORT_NAMES) >= 20
    assert {one.family for one in SHORT_NAMES.values()} <= gguf & (FAMILIES | ENCODERS).keys()


@pytest.mark.parametrize("name", SHORT_NAMES)
def test_sizes_ascend_and_stand_for_one_quantization_of_a_repository(name: str) -> None:
    sizes = list(SHORT_NAMES[name].sizes.values())

    assert [one.parameters for one in sizes] == sorted(one.parameters for one in sizes)
    for one in sizes:
        assert hub._ID.fullmatch(one.file), one.file
        assert one.file.endswith(("-GGUF:Q4_K_M", "-GGUF:Q8_0", "-GGUF:MXFP4"))


@pytest.mark.parametrize(
    ("model", "memory", "file"),
    [
        ("qwen3:4b", 1, "Qwen/Qwen3-4B-GGUF:Q4_K_M"),
        ("Qwen3:4B", 1, "Qwen/Qwen3-4B-GGUF:Q4_K_M"),
        # 4.9 / 8 bytes a parameter: 8e9 take 4.9e9 bytes, a quarter of 18.3 GiB
        ("qwen3", 18, "Qwen/Qwen3-4B-GGUF:Q4_K_M"),
        ("qwen3", 19, "Qwen/Qwen3-8B-GGUF:Q4_K_M"),
        ("qwen3:latest", 512, "Qwen/Qwen3-32B-GGUF:Q4_K_M"),
        ("llama3.3", 8, "bartowski/Llama-3.3-70B-Instruct-GGUF:Q4_K_M"),  # the only one
        ("gemma4:4b", 8, "unsloth/gemma-4-E4B-it-GGUF:Q4_K_M"),
        ("qwen/qwen3", 8, "qwen/qwen3"),
        ("gpt2", 8, "gpt2"),
        ("", 8, ""),
    ],
)
def test_a_name_stands_for_a_file(model: str, memory: int, file: str) -> None:
    assert full_name(model, memory * GIB) == file


def test_without_memory_given_it_is_this_machine_s() -> None:
    assert full_name("qwen3") in [one.file for one in SHORT_NAMES["qwen3"].sizes.values()]


def test_a_size_that_is_not_there_is_told_the_others() -> None:
    with pytest.raises(ConfigError, match=r"no such size; write llama3\.2:1b or llama3\.2:3b"):
        full_name("llama3.2:2b")


def test_a_folder_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "qwen3").mkdir()
    (tmp_path / "qwen3" / "config.json").touch()
    monkeypatch.chdir(tmp_path)

    assert hub.find_model("qwen3") == tmp_path / "qwen3"


@pytest.mark.parametrize("find", [hub.find_model, hub.find_tokenizer])
def test_the_file_is_what_is_downloaded_and_a_wrong_name_is_told_the_nearest(
    find: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert callable(find)

    with pytest.raises(ConfigError, match="model 'Qwen/Qwen3-4B-GGUF', revision main is not in the cache"):
        find("qwen3:4b", download_dir=str(tmp_path))
    with pytest.raises(ConfigError, match="did you mean qwen3"):
        find("qwen33", download_dir=str(tmp_path))
