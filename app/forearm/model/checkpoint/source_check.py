"""python source_check.py RECORD FILE...: check that a checkpoint's files are unchanged.

The digest of all their bytes is compared with the one in RECORD, or written to RECORD if that does not exist. The check
runs next to an engine that has mapped weights packed earlier (weight_cache.py). It is a process of its own so that
neither the engine's threads nor its interpreter lock wait for it; it is scheduled only on idle cores (SCHED_IDLE) and
leaves nothing in the page cache. It imports the standard library alone, so that it needs no `site`. Exit status 0: the
files are unchanged; CHANGED: they differ from the record.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # first: the API is starting, and needs the cores

import ctypes
import hashlib
import signal
from collections.abc import Sequence
from pathlib import Path

CHANGED = 3
_CHUNK_BYTES = 1 << 20
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(argv: Sequence[str]) -> int:
    """Compare the files with the record, or write it. Returns: the exit status."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # the kernel kills this process with the engine
    record, files = Path(argv[0]), [Path(name) for name in argv[1:]]
    digest = digest_of(files)
    if record.exists():
        return 0 if record.read_text() == digest else CHANGED
    part = record.with_name(f"{record.name}.{os.getpid()}")
    part.write_text(digest)
    part.replace(record)
    return 0


def digest_of(files: Sequence[Path]) -> str:
    """Return one digest of every byte of these files, in this order."""
    digest, buffer = hashlib.sha256(), bytearray(_CHUNK_BYTES)
    for path in files:
        with path.open("rb", buffering=0) as file:
            at = 0
            while count := file.readinto(buffer):
                digest.update(memoryview(buffer)[:count])
                os.posix_fadvise(file.fileno(), at, count, os.POSIX_FADV_DONTNEED)
                at += count
            digest.update(at.to_bytes(8, "little"))
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
