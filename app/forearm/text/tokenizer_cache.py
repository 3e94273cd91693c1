"""What transformers makes of a model's tokenizer files, kept beside its weights (--weight-cache): the next start reads
that and imports no transformers, which takes most of a second.

A file belongs to one folder with its files' names, sizes and times, and to the versions of what made it; its content is
checked by hash. What is of no use is made anew.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import tokenizers

from forearm import __version__

if TYPE_CHECKING:
    from transformers.tokenization_utils_tokenizers import TokenizersBackend

log = logging.getLogger(__name__)


class KeptTokenizer(msgspec.Struct, dict=True):
    """What is needed of transformers' TokenizersBackend, under its names."""

    source: str  # folder or .gguf file
    class_name: str
    special_tokens_map: dict[str, str]
    chat_template: Any
    bos_token_id: int | None
    eos_token_id: int | None
    rust: str  # tokenizer.json's text

    @cached_property
    def backend_tokenizer(self) -> tokenizers.Tokenizer:
        return tokenizers.Tokenizer.from_str(self.rust)


class _File(msgspec.Struct, array_like=True):
    """Of a cache. digest: of `content`, which is a KeptTokenizer in MessagePack."""

    key: str
    digest: bytes
    content: bytes


def kept_tokenizer(cache: Path, source: Path) -> KeptTokenizer | None:
    """What is kept of this folder or .gguf file; None if nothing is, or it is not of these files."""
    try:
        file = msgspec.msgpack.decode(_place(cache, source).read_bytes(), type=_File)
        if file.key != _key(source) or file.digest != hashlib.sha256(file.content).digest():
            return None
        found = msgspec.msgpack.decode(file.content, type=KeptTokenizer)
        assert found.backend_tokenizer is not None  # read here, where a text that is none does no harm
    except FileNotFoundError:
        return None
    except Exception as problem:
        log.warning("weight cache: the tokenizer is made anew: %s", problem)
        return None
    return found


def keep_tokenizer(cache: Path, source: Path, backend: TokenizersBackend) -> None:
    """Write what is needed of it; a warning if that can't be done."""
    content = msgspec.msgpack.encode(
        KeptTokenizer(
            str(source.resolve()),
            type(backend).__name__,
            backend.special_tokens_map,
            backend.chat_template,
            backend.bos_token_id,
            backend.eos_token_id,
            backend.backend_tokenizer.to_str(),
        )
    )
    place = _place(cache, source)
    part = place.with_suffix(f".{os.getpid()}")  # workers start together: the last one's stays
    try:
        cache.mkdir(parents=True, exist_ok=True)
        part.write_bytes(msgspec.msgpack.encode(_File(_key(source), hashlib.sha256(content).digest(), content)))
        part.replace(place)
    except OSError as problem:
        log.warning("weight cache: the tokenizer is not kept: %s", problem)


def _place(cache: Path, source: Path) -> Path:
    name = re.sub(r"[^\w.-]", "_", source.name)
    return cache / f"{name}-{hashlib.sha256(str(source.resolve()).encode()).hexdigest()[:16]}.tokenizer"


def _key(source: Path) -> str:
    files = sorted(file for file in (source.rglob("*") if source.is_dir() else [source]) if file.is_file())
    found = [(str(file.relative_to(source.parent)), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    made_by = [__version__, version("transformers"), version("tokenizers")]
    return hashlib.sha256(repr((made_by, found)).encode()).hexdigest()
