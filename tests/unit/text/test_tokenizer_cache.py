"""The tokenizer beside cached weights: what is read from there is what transformers made of the model's files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.text.test_gguf_tokenizer import TEXTS, byte_level_file

from forearm.model.checkpoint.hub import DEMO_MODEL
from forearm.text.tokenizer import tokenizer as tokenizer_module
from forearm.text.tokenizer.tokenizer import Tokenizer, load_tokenizer
from forearm.text.tokenizer.tokenizer_files import TokenizerParts


@pytest.fixture(params=["wordpiece", "gguf"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder of files that are converted (BERT's vocab.txt); a .gguf file."""
    if request.param == "gguf":
        byte_level_file(tmp_path / "m.gguf", "llama-bpe")
        return tmp_path / "m.gguf"
    return wordpiece_folder(tmp_path / "old")


def wordpiece_folder(folder: Path) -> Path:
    """A BERT of 2019: a vocabulary, no tokenizer.json."""
    folder.mkdir()
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *"abcdefghij",
        *("##" + c for c in "abcdefghij"),
        "the",
        "ice",
    ]
    (folder / "vocab.txt").write_text("\n".join(words))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    return folder


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The sources of tokenizers that were not read from the cache."""
    found: list[Path] = []
    for name in ("gguf_tokenizer", "_converted"):
        own = getattr(tokenizer_module, name)

        def noted(path: Path, own: Callable[[Path], TokenizerParts] = own) -> TokenizerParts:
            found.append(path)
            return own(path)

        monkeypatch.setattr(tokenizer_module, name, noted)
    return found


def alike(one: Tokenizer, other: Tokenizer) -> bool:
    ids = range(one.vocab_size + 2)
    return (
        all(one.encode(text, add) == other.encode(text, add) for text in TEXTS for add in (True, False))
        and [one.token_bytes(i) for i in ids] == [other.token_bytes(i) for i in ids]
        and (one.added, one.special_ids) == (other.added, other.special_ids)
        and one.parts.special_tokens_map == other.parts.special_tokens_map
        and one.as_transformers.encode(TEXTS[-1]) == other.as_transformers.encode(TEXTS[-1])
        and one.parts.chat_template == other.parts.chat_template
        and (one.parts.bos_token_id, one.parts.eos_token_id) == (other.parts.bos_token_id, other.parts.eos_token_id)
    )


def test_the_second_start_reads_what_the_first_has_kept(source: Path, tmp_path: Path, made: list[Path]) -> None:
    cache = str(tmp_path / "cache")

    _, second = load_tokenizer(source, cache), load_tokenizer(source, cache)

    assert made == [source]
    assert alike(second, load_tokenizer(source))


def test_a_tokenizer_json_is_read_as_it_is(tmp_path: Path, made: list[Path]) -> None:
    load_tokenizer(DEMO_MODEL, str(tmp_path / "cache"))

    assert made == []
    assert not (tmp_path / "cache").exists()


def test_a_file_that_has_changed_makes_it_anew(tmp_path: Path, made: list[Path]) -> None:
    folder, cache = wordpiece_folder(tmp_path / "old"), str(tmp_path / "cache")
    load_tokenizer(folder, cache)

    with (folder / "vocab.txt").open("a") as file:
        file.write("\nsnow")

    changed = load_tokenizer(folder, cache)
    assert changed.piece(changed.vocab_size - 1) == "snow"
    assert alike(load_tokenizer(folder, cache), changed)
    assert len(made) == 2


def test_a_damaged_file_is_made_anew(source: Path, tmp_path: Path, made: list[Path]) -> None:
    cache = tmp_path / "cache"
    load_tokenizer(source, str(cache))
    (kept,) = cache.iterdir()
    whole = kept.read_bytes()

    for damaged in (b"", whole[: len(whole) // 2], whole.replace(b"special", b"SPECIAL"), b"\x93" + os.urandom(100)):
        made.clear()
        kept.write_bytes(damaged)
        load_tokenizer(source, str(cache))
        assert made == [source]
        assert kept.read_bytes() == whole


def test_where_nothing_can_be_written_the_tokenizer_is_there_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    assert load_tokenizer(wordpiece_folder(tmp_path / "old"), str(tmp_path / "file")).encode("a")


def test_another_tokenizer_of_the_same_size_and_time_makes_it_anew(
    source: Path, tmp_path: Path, made: list[Path]
) -> None:
    cache = str(tmp_path / "cache")
    load_tokenizer(source, cache)
    file = source if source.is_file() else source / "vocab.txt"
    status, content = file.stat(), file.read_bytes()
    file.write_bytes(
        content.replace(b"llama-bpe", b"smaug-bpe") if source.is_file() else content.replace(b"ice", b"sky")
    )
    assert file.read_bytes() != content
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))

    load_tokenizer(source, cache)

    assert made == [source, source]


def test_tokenizers_share_the_bound_of_the_cache(tmp_path: Path, made: list[Path]) -> None:
    cache, folders = tmp_path / "cache", [wordpiece_folder(tmp_path / name) for name in ("one", "two", "three")]
    for age, folder in enumerate(folders[:2]):
        load_tokenizer(folder, str(cache))
        os.utime(next(cache.glob(f"{folder.name}-*")), (age, age))
    size = max(file.stat().st_size for file in cache.iterdir())
    load_tokenizer(folders[0], str(cache))  # used again, so that `two` is now the oldest

    load_tokenizer(folders[2], str(cache), 2 * size + 100)

    assert {file.name.split("-")[0] for file in cache.iterdir()} == {"one", "three"}
    load_tokenizer(folders[1], str(cache), 100)
    assert {file.name.split("-")[0] for file in cache.iterdir()} == {"one", "three"}, "there is no room for it"
    assert made == [*folders, folders[1]]
