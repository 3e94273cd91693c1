"""A model's tokenizer: strings to ids and back, and the exact bytes of each token.

transformers is imported only where a tokenizer's files must be converted, or a caller asks for its tokenizer.
"""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from forearm.config.environment import cache_folder
from forearm.errors import ConfigError, InvalidRequest
from forearm.model.gguf.gguf import is_gguf
from forearm.text.tokenizer.gguf import gguf_tokenizer
from forearm.text.tokenizer.tiktoken_file import kimi_tokenizer
from forearm.text.tokenizer.tokenizer_cache import read_cached_tokenizer, write_cached_tokenizer
from forearm.text.tokenizer.tokenizer_files import BYTE_OF_CHAR, TokenizerParts, read_tokenizer_files

if TYPE_CHECKING:
    from tokenizers import Encoding
    from tokenizers import Tokenizer as Rust
    from transformers.tokenization_utils_tokenizers import TokenizersBackend

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SHORT = 2000  # characters: a millisecond's work
_METASPACE = "\u2581"


class Tokenizer:
    """The tokenizer functions that the text layer needs. All methods may be called from any thread at once.

    `encode`, `encode_cut` and `decode` raise InvalidRequest for what this tokenizer cannot express: a vocabulary
    without an unknown token fails on a character that it lacks, and some files make the library panic on some text.
    """

    def __init__(self, parts: TokenizerParts, source: Path | None = None) -> None:
        self.parts = parts
        self._source = source
        self._rust: Rust = parts.backend_tokenizer
        # Some tokenizer.json files carry the truncation and padding of a training run.
        self._rust.no_truncation()
        self._rust.no_padding()
        added = self._rust.get_added_tokens_decoder()
        self.added: dict[int, str] = {token_id: token.content for token_id, token in added.items()}
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.vocab_size: int = self._rust.get_vocab_size(with_added_tokens=True)

    @cached_property
    def as_transformers(self) -> TokenizersBackend:
        """The tokenizer of transformers, made of the same files.

        Raises: ConfigError if transformers is not installed.
        """
        with _conversion("a tokenizer of transformers"):
            if self._source is not None and not is_gguf(self._source):
                return _load_with_transformers(self._source)
            from transformers.tokenization_utils_tokenizers import TokenizersBackend

            named: dict[str, Any] = dict(self.parts.special_tokens_map)
            template = self.parts.chat_template
            return TokenizersBackend(tokenizer_object=self._rust, chat_template=template, **named)  # type: ignore[no-untyped-call]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`. add_special_tokens: add the special tokens that the model was trained with (BOS,
        say).
        """
        return self.encode_from(text, 0, add_special_tokens)[0]

    def encode_from(self, text: str, at: int, add_special_tokens: bool) -> tuple[list[int], int]:
        """Return the ids of `text`, and how many come before the token of its character `at`; 0 if none covers it."""
        found = self.encoding(text, add_special_tokens)
        before: int | None = found.char_to_token(at)
        return found.ids, before or 0

    def encode_cut(
        self,
        text: str,
        pair: str | None = None,
        *,
        add_special_tokens: bool = True,
        limit: int | None = None,
        keep: Literal["start", "end"] = "start",
    ) -> tuple[list[int], int]:
        """Return the ids of a text or pair, and where the pair's second text begins (0: no pair, or not distinguished).

        limit: the most tokens, special ones included, which are never cut off; of a pair the longer text is
        truncated first.
        """
        whole_text = pair is None and limit is None  # is completed as it is encoded
        first = self.encoding(text, whole_text and add_special_tokens)
        second = None if pair is None else self.encoding(pair, False)
        if limit is not None:
            special = self._rust.num_special_tokens_to_add(pair is not None) if add_special_tokens else 0
            one, two = _shares(len(first), 0 if second is None else len(second), max(limit - special, 0))
            side = "right" if keep == "start" else "left"
            first.truncate(one, direction=side)
            if second is not None:
                second.truncate(two, direction=side)
        with _refused("encode this text"):
            whole = first if whole_text else self._rust.post_process(first, second, add_special_tokens)
        types: list[int] = whole.type_ids
        return whole.ids, types.index(1) if 1 in types else 0

    def encoding(self, text: str, add_special_tokens: bool) -> Encoding:
        """Return ids and offsets of a text. The GIL is released for long texts.

        tokenizers 0.23.3 releases it in `encode_batch` only; 500,000 characters would hold it for 0.3 s
        otherwise.
        """
        with _refused("encode this text"):
            if len(text) < _SHORT:
                return self._rust.encode(text, add_special_tokens=add_special_tokens)
            return self._rust.encode_batch([text], add_special_tokens=add_special_tokens)[0]

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of all these ids together. Ids beyond the vocabulary (padding of the head) have none."""
        with _refused("decode these token ids"):
            text: str = self._rust.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text

    def piece(self, token_id: int) -> str:
        """The token as the vocabulary spells it ("\u0120the", "\u2581the"); empty past the vocabulary."""
        piece: str | None = self._rust.id_to_token(token_id)
        return piece or ""

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that this token adds to a text, which may be a part of a character."""
        if token_id in self.added:
            return self.added[token_id].encode()
        piece = self.piece(token_id)
        if "ByteLevel" in self._decoders and all(char in BYTE_OF_CHAR for char in piece):
            return bytes(BYTE_OF_CHAR[char] for char in piece)
        if "ByteFallback" in self._decoders and _BYTE_TOKEN.fullmatch(piece):
            return bytes([int(piece[3:5], 16)])
        if "WordPiece" in self._decoders:
            return piece[2:].encode() if piece.startswith("##") else f" {piece}".encode()
        return piece.replace(_METASPACE, " ").encode()

    def token_text(self, token_id: int) -> str:
        """Return `token_bytes` as text; a part of a character becomes U+FFFD."""
        return self.token_bytes(token_id).decode(errors="replace")

    @cached_property
    def longest_token(self) -> int:
        """The length of the longest token in characters as the vocabulary spells it, at least its length in a text."""
        return max(map(len, self._rust.get_vocab(with_added_tokens=True)))

    @cached_property
    def _decoders(self) -> frozenset[str]:
        if self._rust.decoder is None:
            return frozenset()
        return frozenset(_types(json.loads(self._rust.decoder.__getstate__())))


def load_tokenizer(source: Path, cache: str = "", cache_bytes: int | None = None) -> Tokenizer:
    """Return the tokenizer of a model folder or of a .gguf file.

    cache: --weight-cache, to keep it in where it had to be made of other files than tokenizer.json; empty: none.
    cache_bytes: --weight-cache-bytes.

    Raises: ConfigError if there is none, it cannot be read, its vocabulary has no text, or its library fails on it.
    """
    try:
        parts = None if is_gguf(source) else read_tokenizer_files(source)
        folder = cache_folder(cache) if parts is None else None
        if folder is not None:
            parts = read_cached_tokenizer(folder, source)
        if parts is None:
            parts = gguf_tokenizer(source) if is_gguf(source) else _converted(source)
            if folder is not None:
                write_cached_tokenizer(folder, source, parts, cache_bytes)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # broken files raise anything in two libraries; a Rust panic is not an Exception
        raise _unreadable(source, error) from error
    tokenizer = Tokenizer(parts, source)
    # Return freed memory to the system, where the C library can (glibc): reading the tokenizer.json of 150,000 tokens
    # leaves 70 MiB of it, and returning them takes 5 ms.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    if tokenizer.vocab_size <= len(tokenizer.special_ids):
        raise ConfigError(
            f"the tokenizer of {_faulty_file(source)} has {tokenizer.vocab_size} tokens, all of them control tokens: "
            "no text can be written with it; give another with --tokenizer"
        )
    try:
        tokenizer.decode(tokenizer.encode("Some text, 12."))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise _unreadable(source, error) from error
    return tokenizer


def _converted(folder: Path) -> TokenizerParts:
    """Return what transformers makes of a folder without tokenizer.json, except for Kimi's tokenizer.

    Raises: ConfigError if it cannot, or is not installed.
    """
    if kimi := kimi_tokenizer(folder):
        return kimi
    with _conversion(f"the tokenizer of {folder}, which has no tokenizer.json, converted"):
        backend = _load_with_transformers(folder)
    return TokenizerParts(backend.backend_tokenizer, backend.special_tokens_map, backend.chat_template)


def _load_with_transformers(folder: Path) -> TokenizersBackend:
    from transformers.tokenization_utils_tokenizers import TokenizersBackend

    if (folder / "tokenizer.json").is_file():
        found: TokenizersBackend = TokenizersBackend.from_pretrained(folder)
        return found
    # Imported here, because AutoTokenizer imports torch where it is installed, which takes two seconds.
    from transformers import AutoTokenizer

    backend = AutoTokenizer.from_pretrained(folder)
    if not isinstance(backend, TokenizersBackend):
        raise ConfigError(f"transformers reads it as {type(backend).__name__}, which has no fast tokenizer")
    return backend


@contextmanager
def _conversion(wanted: str) -> Iterator[None]:
    """Turn the lack of transformers into a ConfigError that names the remedy."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "transformers":
            raise
        raise ConfigError(f"{wanted}: this needs transformers; pip install 'forearm[tokenizers]'") from None


def _unreadable(folder: Path, error: BaseException) -> ConfigError:
    """Return the error for what a library raised, in words that need no knowledge of its code."""
    shown = " ".join(str(error).split())[:300]
    if isinstance(error, ConfigError):
        why = shown
    elif type(error).__name__ == "PanicException":
        why = f"the tokenizers library gave up on it ({shown})"
    elif found := re.search(r"untagged enum (\w+?)(Wrapper|Untagged|Helper|Enum)?\b", shown):
        kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", found[1]).lower()
        why = f"its {kind} is of a kind that this version of tokenizers does not read"
    elif "Py" in shown and "enum" in shown:
        why = "its vocabulary or merges are not lists of strings, each merge of two parts"
    else:
        why = shown or type(error).__name__
    return ConfigError(f"cannot load the tokenizer of {_faulty_file(folder)}: {why}; give another with --tokenizer")


def _faulty_file(folder: Path) -> Path:
    """Return the file that cannot be read, or the folder if none can be named."""
    if is_gguf(folder):
        return folder
    from tokenizers import Tokenizer as Rust

    names = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.json")
    readers: list[tuple[str, Callable[[Path], object]]] = [
        ("tokenizer.json", lambda file: Rust.from_file(str(file))),
        *((name, lambda file: dict(json.loads(file.read_bytes()))) for name in names),
        ("chat_template.jinja", lambda file: file.read_text(encoding="utf-8")),
    ]
    for name, read in readers:
        try:
            if (folder / name).is_file():
                read(folder / name)
        except (KeyboardInterrupt, SystemExit):  # noqa: PERF203  (six files)
            raise
        except BaseException:
            return folder / name
    return folder / "tokenizer_config.json" if (folder / "tokenizer.json").exists() else folder


@contextmanager
def _refused(doing: str) -> Iterator[None]:
    """Turn what the tokenizers library raises, a Rust panic too, into an InvalidRequest in the library's words."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        said = " ".join(str(error).split())[:300]
        raise InvalidRequest(f"the model's tokenizer cannot {doing}: {said}; send another") from error


def _shares(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many tokens of two texts fit `room`: the longer one is truncated until they are equal, then both."""
    if first + second <= room:
        return first, second
    short = min(first, second, room // 2)
    return (short, room - short) if first <= second else (room - short, short)


def _types(node: Any) -> Iterable[str]:
    """Yield every "type" in a tokenizers component, nested ones too."""
    if isinstance(node, dict):
        if isinstance(node.get("type"), str):
            yield node["type"]
        for child in node.values():
            yield from _types(child)
    elif isinstance(node, list):
        for child in node:
            yield from _types(child)
