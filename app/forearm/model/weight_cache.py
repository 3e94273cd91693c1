"""Packed weights on disk (--weight-cache): the next start maps them, and reads, decodes and packs nothing.

A file belongs to one checkpoint (its files' names, sizes, times and headers, and config.json), one set of formats and
one tier's layout; the executor checks the last two, and every byte by hash. A damaged file is made anew. Of each model
the KEPT files used last stay, for those who serve it in several formats; older ones are deleted.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from pathlib import Path
from typing import Protocol

from forearm import __version__
from forearm.model.checkpoint import Checkpoint
from forearm.model.codes import CodedMatrix

log = logging.getLogger(__name__)

KEPT = 3
_END = ".weights"


class Packed(Protocol):
    """What is needed of the executor (_native.pyi)."""

    def save_weights(self, path: str, key: str) -> None:
        """Raises: RuntimeError naming the file and the system's reason."""
        ...

    def map_weights(self, path: str, key: str) -> None:
        """Raises: ValueError saying why the file is of no use."""
        ...


def key_of(checkpoint: Checkpoint) -> str:
    """Text that is another one when the checkpoint's files, or how they are read, are."""
    begins: dict[Path, int] = {}
    for _, stored in checkpoint.sources:
        for tensor in stored.tensors if isinstance(stored, CodedMatrix) else (stored,):
            begins[tensor.path] = min(tensor.begin, begins.get(tensor.path, tensor.begin))
    files = [_identity(path, begin) for path, begin in sorted(begins.items())]
    config = checkpoint.folder / "config.json"
    settings = _digest(config.read_bytes()) if config.is_file() else ""
    formats = {name: repr(format) for name, format in sorted(checkpoint.formats.items())}
    if checkpoint.config.dense:
        settings += repr(checkpoint.config.dense)
    return json.dumps([__version__, checkpoint.method, checkpoint.weight_dtype, settings, formats, files])


def cache_file(directory: Path, checkpoint: Checkpoint, key: str, tier: str) -> Path:
    """Where the weights of this checkpoint are kept: readable name, model, key."""
    name = re.sub(r"[^\w.-]", "_", checkpoint.folder.name)
    return directory / f"{name}-{_model(checkpoint)}-{_digest(f'{tier} {key}'.encode())}{_END}"


def map_weights(executor: Packed, path: Path, key: str) -> bool:
    """Map the weights at `path` into the executor; False, with a line in the log, if they have to be loaded."""
    if not path.exists():
        log.info("weight cache: %s is not there yet", path)
        return False
    try:
        executor.map_weights(str(path), key)
    except ValueError as problem:
        log.warning("weight cache: %s; it is made anew", problem)
        return False
    os.utime(path)  # used last
    log.info("weight cache: %s is mapped", path)
    return True


def save_weights(executor: Packed, path: Path, key: str) -> None:
    """Write the executor's weights to `path`, and delete what is too old; a warning if that can't be done."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        executor.save_weights(str(path), key)
        for old in _others(path)[KEPT - 1 :]:
            old.unlink(missing_ok=True)
            log.info("weight cache: %s is deleted; of a model the last %d stay", old, KEPT)
    except (OSError, RuntimeError) as problem:
        log.warning("weight cache: nothing is kept: %s", problem)
        return
    log.info("weight cache: %s is written, %.2f GiB", path, path.stat().st_size / 2**30)


def _others(path: Path) -> list[Path]:
    """Other files of the same model, those used last first."""
    same = path.name.removesuffix(_END).rpartition("-")[0]
    found = [other for other in path.parent.glob(f"*{_END}") if other.name.rpartition("-")[0] == same and other != path]
    return sorted(found, key=lambda other: other.stat().st_mtime, reverse=True)


def _identity(path: Path, header_bytes: int) -> list[str | int]:
    """A file's name, size, time and header."""
    status = path.stat()
    with path.open("rb") as file:
        header = file.read(header_bytes)
    return [path.name, status.st_size, status.st_mtime_ns, _digest(header)]


def _model(checkpoint: Checkpoint) -> str:
    return _digest(str(checkpoint.folder.resolve()).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
