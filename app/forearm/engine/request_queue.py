"""The queue of requests before their first step: its length, its limit, and the rate at which requests leave it."""

from __future__ import annotations

import math
import time
from collections import deque

from forearm.errors import InvalidRequest, Overloaded
from forearm.wire import MAX_OUTPUTS, Load

# The rate is taken over this many of the last requests that ended: seconds of a busy engine, minutes of a slow one.
_MOST_ENDED = 256
# The openai package follows Retry-After up to a minute; for longer times it waits only half a second.
_LONGEST_S = 60


class RequestQueue:
    """The count of waiting requests. limit: how many may wait besides those with a free place. places: how many run."""

    def __init__(self, limit: int, places: int) -> None:
        self.length = 0
        self._limit, self._places = limit, places
        self._ended_s: deque[float] = deque(maxlen=_MOST_ENDED)  # without the idle time before
        self._open, self._idle_since_s = 0, 0.0  # requests that wait or run; the time since when there was none
        self._idle_s = 0.0

    def enter(self) -> None:
        """Count another waiting request."""
        if not self._open:
            # The rate is that of a busy engine: clients that wait as long as they were told leave it idle meanwhile,
            # and would be told longer and longer times.
            self._idle_s += time.monotonic() - self._idle_since_s
        self._open += 1
        self.length += 1

    def begin(self) -> None:
        """Count the first step of a request that waited."""
        self.length -= 1

    def leave(self, begun: bool) -> None:
        """Count the end of a request; `begun`: it was no longer waiting."""
        self.length -= not begun
        self._idle_since_s = time.monotonic()
        self._open -= 1
        self._ended_s.append(self._idle_since_s - self._idle_s)

    def load(self, taken: int) -> Load:
        """Return how many more requests may come while `taken` places are taken; if none, the time to retry after.

        That time is until the queue is empty at the present rate: 1 to 60 seconds; 1 while no rate is known.
        """
        wait_s = 1
        if len(self._ended_s) >= 2:
            mean_s = (time.monotonic() - self._idle_s - self._ended_s[0]) / len(self._ended_s)
            wait_s = min(max(math.ceil(self.length * mean_s), 1), _LONGEST_S)
        return Load(self._limit + self._places - taken - self.length, wait_s)

    def check(self, outputs: int, running: int, waiting: int) -> None:
        """Check that a request for `outputs` outputs is within the limits. Raises: InvalidRequest, Overloaded."""
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
