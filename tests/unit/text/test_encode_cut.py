"""Texts and pairs cut to a length: special tokens stay, of a pair the longer text is cut first, as in tokenizers."""

from __future__ import annotations

from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from forearm.text.tokenizer.tokenizer import Tokenizer
from forearm.text.tokenizer.tokenizer_files import TokenizerParts

WORDS = {word: number for number, word in enumerate(["[UNK]", "[CLS]", "[SEP]", *"abcdefghij"])}
TEXTS = st.lists(st.sampled_from("abcdefghij"), max_size=12).map(" ".join)


def backend() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(WordLevel(WORDS, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    made.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return made


@pytest.fixture(scope="module")
def ours() -> Tokenizer:
    return Tokenizer(TokenizerParts(backend(), {}))


THEIRS = backend()


def test_tokens_before_a_character_are_those_that_lie_before_its_token_whole(ours: Tokenizer) -> None:
    text = "a bc d"

    assert [ours.encode_from(text, at, False)[1] for at in range(8)] == [0, 0, 1, 1, 0, 2, 0, 0]
    assert ours.encode_from(text, 2, True) == (ours.encode(text), 2)
    assert ours.encode_from("", 0, False) == ([], 0)


@given(text=TEXTS, limit=st.integers(2, 16), side=st.sampled_from(["right", "left"]))
def test_a_text_is_cut_as_tokenizers_cuts_it(ours: Tokenizer, text: str, limit: int, side: Any) -> None:
    THEIRS.enable_truncation(limit, direction=side)

    ids, second = ours.encode_cut(text, limit=limit, keep="start" if side == "right" else "end")

    assert ids == THEIRS.encode(text).ids
    assert second == 0


@given(one=TEXTS, two=TEXTS, limit=st.integers(3, 20), side=st.sampled_from(["right", "left"]))
def test_a_pair_is_cut_as_tokenizers_cuts_it(ours: Tokenizer, one: str, two: str, limit: int, side: Any) -> None:
    THEIRS.enable_truncation(limit, strategy="longest_first", direction=side)
    wanted = THEIRS.encode(one, two)

    ids, second = ours.encode_cut(one, two, limit=limit, keep="start" if side == "right" else "end")

    assert ids == wanted.ids
    assert second == wanted.type_ids.index(1)


def test_without_a_limit_nothing_is_cut_and_specials_may_be_left_out(ours: Tokenizer) -> None:
    assert ours.encode_cut("a b c") == ([1, 3, 4, 5, 2], 0)
    assert ours.encode_cut("a b", "c") == ([1, 3, 4, 2, 5, 2], 4)
    assert ours.encode_cut("a b c", add_special_tokens=False, limit=2) == ([3, 4], 0)
