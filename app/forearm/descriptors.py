"""File descriptors of a process: standard streams and the limit at start, a line in the log while none is left."""

from __future__ import annotations

import errno
import logging
import os
import resource
import sys
import time
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any

from forearm.errors import ConfigError, InvalidRequest

if TYPE_CHECKING:
    import asyncio

# A server of one worker and the demo model starts with 28; connections and files of larger models come on top.
LEAST = 64
# Errors of a process or machine that has nothing left to open something with: no fault of what was to be opened.
SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
CHECK_S = 1.0
_REPEAT_S = 60.0
_REMEDY = "raise the limit (`ulimit -Hn`, LimitNOFILE=, docker run --ulimit nofile=)"

log = logging.getLogger(__name__)


def open_standard_streams() -> None:
    """Connect closed standard streams (`>&-`) to /dev/null, and make the others take any text.

    A socket or file that is opened later would get a free number below 3, and with it what is printed. A text that the
    locale's encoding lacks is printed with escapes. Bytes that are no text are read as lone surrogates, which
    `check_text` finds.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            number = os.open(os.devnull, os.O_RDWR)  # the lowest free one, as those below are open by now
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115  (it stays open)
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="surrogateescape" if name == "stdin" else "backslashreplace")


def check_text(name: str, text: str) -> str:
    """Return a text that a user has given. Raises: InvalidRequest if it has bytes that are not of its encoding."""
    wrong = next((at for at, letter in enumerate(text) if "\ud800" <= letter <= "\udfff"), None)
    if wrong is None:
        return text
    byte = ord(text[wrong]) - 0xDC00
    found = f"byte 0x{byte:02x}" if 0x80 <= byte <= 0xFF else f"the lone surrogate U+{ord(text[wrong]):04X}"
    encoding, before = sys.getfilesystemencoding().upper(), text[max(wrong - 20, 0) : wrong]
    raise InvalidRequest(f"{name} is not {encoding}, as this locale's texts are: {found} after {before!r}; convert it")


def raise_limit() -> None:
    """Raise the soft limit of open files to the hard one, for this process and its children: every stream is a file.

    The usual soft limit of 1024 exists for select(), which is not used here. Raises: ConfigError for fewer than LEAST.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= most < LEAST:
        raise ConfigError(f"{most} open files are allowed, at least {LEAST} are needed: {_REMEDY}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class DescriptorWatch:
    """Looks for a free descriptor and logs once a minute what the process cannot do without one, and once its end."""

    def __init__(self, impossible: str) -> None:
        self._impossible = impossible
        self._said_s: float | None = None

    def short(self) -> bool:
        """Return whether no descriptor is free."""
        try:
            os.close(os.dup(0))
        except OSError as error:
            if self._said_s is None or time.monotonic() - self._said_s >= _REPEAT_S:
                self._said_s = time.monotonic()
                most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
                log.error("%s: %s (limit %d): %s", self._impossible, error.strerror, most, _REMEDY)
            return error.errno in SHORT
        if self._said_s is not None:
            log.info("file descriptors are free again")
            self._said_s = None
        return False


async def watch_descriptors(impossible: str) -> None:
    """Watch until the task is cancelled."""
    import asyncio  # not above: raise_limit is called before serve's first process is started

    watch = DescriptorWatch(impossible)
    while True:
        await asyncio.sleep(CHECK_S)
        watch.short()


def report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what failed in an event loop: not that a connection waits for a descriptor, which a DescriptorWatch tells.

    asyncio of Python 3.11 says that for each place of the backlog, a hundred tracebacks a second.
    """
    error = context.get("exception")
    if not (isinstance(error, OSError) and error.errno in SHORT and "accept" in context["message"]):
        loop.default_exception_handler(context)
