"""A folder's tokenizer as the metadata of a .gguf file: the same tokens, or a refusal before anything is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.text.test_gguf_tokenizer import TEXTS, byte_level_file, sentencepiece_file

from forearm.errors import ConfigError
from forearm.model.families.keys import Keys
from forearm.text.tokenizer.gguf import gguf_tokenizer, tokenizer_of
from forearm.text.tokenizer.gguf_vocabulary import gguf_vocabulary
from forearm.text.tokenizer.tokenizer import Tokenizer, load_tokenizer

ROWS = 4000


def folder_of(file: Path, change: Any = lambda state: None) -> Path:
    """A folder with the tokenizer of a .gguf file."""
    parts = gguf_tokenizer(file)
    folder = file.with_suffix("")
    folder.mkdir()
    state = json.loads(parts.backend_tokenizer.to_str())
    change(state)
    (folder / "tokenizer.json").write_text(json.dumps(state))
    own = {"tokenizer_class": "PreTrainedTokenizerFast"} | parts.special_tokens_map
    (folder / "tokenizer_config.json").write_text(json.dumps(own))
    return folder


def again(folder: Path, architecture: str) -> tuple[dict[str, Any], Tokenizer]:
    found = gguf_vocabulary(folder, ROWS, [], architecture, "\n".join(TEXTS))
    return found, Tokenizer(tokenizer_of(Keys(found | {"general.architecture": architecture}, "")))


@pytest.mark.parametrize("prefix", [True, False])
def test_merges_of_a_sentencepiece_model_become_scores_in_their_order(prefix: bool, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    _, merges, _ = sentencepiece_file(path, **{"tokenizer.ggml.add_space_prefix": prefix})
    folder = folder_of(path)

    found, read = again(folder, "llama")

    assert (found["tokenizer.ggml.model"], found["tokenizer.ggml.add_space_prefix"]) == ("llama", prefix)
    scores = dict(zip(found["tokenizer.ggml.tokens"], found["tokenizer.ggml.scores"], strict=True))
    ranked = [scores[left + right] for left, right in merges]
    assert ranked == sorted(ranked, reverse=True)
    kinds = dict(zip(found["tokenizer.ggml.tokens"], found["tokenizer.ggml.token_type"], strict=True))
    assert (kinds["<0x0A>"], kinds["<unk>"], kinds["<s>"], kinds[f"[PAD{ROWS - 1}]"]) == (6, 2, 3, 5)
    for text in TEXTS:
        assert read.encode(text) == load_tokenizer(folder).encode(text), text


def test_gemma_4_keeps_its_merges(tmp_path: Path) -> None:
    sentencepiece_file(tmp_path / "m.gguf", **{"tokenizer.ggml.add_space_prefix": False})

    found, _ = again(folder_of(tmp_path / "m.gguf"), "gemma4")

    assert found["tokenizer.ggml.model"] == "gemma4"
    assert len(found["tokenizer.ggml.merges"]) > 100


@pytest.mark.parametrize(
    ("pre", "architecture", "named"),
    [("gpt-4o", "gpt-oss", "gpt-4o"), ("lfm2", "lfm2", "lfm2"), ("qwen35", "qwen35", "qwen35"),
     ("starcoder", "granite", "smollm"), ("command-r", "command-r", "command-r")],
)  # fmt: skip
def test_a_byte_level_tokenizer_gets_a_name_of_how_it_cuts(
    pre: str, architecture: str, named: str, tmp_path: Path
) -> None:
    byte_level_file(tmp_path / "m.gguf", pre)

    found, _ = again(folder_of(tmp_path / "m.gguf"), architecture)

    assert found["tokenizer.ggml.pre"] == named


def test_another_spelling_of_the_same_cuts_is_known(tmp_path: Path) -> None:
    byte_level_file(tmp_path / "m.gguf", "gpt-4o")

    def change(state: dict[str, Any]) -> None:
        state["pre_tokenizer"]["pretokenizers"][0] |= {"behavior": "Removed", "invert": True}
        state["model"]["ignore_merges"] = True

    found, _ = again(folder_of(tmp_path / "m.gguf", change), "gpt-oss")

    assert found["tokenizer.ggml.pre"] == "gpt-4o"


def _lower(state: dict[str, Any]) -> None:
    state["normalizer"] = {"type": "Lowercase"}


def _other_cuts(state: dict[str, Any]) -> None:
    state["pre_tokenizer"] = {"type": "Whitespace"}


def _one_merge_less(state: dict[str, Any]) -> None:
    pieces = [left + right for left, right in state["model"]["merges"]]
    twice = next(i for i, piece in enumerate(pieces) if pieces.count(piece) > 1)
    del state["model"]["merges"][twice]


@pytest.mark.parametrize("change", [_lower, _other_cuts, _one_merge_less])
def test_what_no_metadata_say_is_refused(change: Any, tmp_path: Path) -> None:
    if change is _one_merge_less:
        sentencepiece_file(tmp_path / "m.gguf")
    else:
        byte_level_file(tmp_path / "m.gguf", "gpt-2")
    folder = folder_of(tmp_path / "m.gguf", change)

    with pytest.raises(ConfigError, match="cuts texts in a way that has no name in GGUF files; convert the model with"):
        gguf_vocabulary(folder, ROWS, [], "llama", "\n".join(TEXTS))
