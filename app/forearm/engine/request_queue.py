"""The queue of requests without a computed step: its length, its limit, and the rate at which requests leave."""

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
        """Count another waiting request."""
        self.length += 1

    def begin(self) -> None:
        """Count the first step of a request that waited."""
        self.length -= 1

    def leave(self, begun: bool) -> None:
        """Count the end of a request; `begun`: it was no longer waiting."""
        self.length -= not begun
        self._ended_s.append(time.monotonic())

    def load(self, taken: int) -> Load:
        """Return how many more requests may come while `taken` places are taken, and when to retry where none may."""
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
