"""Cache a tokenizer that was made of other files than tokenizer.json beside the weights (--weight-cache).

Making one of a .gguf file's SentencePiece vocabulary takes up to two seconds, and converting older files transformers.
A cache file belongs to one folder with the names and contents of its files except weights (of a .gguf file, its
header), and to the versions of the libraries that made it; its content is checked by hash. A file that does not match
is made again. The files share --weight-cache-bytes with the packed weights (cache_limit.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import msgspec
import tokenizers

from forearm import __version__
from forearm.model.checkpoint.cache_limit import TOKENIZER, make_room
from forearm.model.gguf.gguf import read_gguf_file
from forearm.text.tokenizer.tokenizer_files import TokenizerParts

log = logging.getLogger(__name__)

_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth", ".onnx", ".h5", ".msgpack")  # they contain no tokenizer


class _Content(msgspec.Struct, array_like=True):
    """The fields of TokenizerParts. rust: tokenizer.json's text, BPE's merges as "a b"."""

    special_tokens_map: dict[str, str]
    chat_template: Any
    rust: str


class _File(msgspec.Struct, array_like=True):
    """A cache file. digest: of `content`, a _Content in MessagePack. header_bytes: of a .gguf file, in `key`."""

    key: str
    header_bytes: int
    digest: bytes
    content: bytes


def read_cached_tokenizer(cache: Path, source: Path) -> TokenizerParts | None:
    """Return the cached tokenizer of this folder or .gguf file; None if there is none, or its files have changed."""
    try:
        file = msgspec.msgpack.decode(_place(cache, source).read_bytes(), type=_File)
        if file.key != _key(source, file.header_bytes) or file.digest != hashlib.sha256(file.content).digest():
            return None
        found = msgspec.msgpack.decode(file.content, type=_Content)
        made = tokenizers.Tokenizer.from_str(found.rust)
    except FileNotFoundError:
        return None
    except Exception as problem:
        log.warning("weight cache: the tokenizer is made again: %s", problem)
        return None
    with contextlib.suppress(OSError):  # the folder may be read-only
        os.utime(_place(cache, source))  # the time of last use
    return TokenizerParts(made, found.special_tokens_map, found.chat_template)


def write_cached_tokenizer(cache: Path, source: Path, parts: TokenizerParts, most_bytes: int | None = None) -> None:
    """Write the tokenizer to the cache, where it finds room; log a warning if that fails.

    most_bytes: --weight-cache-bytes.
    """
    rust = parts.backend_tokenizer.to_str()
    told = msgspec.json.decode(rust)
    merges = told["model"].get("merges") or []
    if merges and not any(" " in piece for merge in merges for piece in merge):
        # from_str reads "a b" in 0.052 s where ["a", "b"] takes it 0.070 (SmolLM2's 49,000 tokens).
        told["model"]["merges"] = [" ".join(merge) for merge in merges]
        rust = msgspec.json.encode(told).decode()
    content = msgspec.msgpack.encode(_Content(parts.special_tokens_map, parts.chat_template, rust))
    place = _place(cache, source)
    part = place.with_suffix(f".{os.getpid()}")  # workers start together: the last one to finish replaces the file
    try:
        cache.mkdir(parents=True, exist_ok=True)
        header_bytes = 0
        if source.is_file():  # metadata has the tokenizer; the tensors' names and data come behind it
            begins = (tensor.begin for tensor in read_gguf_file(source, texts=False).tensors.values())
            header_bytes = min(begins, default=source.stat().st_size)
        file = _File(_key(source, header_bytes), header_bytes, hashlib.sha256(content).digest(), content)
        whole = msgspec.msgpack.encode(file)
        if make_room(place, len(whole), most_bytes):
            part.write_bytes(whole)
            part.replace(place)
    except OSError as problem:
        log.warning("weight cache: the tokenizer is not kept: %s", problem)


def _place(cache: Path, source: Path) -> Path:
    name = re.sub(r"[^\w.-]", "_", source.name)
    return cache / f"{name}-{hashlib.sha256(os.fsencode(source.resolve())).hexdigest()[:16]}{TOKENIZER}"


def _key(source: Path, header_bytes: int) -> str:
    """Return a key that changes with the files and library versions that a tokenizer is made of."""
    made_by = [
        distribution.version for name in ("tokenizers", "transformers") for distribution in distributions(name=name)
    ]
    digest = hashlib.sha256(repr((__version__, made_by)).encode())
    files = sorted(file for file in source.rglob("*") if file.is_file()) if source.is_dir() else [source]
    for file in files:
        if source.is_dir() and file.suffix in _WEIGHTS:
            continue
        with file.open("rb") as opened:
            content = opened.read() if source.is_dir() else opened.read(header_bytes)
        digest.update(repr((os.fsencode(file.relative_to(source.parent)), len(content))).encode() + content)
    return digest.hexdigest()
