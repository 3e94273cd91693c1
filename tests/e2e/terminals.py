"""A program at a terminal of its own, as a user sits before it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager

WITHIN_S = 60.0
PROMPT = "\r?>[ \b]"  # as prompt_toolkit writes it
ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|\][^\x07\x1b]*(\x07|\x1b\\\\)|[=>78()B])")


class Terminal:
    """The screen and the keys of `forearm` with these words. shown: what is not matched yet, without escapes."""

    def __init__(self, *argv: str) -> None:
        os.environ["PROMPT_TOOLKIT_NO_CPR"] = "1"  # nobody answers where the cursor is
        self.pid, self._screen = pty.fork()
        if self.pid == 0:
            for number in (signal.SIGINT, signal.SIGHUP):  # background jobs and nohup ignore them
                signal.signal(number, signal.SIG_DFL)
            os.execv(sys.executable, [sys.executable, "-m", "forearm", *argv])
        fcntl.ioctl(self._screen, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.shown = ""

    def type(self, keys: str) -> None:
        os.write(self._screen, keys.encode())

    def enter(self, keys: str) -> None:
        """Type keys and Enter once the prompt is there: before, the terminal itself would read some of them."""
        self.expect(PROMPT)
        self.type(keys + "\r")

    def expect(self, pattern: str, within_s: float = WITHIN_S) -> str:
        """Read until the pattern is shown, and forget what came before its end. Returns: that."""
        end = time.monotonic() + within_s
        while (found := re.search(pattern, self.shown)) is None:
            assert time.monotonic() < end, self.shown
            if select.select([self._screen], [], [], 1)[0]:
                self._read()
        before, self.shown = self.shown[: found.end()], self.shown[found.end() :]
        return before

    def ended(self) -> int:
        """Return the exit status, after reading what is left."""
        end = time.monotonic() + WITHIN_S
        with contextlib.suppress(OSError):  # the terminal is closed
            while True:
                assert time.monotonic() < end, self.shown
                if select.select([self._screen], [], [], 1)[0]:
                    self._read()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self) -> None:
        os.close(self._screen)

    def _read(self) -> None:
        self.shown += ESCAPES.sub("", os.read(self._screen, 4096).decode(errors="replace"))


@contextmanager
def terminal(*argv: str) -> Iterator[Terminal]:
    """A terminal that is closed at the end, which ends the program in it."""
    one = Terminal(*argv)
    try:
        yield one
    finally:
        one.close()
