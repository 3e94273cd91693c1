"""Kimi's tokenizer, read from tiktoken.model: the tokens that merging by rank gives, and those beside the file."""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.unit.text.test_gguf_tokenizer import TEXTS
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from forearm.errors import ConfigError
from forearm.text.tokenizer.gguf_pre_tokenizers import KIMI
from forearm.text.tokenizer.tokenizer import load_tokenizer
from forearm.text.tokenizer.tokenizer_files import BYTE_OF_CHAR

SPOKEN = [*TEXTS, "HelloWorld don't DON'T 12345", "世界你好 World世界", "日本ごa  \n\n x", "aaaaaaa bbbb abababab"]
CUT = pre_tokenizers.Split(Regex(KIMI), "isolated")


def write(folder: Path, **config: Any) -> dict[bytes, int]:
    """Write a tokenizer that was trained on the texts. Returns: its tokens' ranks."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence([CUT, pre_tokenizers.ByteLevel(False, use_regex=False)])
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=list(BYTE_OF_CHAR), show_progress=False)
    made.train_from_iterator(SPOKEN * 3, trainer)
    ranks = {bytes(BYTE_OF_CHAR[char] for char in text): rank for text, rank in made.get_vocab().items()}
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()]
    (folder / "tiktoken.model").write_text("".join(lines))
    first = len(ranks)
    listed = {first: "[BOS]", first + 1: "[EOS]", first + 7: "<|im_end|>"}
    added = {str(i): {"content": text, "special": i != first + 7} for i, text in listed.items()}
    own = {"tokenizer_class": "TikTokenTokenizer", "bos_token": "[BOS]", "eos_token": "[EOS]"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**own, "added_tokens_decoder": added, **config}))
    return ranks


def merged(ranks: dict[bytes, int], text: str) -> list[int]:
    """The tokens of each piece of a text: of all neighbours the first pair of the lowest rank becomes one."""
    found = []
    for piece, _ in CUT.pre_tokenize_str(text):
        parts = [bytes([byte]) for byte in piece.encode()] if piece.encode() not in ranks else [piece.encode()]
        while True:
            pairs = [(ranks[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in ranks]
            if not pairs:
                break
            _, at = min(pairs)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        found += [ranks[part] for part in parts]
    return found


def test_pairs_are_merged_by_rank(tmp_path: Path) -> None:
    ranks = write(tmp_path)
    tokenizer = load_tokenizer(tmp_path)

    for text in SPOKEN:
        assert tokenizer.encode(text) == merged(ranks, text)
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert any(len(merged(ranks, text)) < len(text.encode()) for text in SPOKEN)


def test_tokens_behind_the_file_are_those_that_the_configuration_names_or_reserved(tmp_path: Path) -> None:
    first = len(write(tmp_path))
    tokenizer = load_tokenizer(tmp_path)

    assert tokenizer.encode("[BOS][EOS]<|im_end|>") == [first, first + 1, first + 7]
    assert tokenizer.encode(f"<|reserved_token_{first + 255}|>") == [first + 255]
    assert tokenizer.parts.bos_token_id == first
    assert {first, first + 2} <= tokenizer.special_ids
    assert first + 7 not in tokenizer.special_ids


@pytest.mark.parametrize("line", ["YQ== x", "?? 3", "YQ== 99999"])
def test_a_broken_file_is_refused(line: str, tmp_path: Path) -> None:
    write(tmp_path)
    with (tmp_path / "tiktoken.model").open("a") as file:
        file.write(line)

    with pytest.raises(ConfigError, match="cannot load the tokenizer"):
        load_tokenizer(tmp_path)
