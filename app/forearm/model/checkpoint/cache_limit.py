"""The room of --weight-cache: its files of packed weights and prepared tokenizers together stay within a bound.

For each model the KEPT most recently used files of weights stay, for users who serve it in several formats, and of all
files as many as --weight-cache-bytes holds; the least recently used ones are deleted.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from pathlib import Path

log = logging.getLogger(__name__)

KEPT = 3
# A file's time is that of its last use. Beside weights lie a record of the checkpoint's files and the rounding errors.
WEIGHTS, TOKENIZER, RECORD, ERRORS = ".weights", ".tokenizer", ".source", ".errors"


def drop(path: Path) -> None:
    """Delete a file of the cache and what lies beside it."""
    for end in (path.suffix, *((RECORD, ERRORS) if path.suffix == WEIGHTS else ())):
        path.with_suffix(end).unlink(missing_ok=True)


def make_room(path: Path, needed: int, most_bytes: int | None) -> bool:
    """Delete the model's weights beyond KEPT, and the least recently used files of all until `path` finds room.

    needed: bytes of the new file. most_bytes: of all files; None: half of the disk space that is free without them.
    Returns: whether there is room; with a log line if not.
    """
    same, others = path.name.removesuffix(WEIGHTS).rpartition("-")[0], []
    for other in path.parent.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another server has deleted it
            if other != path and other.suffix in (WEIGHTS, TOKENIZER):
                others.append((other.stat().st_mtime, other.stat().st_size, other))
    others.sort(reverse=True)
    room = sum(size for _, size, _ in others) + shutil.disk_usage(path.parent).free
    limit = room // 2 if most_bytes is None else min(most_bytes, room)
    if needed > limit:
        log.info(
            "weight cache: nothing is kept: %.3f GiB are needed, the cache may have %.3f (--weight-cache-bytes)",
            needed / 2**30, limit / 2**30,
        )  # fmt: skip
        return False
    of_model, left = KEPT - 1, limit - needed
    for _, size, other in others:
        is_same = other.suffix == path.suffix == WEIGHTS and other.name.rpartition("-")[0] == same
        if size > left or (is_same and not of_model):
            drop(other)
            log.info("weight cache: %s is deleted to make room", other)
        else:
            left, of_model = left - size, of_model - is_same
    return True
