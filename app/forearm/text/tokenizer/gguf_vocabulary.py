"""A tokenizer.json's vocabulary as the metadata of a .gguf file: the inverse of gguf.py, for BPE.

Byte-level BPE gets the name of its pre-tokenizer, BPE of a SentencePiece model (Llama 2, Gemma, Phi-3) scores that
follow from the order of its merges. What the metadata say is read again and compared with the folder's tokenizer.
Source: convert_hf_to_gguf.py (get_vocab_base) and src/llama-vocab.cpp of ggml-org/llama.cpp.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from forearm.errors import ConfigError
from forearm.model.families.keys import Keys
from forearm.text.templates.chat_template import find_chat_template
from forearm.text.tokenizer.gguf import merges_of, tokenizer_of
from forearm.text.tokenizer.gguf_pre_tokenizers import GPT2, PRE_TOKENIZERS
from forearm.text.tokenizer.tokenizer import Tokenizer, load_tokenizer

log = logging.getLogger(__name__)

_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6  # tokenizer.ggml.token_type
_BYTES = {f"<0x{byte:02X}>" for byte in range(256)}
# Special tokens of Gemma 4 that llama.cpp shows in answers, so that calls of tools can be found in them.
_SHOWN = {
    "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>',
}  # fmt: skip
_REMEDY = "convert the model with llama.cpp's convert_hf_to_gguf.py, and quantize the file it writes"


def gguf_vocabulary(
    folder: Path, size: int, ends: Sequence[int], architecture: str = "", text: str = ""
) -> dict[str, Any]:
    """Return the metadata of a model folder's tokenizer and chat template.

    size: rows of the embedding; rows without a token get an unused one. ends: tokens that end an answer, which get the
    keys of the ends of text, turn and message. architecture: of the file. text: of which the file must give the same
    tokens as the folder, beside the texts of all tokens.
    Raises: ConfigError if no metadata give the same tokens: the tokenizer is no BPE, or splits words in a way that
    llama.cpp has no name for.
    """
    tokenizer = load_tokenizer(folder)
    made, state = tokenizer.parts.backend_tokenizer, json.loads(tokenizer.parts.backend_tokenizer.to_str())
    ids = made.get_vocab(with_added_tokens=True)
    if max(ids.values()) >= size:
        raise ConfigError(f"{folder}: the tokenizer has a token {max(ids.values())}, the embedding {size} rows")
    keys = _tokens(tokenizer, state, size, architecture) | _special(tokenizer, ends)
    if template := find_chat_template(folder, None, tokenizer.parts.chat_template):
        keys["chat_template"] = template
    texts = [made.decode([i], skip_special_tokens=False) for i in ids.values()]
    for own in _ways(state, keys, architecture):
        # llama.cpp has this one key without its prefix.
        named = {f"tokenizer.{'' if key == 'chat_template' else 'ggml.'}{key}": v for key, v in (keys | own).items()}
        read = Tokenizer(tokenizer_of(Keys(named | {"general.architecture": architecture}, str(folder))))
        if _agree(tokenizer, read, text, texts):
            return named
    raise ConfigError(f"{folder}: the tokenizer cuts texts in a way that has no name in GGUF files; {_REMEDY}")


def _tokens(tokenizer: Tokenizer, state: dict[str, Any], size: int, architecture: str) -> dict[str, Any]:
    """Return the tokens and their kinds."""
    made, model = tokenizer.parts.backend_tokenizer, state["model"]
    tokens, kinds = [f"[PAD{i}]" for i in range(size)], [_UNUSED] * size
    for token, i in made.get_vocab(with_added_tokens=True).items():
        tokens[i], kinds[i] = token, _BYTE if model.get("byte_fallback") and token in _BYTES else _NORMAL
    for i, one in made.get_added_tokens_decoder().items():
        shown = architecture == "gemma4" and one.content in _SHOWN
        kinds[i] = _CONTROL if one.special and not shown else _USER
        if model.get("byte_fallback") and one.content == model.get("unk_token"):
            kinds[i] = _UNKNOWN
    return {"tokens": tokens, "token_type": kinds}


def _special(tokenizer: Tokenizer, ends: Sequence[int]) -> dict[str, Any]:
    """Return the ids of special tokens, and whether they are put around a text."""
    parts, made = tokenizer.parts, tokenizer.parts.backend_tokenizer
    ids, end = made.get_vocab(with_added_tokens=True), parts.eos_token_id
    ordered = dict.fromkeys([end, *ends] if end is not None and (end in ends or not ends) else ends)
    keys: dict[str, Any] = {f"{name}_token_id": i for name, i in zip(("eos", "eot", "eom"), ordered, strict=False)}
    named = (("bos", "bos_token"), ("padding", "pad_token"), ("unknown", "unk_token"))
    special = {name: ids.get(parts.special_tokens_map.get(token, "")) for name, token in named}
    keys |= {f"{name}_token_id": i for name, i in special.items() if i is not None}
    whole, bare = (made.encode("a", add_special_tokens=with_them).ids for with_them in (True, False))
    keys["add_bos_token"] = len(whole) > len(bare) and whole[0] == special["bos"]
    keys["add_eos_token"] = len(whole) > len(bare) and whole[-1] == end
    return keys


def _ways(state: dict[str, Any], keys: dict[str, Any], architecture: str) -> Iterator[dict[str, Any]]:
    """Yield metadata that may say how the tokenizer cuts and merges, the likeliest first."""
    model = state["model"]
    if model["type"] != "BPE":
        return
    pairs = [tuple(one.split(" ", 1) if isinstance(one, str) else one) for one in model["merges"]]
    merges = [" ".join(pair) for pair in pairs]
    if not model.get("byte_fallback"):
        for name in _pre_tokenizers(state, architecture):
            yield {"model": "gpt2", "pre": name, "merges": merges}
    elif architecture == "gemma4":
        scores = [-1000.0] * len(keys["tokens"])  # as the converter writes them; merges count
        yield {"model": "gemma4", "merges": merges, "scores": scores, "add_space_prefix": False}
    elif (found := _scores(pairs, keys["tokens"], keys["token_type"])) is not None:
        for prefix in (False, True):
            yield {"model": "llama", "pre": "default", "scores": found, "add_space_prefix": prefix}


def _pre_tokenizers(state: dict[str, Any], architecture: str) -> list[str]:
    """Return llama.cpp's names for the way in which a tokenizer cuts a text, the likeliest first.

    Of several names for the same, the architecture's own comes first. A difference in what else a name stands for may
    matter for no token: whether words that are tokens are merged.
    """
    model, normalizer, cut = state["model"], state["normalizer"], state["pre_tokenizer"]
    parts = cut["pretokenizers"] if cut and cut["type"] == "Sequence" else [cut]
    patterns = [_pattern(one) for one in parts if one]
    if None in patterns:
        return []
    found = [one for one in patterns if one]
    whole, composed = bool(model.get("ignore_merges")), normalizer == {"type": "NFC"}
    names = [name for name, words in PRE_TOKENIZERS.items() if list(words.patterns) == found]
    words_of = PRE_TOKENIZERS.__getitem__
    names.sort(
        key=lambda name: (words_of(name).composed != composed, words_of(name).whole != whole, name != architecture)
    )
    if names and composed and not words_of(names[0]).composed:
        log.warning("tokenizer: letters of a text are not composed (NFC), as GGUF files do not say it of %s", names[0])
    return names


def _scores(pairs: Sequence[tuple[str, str]], tokens: Sequence[str], kinds: Sequence[int]) -> list[float] | None:
    """Return a score for each token by which SentencePiece merges these pairs in their order; None: there are none.

    It merges all pairs that make the same piece alike, so these must follow each other, and no pair be left out.
    """
    pieces = [left + right for left, right in pairs]
    if len(list(itertools.groupby(pieces))) > len(set(pieces)):
        return None
    ranks = {piece: -float(i) for i, piece in reversed([*enumerate(pieces)])}
    scores = [ranks.get(token, -float(len(pairs) + i)) for i, token in enumerate(tokens)]
    plain = {token: score for token, score, kind in zip(tokens, scores, kinds, strict=True) if kind == _NORMAL}
    return scores if set(merges_of(plain)) <= set(pairs) else None


def _agree(one: Tokenizer, other: Tokenizer, text: str, texts: Sequence[str]) -> bool:
    """Return whether two tokenizers give the same tokens of a text, with special ones, and of texts without."""
    if one.encode(text) != other.encode(text):
        return False
    found = (made.parts.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False) for made in (one, other))
    return all(a.ids == b.ids for a, b in zip(*found, strict=True))


def _pattern(part: dict[str, Any]) -> str | None:
    """Return the regular expression of a part of a pre-tokenizer; empty: it does not cut. None: it is another kind."""
    kept = part.get("behavior") == "Isolated" and not part["invert"]
    if part["type"] == "Split" and (kept or (part["behavior"] == "Removed" and part["invert"])):
        expression: str | None = part["pattern"].get("Regex")
        return expression
    if part["type"] == "Digits" and part["individual_digits"]:
        return r"\p{N}"
    if part["type"] == "ByteLevel" and not part["add_prefix_space"]:
        return GPT2 if part["use_regex"] else ""
    return None
