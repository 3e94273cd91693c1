"""The tokenizer beside cached weights: what is read from there is what transformers made of the model's files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.text.test_gguf_tokenizer import TEXTS, byte_level_file

from forearm.model.checkpoint.hub import DEMO_MODEL
from forearm.text.tokenizer.tokenizer import Tokenizer, load_tokenizer
from forearm.text.tokenizer.tokenizer_cache import CachedTokenizer


@pytest.fixture(params=["demo", "with_bos", "gguf"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The demo model's files; those with a token and a BOS that tokenizer_config.json alone tells of; a .gguf file."""
    if request.param == "gguf":
        byte_level_file(tmp_path / "m.gguf", "llama-bpe")
        return tmp_path / "m.gguf"
    folder = shutil.copytree(DEMO_MODEL, tmp_path / request.param)
    if request.param == "with_bos":
        change_config(folder)
    return folder


def change_config(folder: Path) -> None:
    tokens = load_tokenizer(folder)
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text()) if file.exists() else {}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    more = {str(tokens.vocab_size): {"content": "<|more|>", "special": True, **plain}}
    config |= {"add_bos_token": True, "bos_token": "<|more|>", "added_tokens_decoder": more, "chat_template": "{{ 1 }}"}
    file.write_text(json.dumps(config))


def alike(one: Tokenizer, other: Tokenizer) -> bool:
    ids = range(one.vocab_size + 2)
    return (
        all(
            one.encode(text, add) == other.encode(text, add) for text in [*TEXTS, "a<|more|>b"] for add in (True, False)
        )
        and [one.token_bytes(i) for i in ids] == [other.token_bytes(i) for i in ids]
        and (one.added, one.special_ids, one.class_name) == (other.added, other.special_ids, other.class_name)
        and one.backend.special_tokens_map == other.backend.special_tokens_map
        and one.as_transformers.encode(TEXTS[-1]) == other.as_transformers.encode(TEXTS[-1])
        and one.backend.chat_template == other.backend.chat_template
        and (one.backend.bos_token_id, one.backend.eos_token_id)
        == (other.backend.bos_token_id, other.backend.eos_token_id)
    )


def test_the_second_start_reads_what_the_first_has_kept(source: Path, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")

    first, second = load_tokenizer(source, cache), load_tokenizer(source, cache)

    assert (isinstance(first.backend, CachedTokenizer), isinstance(second.backend, CachedTokenizer)) == (False, True)
    assert alike(second, load_tokenizer(source))


def test_a_file_that_has_changed_makes_it_anew(tmp_path: Path) -> None:
    folder, cache = shutil.copytree(DEMO_MODEL, tmp_path / "model"), str(tmp_path / "cache")
    load_tokenizer(folder, cache)

    change_config(folder)

    changed = load_tokenizer(folder, cache)
    assert not isinstance(changed.backend, CachedTokenizer)
    assert "<|more|>" in changed.added.values()
    assert alike(load_tokenizer(folder, cache), changed)


def test_a_damaged_file_is_made_anew(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    load_tokenizer(DEMO_MODEL, str(cache))
    (kept,) = cache.iterdir()
    whole = kept.read_bytes()

    for damaged in (b"", whole[: len(whole) // 2], whole.replace(b"the", b"THE"), b"\x93" + os.urandom(100)):
        kept.write_bytes(damaged)
        assert not isinstance(load_tokenizer(DEMO_MODEL, str(cache)).backend, CachedTokenizer)
        assert kept.read_bytes() == whole


def test_where_nothing_can_be_written_the_tokenizer_is_there_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    assert load_tokenizer(DEMO_MODEL, str(tmp_path / "file")).encode("a")


def test_a_start_from_the_cache_imports_no_transformers(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from forearm import LLM, SamplingParams\n"
        f"llm = LLM(weight_cache={str(tmp_path)!r}, max_model_len=64)\n"
        "llm.generate('A river', SamplingParams(max_tokens=2), use_tqdm=False)\n"
        "print('transformers' in sys.modules)"
    )

    runs = [subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True) for _ in range(2)]

    assert [run.stdout.split()[-1] for run in runs] == ["True", "False"]


def test_another_tokenizer_of_the_same_size_and_time_makes_it_anew(source: Path, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    load_tokenizer(source, cache)
    assert isinstance(load_tokenizer(source, cache).backend, CachedTokenizer)
    file = source if source.is_file() else source / "tokenizer.json"
    status, content = file.stat(), file.read_bytes()
    old, new = (
        (b"llama-bpe", b"smaug-bpe") if source.is_file() else (b'"ignore_merges": false', b'"ignore_merges":  true')
    )
    file.write_bytes(content.replace(old, new))
    assert file.read_bytes() != content
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))

    assert not isinstance(load_tokenizer(source, cache).backend, CachedTokenizer)
