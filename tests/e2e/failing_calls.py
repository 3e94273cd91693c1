"""Order failing system calls in a server's processes: failing_calls.c, built and loaded before all other libraries."""

from __future__ import annotations

import contextlib
import mmap
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

CALLS = ("", "open", "read", "write", "grow", "sync", "accept", "socket", "pipe", "fork", "send", "allocate")
_ORDER = struct.Struct("=iiiii")  # call, error, left, pid, failed


class FailingCalls:
    """The order that all processes of one server read."""

    def __init__(self, folder: Path) -> None:
        """Build the library in `folder`, and an order for nothing.

        Raises: subprocess.CalledProcessError where there is no C compiler.
        """
        library, file = folder / "failing_calls.so", folder / "failing_calls"
        source = Path(__file__).with_suffix(".c")
        build = [
            "cc",
            "-O2",
            "-shared",
            "-fPIC",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-o",
            str(library),
            str(source),
            "-ldl",
        ]
        subprocess.run(build, check=True)
        file.write_bytes(bytes(_ORDER.size))
        with file.open("r+b") as opened:
            self._order = mmap.mmap(opened.fileno(), _ORDER.size)
        self.environment = {"LD_PRELOAD": str(library), "FAILING_CALLS": str(file)}

    @contextlib.contextmanager
    def ordered(self, call: str, error: int, times: int, pid: int) -> Iterator[None]:
        """Make the next `times` calls of this kind fail with `error` (0: do half) in the process `pid` (0: in any)."""
        _ORDER.pack_into(self._order, 0, CALLS.index(call), error, times, pid, 0)
        try:
            yield
        finally:
            _ORDER.pack_into(self._order, 0, 0, 0, 0, 0, self.failed)

    @property
    def failed(self) -> int:
        """Return the number of failed calls of the last order."""
        return int(_ORDER.unpack_from(self._order, 0)[-1])
