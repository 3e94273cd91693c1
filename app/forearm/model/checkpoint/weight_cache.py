"""Packed weights on disk (--weight-cache): the next start maps them, and reads, decodes and packs nothing.

A file belongs to one checkpoint (its files' names, sizes, times and headers, pages of each tensor, and config.json),
one set of formats and one tier's layout; the executor checks the last two, and every byte by hash. A damaged file is
made anew. Of each model the KEPT files used last stay, for those who serve it in several formats; older ones are
deleted.

Names and times say little: `cp -p` and images with fixed times replace a checkpoint and leave both. The pages in the
key tell another model at once; a few changed bytes between them are found beside serving (source_check.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import struct
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from forearm import __version__
from forearm.model.checkpoint import source_check
from forearm.model.checkpoint.checkpoint import Checkpoint
from forearm.model.quantization.codes import CodedMatrix

log = logging.getLogger(__name__)

KEPT = 3
PAGES, PAGE_BYTES = 4, 4096  # of each tensor in the key: from its begin to its end
_END, _RECORD = ".weights", ".source"
# native/model/weights/packed_file.cpp: magic, sizes of identity, small part and region, hash; the region at a multiple
# of 2 MB.
_HEAD, _CHUNK_BYTES, _REGION_UNIT = struct.Struct("<8s4Q"), 4 << 20, 2 << 20


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
    files = [_identity(path, tensors) for path, tensors in _tensors_by_file(checkpoint).items()]
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
        _check_padding(path)
        executor.map_weights(str(path), key)
    except (OSError, ValueError) as problem:
        log.warning("weight cache: %s; it is made anew", problem)
        return False
    os.utime(path)  # used last
    log.info("weight cache: %s is mapped", path)
    return True


def save_weights(executor: Packed, path: Path, key: str) -> None:
    """Write the executor's weights to `path`, and delete what is too old; a warning if that can't be done."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _writing(path.parent):
            executor.save_weights(str(path), key)
        for old in _others(path)[KEPT - 1 :]:
            _drop(old)
            log.info("weight cache: %s is deleted; of a model the last %d stay", old, KEPT)
    except (OSError, RuntimeError) as problem:
        log.warning("weight cache: nothing is kept: %s", problem)
        return
    log.info("weight cache: %s is written, %.2f GiB", path, path.stat().st_size / 2**30)


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Hold the folder's lock with all who write into it; the first one deletes what a killed process has left."""
    lock = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # there are file systems without locks
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for partial in folder.glob(f"*{_END}.??????"):  # as mkstemp names what is not whole yet
                partial.unlink(missing_ok=True)
                log.info("weight cache: %s, which was never finished, is deleted", partial)
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield
    finally:
        os.close(lock)


def check_source(path: Path, checkpoint: Checkpoint, outdated: Callable[[], object]) -> None:
    """Read all of the checkpoint's files beside serving; if they are not those that `path` was made of, delete it and
    call `outdated`, from a thread.
    """
    record = path.with_suffix(_RECORD)
    files = map(str, _tensors_by_file(checkpoint))
    argv = [sys.executable, "-m", source_check.__name__, str(record), *files]

    def check() -> None:
        ended = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if ended.returncode == source_check.CHANGED:
            log.error(
                "weight cache: the files of %s are not those that %s was made of, though they have the same names, "
                "sizes and times; it is deleted, and made anew at the next start",
                checkpoint.folder, path,
            )  # fmt: skip
            _drop(path)
            outdated()
        elif ended.returncode:
            log.warning("weight cache: the files of %s were not checked: %s", checkpoint.folder, ended.stderr[-300:])

    threading.Thread(target=check, name="source check", daemon=True).start()


def _drop(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_suffix(_RECORD).unlink(missing_ok=True)


def _check_padding(path: Path) -> None:
    """Refuse bits between what the executor has checked: nothing reads them, but a file that has them is not whole.

    Raises: ValueError.
    """
    with path.open("rb") as file:
        size, head = os.fstat(file.fileno()).st_size, file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            raise ValueError(f"{path} is cut off")
        identity, small, region, _ = _HEAD.unpack(head)[1:]
        begin = _HEAD.size + identity + small + 8 * -(-region // _CHUNK_BYTES)
        if begin > size:
            raise ValueError(f"{path} is damaged")
        file.seek(begin)
        if any(file.read(-begin % _REGION_UNIT)):
            raise ValueError(f"{path} is damaged")


def _others(path: Path) -> list[Path]:
    """Other files of the same model, those used last first."""
    same = path.name.removesuffix(_END).rpartition("-")[0]
    found = [other for other in path.parent.glob(f"*{_END}") if other.name.rpartition("-")[0] == same and other != path]
    return sorted(found, key=lambda other: other.stat().st_mtime, reverse=True)


def _tensors_by_file(checkpoint: Checkpoint) -> dict[Path, list[tuple[int, int]]]:
    """Where each tensor lies that is read, by file: first byte, end."""
    found: dict[Path, set[tuple[int, int]]] = defaultdict(set)
    for _, stored in checkpoint.sources:
        for tensor in stored.tensors if isinstance(stored, CodedMatrix) else (stored,):
            found[tensor.path].add((tensor.begin, tensor.end))
    return {path: sorted(places) for path, places in sorted(found.items())}


def _identity(path: Path, tensors: list[tuple[int, int]]) -> list[str | int]:
    """A file's name, size, time, header, and PAGES of each tensor."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        digest.update(file.read(tensors[0][0]))
        for begin, end in tensors:
            last = max(begin, end - PAGE_BYTES)
            for page in range(PAGES):
                digest.update(os.pread(file.fileno(), PAGE_BYTES, begin + (last - begin) * page // (PAGES - 1)))
    return [path.name, status.st_size, status.st_mtime_ns, digest.hexdigest()]


def _model(checkpoint: Checkpoint) -> str:
    return _digest(str(checkpoint.folder.resolve()).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
