"""Build a tokenizer from the metadata of a .gguf file: byte-level BPE, SentencePiece with scores, or an encoder's.

The metadata has the vocabulary, each token's kind, BPE's merges or SentencePiece's scores, and for BPE the name of the
pre-tokenizer, whose regular expressions are known by name only.
Source: src/llama-vocab.cpp of ggml-org/llama.cpp, which took them from the models' tokenizer.json.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from forearm.errors import ConfigError
from forearm.model.families.keys import Keys
from forearm.model.gguf.gguf import read_gguf
from forearm.text.tokenizer.gguf_encoders import ENCODERS, unigram, word_pieces
from forearm.text.tokenizer.tokenizer_files import TokenizerParts

_NORMAL, _UNKNOWN, _CONTROL, _USER, _BYTE = 1, 2, 3, 4, 6  # tokenizer.ggml.token_type
_SPECIAL = {
    "bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token", "cls": "cls_token",
    "seperator": "sep_token", "mask": "mask_token",
}  # fmt: skip
_SPACE = "\u2581"


@dataclass(frozen=True)
class _PreTokenizer:
    """The pre-tokenizer of one model family.

    patterns: applied one after the other, each splitting the pieces of the one before.
    whole: a word that is a token is that token, whatever the merges are. bos: a text starts with BOS unless the
    file says otherwise. composed: Unicode is composed first (NFC).
    """

    patterns: Sequence[str]
    whole: bool = False
    bos: bool = False
    composed: bool = False


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _ENGLISH + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST
_QWEN2 = _ENGLISH + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _REST
_QWEN35 = _ENGLISH + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
_QWEN35 += r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_SEED = _ENGLISH + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
# Digits by three, then Chinese and Japanese, then words, of which a mark before letters is part.
_DEEPSEEK3 = [
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
]
# DeepSeek V2's: words of cased letters, marks, spaces at the end, Chinese and Korean, digits.
_DEEPSEEK = [
    r"[\r\n]",
    "\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370"
    "-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5"
    "\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-"
    "\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-"
    "\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80"
    "-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-"
    "\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149"
    "\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"
    "\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb"
    "\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
    r"\p{N}+",
]
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s|\p{{N}}%s"
_CASED_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# Chinese characters by themselves; words are of the other letters.
_NOT_HAN = r"&&[^\p{Han}]]"
_KIMI_UPPER, _KIMI_LOWER = _UPPER[:-1] + _NOT_HAN, _LOWER[:-1] + _NOT_HAN
KIMI = (
    rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?{_KIMI_UPPER}*{_KIMI_LOWER}+{_ENGLISH}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_KIMI_UPPER}+{_KIMI_LOWER}*{_ENGLISH}?|\p{{N}}{{1,3}}{_REST}"
)
_TEKKEN = _CASED % ("", "", "") + _CASED_REST
_GPT4O = _CASED % (_ENGLISH + "?", _ENGLISH + "?", "{1,3}") + _CASED_REST
# Korean, marks, Bopomofo, Chinese and Japanese first.
_YOUTU = [
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    "|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    _CASED % (_ENGLISH + "?", _ENGLISH + "?", "") + _CASED_REST,
]
# Single letters with a space between them are one piece.
_EXAONE_MOE = _ENGLISH + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?"
_EXAONE_MOE += r"|\s*[\r\n]|\s+(?!\S)|\s+"
# Spaces by powers of two.
_JAIS2 = _ENGLISH + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
_JAIS2 += "|".join(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4, "1,2")) + r"|\s"

PRE_TOKENIZERS = {
    **dict.fromkeys(
        (
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "exaone4",
            "roberta-bpe",
            "modern-bert",
            "jina-v1-en",
            "jina-v2-code",
            "jina-v2-de",
            "jina-v2-es",
            "jina-de",
            "jina-es",
            "gigachat",
            "a.x-4.0",
            "mellum",
        ),
        _PreTokenizer([GPT2]),
    ),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
        _PreTokenizer([_LLAMA3], whole=True, bos=True),
    ),
    **dict.fromkeys(("smaug-bpe", "dbrx", "chatglm-bpe"), _PreTokenizer([_LLAMA3])),
    **dict.fromkeys(("glm4", "glm5"), _PreTokenizer([_LLAMA3], whole=True)),
    "qwen2": _PreTokenizer([_QWEN2], composed=True),
    "qwen35": _PreTokenizer([_QWEN35], composed=True),
    "seed-coder": _PreTokenizer([_SEED]),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), _PreTokenizer(_DEEPSEEK3)),
    "deepseek-llm": _PreTokenizer(_DEEPSEEK),
    "deepseek-coder": _PreTokenizer([r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK[4], r"\p{N}"]),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), _PreTokenizer([_BAILING])),
    **dict.fromkeys(
        ("deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez", "kormo", "f2llmv2"), _PreTokenizer([_QWEN2])
    ),
    **dict.fromkeys(
        ("smollm", "refact", "starcoder", "command-r", "codeshell", "exaone", "minerva-7b"),
        _PreTokenizer([r"\p{N}", GPT2]),
    ),
    "tekken": _PreTokenizer([_TEKKEN], whole=True, bos=True),
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2", "kanana2", "talkie"), _PreTokenizer([_GPT4O])),
    "kimi-k2": _PreTokenizer([KIMI], whole=True),
    "falcon": _PreTokenizer([r"[\p{P}$+<=>^~|`]+", GPT2, "[0-9]{3}"]),
    "youtu": _PreTokenizer(_YOUTU, whole=True),
    "exaone-moe": _PreTokenizer([_EXAONE_MOE]),
    "jais-2": _PreTokenizer([_JAIS2]),
}


def gguf_tokenizer(path: Path) -> TokenizerParts:
    """Return the tokenizer of the model in this file, with its chat template.

    Raises: ConfigError naming the key and the value that are missing or not supported.
    """
    keys = Keys(read_gguf(path).metadata, str(path))
    kind = keys.text("tokenizer.ggml.model")
    tokens = _strings(keys, "tokenizer.ggml.tokens")
    if kind in ENCODERS:
        return _encoders(keys, kind, tokens)
    if kind == "gpt2":
        made, bos = _byte_level(keys, tokens)
    elif kind in ("llama", "gemma4"):
        made, bos = _sentencepiece(keys, tokens, _merges(keys) if kind == "gemma4" else None)
    else:
        raise keys.wrong("tokenizer.ggml.model", f"gpt2, llama, gemma4, {' or '.join(ENCODERS)}")
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
    return TokenizerParts(made, special, keys.get("tokenizer.chat_template"))


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
    plain = {t: s for t, s, k in zip(tokens, scores, kinds, strict=True) if k not in (_UNKNOWN, _CONTROL, _USER, _BYTE)}
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
