"""The regular expressions by which byte-level tokenizers of .gguf files cut a text into words, by llama.cpp's names.

Source: src/llama-vocab.cpp of ggml-org/llama.cpp, which took them from the models' tokenizer.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PreTokenizer:
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

_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
# By three, the first one or two where their number is not a multiple of three.
_DIGITS_FROM_THE_END = r"\p{N}{1,2}(?=(?:\p{N}{3})*(?!\p{N}))|\p{N}{3}"
_ASIAN = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0eff\u1780-\u17ff"
    "\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)

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
        PreTokenizer([GPT2]),
    ),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
        PreTokenizer([_LLAMA3], whole=True, bos=True),
    ),
    **dict.fromkeys(("smaug-bpe", "dbrx", "chatglm-bpe"), PreTokenizer([_LLAMA3])),
    **dict.fromkeys(("glm4", "glm5"), PreTokenizer([_LLAMA3], whole=True)),
    "qwen2": PreTokenizer([_QWEN2], composed=True),
    "qwen35": PreTokenizer([_QWEN35], composed=True),
    "seed-coder": PreTokenizer([_SEED]),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), PreTokenizer(_DEEPSEEK3)),
    "afmoe": PreTokenizer([_DIGITS_FROM_THE_END, _ASIAN, _DEEPSEEK3[2]]),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), PreTokenizer([_BLOOM])),
    "viking": PreTokenizer([_BLOOM, r"\p{N}"]),
    "deepseek-llm": PreTokenizer(_DEEPSEEK),
    "deepseek-coder": PreTokenizer([r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK[4], r"\p{N}"]),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), PreTokenizer([_BAILING])),
    **dict.fromkeys(
        ("deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez", "kormo", "f2llmv2", "solar-open", "grok-2"),
        PreTokenizer([_QWEN2]),
    ),
    **dict.fromkeys(
        ("smollm", "refact", "starcoder", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"),
        PreTokenizer([r"\p{N}", GPT2]),
    ),
    "laguna": PreTokenizer([r"[^\n]+|[\n]+", _QWEN2]),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), PreTokenizer([r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O])),
    "tekken": PreTokenizer([_TEKKEN], whole=True, bos=True),
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2", "kanana2", "talkie"), PreTokenizer([_GPT4O])),
    "kimi-k2": PreTokenizer([KIMI], whole=True),
    "falcon": PreTokenizer([r"[\p{P}$+<=>^~|`]+", GPT2, "[0-9]{3}"]),
    "youtu": PreTokenizer(_YOUTU, whole=True),
    "exaone-moe": PreTokenizer([_EXAONE_MOE]),
    "jais-2": PreTokenizer([_JAIS2]),
}

# Of files from before 2024-05, which do not name it, where all models of the architecture have the same.
UNNAMED = {
    "qwen": "qwen2", "qwen2": "qwen2", "falcon": "falcon", "mpt": "mpt", "bloom": "bloom", "phi2": "phi-2",
    **dict.fromkeys(("gpt2", "gptj", "gptneox"), "gpt-2"), "starcoder": "starcoder", "starcoder2": "starcoder",
}  # fmt: skip
