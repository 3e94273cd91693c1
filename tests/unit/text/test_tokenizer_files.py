"""Tokenizers read from a model's files are those that transformers makes of them, and transformers is not imported."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.pooling_models import minilm
from tests.unit.text.conftest import byte_level, gemma_like, metaspace
from tests.unit.text.test_gguf_tokenizer import TEXTS
from transformers import AutoTokenizer
from transformers.tokenization_utils_tokenizers import TokenizersBackend

from forearm.errors import ConfigError
from forearm.model.checkpoint.hub import DEMO_MODEL
from forearm.text.tokenizer.tokenizer import load_tokenizer
from forearm.text.tokenizer.tokenizer_files import TokenizerParts, read_tokenizer_files

KINDS = {"byte_level": byte_level, "metaspace": metaspace, "gemma_like": gemma_like}
SPOKEN = [*TEXTS, "<s>a</s>", "x<think>y", "a<|more|>b <|extra|> c<img>d", " <|more|> <|old|> ", "[PAD] <pad><|own|>"]


def token(text: str, **flags: bool) -> dict[str, Any]:
    return {"content": text, "lstrip": False, "rstrip": False, "single_word": False, "normalized": False, **flags}


# Each case: the files beside tokenizer.json. Ids of `added_tokens_decoder` are numbers in the vocabulary that follows.
FILES: dict[str, dict[str, Any]] = {
    "none": {},
    "named": {"tokenizer_config.json": {"bos_token": "<s>", "eos_token": "</s>", "pad_token": None}},
    "absent": {"tokenizer_config.json": {"bos_token": "<|more|>", "cls_token": "<|extra|>", "add_bos_token": True}},
    "objects": {
        "tokenizer_config.json": {
            "bos_token": {"__type": "AddedToken", **token("<s>")},
            "eos_token": {"__type": "AddedToken", **token("<|more|>", lstrip=True)},
        }
    },
    "decoder": {
        "tokenizer_config.json": {
            "added_tokens_decoder": {"900": token("<|more|>", special=True), "7": token("<|extra|>", special=False)},
            "eos_token": "<|extra|>",
        }
    },
    "changed_flags": {
        "tokenizer_config.json": {"added_tokens_decoder": {"0": token("<think>", special=True, rstrip=True)}}
    },
    "additional": {
        "tokenizer_config.json": {"additional_special_tokens": ["<|more|>", "<think>"], "eos_token": "</s>"}
    },
    "extra": {
        "tokenizer_config.json": {"extra_special_tokens": ["<|more|>"], "additional_special_tokens": ["<|old|>"]}
    },
    "own": {"tokenizer_config.json": {"image_token": "<img>", "extra_special_tokens": {"sound_token": "<|own|>"}}},
    "legacy": {
        "tokenizer_config.json": {"bos_token": "</s>", "unk_token": "<|more|>"},
        "special_tokens_map.json": {
            "bos_token": token("<s>"),
            "pad_token": "<pad>",
            "additional_special_tokens": ["<|extra|>"],
        },
        "added_tokens.json": {"<|old|>": 903, "<pad>": 902, "<|extra|>": 901},
    },
    "templates": {
        "tokenizer_config.json": {
            "chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
        }
    },
    "split": {"tokenizer_config.json": {"split_special_tokens": True, "bos_token": "<s>"}},
}


def write(folder: Path, files: dict[str, Any]) -> None:
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))


def assert_same(ours: TokenizerParts, theirs: TokenizersBackend) -> None:
    """The same tokens, special ones, ids of texts and pairs, and text of ids."""
    mine, rust = ours.backend_tokenizer, theirs.backend_tokenizer
    assert ours.special_tokens_map == theirs.special_tokens_map
    assert (ours.bos_token_id, ours.eos_token_id) == (theirs.bos_token_id, theirs.eos_token_id)
    assert ours.chat_template == theirs.chat_template
    assert mine.get_vocab(with_added_tokens=True) == rust.get_vocab(with_added_tokens=True)
    states = [{n: t.__getstate__() for n, t in one.get_added_tokens_decoder().items()} for one in (mine, rust)]
    assert states[0] == states[1]
    for text in SPOKEN:
        for special in (True, False):
            one, other = (t.encode(text, add_special_tokens=special) for t in (mine, rust))
            assert (one.ids, one.type_ids) == (other.ids, other.type_ids), text
            assert mine.decode(one.ids, skip_special_tokens=special) == rust.decode(
                one.ids, skip_special_tokens=special
            )
        pair, expected = (t.encode(text, "b c") for t in (mine, rust))
        assert (pair.ids, pair.type_ids) == (expected.ids, expected.type_ids)


@pytest.mark.parametrize("files", FILES.values(), ids=FILES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_is_read_as_transformers_reads_it(tmp_path: Path, kind: str, files: dict[str, Any]) -> None:
    KINDS[kind]().parts.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    write(tmp_path, files)

    parts = read_tokenizer_files(tmp_path)

    assert parts is not None
    assert_same(parts, TokenizersBackend.from_pretrained(tmp_path))


@pytest.mark.parametrize("seed", range(200))
def test_settings_drawn_at_random_are_read_as_transformers_reads_them(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    texts = ["<s>", "</s>", "<think>", "<|more|>", "<|extra|>", "<|old|>", "the", "<img>"]
    byte_level().parts.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))

    def any_token() -> Any:
        flags = {name: draw.random() < 0.5 for name in ("lstrip", "rstrip", "normalized")}
        return draw.choice([draw.choice(texts), {"__type": "AddedToken", **token(draw.choice(texts), **flags)}])

    def chosen(*names: str) -> list[str]:
        return [name for name in names if draw.random() < 0.5]

    config = {name: any_token() for name in chosen("bos_token", "eos_token", "unk_token", "pad_token", "own_token")}
    if draw.random() < 0.5:
        numbers = draw.sample(range(495, 515), 3)
        different = draw.sample(texts, 3)
        listed = {n: token(t, special=draw.random() < 0.5) for n, t in zip(numbers, different, strict=True)}
        config["added_tokens_decoder"] = {str(n): t for n, t in listed.items()}
    if draw.random() < 0.5:
        config[draw.choice(["additional_special_tokens", "extra_special_tokens"])] = draw.sample(texts, 2)
    files: dict[str, Any] = {"tokenizer_config.json": config}
    if draw.random() < 0.5:
        files["special_tokens_map.json"] = {name: draw.choice(texts) for name in chosen("bos_token", "sep_token")}
    if draw.random() < 0.5:
        files["added_tokens.json"] = {text: 510 + n for n, text in enumerate(draw.sample(texts, 2))}
    write(tmp_path, files)

    parts = read_tokenizer_files(tmp_path)

    assert parts is not None
    assert_same(parts, TokenizersBackend.from_pretrained(tmp_path))


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>", "pad_token": "<pad>", "add_bos_token": True},
        {"add_prefix_space": True, "add_bos_token": True, "add_eos_token": True, "bos_token": "<s>"},
    ],
)
def test_gpt2s_two_files_are_read_as_transformers_reads_them(tmp_path: Path, config: dict[str, Any]) -> None:
    """facebook/opt-125m has no other files."""
    byte_level().parts.backend_tokenizer.model.save(str(tmp_path))
    vocabulary = json.loads((tmp_path / "vocab.json").read_text())
    write(tmp_path, {"vocab.json": {"<s>": len(vocabulary), "<pad>": len(vocabulary) + 1, **vocabulary}})
    write(tmp_path, {"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", "errors": "replace", **config}})

    parts = read_tokenizer_files(tmp_path)

    assert parts is not None
    assert_same(parts, AutoTokenizer.from_pretrained(tmp_path))


def test_the_demo_models_tokenizer_is_that_of_transformers() -> None:
    parts = read_tokenizer_files(Path(DEMO_MODEL))

    assert parts is not None
    assert_same(parts, TokenizersBackend.from_pretrained(DEMO_MODEL))


def test_a_real_wordpiece_tokenizer_is_that_of_transformers() -> None:
    """all-MiniLM-L6-v2's, which lower-cases, strips accents and cuts its texts."""
    parts = read_tokenizer_files(minilm())

    assert parts is not None
    assert_same(parts, TokenizersBackend.from_pretrained(minilm()))


def test_no_answer_of_a_tokenizer_json_imports_transformers() -> None:
    code = (
        "import sys\n"
        "from forearm import LLM, SamplingParams\n"
        "llm = LLM(max_model_len=64)\n"
        "llm.chat([{'role': 'user', 'content': 'A river?'}], SamplingParams(max_tokens=2), use_tqdm=False)\n"
        "import forearm.api.app\n"
        "print('transformers' in sys.modules, 'torch' in sys.modules)"
    )

    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert run.stdout.splitlines()[-1] == "False False"


def test_older_files_name_the_extra_where_transformers_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vocab.txt").write_text("[UNK]\na")
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "transformers.tokenization_utils_tokenizers", None)

    with pytest.raises(ConfigError, match=r"needs transformers; pip install 'forearm\[tokenizers\]'"):
        load_tokenizer(tmp_path)
