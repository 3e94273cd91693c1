from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forearm.text.tokenizer.detokenizer import Detokenizer, OutputText, StopStrings, TextOptions
from forearm.text.tokenizer.tokenizer import Tokenizer

TEXTS = st.text(st.sampled_from("the quick fox, é ü 日本語 🙂🏳️‍🌈👩‍👩‍👧 \n\t  ▁<s>"), max_size=60)


def streamed(tokenizer: Tokenizer, token_ids: list[int], prompt: list[int], **options: bool) -> str:
    detokenizer = Detokenizer(tokenizer, prompt, **options)
    return "".join(detokenizer.add(token_id) for token_id in token_ids) + detokenizer.finish()


@settings(max_examples=300, deadline=None)
@given(text=TEXTS, cut=st.integers(0, 1000))
def test_the_pieces_of_a_text_joined_are_the_text(tokenizer: Tokenizer, text: str, cut: int) -> None:
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    cut = cut % (len(token_ids) + 1)

    whole = tokenizer.decode(token_ids)

    assert streamed(tokenizer, token_ids, []) == whole
    prompt = streamed(tokenizer, token_ids[:cut], [])
    assert prompt + streamed(tokenizer, token_ids[cut:], token_ids[:cut]) == whole


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_random_byte_level_tokens_stream_as_they_decode(byte_level_tokenizer: Tokenizer, seed: int) -> None:
    draw = random.Random(seed)
    # Ids within the vocabulary and slightly beyond: a model's head is often padded.
    token_ids = [draw.randrange(byte_level_tokenizer.vocab_size + 8) for _ in range(40)]

    assert streamed(byte_level_tokenizer, token_ids, []) == byte_level_tokenizer.decode(token_ids).rstrip("\ufffd")


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_no_piece_ever_shows_a_broken_character(tokenizer: Tokenizer, seed: int) -> None:
    draw = random.Random(seed)
    text = "".join(draw.choice("aé日🙂 ") for _ in range(30))
    detokenizer = Detokenizer(tokenizer)

    pieces = [detokenizer.add(token_id) for token_id in tokenizer.encode(text, add_special_tokens=False)]

    assert pieces
    assert not any("\ufffd" in piece for piece in pieces)


def test_an_unfinished_character_at_the_end_is_left_out(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("fox 🙂", add_special_tokens=False)

    assert streamed(tokenizer, token_ids[:-1], []) == "fox "


def test_an_answer_keeps_the_space_between_it_and_the_prompt(metaspace_tokenizer: Tokenizer) -> None:
    prompt = metaspace_tokenizer.encode("the quick", add_special_tokens=True)
    answer = metaspace_tokenizer.encode("brown fox", add_special_tokens=False)

    assert streamed(metaspace_tokenizer, answer, prompt) == " brown fox"


def test_a_space_after_a_hidden_token_stays(metaspace_tokenizer: Tokenizer) -> None:
    words = metaspace_tokenizer.encode("fox dog", add_special_tokens=False)
    hidden = [t for t, text in metaspace_tokenizer.added.items() if text == "<|user|>"]

    assert streamed(metaspace_tokenizer, [*words, *hidden * 9, *words], []) == "fox dog fox dog"


def test_special_tokens_are_shown_where_asked_for(tokenizer: Tokenizer) -> None:
    by_text = {text: token_id for token_id, text in tokenizer.added.items()}
    token_ids = [by_text["<think>"], by_text["<|user|>"], by_text["</s>"]]

    assert streamed(tokenizer, token_ids, []) == "<think>"
    assert streamed(tokenizer, token_ids, [], skip_special_tokens=False) == "<think><|user|></s>"
    tight = streamed(tokenizer, token_ids, [], skip_special_tokens=False, spaces_between_special_tokens=False)
    assert tight == "<think><|user|></s>"


@settings(max_examples=400, deadline=None)
@given(
    text=st.text("ab.", max_size=24),
    strings=st.lists(st.text("ab.", min_size=1, max_size=4), min_size=1, max_size=4),
    include=st.booleans(),
    cuts=st.lists(st.integers(0, 24), max_size=8),
)
def test_stop_strings_cut_alike_however_the_text_arrives(
    text: str, strings: list[str], include: bool, cuts: list[int]
) -> None:
    whole = StopStrings(strings, include)
    edges = [0, *sorted(cut for cut in cuts if cut <= len(text)), len(text)]

    letter_by_letter = _cut(whole, list(text))
    in_pieces = _cut(StopStrings(strings, include), [text[a:b] for a, b in pairwise(edges)])

    assert in_pieces == letter_by_letter
    if whole.matched is None:
        assert letter_by_letter == text
        assert not any(string in text for string in strings)
    else:
        assert text.startswith(letter_by_letter)
        assert letter_by_letter.endswith(whole.matched) or not include


def _cut(stops: StopStrings, pieces: list[str]) -> str:
    shown = ""
    for piece in pieces:
        shown += stops.add(piece)
        if stops.matched is not None:
            return shown
    return shown + stops.finish()


def test_a_stop_string_may_span_tokens_and_is_never_shown_in_part(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("the quick brown fox jumps over", add_special_tokens=False)
    output = OutputText(tokenizer, [], TextOptions(stop=("n fox j",)))
    shown = ""

    for token_id in token_ids:
        shown += output.add(token_id)
        assert "the quick brown fox".startswith(shown)
        if output.matched:
            break

    assert (shown, output.matched) == ("the quick brow", "n fox j")
    assert output.finish() == ""


def test_a_stop_string_within_min_tokens_does_not_stop(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("fox fox", add_special_tokens=False)
    first = len(tokenizer.encode("fox", add_special_tokens=False))
    output = OutputText(tokenizer, [], TextOptions(stop=("fox",), min_tokens=first))

    shown = [output.add(token_id) for token_id in token_ids]

    assert "".join(shown).strip() == "fox"
    assert output.matched == "fox"


def test_what_was_held_back_comes_when_the_output_ends(tokenizer: Tokenizer) -> None:
    output = OutputText(tokenizer, [], TextOptions(stop=("dog!",)))

    shown = "".join(output.add(token_id) for token_id in tokenizer.encode("lazy dog", add_special_tokens=False))

    assert "dog" not in shown
    assert shown + output.finish() == "lazy dog"


def test_the_token_that_ends_an_output_is_not_text(tokenizer: Tokenizer) -> None:
    output = OutputText(tokenizer, [], TextOptions())
    token_ids = tokenizer.encode("fox dog", add_special_tokens=False)

    shown = "".join(output.add(t) for t in token_ids) + output.add(token_ids[0], silent=True) + output.finish()

    assert shown == "fox dog"


@pytest.mark.parametrize("text", ["the fox", "naïve 🙂日"])
def test_the_bytes_of_the_tokens_joined_are_the_bytes_of_the_text(tokenizer: Tokenizer, text: str) -> None:
    token_ids = tokenizer.encode(text, add_special_tokens=False)

    joined = b"".join(tokenizer.token_bytes(token_id) for token_id in token_ids).decode()

    assert joined.removeprefix(" ") == text


def test_some_special_tokens_may_be_text_while_the_others_are_left_out(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("the sky<|user|>blue<|assistant|> light</s>", add_special_tokens=False)
    shown = frozenset(one for one, text in tokenizer.added.items() if text == "<|user|>")
    output = OutputText(tokenizer, [], TextOptions(shown=shown))

    text = "".join(output.add(one) for one in ids) + output.finish()

    assert text.replace(" ", "") == "thesky<|user|>bluelight"
    assert text.split("<|user|>")[0].strip() == "the sky"
