"""prometheus_client's files of values, with pages that are there before they are written.

The library makes its files longer and maps them. Where the folder's memory or disk is full there is nothing behind the
new pages, and a process that writes to one is killed by SIGBUS, as is the one that replaces it. Here pages are asked
for first; where there are none, a process counts for itself and goes on answering.
"""

from __future__ import annotations

import logging
import mmap
import os
from pathlib import Path
from typing import Any

from prometheus_client import values
from prometheus_client.mmap_dict import MmapedDict

_FIRST_BYTES = 8 << 10  # of a file; each time it is full it becomes twice as long
_VALUE_BYTES = 32  # of an entry besides its key, at most (prometheus_client/mmap_dict.py)

log = logging.getLogger(__name__)


class AllocatedDict(MmapedDict):
    """A MmapedDict whose pages are there before it writes to them."""

    def __init__(self, filename: str) -> None:
        try:
            _allocated(Path(filename))
            super().__init__(filename)  # type: ignore[no-untyped-call]
        except OSError as error:
            self._positions: dict[str, int] = {}
            self._used, self._capacity = 8, _FIRST_BYTES
            self._m = mmap.mmap(-1, self._capacity)
            self._f: Any = None
            self._tell(filename, error)

    def _init_value(self, key: str) -> None:
        while self._used + len(key.encode()) + _VALUE_BYTES > self._capacity:
            self._grow()
        super()._init_value(key)  # type: ignore[no-untyped-call]

    def _grow(self) -> None:
        longer = 2 * self._capacity
        if self._f is not None:
            try:
                os.posix_fallocate(self._f.fileno(), 0, longer)
                self._m = mmap.mmap(self._f.fileno(), longer)
            except OSError as error:
                self._tell(self._f.name, error)
                self._f.close()
                self._f = None
        if self._f is None:  # what the file has stays there, for others to read
            alone = mmap.mmap(-1, longer)
            alone[: self._capacity] = self._m[: self._capacity]
            self._m = alone
        self._capacity = longer

    def _tell(self, name: str, error: OSError) -> None:
        log.warning("no room for the metrics in %s (%s): this process counts for itself from now on", name, error)


def _allocated(path: Path) -> None:
    """Under its name once it is whole: others read every file that has such a name.

    Raises: OSError, with nothing left behind.
    """
    if path.exists():  # of a dead process that had the same number
        with path.open("ab") as file:
            os.posix_fallocate(file.fileno(), 0, max(path.stat().st_size, _FIRST_BYTES))
        return
    new = path.with_suffix(".new")
    try:
        with new.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, _FIRST_BYTES)
        new.rename(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise


def use() -> None:
    """From now on values of this process are kept in such files. Before the first metric is made."""
    values.MmapedDict = AllocatedDict  # type: ignore[attr-defined, assignment]
