"""Packed weights on disk (--weight-cache): the next start maps them instead of reading, decoding and packing weights.

A file belongs to one checkpoint (names, sizes, times and headers of its files, some pages of each tensor, and
config.json), one set of formats and one tier's layout; the executor checks the last two, and every byte by hash. A
damaged file is written again. Files are written beside serving, readable by this user alone, under another name until
they are whole. cache_limit.py deletes the least recently used ones.

Names and times alone do not identify a checkpoint: `cp -p` and images with fixed times can replace it and leave both
unchanged. The pages in the key detect another model at once; a few changed bytes between them are found while serving
(source_check.py).
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
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from forearm import __version__
from forearm.config.environment import cache_folder
from forearm.model.checkpoint import calibration, source_check
from forearm.model.checkpoint.cache_limit import ERRORS, RECORD, WEIGHTS, drop, make_room
from forearm.model.checkpoint.checkpoint import Checkpoint
from forearm.model.checkpoint.rounding_errors import NOTHING_ROUNDED, RoundingErrors
from forearm.model.pooling.adapters import AdaptedTensor
from forearm.model.quantization.codes import CodedMatrix
from forearm.model.quantization.rotation import VERSION

log = logging.getLogger(__name__)

# Smaller weights are read as fast: of the demo model, 12 MB of bfloat16, 0.03 s either way; of SmolLM2-135M, 103 MB
# packed of a GGUF file's Q4_1, 0.21 s to read and 0.04 to map (two cores of a Zen 5 EPYC, files in the page cache).
LEAST_BYTES = 32 << 20
PAGES, PAGE_BYTES = 4, 4096  # of each tensor in the key, spread evenly from its first to its last byte
# Header of native/model/weights/packed_file.cpp: magic, sizes of identity, small part and region, hash; the region
# begins at a multiple of 2 MB.
_HEAD, _CHUNK_BYTES, _REGION_UNIT = struct.Struct("<8s4Q"), 4 << 20, 2 << 20


class Packed(Protocol):
    """The parts of the executor that the weight cache uses (_native.pyi)."""

    @property
    def packed_bytes(self) -> int:
        """Bytes of the weights."""
        ...

    def save_weights(self, path: str, key: str) -> None:
        """Write the weights. Raises: RuntimeError naming the file and the system's reason."""
        ...

    def map_weights(self, path: str, key: str) -> None:
        """Map the weights. Raises: ValueError with the reason why the file cannot be used."""
        ...


def key_of(checkpoint: Checkpoint, tokenizer: Path | None = None) -> str:
    """Return a text that identifies the checkpoint's files and the way they are read.

    tokenizer: what reads the calibration text, if the weights are calibrated; None: the checkpoint's own.
    """
    files = []  # of each its name, size and time, and the digest of its header and of PAGES pages of each tensor
    for path, tensors in _tensors_by_file(checkpoint).items():
        digest = hashlib.sha256()
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            spans = [(begin, max(0, end - begin - PAGE_BYTES)) for begin, end in tensors]
            places = [begin + span * page // (PAGES - 1) for begin, span in spans for page in range(PAGES)]
            for place in places:  # all at once, as source_check.py leaves none of them in the page cache
                os.posix_fadvise(file.fileno(), place, PAGE_BYTES, os.POSIX_FADV_WILLNEED)
            digest.update(file.read(tensors[0][0]))
            for place in places:
                digest.update(os.pread(file.fileno(), PAGE_BYTES, place))
        files.append([path.name, status.st_size, status.st_mtime_ns, digest.hexdigest()])
    config = checkpoint.folder / "config.json"
    settings = _digest(config.read_bytes()) if config.is_file() else ""
    formats = {name: repr(format) for name, format in sorted(checkpoint.formats.items())}
    if checkpoint.config.dense:
        settings += repr(checkpoint.config.dense)
    settings += "".join({repr(one.adapter) for _, one in checkpoint.sources if isinstance(one, AdaptedTensor)})
    settings += ("centred hidden" if checkpoint.config.keeps_hidden else "centred") if checkpoint.config.centred else ""
    if checkpoint.calibrated:
        vocabulary = (tokenizer or checkpoint.folder) / "tokenizer.json"
        settings += calibration.VERSION + (_digest(vocabulary.read_bytes()) if vocabulary.is_file() else "")
    turned = any(format.turned for format in checkpoint.formats.values())
    rotation = VERSION if checkpoint.rotated or turned else 0
    return json.dumps([__version__, checkpoint.method, checkpoint.weight_dtype, settings, formats, rotation, files])


def cache_file(
    chosen: str, checkpoint: Checkpoint, packed_bytes: int, tokenizer: Path, tier: str
) -> tuple[Path, str] | None:
    """Return the path and key of this checkpoint's packed weights; None if --weight-cache, `chosen`, is to keep none.

    The file's name has a readable part, the model and the key.
    """
    folder = None if chosen == "auto" and packed_bytes < LEAST_BYTES else cache_folder(chosen)
    if folder is None:
        return None
    name, key = re.sub(r"[^\w.-]", "_", checkpoint.folder.name), key_of(checkpoint, tokenizer)
    return folder / f"{name}-{_model(checkpoint)}-{_digest(f'{tier} {key}'.encode())}{WEIGHTS}", key


def map_weights(executor: Packed, path: Path, key: str) -> bool:
    """Map the weights at `path` into the executor; return False, with a log line, if they must be loaded instead."""
    if not path.exists():
        log.info("weight cache: %s is not there yet", path)
        return False
    try:
        with path.open("rb") as file:  # the executor does not check the padding, which is zero in a whole file
            size, head = os.fstat(file.fileno()).st_size, file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                raise ValueError(f"{path} is cut off")
            identity, small, region, _ = _HEAD.unpack(head)[1:]
            begin = _HEAD.size + identity + small + 8 * -(-region // _CHUNK_BYTES)
            if begin > size or any(os.pread(file.fileno(), -begin % _REGION_UNIT, begin)):
                raise ValueError(f"{path} is damaged")
        executor.map_weights(str(path), key)
    except (OSError, ValueError) as problem:
        log.warning("weight cache: %s; it is made anew", problem)
        return False
    with contextlib.suppress(OSError):  # the folder may be read-only
        os.utime(path)  # the time of last use, by which files are deleted
    log.info("weight cache: %s is mapped", path)
    return True


def read_errors(path: Path) -> RoundingErrors:
    """Return the rounding errors that were seen when the weights at `path` were made; none if they are not there."""
    try:
        return RoundingErrors(**json.loads(path.with_suffix(ERRORS).read_text()))
    except (OSError, ValueError, TypeError):
        return NOTHING_ROUNDED


def save_weights(
    executor: Packed, path: Path, key: str, most_bytes: int | None = None, errors: RoundingErrors = NOTHING_ROUNDED
) -> None:
    """Write the executor's weights to `path` and delete the oldest files; a warning is logged if that fails.

    Steps may be computed meanwhile: a thread does it. Python waits for it at the end, an engine's process does not.
    most_bytes: of all files together; None: half of the disk space that is free without them.
    errors: kept beside the weights.
    """
    threading.Thread(target=_save, args=(executor, path, key, most_bytes, errors), name="weight cache").start()


def _save(executor: Packed, path: Path, key: str, most_bytes: int | None, errors: RoundingErrors) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _writing(path.parent):
            if not make_room(path, executor.packed_bytes, most_bytes):
                return
            executor.save_weights(str(path), key)
            if errors.by_matrix:
                path.with_suffix(ERRORS).write_text(json.dumps(asdict(errors)))
    except (OSError, RuntimeError) as problem:
        log.warning("weight cache: nothing is kept: %s", problem)
        return
    log.info("weight cache: %s is written, %.2f GiB", path, path.stat().st_size / 2**30)


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Hold the folder's shared lock while writing; the first writer deletes partial files of killed processes."""
    lock = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems have no locks
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for partial in folder.glob(f"*{WEIGHTS}.??????"):  # mkstemp's names for files that are still being written
                partial.unlink(missing_ok=True)
                log.info("weight cache: %s, which was never finished, is deleted", partial)
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield
    finally:
        os.close(lock)


def check_source(path: Path, checkpoint: Checkpoint, outdated: Callable[[], object]) -> None:
    """Check all of the checkpoint's files in the background while serving (source_check.py).

    If they are not the files that `path` was made from, delete it and call `outdated` from a thread.
    """
    record = path.with_suffix(RECORD)
    files = map(str, _tensors_by_file(checkpoint))
    argv = [sys.executable, "-IS", source_check.__file__, str(record), *files]

    def check() -> None:
        ended = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if ended.returncode == source_check.CHANGED:
            log.error(
                "weight cache: the files of %s are not those that %s was made of, though they have the same names, "
                "sizes and times; it is deleted, and made anew at the next start",
                checkpoint.folder, path,
            )  # fmt: skip
            drop(path)
            outdated()
        elif ended.returncode:
            log.warning("weight cache: the files of %s were not checked: %s", checkpoint.folder, ended.stderr[-300:])

    threading.Thread(target=check, name="source check", daemon=True).start()


def _tensors_by_file(checkpoint: Checkpoint) -> dict[Path, list[tuple[int, int]]]:
    """Return the (first byte, end) of every tensor that is read, by file."""
    found: dict[Path, set[tuple[int, int]]] = defaultdict(set)
    for _, stored in checkpoint.sources:
        for tensor in stored.tensors if isinstance(stored, CodedMatrix) else (stored,):
            found[tensor.path].add((tensor.begin, tensor.end))
    return {path: sorted(places) for path, places in sorted(found.items())}


def _model(checkpoint: Checkpoint) -> str:
    return _digest(os.fsencode(checkpoint.folder.resolve()))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
