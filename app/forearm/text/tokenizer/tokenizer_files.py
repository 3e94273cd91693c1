"""Read a tokenizer from the files of a model folder: tokenizer.json, or GPT-2's vocab.json and merges.txt.

tokenizer_config.json and its older companions (special_tokens_map.json, added_tokens.json) name special tokens and may
add some that tokenizer.json lacks. The rules are those of transformers.tokenization_utils_tokenizers.TokenizersBackend,
which takes half a second to import; tests/unit/text/test_tokenizer_files.py compares the two.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_GPT2_CLASSES = ("GPT2Tokenizer", "GPT2TokenizerFast")
_GPT2_DEFAULT = "<|endoftext|>"
# GPT-2's alphabet: printable Latin-1 bytes are written as themselves, the other 68 as U+0100 onwards.
# Source: `bytes_to_unicode` of openai/gpt-2/encoder.py.
_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = (byte for byte in range(256) if byte not in _PRINTABLE)
BYTE_OF_CHAR = {chr(byte): byte for byte in _PRINTABLE} | {chr(0x100 + i): byte for i, byte in enumerate(_OTHERS)}


@dataclass(frozen=True)
class TokenizerParts:
    """A tokenizer, and what its files say beside it, under the names that transformers has for them.

    special_tokens_map: bos_token, eos_token and so on as text, which chat templates may name
    chat_template: of tokenizer_config.json or the .gguf file: a text, texts by name, or None
    """

    backend_tokenizer: Tokenizer
    special_tokens_map: dict[str, str]
    chat_template: Any = None

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a text."""
        return self._id_of("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a text."""
        return self._id_of("eos_token")

    def _id_of(self, name: str) -> int | None:
        for text in (self.special_tokens_map.get(name), self.special_tokens_map.get("unk_token")):
            found: int | None = None if text is None else self.backend_tokenizer.token_to_id(text)
            if text is None or found is not None:
                return found
        return None


def read_tokenizer_files(folder: Path, made: Tokenizer | None = None) -> TokenizerParts | None:
    """Return the tokenizer of a folder; None if it has other files, which must be converted.

    made: the tokenizer that was made of them, to which the folder's configuration belongs.

    Raises: OSError, ValueError, TypeError, or what the tokenizers library raises on a broken file.
    """
    config: dict[str, Any] = dict(read_object(folder / "tokenizer_config.json"))
    before = after = False  # the special tokens around a text, where the files leave that to the configuration
    if made is not None:
        pass
    elif (folder / "tokenizer.json").is_file():
        made = Tokenizer.from_file(str(folder / "tokenizer.json"))
        if made.padding is not None:
            config.setdefault("pad_token", made.padding["pad_token"])
    elif config.get("tokenizer_class") in _GPT2_CLASSES and (folder / "merges.txt").is_file():
        made = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(config.get("add_prefix_space")))
        made.decoder = decoders.ByteLevel()
        config = {**dict.fromkeys(("unk_token", "bos_token", "eos_token"), _GPT2_DEFAULT), **config}
        before, after = bool(config.get("add_bos_token")), bool(config.get("add_eos_token"))
    else:
        return None
    special = _add_tokens(made, folder, config)
    if made.post_processor is None:
        left = [special["bos_token"]] if before and "bos_token" in special else []
        right = [special["eos_token"]] if after and "eos_token" in special else []
        first, second = ([*left, part, *right] for part in ("$A", "$B"))
        made.post_processor = processors.TemplateProcessing(
            single=[f"{piece}:0" for piece in first],
            pair=[*(f"{piece}:0" for piece in first), *(f"{piece}:1" for piece in second)],
            special_tokens=[(token, made.token_to_id(token)) for token in {*left, *right}],
        )
    made.encode_special_tokens = bool(config.get("split_special_tokens"))
    template = config.get("chat_template")
    if isinstance(template, list):
        template = {one["name"]: one["template"] for one in template}
    return TokenizerParts(made, special, template)


def _add_tokens(made: Tokenizer, folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Add the tokens that the configuration names and tokenizer.json lacks. Returns: the special ones by name."""
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    listed = config.get("added_tokens_decoder")
    older = read_object(folder / "special_tokens_map.json") if listed is None else {}
    # Tokens of that file are special whatever they say.
    config.update(
        (name, {**value, "special": True} if isinstance(value, dict) else value) for name, value in older.items()
    )
    named = {name: value for name, value in config.items() if name in _NAMED and value is not None}
    models_own = {n: v for n, v in config.items() if n.endswith("_token") and n not in _NAMED and _is_token(v)}
    if isinstance(extra, Mapping):
        models_own, extra = {**models_own, **extra}, []
    if listed is None:
        told = [value for name, value in named.items() if isinstance(value, str) or name in older]
        decoder = _legacy_added(made, folder, {_text(token) for token in (*told, *extra)})
    else:
        decoder = {int(number): added_token(token) for number, token in listed.items()}
    extra = extra or older.get("additional_special_tokens") or []
    known = {token.content: token for token in decoder.values()}
    special = {
        **{name: known.get(_text(named[name]), added_token(named[name])) for name in _NAMED if name in named},
        **{name: added_token(value) for name, value in models_own.items()},
    }
    own = made.get_added_tokens_decoder().values()
    present = {str(token.__getstate__()) for token in own}
    texts = {token.content for token in special.values()}
    adding = [
        token
        for _, token in sorted(decoder.items())
        if str(token.__getstate__()) not in present or (token.content in texts and not token.special)
    ]
    names = {token.content for token in (*own, *adding)}
    # Of one text with different flags the last counts.
    further = {str(token.__getstate__()): token for token in (*special.values(), *map(added_token, extra))}
    adding += [token for token in further.values() if token.content not in names]
    for token in adding:
        token.special = token.special or token.content in texts
    made.add_tokens(adding)
    return {name: token.content for name, token in special.items()}


def _legacy_added(made: Tokenizer, folder: Path, special: Iterable[str]) -> dict[int, AddedToken]:
    """Return the tokens of added_tokens.json and tokenizer.json by id."""
    texts = set(special)
    listed = {
        number: AddedToken(text, normalized=text not in texts, special=text in texts)
        for text, number in read_object(folder / "added_tokens.json").items()
    }
    return {**listed, **made.get_added_tokens_decoder()}


def read_object(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file; an empty one if there is none. Raises: ValueError for anything else."""
    if not file.is_file():
        return {}
    found = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError(f"{file.name} is {type(found).__name__}; it must be an object")
    return found


def _is_token(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, dict) and isinstance(value.get("content"), str))


def _text(token: Any) -> str:
    return str(token["content"]) if isinstance(token, dict) else str(token)


def added_token(value: Any) -> AddedToken:
    """Return a token that a configuration gives as text or as an object."""
    if isinstance(value, str):
        return AddedToken(value, special=True)
    if not _is_token(value):
        raise TypeError(f"{value!r:.100} is no token: a text, or an object with a content")
    return AddedToken(value["content"], **{flag: bool(value[flag]) for flag in _FLAGS if flag in value})
