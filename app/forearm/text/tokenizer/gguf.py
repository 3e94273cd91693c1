"""Build a tokenizer from the metadata of a .gguf file: byte-level BPE, SentencePiece with scores, World, an encoder's.

The metadata has the vocabulary, each token's kind, BPE's merges or SentencePiece's scores, and for BPE the name of the
pre-tokenizer, whose regular expressions are known by name only.
Source: src/llama-vocab.cpp of ggml-org/llama.cpp, which took them from the models' tokenizer.json.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from forearm.errors import ConfigError
from forearm.model.families.keys import Keys
from forearm.model.gguf.gguf import read_gguf
from forearm.text.tokenizer.gguf_encoders import ENCODERS, unigram, word_pieces
from forearm.text.tokenizer.gguf_pre_tokenizers import PRE_TOKENIZERS, UNNAMED
from forearm.text.tokenizer.tokenizer_files import TokenizerParts
from forearm.text.tokenizer.world import CHAT_TEMPLATES, world

_NORMAL, _UNKNOWN, _CONTROL, _USER, _BYTE = 1, 2, 3, 4, 6  # tokenizer.ggml.token_type
_SPECIAL = {
    "bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token", "cls": "cls_token",
    "seperator": "sep_token", "mask": "mask_token",
}  # fmt: skip
_SPACE = "\u2581"


def gguf_tokenizer(path: Path) -> TokenizerParts:
    """Return the tokenizer of the model in this file, with its chat template.

    Raises: ConfigError naming the key and the value that are missing or not supported.
    """
    return tokenizer_of(Keys(read_gguf(path).metadata, str(path)))


def tokenizer_of(keys: Keys) -> TokenizerParts:
    """Return the tokenizer of a file's metadata, as gguf_tokenizer."""
    kind = keys.text("tokenizer.ggml.model")
    tokens = _strings(keys, "tokenizer.ggml.tokens")
    if kind in ENCODERS:
        return _encoders(keys, kind, tokens)
    if kind == "gpt2":
        made, bos = _byte_level(keys, tokens)
    elif kind in ("llama", "gemma4"):
        made, bos = _sentencepiece(keys, tokens, _merges(keys) if kind == "gemma4" else None)
    elif kind == "rwkv":
        made, tokens = world(keys, tokens, [one == _NORMAL for one in _kinds(keys, tokens)])
        bos = False
    else:
        raise keys.wrong("tokenizer.ggml.model", f"gpt2, llama, gemma4, rwkv, {' or '.join(ENCODERS)}")
    special = _special(keys, tokens)
    # Tokens that are found before a text is split: control tokens, and tokens that the model's makers added.
    phi3 = keys.values.get("general.architecture") == "phi3" and kind == "llama"
    added = [
        AddedToken(
            token,
            special=token_kind != _USER,
            normalized=False,
            rstrip=phi3 and re.fullmatch(r"<unk>|<s>|<\|endoftext\|>", token) is None,  # as Phi-3's tokenizer.json
        )
        for token, token_kind in zip(tokens, _kinds(keys, tokens), strict=True)
        if token_kind in (_UNKNOWN, _CONTROL, _USER) and token
    ]
    made.add_tokens(added)
    before = [special["bos_token"]] if keys.flag("tokenizer.ggml.add_bos_token", bos) and "bos_token" in special else []
    after = [special["eos_token"]] if keys.flag("tokenizer.ggml.add_eos_token") and "eos_token" in special else []
    # Encoders were trained on pairs; RoBERTa has its mark twice between the texts.
    marks = {"modern-bert": (1, 1), "bert": (2, 1), "jina-bert-v2": (2, 1)}.get(
        keys.text("general.architecture", ""), (1, 0)
    )
    made.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after * marks[0], "$B:1", *(f"{token}:1" for token in after * marks[1])],
        special_tokens=[(token, tokens.index(token)) for token in {*before, *after}],
    )
    template = keys.get("tokenizer.chat_template")
    return TokenizerParts(made, special, CHAT_TEMPLATES.get(template, template) if kind == "rwkv" else template)


def _encoders(keys: Keys, kind: str, tokens: list[str]) -> TokenizerParts:
    """Return the tokenizer of BERT or of XLM-RoBERTa."""
    special, kinds = _special(keys, tokens), _kinds(keys, tokens)
    if kind == "bert":
        made = word_pieces(tokens, [one == _NORMAL for one in kinds], special)
    else:
        made = unigram(keys, tokens, _numbers(keys, "tokenizer.ggml.scores", tokens), special)
    control = [token for token, one in zip(tokens, kinds, strict=True) if one in (_UNKNOWN, _CONTROL) and token]
    made.add_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return TokenizerParts(made, special)


def _byte_level(keys: Keys, tokens: list[str]) -> tuple[Tokenizer, bool]:
    """Return a tokenizer of GPT-2's kind, and whether BOS is usual.

    Words are split by regular expressions, their bytes are written as letters, and merges apply in order.
    """
    name = keys.text("tokenizer.ggml.pre", "default")
    if name == "default":
        name = UNNAMED.get(keys.text("general.architecture", ""), name)
    if name not in PRE_TOKENIZERS:
        raise keys.wrong("tokenizer.ggml.pre", f"one of {', '.join(PRE_TOKENIZERS)}")
    words = PRE_TOKENIZERS[name]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=_merges(keys), ignore_merges=words.whole))
    if words.composed:
        made.normalizer = normalizers.NFC()
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in words.patterns]
    made.pre_tokenizer = pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(False, use_regex=False)])
    made.decoder = decoders.ByteLevel()
    return made, words.bos


def _merges(keys: Keys) -> Any:
    """Return the pairs that are merged, in order."""
    listed = _strings(keys, "tokenizer.ggml.merges")
    odd = next((merge for merge in listed if " " not in merge[1:-1]), None)
    if odd is not None:
        raise ConfigError(
            f"{keys.source}: tokenizer.ggml.merges has {odd!r:.100}; each must be two pieces with a space between them"
        )
    return [tuple(merge.split(" ", 1)) for merge in listed]


def _scored_merges(keys: Keys, tokens: list[str]) -> list[tuple[str, str]]:
    """Return the pairs that SentencePiece would merge, in order: the pair whose piece has the best score first."""
    scores, kinds = _numbers(keys, "tokenizer.ggml.scores", tokens), _kinds(keys, tokens)
    return merges_of(
        {t: s for t, s, k in zip(tokens, scores, kinds, strict=True) if k not in (_UNKNOWN, _CONTROL, _USER, _BYTE)}
    )


def merges_of(plain: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the pairs that SentencePiece would merge, in order, of the scores of its pieces."""
    # All ways to join two pieces to a third, in the order of the third one's score: SentencePiece joins the adjacent
    # pair with the best score, the leftmost one of equals, and ranked BPE merges do the same.
    scored = [
        (score, (piece[:cut], piece[cut:]))
        for piece, score in plain.items()
        for cut in range(1, len(piece))
        if piece[:cut] in plain and piece[cut:] in plain
    ]
    return [pair for _, pair in sorted(scored, key=lambda merge: -merge[0])]


def _sentencepiece(keys: Keys, tokens: list[str], listed: Any) -> tuple[Tokenizer, bool]:
    """Return a tokenizer of Llama 2's kind, and whether BOS is usual.

    Spaces are letters, the pair with the best score is merged first, and unknown characters are written as bytes.
    listed: the pairs in order, if the file has them; None: scores tell the order.
    """
    merges = _scored_merges(keys, tokens) if listed is None else listed
    kinds = _kinds(keys, tokens)
    unknown = next((token for token, kind in zip(tokens, kinds, strict=True) if kind == _UNKNOWN), None)
    vocabulary = {token: i for i, token in enumerate(tokens)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    after = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if keys.flag("tokenizer.ggml.add_space_prefix", listed is None):
        made.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), normalizers.Replace(" ", _SPACE)])
        after.append(decoders.Strip(" ", 1, 0))
    else:
        made.normalizer = normalizers.Replace(" ", _SPACE)
    made.decoder = decoders.Sequence(after)
    return made, True


def _special(keys: Keys, tokens: list[str]) -> dict[str, str]:
    """Return bos_token and the other special tokens as text."""
    special: dict[str, str] = {}
    for short, name in _SPECIAL.items():
        key = f"tokenizer.ggml.{short}_token_id"
        index = keys.optional_integer(key)
        if index is not None:
            if not 0 <= index < len(tokens):
                raise keys.wrong(key, f"below {len(tokens)}")
            special[name] = tokens[index]
    return special


def _strings(keys: Keys, key: str) -> list[str]:
    value = keys.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
        raise keys.wrong(key, "a list of strings")
    return value


def _kinds(keys: Keys, tokens: list[str]) -> list[float]:
    return _numbers(keys, "tokenizer.ggml.token_type", tokens)


def _numbers(keys: Keys, key: str, tokens: list[str]) -> list[float]:
    """Return one number for each token."""
    return keys.numbers(key, len(tokens))
