"""A server's run folder: its sockets, configs, counters and stored responses, for this user alone.

The server removes it at its end. After a server was killed, its lock is free, and the user's next server removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TextIO

from forearm.errors import ConfigError

PREFIX, LOCK = "forearm-", "run.lock"


class RunFolder(NamedTuple):
    """An open run folder. `lock`: the descriptor that holds its lock, for this server's processes to inherit."""

    path: Path
    lock: int

    def write(self, name: str, text: str) -> Path:
        """Write a file into the folder. Raises: ConfigError if that fails."""
        path = self.path / name
        try:
            path.write_text(text)
        except OSError as error:
            raise _unusable(error) from None
        return path

    def held(self, name: str) -> TextIO:
        """Make an empty file and hold its lock until it is closed: a process that locks it waits until then."""
        try:
            file = (self.path / name).open("w")
        except OSError as error:
            raise _unusable(error) from None
        fcntl.flock(file, fcntl.LOCK_EX)
        return file


@contextlib.contextmanager
def run_folder() -> Iterator[RunFolder]:
    """Make a run folder, after removing those of killed servers.

    Raises: ConfigError if it cannot be made.
    """
    try:
        for file in _locks():
            with contextlib.suppress(OSError):  # in use, or removed meanwhile
                lock = os.open(file, os.O_RDWR | os.O_NOFOLLOW)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(file.parent, ignore_errors=True)
                finally:
                    os.close(lock)
        while True:
            path = Path(tempfile.mkdtemp(prefix=PREFIX))  # 0700
            lock = os.open(path / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if (path / LOCK).exists():
                os.write(lock, str(os.getpid()).encode())
                break
            os.close(lock)  # another server's sweep came between
    except OSError as error:
        raise _unusable(error) from None
    try:
        yield RunFolder(path, lock)
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def open_run_folders() -> Iterator[tuple[Path, int]]:
    """Yield the run folders of this user's running servers, each with its server's process id."""
    for file in _locks():
        # A file may be removed meanwhile, and that of a server that starts is empty.
        with contextlib.suppress(OSError, ValueError), file.open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                yield file.parent, int(lock.read())


def _locks() -> Iterator[Path]:
    """Yield the lock files of this user's run folders."""
    for file in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError):  # removed meanwhile
            if file.parent.lstat().st_uid == os.getuid() and not file.parent.is_symlink():
                yield file


def _unusable(error: OSError) -> ConfigError:
    return ConfigError(f"no run folder: {error.strerror}; set TMPDIR to a folder that can be written and has room")
