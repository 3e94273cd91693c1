"""generation_config.json gives defaults for sampling, and end tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.model.gguf_files import write_gguf

from forearm.errors import ConfigError
from forearm.model.generation import eos_ids, generation_defaults, generation_keys, sampling_defaults


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
    assert eos_ids(generation_keys(tmp_path), 10) == ()
    assert generation_defaults(write(tmp_path, temperature=None, top_k=None)) == {}


def test_end_tokens_are_one_or_many(tmp_path: Path) -> None:
    assert eos_ids(generation_keys(write(tmp_path, eos_token_id=2)), 3) == (2,)
    assert eos_ids(generation_keys(write(tmp_path, eos_token_id=[1, 106])), 107) == (1, 106)


def test_a_wrong_value_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='temperature = "warm"'):
        generation_defaults(write(tmp_path, temperature="warm"))


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [("temperature", "warm", "a number"), ("top_p", None, "a number"), ("presence_penalty", [1], "a number"),
     ("top_k", "a", "a whole number"), ("top_k", 1.5, "a whole number"), ("max_new_tokens", True, "a whole number"),
     ("temperature", -1, "between 0.0 and"), ("top_p", 1.5, "between 0.0 and 1.0"), ("n", 0, "between 1 and 16384"),
     ("presence_penalty", 3, "between -2.0 and 2.0"), ("top_k", -2, "-1 or more"), ("max_new_tokens", 0, "1 or more")],
)  # fmt: skip
def test_an_operators_default_of_another_type_or_out_of_range_ends_the_start(
    tmp_path: Path, name: str, value: object, remedy: str
) -> None:
    """The engine would refuse the first request, or its message, and end all others of the connection with it."""
    with pytest.raises(ConfigError, match=f"^--override-generation-config: {name} = .*; it should be {remedy}"):
        sampling_defaults(tmp_path, "vllm", {name: value})


def test_a_key_of_an_operator_without_an_effect_is_told_and_no_default(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log and /v1/models showed llama.cpp's repeat_penalty as a default of the server, which it was not."""
    given = {"repeat_penalty": 1.1, "temperature": 0.5, "do_sample": True, "max_new_tokens": 5}

    assert sampling_defaults(tmp_path, "vllm", given) == {"temperature": 0.5, "max_tokens": 5}
    assert [message.partition("; ")[0] for message in caplog.messages] == [
        "--override-generation-config: do_sample has no effect",
        "--override-generation-config: repeat_penalty has no effect",
    ]


def test_a_models_own_default_out_of_range_is_left_out_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each request without a temperature of its own would be refused."""
    write(tmp_path, temperature=2.5, top_k=20, max_new_tokens=0)

    assert sampling_defaults(tmp_path, "auto", {"top_p": 0.9}) == {"top_k": 20, "top_p": 0.9}
    assert [message.partition(": ")[2] for message in caplog.messages] == [
        "its default temperature = 2.5 is not used; it should be between 0.0 and 2.0",
        "its default max_tokens = 0 is not used; it should be 1 or more",
    ]


def test_a_gguf_file_is_sampled_as_llama_cpp_does_it(tmp_path: Path) -> None:
    plain = write_gguf(tmp_path / "plain.gguf", "llama", {}, {})

    assert generation_defaults(plain) == {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
    assert sampling_defaults(plain, "vllm", None) == {}
    assert sampling_defaults(plain, "vllm", {"temperature": 0.3}) == {"temperature": 0.3}
    assert sampling_defaults(plain, "auto", {"max_new_tokens": 9, "top_k": 1}) == {
        "temperature": 0.8, "top_k": 1, "top_p": 0.95, "min_p": 0.05, "max_tokens": 9,
    }  # fmt: skip


def test_a_gguf_files_own_keys_come_before_that(tmp_path: Path) -> None:
    keys = {"general.sampling.temp": -1.0, "general.sampling.top_k": 7, "general.sampling.penalty_repeat": 1.5}
    own = write_gguf(tmp_path / "own.gguf", "llama", keys, {})

    assert generation_defaults(own) == {
        "temperature": 0.0, "top_k": 7, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.5,
    }  # fmt: skip


def test_a_gguf_file_goes_by_a_folder_that_is_named(tmp_path: Path) -> None:
    plain = write_gguf(tmp_path / "plain.gguf", "llama", {}, {})

    assert sampling_defaults(plain, str(write(tmp_path, temperature=0.4)), None) == {"temperature": 0.4}
    with pytest.raises(ConfigError, match="--generation-config /nowhere: no such folder"):
        sampling_defaults(plain, "/nowhere", None)


@pytest.mark.parametrize("token", [3, -1, 1 << 63])
def test_an_end_token_beyond_the_vocabulary_is_refused(tmp_path: Path, token: int) -> None:
    with pytest.raises(
        ConfigError, match=r"generation_config\.json: eos_token_id = .*a token of the vocabulary, 0 to 2"
    ):
        eos_ids(generation_keys(write(tmp_path, eos_token_id=[1, token])), 3)
