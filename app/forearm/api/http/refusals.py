"""The log's lines about connections that are refused before there is a request: bytes that are not HTTP, slow senders.

They have no line in the access log. A scanner sends thousands: the first one is told at once, those that follow are
told together, REPEAT_S later. The level is INFO, as nginx's: a client's mistake is no trouble of the server.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

REPEAT_S = 60.0
_MOST_NAMED = 3  # addresses in a line
_MOST_COUNTED = 1000  # addresses that are counted each by itself

log = logging.getLogger(__name__)


class RefusalLog:
    """Writes one line in `repeat_s` seconds at most."""

    def __init__(self, repeat_s: float = REPEAT_S) -> None:
        self._repeat_s = repeat_s
        self._waits = False
        self._more: Counter[str] = Counter()

    def add(self, transport: asyncio.Transport, status: int, reason: str, loop: asyncio.AbstractEventLoop) -> None:
        """Log the refusal of a connection with its client's address, or count it for the next line."""
        name = transport.get_extra_info("peername")
        address = str(name[0]) if isinstance(name, tuple) else "-"  # of a Unix socket, or one that has gone
        if self._waits:
            self._more[address if len(self._more) < _MOST_COUNTED else "others"] += 1
        else:
            log.info("refused a connection of %s: %d %s", address, status, reason)
            self._wait(loop)

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        self._waits = True
        loop.call_later(self._repeat_s, self._tell, loop)

    def _tell(self, loop: asyncio.AbstractEventLoop) -> None:
        self._waits = False
        if self._more:
            most = ", ".join(f"{address} ({count})" for address, count in self._more.most_common(_MOST_NAMED))
            log.info("refused %d more connections in %g s, of %s", self._more.total(), self._repeat_s, most)
            self._more.clear()
            self._wait(loop)
