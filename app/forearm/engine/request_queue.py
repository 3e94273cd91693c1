"""Requests of which nothing was computed yet: how many there are, how many more may come, how fast requests leave."""

from __future__ import annotations

import math
import time
from collections import deque

from forearm.engine.validation import MAX_OUTPUTS
from forearm.errors import InvalidRequest, Overloaded
from forearm.wire import Load

# The last requests that ended are looked at, so many of them: seconds of a busy engine, minutes of a slow one.
_MOST_ENDED = 256
# The openai package waits as Retry-After says up to a minute, and for half a second where it says more.
_LONGEST_S = 60


class RequestQueue:
    """limit: requests that may wait beside those for which there is a place at once. places: of an idle engine."""

    def __init__(self, limit: int, places: int) -> None:
        self.length = 0
        self._limit, self._places = limit, places
        self._ended_s: deque[float] = deque(maxlen=_MOST_ENDED)

    def enter(self) -> None:
        """Another one waits."""
        self.length += 1

    def begin(self) -> None:
        """The first step of one that waited."""
        self.length -= 1

    def leave(self, begun: bool) -> None:
        """A request has ended, however; `begun`: it waits no more."""
        self.length -= not begun
        self._ended_s.append(time.monotonic())

    def load(self, taken: int) -> Load:
        """How many more may come, so many places being taken, and when to try again where none may."""
        return Load(self._limit + self._places - taken - self.length, self._wait_s())

    def check(self, outputs: int, running: int, waiting: int) -> None:
        """Raises: why a request for so many outputs is not taken, while so many others run and wait."""
        most = self._limit + self._places
        if outputs > most:
            raise InvalidRequest(
                f"n is {outputs}; at most {most} outputs can run and wait "
                f"(--max-num-seqs {self._places}, --max-num-queued-reqs {self._limit})",
                "n",
            )
        load = self.load(running)
        if load.room <= 0:
            raise Overloaded(f"{self.length} requests are waiting; the limit is {self._limit}", load.retry_after_s)
        most = max(most, MAX_OUTPUTS)
        if waiting + outputs > most:
            said = f"{waiting} outputs are waiting, {outputs} more are asked for; the limit is {most}"
            raise Overloaded(said, load.retry_after_s)

    def _wait_s(self) -> int:
        """Seconds until who waits will have left, at the rate of late: 1 to 60; 1 while no rate is known."""
        if len(self._ended_s) < 2:
            return 1
        mean_s = (time.monotonic() - self._ended_s[0]) / len(self._ended_s)
        return min(max(math.ceil(self.length * mean_s), 1), _LONGEST_S)
