"""A model's tokenizer: strings to ids and back, and the exact bytes of each token.

transformers takes most of a second to import: that happens where a tokenizer is loaded, maybe beside the weights.
"""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from forearm.errors import ConfigError
from forearm.model.gguf.gguf import is_gguf
from forearm.text.tokenizer.tokenizer_cache import KeptTokenizer, keep_tokenizer, kept_tokenizer

if TYPE_CHECKING:
    from tokenizers import Encoding
    from tokenizers import Tokenizer as Rust
    from transformers.tokenization_utils_tokenizers import TokenizersBackend

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SHORT = 2000  # characters: a millisecond's work
_METASPACE = "\u2581"


class Tokenizer:
    """What the text layer needs of a tokenizer. All methods may be called from any thread at once."""

    def __init__(self, backend: TokenizersBackend | KeptTokenizer) -> None:
        self.backend = backend
        self._rust: Rust = backend.backend_tokenizer
        # Some tokenizer.json files carry the truncation and padding of a training run.
        self._rust.no_truncation()
        self._rust.no_padding()
        added = self._rust.get_added_tokens_decoder()
        self.added: dict[int, str] = {token_id: token.content for token_id, token in added.items()}
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.vocab_size: int = self._rust.get_vocab_size(with_added_tokens=True)

    @property
    def class_name(self) -> str:
        """Of transformers'."""
        return self.backend.class_name if isinstance(self.backend, KeptTokenizer) else type(self.backend).__name__

    @property
    def is_kept(self) -> bool:
        """Whether it is from a cache, which knows the files' contents."""
        return isinstance(self.backend, KeptTokenizer)

    @cached_property
    def as_transformers(self) -> TokenizersBackend:
        """transformers' own; loaded now, where this one is from a cache."""
        return load_backend(Path(self.backend.source)) if isinstance(self.backend, KeptTokenizer) else self.backend

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of `text`; `add_special_tokens` puts those around it that the model was trained with (BOS, say)."""
        ids: list[int] = self._encoded(text, add_special_tokens).ids
        return ids

    def encode_cut(
        self,
        text: str,
        pair: str | None = None,
        *,
        add_special_tokens: bool = True,
        limit: int | None = None,
        keep: Literal["start", "end"] = "start",
    ) -> tuple[list[int], int]:
        """Ids of a text, or of a pair as the model was trained on pairs, and where the pair's second text begins (0:
        there is none, or the model does not tell).

        limit: most tokens, special ones included, which are never cut off; of a pair the longer text is cut first.
        """
        first = self._encoded(text, False)
        second = None if pair is None else self._encoded(pair, False)
        if limit is not None:
            special = self._rust.num_special_tokens_to_add(pair is not None) if add_special_tokens else 0
            one, two = _shares(len(first), 0 if second is None else len(second), max(limit - special, 0))
            side = "right" if keep == "start" else "left"
            first.truncate(one, direction=side)
            if second is not None:
                second.truncate(two, direction=side)
        whole = self._rust.post_process(first, second, add_special_tokens)
        types: list[int] = whole.type_ids
        return whole.ids, types.index(1) if 1 in types else 0

    def _encoded(self, text: str, add_special_tokens: bool) -> Encoding:
        """tokenizers 0.23.3 lets go of the GIL in `encode_batch` alone; 500,000 characters hold it 0.3 s otherwise."""
        if len(text) < _SHORT:
            return self._rust.encode(text, add_special_tokens=add_special_tokens)
        return self._rust.encode_batch([text], add_special_tokens=add_special_tokens)[0]

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of all these ids together. Ids past the vocabulary (padding of the head) have none."""
        text: str = self._rust.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text

    def piece(self, token_id: int) -> str:
        """The token as the vocabulary spells it ("\u0120the", "\u2581the"); empty past the vocabulary."""
        piece: str | None = self._rust.id_to_token(token_id)
        return piece or ""

    def id_of(self, piece: str) -> int | None:
        """The token that the vocabulary spells so."""
        found: int | None = self._rust.token_to_id(piece)
        return found

    def token_bytes(self, token_id: int) -> bytes:
        """What this token alone adds to a text, in bytes: a part of a character, where it is one."""
        if token_id in self.added:
            return self.added[token_id].encode()
        piece = self.piece(token_id)
        if "ByteLevel" in self._decoders and all(char in _BYTE_OF_CHAR for char in piece):
            return bytes(_BYTE_OF_CHAR[char] for char in piece)
        if "ByteFallback" in self._decoders and _BYTE_TOKEN.fullmatch(piece):
            return bytes([int(piece[3:5], 16)])
        if "WordPiece" in self._decoders:
            return piece[2:].encode() if piece.startswith("##") else f" {piece}".encode()
        return piece.replace(_METASPACE, " ").encode()

    def token_text(self, token_id: int) -> str:
        """`token_bytes` as text; a part of a character becomes U+FFFD."""
        return self.token_bytes(token_id).decode(errors="replace")

    @cached_property
    def longest_token(self) -> int:
        """In characters, as the vocabulary spells them: never fewer than it stands for in a text."""
        return max(map(len, self._rust.get_vocab(with_added_tokens=True)))

    @cached_property
    def _decoders(self) -> frozenset[str]:
        if self._rust.decoder is None:
            return frozenset()
        return frozenset(_types(json.loads(self._rust.decoder.__getstate__())))


def load_tokenizer(folder: Path, cache: str = "") -> Tokenizer:
    """The tokenizer of a model folder, or of a .gguf file. cache: a folder where it is kept; empty: nowhere.

    Raises: ConfigError if there is none, or it cannot be read.
    """
    tokenizer = Tokenizer(_kept_or_read(folder, cache))
    _give_back()
    _check(tokenizer, folder)
    return tokenizer


def _check(tokenizer: Tokenizer, folder: Path) -> None:
    """Refuse a vocabulary without text, and one that its library gives up on.

    Raises: ConfigError.
    """
    if tokenizer.vocab_size <= len(tokenizer.special_ids):
        raise ConfigError(
            f"the tokenizer of {_blamed(folder)} has {tokenizer.vocab_size} tokens, all of them control tokens: no "
            "text can be written with it; give another with --tokenizer"
        )
    try:
        tokenizer.decode(tokenizer.encode("Some text, 12."))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise _unreadable(folder, error) from error


def _kept_or_read(folder: Path, cache: str) -> TokenizersBackend | KeptTokenizer:
    kept = kept_tokenizer(Path(cache), folder) if cache else None
    if kept is not None:
        return kept
    backend = load_backend(folder)
    if cache:
        keep_tokenizer(Path(cache), folder, backend)
    return backend


def _give_back() -> None:
    """Freed memory, to the system, where the C library has a call for it (glibc): the tokenizer.json of 150,000 tokens
    leaves 70 MiB, which take 5 ms.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def load_backend(folder: Path) -> TokenizersBackend:
    """As transformers has it: `tokenizer.json` as it stands, else whatever it can convert.

    Raises: ConfigError if there is none, or it cannot be read.
    """
    try:
        from transformers.tokenization_utils_tokenizers import TokenizersBackend

        if is_gguf(folder):
            from forearm.text.tokenizer.gguf import gguf_tokenizer

            return gguf_tokenizer(folder)
        if (folder / "tokenizer.json").is_file():
            found: TokenizersBackend = TokenizersBackend.from_pretrained(folder)
            return found
        # Here and not above: AutoTokenizer imports torch where it is installed, and costs two seconds.
        from transformers import AutoTokenizer

        backend = AutoTokenizer.from_pretrained(folder)
        if not isinstance(backend, TokenizersBackend):
            raise ConfigError(f"transformers reads it as {type(backend).__name__}, which has no fast form")
        return backend
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # whatever a broken file raises in two libraries; a panic of Rust is no Exception
        raise _unreadable(folder, error) from error


def _unreadable(folder: Path, error: BaseException) -> ConfigError:
    """The error for what a library raised, in words that do not take knowing its code."""
    shown = " ".join(str(error).split())[:300]
    if isinstance(error, ConfigError):
        why = shown
    elif type(error).__name__ == "PanicException":
        why = f"the tokenizers library gave up on it ({shown})"
    elif found := re.search(r"untagged enum (\w+?)(Wrapper|Untagged|Helper|Enum)?\b", shown):
        kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", found[1]).lower()
        why = f"its {kind} is of no kind that this version of tokenizers reads"
    elif "Py" in shown and "enum" in shown:
        why = "its vocabulary or merges are not lists of strings, each merge of two parts"
    else:
        why = shown or type(error).__name__
    return ConfigError(f"cannot load the tokenizer of {_blamed(folder)}: {why}; give another with --tokenizer")


def _blamed(folder: Path) -> Path:
    """The file that cannot be read; the folder where that shows nowhere."""
    if is_gguf(folder):
        return folder
    from tokenizers import Tokenizer as Rust

    names = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.json")
    readers: list[tuple[str, Callable[[Path], object]]] = [
        ("tokenizer.json", lambda file: Rust.from_file(str(file))),
        *((name, lambda file: dict(json.loads(file.read_bytes()))) for name in names),
        ("chat_template.jinja", lambda file: file.read_text(encoding="utf-8")),
    ]
    broken = (folder / name for name, read in readers if not _reads(read, folder / name))
    return next(broken, folder / "tokenizer_config.json" if (folder / "tokenizer.json").exists() else folder)


def _reads(read: Callable[[Path], object], file: Path) -> bool:
    """Whether the file is one that this reads, or there is none."""
    try:
        if file.is_file():
            read(file)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:
        return False
    return True


def _shares(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of two texts fit `room`: the longer one is cut until they are alike, then both."""
    if first + second <= room:
        return first, second
    short = min(first, second, room // 2)
    return (short, room - short) if first <= second else (room - short, short)


def _types(node: Any) -> Iterable[str]:
    """Every "type" in a tokenizers component, nested ones too."""
    if isinstance(node, dict):
        if isinstance(node.get("type"), str):
            yield node["type"]
        for child in node.values():
            yield from _types(child)
    elif isinstance(node, list):
        for child in node:
            yield from _types(child)


def _byte_of_char() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 bytes stand for themselves, the other 68 for U+0100 onwards.

    Source: `bytes_to_unicode` in openai/gpt-2/encoder.py.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in printable]
    table.update({chr(0x100 + i): byte for i, byte in enumerate(others)})
    return table


_BYTE_OF_CHAR = _byte_of_char()
