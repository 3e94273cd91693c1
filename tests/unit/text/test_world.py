"""RWKV's World tokenizer of a .gguf file: the longest token at each place of a text."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.unit.model.gguf_files import write_gguf
from tests.unit.text.test_gguf_tokenizer import TEXTS

from forearm.errors import ConfigError
from forearm.text.templates.chat_template import find_chat_template
from forearm.text.tokenizer.tokenizer import Tokenizer, load_tokenizer

NORMAL, CONTROL, UNUSED = 1, 3, 5
WORDS = [
    *(bytes([byte]) for byte in range(256)), b" the", b" there", b"the", b"quick", b"quic", b"\n\n", b"    ", b"  ",
    b"it's", b'"\\n"', "é".encode(), "本語".encode(), "日本語の".encode(), "🙂".encode()[:3], b"\r\n", b"[&&]", b"a-z^",
    b"ab", b"abcd", b"abcdefgh", b"t" * 128, b"\xff\xfe",
]  # fmt: skip


def world_file(path: Path, words: list[bytes] = WORDS, **more: Any) -> Path:
    """A file as llama.cpp's converter writes it: tokens as Python's repr spells their bytes, and rows of no token."""
    tokens = ["<s>", *(repr(word)[2:-1] for word in words), "[PAD]"]
    keys = {
        "tokenizer.ggml.model": "rwkv",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL, *[NORMAL] * len(words), UNUSED],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.eot_token_id": 1 + words.index(b"\n\n") if b"\n\n" in words else 0,
        "tokenizer.chat_template": "rwkv-world",
    }
    return write_gguf(path, "rwkv7", keys | more, {})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(world_file(tmp_path_factory.mktemp("world") / "m.gguf"))


def longest_first(text: str) -> list[int]:
    """The tokens by their definition."""
    data, ids = text.encode(), []
    while data:
        best = max((word for word in WORDS if data.startswith(word)), key=len)
        ids.append(1 + WORDS.index(best))
        data = data[len(best) :]
    return ids


def test_the_longest_token_is_taken_at_each_place(world: Tokenizer) -> None:
    rng = random.Random(1)
    parts = [
        "a", "b", "ab", "abc", "defgh", " ", "\n", " the", "re", "quic", "k", "é", "日", "本語", "の", "🙂", "t" * 50,
        "\r", "[&", "&]", "a-z^", "it's", '"\\n', '"', "\\", "\x00",
    ]  # fmt: skip
    for text in (*TEXTS, *("".join(rng.choices(parts, k=40)) for _ in range(50))):
        ids = world.encode(text)

        assert ids == longest_first(text), text
        assert world.decode(ids) == text


def test_tokens_are_their_bytes(world: Tokenizer) -> None:
    assert [world.token_bytes(1 + i) for i in range(len(WORDS))] == WORDS
    assert world.vocab_size == len(WORDS) + 2


def test_the_control_token_is_found_in_a_text_and_nowhere_added(world: Tokenizer) -> None:
    assert world.encode("a<s>b") == [1 + ord("a"), 0, 1 + ord("b")]
    assert world.special_ids == {0}
    assert (world.parts.bos_token_id, world.parts.eos_token_id) == (0, 0)
    assert world.encode("[PAD]") == longest_first("[PAD]")


def test_the_name_of_llama_cpp_s_template_is_its_format(world: Tokenizer, tmp_path: Path) -> None:
    template = find_chat_template(tmp_path, None, world.parts.chat_template)
    assert template is not None
    from jinja2 import Template

    messages = [
        {"role": "system", "content": " Be brief. "},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!\n"},
        {"role": "user", "content": "Bye"},
    ]
    rendered = Template(template).render(messages=messages, add_generation_prompt=True)
    assert rendered == "System: Be brief.\n\nUser: Hi\n\nAssistant: Hello!\n\nUser: Bye\n\nAssistant:"


def test_another_template_of_a_file_stays(tmp_path: Path) -> None:
    path = world_file(tmp_path / "m.gguf", **{"tokenizer.chat_template": "{{ messages[0].content }}"})

    assert load_tokenizer(path).parts.chat_template == "{{ messages[0].content }}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([word for word in WORDS if word != b"\x80"], "has no token of the byte 0x80; a text may have each"),
        ([*WORDS, b"x" * 257], "has a token of 257 bytes; a token has at most 256"),
    ],
    ids=["a byte", "a long token"],
)
def test_a_vocabulary_that_no_text_can_be_cut_by_is_refused(words: list[bytes], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"tokenizer\.ggml\.tokens {message}; download it again"):
        load_tokenizer(world_file(tmp_path / "m.gguf", words))
