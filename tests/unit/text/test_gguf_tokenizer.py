"""A .gguf file's tokenizer against transformers' own of the same vocabulary, SentencePiece against its definition."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.model.gguf_files import write_gguf
from tests.unit.text.conftest import CORPUS
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import GemmaTokenizer, GPT2Tokenizer, LlamaTokenizer, Qwen2Tokenizer, Qwen3_5Tokenizer

from forearm.errors import ConfigError
from forearm.text.tokenizer.gguf_pre_tokenizers import PRE_TOKENIZERS
from forearm.text.tokenizer.tokenizer import load_tokenizer

TEXTS = [
    "", " ", "   ", "\n", "\n\n\n  \n", "\t\ttabs", "the quick brown fox", " the  quick   brown\nfox ",
    "It's I'LL you'Ve WE'RE", "3", "33", "1234567890 12.5%", "x1y22z333", "a\r\nb\r\n\r\nc", "naïve café déjà vu",
    "e\u0301 composed or not: é", "日本語のテキスト、混ざった text です。", "🙂🙃 emoji 👩\u200d👩\u200d👧",
    "!!! ... ??? (a)[b]{c} <d>", "\u2581under\u2581", "a\u00a0b\u3000c", "CamelCaseWords and ALLCAPS",
]  # fmt: skip
SPECIAL = ["<unk>", "<s>", "</s>", "<|user|>", "<|assistant|>"]
NORMAL, UNKNOWN, CONTROL, USER, BYTE = 1, 2, 3, 4, 6


def trained(
    model: Any, normalizer: Any, pre_tokenizer: Any, alphabet: list[str]
) -> tuple[list[str], list[tuple[str, str]]]:
    """Tokens and merges. Words are not cut: merges go across what a model's own cutting would part."""
    tokenizer = Tokenizer(model)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    lines = [*CORPUS, *TEXTS]
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False, max_token_length=12)
    tokenizer.train_from_iterator(lines, trainer)
    state = json.loads(tokenizer.model.__getstate__())
    tokens = sorted(state["vocab"], key=state["vocab"].__getitem__)
    return tokens, [(left, right) for left, right in state["merges"]]


def byte_level_file(
    path: Path, pre: str, architecture: str = "llama", **more: Any
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """A file with a byte-level vocabulary; returns that and its merges."""
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokens, merges = trained(models.BPE(), None, whole, pre_tokenizers.ByteLevel.alphabet())
    added = [*SPECIAL[1:], "<think>"]
    keys = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*tokens, *added],
        "tokenizer.ggml.token_type": [NORMAL] * len(tokens) + [CONTROL] * (len(added) - 1) + [USER],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in merges],
        "tokenizer.ggml.bos_token_id": len(tokens),
        "tokenizer.ggml.eos_token_id": len(tokens) + 1,
    }
    write_gguf(path, architecture, keys | more, {})
    return {token: i for i, token in enumerate(tokens)}, merges


def sentencepiece_file(path: Path, **more: Any) -> tuple[dict[str, int], list[tuple[str, str]], dict[str, float]]:
    """A file with pieces and scores; returns the vocabulary, the merges and the scores of what is neither byte nor
    special."""
    pieces, merges = trained(models.BPE(), normalizers.Replace(" ", "\u2581"), None, [])
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = [*SPECIAL, *bytes_, *pieces]
    # As SentencePiece's trainer does: earlier merges have better scores, single letters the worst.
    made = {left + right: -float(rank) for rank, (left, right) in reversed([*enumerate(merges)])}
    scores = {piece: made.get(piece, -1e4 - i) for i, piece in enumerate(pieces)}
    keys = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * (5 + 256) + [scores[piece] for piece in pieces],
        "tokenizer.ggml.token_type": [UNKNOWN, *[CONTROL] * 4, *[BYTE] * 256, *[NORMAL] * len(pieces)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    write_gguf(path, "llama", keys | more, {})
    return {token: i for i, token in enumerate(tokens)}, merges, scores


def joined_by_score(text: str, scores: dict[str, float], vocabulary: dict[str, int]) -> list[int]:
    """SentencePiece's BPE as defined: join the neighbours whose piece has the best score, the leftmost of equals."""
    pieces = list(text.replace(" ", "\u2581"))
    while True:
        pairs = [(scores[a + b], -i) for i, (a, b) in enumerate(itertools.pairwise(pieces)) if a + b in scores]
        if not pairs:
            break
        at = -max(pairs)[1]
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    ids = []
    for piece in pieces:
        ids += [vocabulary[piece]] if piece in vocabulary else [vocabulary[f"<0x{b:02X}>"] for b in piece.encode()]
    return ids


@pytest.mark.parametrize(("pre", "family"), [("qwen2", Qwen2Tokenizer), ("qwen35", Qwen3_5Tokenizer)])
def test_qwen_cuts_and_merges_as_transformers_does(tmp_path: Path, pre: str, family: Any) -> None:
    vocabulary, merges = byte_level_file(tmp_path / "m.gguf", pre)
    ours = load_tokenizer(tmp_path / "m.gguf")

    theirs = family(vocab=vocabulary | {"<|endoftext|>": len(vocabulary) + 9}, merges=merges)

    for text in (*TEXTS, "कि क्या है", "a\u0323\u0307b"):
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False), text
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text)), text


def test_gpt2_cuts_and_merges_as_transformers_does(tmp_path: Path) -> None:
    vocabulary, merges = byte_level_file(tmp_path / "m.gguf", "gpt-2")
    ours = load_tokenizer(tmp_path / "m.gguf")

    theirs = GPT2Tokenizer(vocab=vocabulary | {"<|endoftext|>": len(vocabulary) + 9}, merges=merges)

    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False), text
        assert ours.decode(ours.encode(text)) == text


# The regular expressions of the models' tokenizer.json.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
PATTERNS = {
    **{name: [LLAMA3] for name in ("llama-bpe", "falcon-h1", "smaug-bpe", "glm4")},
    "smollm": [r"\p{Nd}|\p{Nl}|\p{No}", r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"],
    "tekken": [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?"
        r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ],
    "deepseek-r1-qwen": [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ],
    "deepseek-coder": ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥\u0800-一가-\ud7ff]+", r"\p{N}"],
    "bailingmoe2": [
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
    ],
    "bloom": [r" ?[^(\s|[.,!?…。，、।۔،])]+"],
    "viking": [r" ?[^(\s|[.,!?…。，、।۔،])]+", r"\p{N}"],
    "afmoe": [
        r"\G\p{N}{3}(?=(?:\p{N}{3})*(?:\P{N}|$))|\p{N}{1,2}(?=(?:\p{N}{3})*(?:\P{N}|$))|\p{N}{3}",
        "[一-鿿㐀-䶿豈-\ufaff\u3040-\u309f゠-ヿ･-ﾟ⼀-\u2fdfเ-\u0e7f\u0e80-\u0effក-\u17ffက-႟ꩠ-ꩿꧠ-\ua9ff가-\ud7afᄀ-ᇿ]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"""
        r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    "kimi-k2": [
        r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "seed-coder": [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ],
    "deepseek-v3": [
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"""
        r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    "gpt-4o": [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "laguna": [
        r"[^\n]+|[\n]+",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+",
    ],
    "tiny_aya": [
        r"\d{1,3}(?=(?:\d{3})*\b)",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    "falcon": [
        r"[\p{P}\$\+<=>\^~\|`]+",
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        "[0-9][0-9][0-9]",
    ],
    "youtu": [
        "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    "exaone-moe": [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
    ],
    "jais-2": [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)"
        r"|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}"
    ],
}

WHOLE = ("llama-bpe", "falcon-h1", "tekken", "glm4", "kimi-k2", "youtu")  # a word of the vocabulary is not merged


def test_every_way_to_cut_is_compared() -> None:
    others = ("gpt-2", "qwen2", "qwen35", "deepseek-llm")  # in tests of their own
    compared = [PRE_TOKENIZERS[name] for name in (*PATTERNS, *others)]

    assert [name for name, one in PRE_TOKENIZERS.items() if one not in compared] == []


@pytest.mark.parametrize("pre", PATTERNS)
def test_other_families_cut_by_their_own_expressions(tmp_path: Path, pre: str) -> None:
    vocabulary, merges = byte_level_file(tmp_path / "m.gguf", pre)
    ours = load_tokenizer(tmp_path / "m.gguf")

    theirs = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre in WHOLE))
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PATTERNS[pre]]
    theirs.pre_tokenizer = pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(False, use_regex=False)])

    for text in TEXTS:
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text).ids, text


def test_a_number_is_cut_from_its_end(tmp_path: Path) -> None:
    byte_level_file(tmp_path / "m.gguf", "afmoe")
    cutter = load_tokenizer(tmp_path / "m.gguf").parts.backend_tokenizer.pre_tokenizer

    for number, pieces in {
        "1": ["1"],
        "12": ["12"],
        "123": ["123"],
        "1234": ["1", "234"],
        "12345678": ["12", "345", "678"],
    }.items():
        assert [piece for piece, _ in cutter.pre_tokenize_str(number)] == pieces


def test_numbers_of_command_a_with_experts_are_cut_from_their_end_and_lines_of_laguna_apart(tmp_path: Path) -> None:
    for pre, text, pieces in (
        ("cohere2moe", "1234567 12", ["1", "234", "567", "Ġ", "12"]),
        ("laguna", "a \n\n b", ["a", "Ġ", "ĊĊ", "Ġb"]),
        ("mellum2", "ab12", ["ab", "1", "2"]),
    ):
        byte_level_file(tmp_path / "m.gguf", pre)
        cutter = load_tokenizer(tmp_path / "m.gguf").parts.backend_tokenizer.pre_tokenizer

        assert [piece for piece, _ in cutter.pre_tokenize_str(text)] == pieces, pre


def test_old_files_have_the_expressions_of_their_architecture(tmp_path: Path) -> None:
    byte_level_file(tmp_path / "new.gguf", "qwen2")
    byte_level_file(tmp_path / "old.gguf", "default", "qwen")

    for text in TEXTS:
        assert load_tokenizer(tmp_path / "old.gguf").encode(text) == load_tokenizer(tmp_path / "new.gguf").encode(text)

    byte_level_file(tmp_path / "unknown.gguf", "default", "llama")
    with pytest.raises(ConfigError, match=r'tokenizer\.ggml\.pre = "default"'):
        load_tokenizer(tmp_path / "unknown.gguf")


def test_pairs_are_marked_as_encoders_were_trained(tmp_path: Path) -> None:
    both = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    vocabulary, _ = byte_level_file(tmp_path / "m.gguf", "gpt-2", **both)
    begin, end, a, b = len(vocabulary), len(vocabulary) + 1, vocabulary["a"], vocabulary["b"]
    for architecture, pair in (
        ("modern-bert", [begin, a, end, b, end]), ("bert", [begin, a, end, end, b, end]), ("llama", [begin, a, end, b])
    ):  # fmt: skip
        byte_level_file(tmp_path / "m.gguf", "gpt-2", architecture, **both)
        ours = load_tokenizer(tmp_path / "m.gguf").parts.backend_tokenizer

        assert (ours.encode("a").ids, ours.encode("a", "b").ids) == ([begin, a, end], pair), architecture


def test_sentencepiece_joins_by_score_as_it_is_defined_and_as_transformers_does(tmp_path: Path) -> None:
    vocabulary, merges, scores = sentencepiece_file(tmp_path / "m.gguf")
    ours = load_tokenizer(tmp_path / "m.gguf")
    theirs = LlamaTokenizer(vocab=vocabulary, merges=merges, legacy=True)

    for text in TEXTS:
        ids = ours.encode(text, add_special_tokens=False)
        assert ids == (joined_by_score(" " + text, scores, vocabulary) if text else []), text
        if not text.startswith((" ", "\u2581")):  # where this class, unlike Llama 2's own file, adds none
            assert ids == theirs.encode(text, add_special_tokens=False), text
        assert ours.decode(ids) == text.replace("\u2581", " ")


def test_without_a_space_before_the_text_it_is_gemma_s(tmp_path: Path) -> None:
    vocabulary, merges, scores = sentencepiece_file(tmp_path / "m.gguf", **{"tokenizer.ggml.add_space_prefix": False})
    ours = load_tokenizer(tmp_path / "m.gguf")
    special = {token: 2000 + i for i, token in enumerate(("<bos>", "<eos>", "<pad>", "<mask>"))}
    theirs = GemmaTokenizer(vocab=vocabulary | special, merges=merges)

    for text in TEXTS:
        ids = ours.encode(text, add_special_tokens=False)
        assert ids == joined_by_score(text, scores, vocabulary), text
        assert ids == theirs.encode(text, add_special_tokens=False), text
        assert ours.decode(ids) == text.replace("\u2581", " ")


def test_gemma_4_s_file_has_merges_and_no_scores_that_count(tmp_path: Path) -> None:
    _, merges, _ = sentencepiece_file(tmp_path / "scored.gguf", **{"tokenizer.ggml.add_space_prefix": False})
    own = {"tokenizer.ggml.model": "gemma4", "tokenizer.ggml.merges": [" ".join(pair) for pair in merges]}
    vocabulary, _, _ = sentencepiece_file(tmp_path / "m.gguf", **own)
    ours, scored = load_tokenizer(tmp_path / "m.gguf"), load_tokenizer(tmp_path / "scored.gguf")
    special = {token: 2000 + i for i, token in enumerate(("<bos>", "<eos>", "<pad>", "<mask>"))}
    theirs = GemmaTokenizer(vocab=vocabulary | special, merges=merges)

    for text in TEXTS:
        assert ours.encode(text) == scored.encode(text), text
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False), text


def test_deepseek_2_cuts_letters_with_case_marks_and_ideographs(tmp_path: Path) -> None:
    byte_level_file(tmp_path / "m.gguf", "deepseek-llm")
    cuts = load_tokenizer(tmp_path / "m.gguf").parts.backend_tokenizer.pre_tokenizer

    text = "Letters, мир!\n漢字 12x"
    ends = [text[begin:end] for _, (begin, end) in cuts.pre_tokenize_str(text)]

    assert ends == ["Letters", ",", " мир", "!", "\n", "漢字", " ", "12", "x"]


def test_special_tokens_are_found_in_a_text_and_put_around_it(tmp_path: Path) -> None:
    byte_level_file(tmp_path / "bpe.gguf", "llama-bpe")
    sentencepiece_file(tmp_path / "spm.gguf", **{"tokenizer.ggml.add_eos_token": True})
    for name in ("bpe", "spm"):
        ours = load_tokenizer(tmp_path / f"{name}.gguf")
        ids = {ours.piece(i): i for i in range(ours.vocab_size)}

        inside = ours.encode("hi<|user|>there</s>", add_special_tokens=False)

        assert inside.count(ids["<|user|>"]) == 1
        assert inside[-1] == ids["</s>"]
        assert "user" not in ours.decode(inside)
        around = ours.encode("hi")
        assert around[0] == ids["<s>"]
        assert (around[-1] == ids["</s>"]) == (name == "spm")
    thinking = load_tokenizer(tmp_path / "bpe.gguf")
    assert "<think>" in thinking.decode(thinking.encode("a<think>b"))  # an added token that is part of the text


def test_bos_is_put_before_a_text_where_the_file_or_the_family_says_so(tmp_path: Path) -> None:
    for pre, more, expected in (
        ("qwen2", {}, False),
        ("llama-bpe", {}, True),
        ("llama-bpe", {"tokenizer.ggml.add_bos_token": False}, False),
        ("gpt-2", {"tokenizer.ggml.add_bos_token": True}, True),
    ):
        byte_level_file(tmp_path / "m.gguf", pre, **more)
        ours = load_tokenizer(tmp_path / "m.gguf")
        assert (ours.piece(ours.encode("hi")[0]) == "<s>") == expected, (pre, more)


def test_the_chat_template_and_special_tokens_come_with_it(tmp_path: Path) -> None:
    byte_level_file(tmp_path / "m.gguf", "qwen2", **{"tokenizer.chat_template": "{{ bos_token }}{{ messages }}"})

    tokenizer = load_tokenizer(tmp_path / "m.gguf")

    assert tokenizer.parts.chat_template == "{{ bos_token }}{{ messages }}"
    assert tokenizer.parts.special_tokens_map["bos_token"] == "<s>"
    assert tokenizer.parts.eos_token_id == tokenizer.parts.backend_tokenizer.token_to_id("</s>")
    assert tokenizer.as_transformers.eos_token == "</s>"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"tokenizer.ggml.model": "plamo2"},
            r'tokenizer\.ggml\.model = "plamo2"; it should be gpt2, llama, gemma4, rwkv, bert or t5',
        ),
        (
            {"tokenizer.ggml.pre": "my-own"},
            r'tokenizer\.ggml\.pre = "my-own"; it should be one of gpt-2.*--tokenizer',
        ),
        ({"tokenizer.ggml.merges": ["no such"]}, "cannot load the tokenizer"),
        ({"tokenizer.ggml.token_type": [1, 2]}, r"token_type = .*; it should be a list of \d+ numbers"),
        ({"tokenizer.ggml.eos_token_id": 99999}, r"eos_token_id = 99999; it should be below \d+"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, more: dict[str, Any], message: str) -> None:
    byte_level_file(tmp_path / "m.gguf", "qwen2", **more)

    with pytest.raises(ConfigError, match=message):
        load_tokenizer(tmp_path / "m.gguf")
