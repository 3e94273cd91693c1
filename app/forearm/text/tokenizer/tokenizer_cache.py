"""What transformers makes of a model's tokenizer files, kept beside its weights (--weight-cache): the next start reads
that and imports no transformers, which takes most of a second.

A file belongs to one folder with its files' names and contents, weights aside (of a .gguf file, to its header), and to
the versions of what made it; its content is checked by hash. What is of no use is made anew.
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
from forearm.model.gguf.gguf import read_gguf_file

if TYPE_CHECKING:
    from transformers.tokenization_utils_tokenizers import TokenizersBackend

log = logging.getLogger(__name__)

_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth", ".onnx", ".h5", ".msgpack")  # no tokenizer is in them


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
    """Of a cache. digest: of `content`, which is a KeptTokenizer in MessagePack. header_bytes: of a .gguf file, those
    that the key tells of."""

    key: str
    header_bytes: int
    digest: bytes
    content: bytes


def kept_tokenizer(cache: Path, source: Path) -> KeptTokenizer | None:
    """What is kept of this folder or .gguf file; None if nothing is, or it is not of these files."""
    try:
        file = msgspec.msgpack.decode(_place(cache, source).read_bytes(), type=_File)
        if file.key != _key(source, file.header_bytes) or file.digest != hashlib.sha256(file.content).digest():
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
        header_bytes = 0 if source.is_dir() else _header_bytes(source)
        file = _File(_key(source, header_bytes), header_bytes, hashlib.sha256(content).digest(), content)
        part.write_bytes(msgspec.msgpack.encode(file))
        part.replace(place)
    except OSError as problem:
        log.warning("weight cache: the tokenizer is not kept: %s", problem)


def _place(cache: Path, source: Path) -> Path:
    name = re.sub(r"[^\w.-]", "_", source.name)
    return cache / f"{name}-{hashlib.sha256(str(source.resolve()).encode()).hexdigest()[:16]}.tokenizer"


def _header_bytes(gguf: Path) -> int:
    """How long a .gguf file's header is: metadata has the tokenizer, and the names of tensors come behind it."""
    return min((tensor.begin for tensor in read_gguf_file(gguf).tensors.values()), default=gguf.stat().st_size)


def _key(source: Path, header_bytes: int) -> str:
    """Text that is another one when what a tokenizer is made of is."""
    digest = hashlib.sha256(repr((__version__, version("transformers"), version("tokenizers"))).encode())
    files = sorted(file for file in source.rglob("*") if file.is_file()) if source.is_dir() else [source]
    for file in files:
        if source.is_dir() and file.suffix in _WEIGHTS:
            continue
        with file.open("rb") as opened:
            content = opened.read() if source.is_dir() else opened.read(header_bytes)
        digest.update(repr((str(file.relative_to(source.parent)), len(content))).encode() + content)
    return digest.hexdigest()
