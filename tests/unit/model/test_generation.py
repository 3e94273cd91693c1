"""generation_config.json gives defaults for sampling, and end tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forearm.errors import ConfigError
from forearm.model.generation import generation_defaults, generation_eos


def write(folder: Path, **values: object) -> Path:
    (folder / "generation_config.json").write_text(json.dumps(values))
    return folder


def test_what_the_file_says_becomes_defaults(tmp_path: Path) -> None:
    write(
        tmp_path, temperature=0.6, top_p=0.95, top_k=20, min_p=0.0, repetition_penalty=1.1, max_new_tokens=512,
        do_sample=True, pad_token_id=0, transformers_version="4.51.0",
    )  # fmt: skip

    assert generation_defaults(tmp_path) == {
        "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.0, "repetition_penalty": 1.1, "max_tokens": 512,
    }  # fmt: skip


def test_no_file_and_null_say_nothing(tmp_path: Path) -> None:
    assert generation_defaults(tmp_path) == {}
    assert generation_eos(tmp_path) == ()
    assert generation_defaults(write(tmp_path, temperature=None, top_k=None)) == {}


def test_end_tokens_are_one_or_many(tmp_path: Path) -> None:
    assert generation_eos(write(tmp_path, eos_token_id=2)) == (2,)
    assert generation_eos(write(tmp_path, eos_token_id=[1, 106])) == (1, 106)


def test_a_wrong_value_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='temperature = "warm"'):
        generation_defaults(write(tmp_path, temperature="warm"))
