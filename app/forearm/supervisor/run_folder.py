"""A server's run folder: its sockets, configs, counters and stored responses, for this user alone.

It goes with the server. Where that was killed, its locks are gone, and the next server of this user removes the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from forearm.errors import ConfigError

PREFIX, LOCK = "forearm-", "run.lock"


@dataclass(frozen=True)
class RunFolder:
    """lock: the descriptor that holds the folder's lock, for the processes of this server to inherit."""

    path: Path
    lock: int

    def write(self, name: str, text: str) -> Path:
        """Put a file into it. Raises: ConfigError if it cannot be written."""
        path = self.path / name
        try:
            path.write_text(text)
        except OSError as error:
            raise _unusable(error) from None
        return path


@contextlib.contextmanager
def run_folder() -> Iterator[RunFolder]:
    """A new one, after those of servers that were killed are removed.

    Raises: ConfigError if there is no place for it.
    """
    try:
        _sweep(Path(tempfile.gettempdir()))
        folder = _made()
    except OSError as error:
        raise _unusable(error) from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder.path, ignore_errors=True)
        os.close(folder.lock)


def _made() -> RunFolder:
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX))  # 0700
        lock = os.open(path / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (path / LOCK).exists():
            return RunFolder(path, lock)
        os.close(lock)  # another server's sweep came between


def _sweep(parent: Path) -> None:
    """Remove this user's run folders whose lock nobody holds."""
    for file in parent.glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError):  # another user's, in use, or gone meanwhile
            if file.parent.lstat().st_uid != os.getuid() or file.parent.is_symlink():
                continue
            lock = os.open(file, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(file.parent, ignore_errors=True)
            finally:
                os.close(lock)


def _unusable(error: OSError) -> ConfigError:
    return ConfigError(f"no run folder: {error.strerror}; set TMPDIR to a folder that can be written and has room")
