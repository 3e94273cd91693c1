"""prometheus_client's value files, with pages that are allocated before they are written.

The library extends its files and maps them. If the folder's memory or disk is full, the new pages have no storage, and
a process that writes to one is killed by SIGBUS, as is the one that replaces it. Here pages are allocated first; if
that fails, the process keeps its values in its own memory and goes on.
"""

from __future__ import annotations

import logging
import mmap
import os
from pathlib import Path
from typing import Any

from prometheus_client.mmap_dict import MmapedDict

_FIRST_BYTES = 8 << 10  # of a file, whose size doubles whenever it is full
_VALUE_BYTES = 32  # the most that an entry takes besides its key (prometheus_client/mmap_dict.py)

log = logging.getLogger(__name__)


class AllocatedDict(MmapedDict):
    """A MmapedDict whose pages are allocated before it writes to them."""

    def __init__(self, filename: str) -> None:
        path, new = Path(filename), Path(filename).with_suffix(".new")
        try:
            if path.exists():  # from a dead process with the same pid
                with path.open("ab") as file:
                    os.posix_fallocate(file.fileno(), 0, max(path.stat().st_size, _FIRST_BYTES))
            else:  # it gets its name when it is complete, because others read every file with such a name
                with new.open("wb") as file:
                    os.posix_fallocate(file.fileno(), 0, _FIRST_BYTES)
                new.rename(path)
            super().__init__(filename)  # type: ignore[no-untyped-call]
        except OSError as error:
            new.unlink(missing_ok=True)
            self._positions: dict[str, int] = {}
            self._used, self._capacity = 8, _FIRST_BYTES
            self._m = mmap.mmap(-1, self._capacity)
            self._f: Any = None
            self._warn(filename, error)

    def _init_value(self, key: str) -> None:
        while self._used + len(key.encode()) + _VALUE_BYTES > self._capacity:
            longer = 2 * self._capacity
            if self._f is not None:
                try:
                    os.posix_fallocate(self._f.fileno(), 0, longer)
                    self._m = mmap.mmap(self._f.fileno(), longer)
                except OSError as error:
                    self._warn(self._f.name, error)
                    self._f.close()
                    self._f = None
            if self._f is None:  # the values in the file stay there, for others to read
                alone = mmap.mmap(-1, longer)
                alone[: self._capacity] = self._m[: self._capacity]
                self._m = alone
            self._capacity = longer
        super()._init_value(key)  # type: ignore[no-untyped-call]

    def _warn(self, name: str, error: OSError) -> None:
        log.warning(
            "no room for the metrics in %s (%s): this process keeps further values in its own memory", name, error
        )
