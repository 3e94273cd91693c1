"""A tokenizer.json's vocabulary as the metadata of a .gguf file: the inverse of gguf.py, for byte-level BPE.

Source: convert_hf_to_gguf.py (get_vocab_base) and src/llama-vocab.cpp of ggml-org/llama.cpp.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forearm.errors import ConfigError
from forearm.text.templates.chat_template import find_chat_template
from forearm.text.tokenizer.gguf_pre_tokenizers import GPT2, PRE_TOKENIZERS
from forearm.text.tokenizer.tokenizer import load_tokenizer

_NORMAL, _CONTROL, _USER, _UNUSED = 1, 3, 4, 5  # tokenizer.ggml.token_type
_REMEDY = "convert the model with llama.cpp's convert_hf_to_gguf.py, and quantize the file it writes"


def gguf_vocabulary(folder: Path, size: int, ends: Sequence[int]) -> dict[str, Any]:
    """Return the metadata of a model folder's tokenizer and chat template.

    size: rows of the embedding; rows without a token get an unused one. ends: tokens that end an answer, which get the
    keys of the ends of text, turn and message.
    Raises: ConfigError if llama.cpp has no name for the tokenizer, which is then not byte-level BPE or splits words in
    a way of its own.
    """
    parts = load_tokenizer(folder).parts
    made = parts.backend_tokenizer
    state = json.loads(made.to_str())
    ids, added = made.get_vocab(with_added_tokens=True), made.get_added_tokens_decoder()
    if max(ids.values()) >= size:
        raise ConfigError(f"{folder}: the tokenizer has a token {max(ids.values())}, the embedding {size} rows")
    tokens, kinds = [f"[PAD{i}]" for i in range(size)], [_UNUSED] * size
    for token, i in ids.items():
        tokens[i], kinds[i] = token, _NORMAL
    for i, one in added.items():
        kinds[i] = _CONTROL if one.special else _USER
    keys: dict[str, Any] = {
        "model": "gpt2", "pre": _pre_tokenizer(folder, state), "tokens": tokens, "token_type": kinds,
        "merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in state["model"]["merges"]],
    }  # fmt: skip
    end = parts.eos_token_id
    ordered = dict.fromkeys([end, *ends] if end is not None and (end in ends or not ends) else ends)
    keys |= {f"{name}_token_id": i for name, i in zip(("eos", "eot", "eom"), ordered, strict=False)}
    named = (("bos", "bos_token"), ("padding", "pad_token"), ("unknown", "unk_token"))
    special = {name: ids.get(parts.special_tokens_map.get(token, "")) for name, token in named}
    keys |= {f"{name}_token_id": i for name, i in special.items() if i is not None}
    whole, bare = (made.encode("a", add_special_tokens=with_them).ids for with_them in (True, False))
    keys["add_bos_token"] = len(whole) > len(bare) and whole[0] == special["bos"]
    keys["add_eos_token"] = len(whole) > len(bare) and whole[-1] == end
    if template := find_chat_template(folder, None, parts.chat_template):
        keys["chat_template"] = template
    # llama.cpp has this one key without its prefix.
    return {f"tokenizer.{'' if key == 'chat_template' else 'ggml.'}{key}": value for key, value in keys.items()}


def check_vocabulary(folder: Path, file: Path, text: str) -> None:
    """Compare the tokens of a text. Raises: ConfigError if the file's are not the folder's."""
    if load_tokenizer(folder).encode(text) != load_tokenizer(file).encode(text):
        raise ConfigError(f"{folder}: the tokenizer has rules that a GGUF file does not name; {_REMEDY}")


def _pre_tokenizer(folder: Path, state: dict[str, Any]) -> str:
    """Return llama.cpp's name for the way in which a tokenizer cuts a text."""
    model, normalizer, cut = state["model"], state["normalizer"], state["pre_tokenizer"]
    parts = cut["pretokenizers"] if cut and cut["type"] == "Sequence" else [cut]
    patterns = [_pattern(one) for one in parts if one]
    found = [one for one in patterns if one]
    if model["type"] == "BPE" and not model.get("byte_fallback") and None not in patterns:
        for name, words in PRE_TOKENIZERS.items():
            whole, composed = bool(model.get("ignore_merges")), normalizer == {"type": "NFC"}
            same = (list(words.patterns), words.whole, words.composed) == (found, whole, composed)
            if same and (composed or normalizer is None):
                return name
    raise ConfigError(f"{folder}: the tokenizer cuts texts in a way that has no name in GGUF files; {_REMEDY}")


def _pattern(part: dict[str, Any]) -> str | None:
    """Return the regular expression of a part of a pre-tokenizer; empty: it does not cut. None: it is another kind."""
    if part["type"] == "Split" and part["behavior"] == "Isolated" and not part["invert"]:
        expression: str | None = part["pattern"].get("Regex")
        return expression
    if part["type"] == "Digits" and part["individual_digits"]:
        return r"\p{N}"
    if part["type"] == "ByteLevel" and not part["add_prefix_space"]:
        return GPT2 if part["use_regex"] else ""
    return None
