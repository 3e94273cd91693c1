"""The queue of waiting sequences, ordered by priority, then by fair shares between clients, then by rank.

The first sequence in rank determines the priority that is served next. Among the clients with sequences of this
priority, the one with the fewest computed tokens goes first, with its own first sequence in rank. With a single client
the order is that of ranks.

Technique: the counters of Sheng et al. 2024 (Fairness in Serving Large Language Models). The counter of a client that
joins the queue is raised to that of the client of the first sequence in rank, not to the smallest of all: otherwise
newcomers could overtake a sequence without end.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from dataclasses import dataclass, field
from operator import attrgetter

from forearm.engine.sequence import Rank, Request, Sequence

_RANK, _KEY = attrgetter("rank"), attrgetter("key")


class ServedTokens:
    """Counters of the tokens computed for each client that has open requests."""

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}
        self._open: Counter[str] = Counter()  # open requests

    def __getitem__(self, client: str) -> int:
        return self._tokens[client]

    @property
    def least(self) -> int:
        """Return the smallest counter of any client."""
        return min(self._tokens.values(), default=0)

    def enter(self, client: str, at_least: int) -> None:
        """Count a new request of a client, and raise its counter to `at_least`."""
        self._open[client] += 1
        self._tokens[client] = max(at_least, self._tokens.get(client, 0))

    def leave(self, client: str) -> None:
        """Count the end of a client's request."""
        self._open[client] -= 1
        if not self._open[client]:
            del self._open[client], self._tokens[client]

    def add(self, client: str, tokens: int) -> None:
        """Count `tokens` more for a client."""
        self._tokens[client] += tokens


@dataclass(eq=False)
class _Line:
    """Sequences of one client and one priority, in order of rank. `key`: the sort key among the lines."""

    client: str
    sequences: list[Sequence] = field(default_factory=list)
    key: tuple[int, Rank] = (0, (0.0, 0, 0))


class WaitingQueue:
    """The waiting sequences. A change takes a few binary searches, however many there are.

    ranked: all sequences in order of rank. served: the clients' counters of computed tokens
    """

    def __init__(self) -> None:
        self.ranked: list[Sequence] = []
        self._lines: dict[tuple[int, str], _Line] = {}
        self._turns: dict[int, list[_Line]] = {}  # by priority: lines in order of their keys
        self.served = ServedTokens()

    def enter(self, request: Request) -> None:
        """Count a new request of a client, without credit for the time in which the client had no requests."""
        at_least = 0
        if (request.priority, request.client) not in self._lines:
            at_least = self.served[self.ranked[0].request.client] if self.ranked else self.served.least
        self.served.enter(request.client, at_least)

    def put(self, sequence: Sequence) -> None:
        """Put a sequence in the queue."""
        insort(self.ranked, sequence, key=_RANK)
        request = sequence.request
        line = self._lines.setdefault((request.priority, request.client), _Line(request.client))
        insort(line.sequences, sequence, key=_RANK)
        self._stand(line, request.priority)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out of the queue."""
        del self.ranked[place(self.ranked, sequence)]
        request = sequence.request
        line = self._lines[request.priority, request.client]
        del line.sequences[place(line.sequences, sequence)]
        self._stand(line, request.priority)
        if not line.sequences:
            del self._lines[request.priority, request.client]

    def first(self) -> Sequence:
        """Return the sequence whose turn it is. There must be one."""
        priority = self.ranked[0].request.priority
        turns = self._turns[priority]
        while (line := turns[0]).key != self._key(line):  # keys only grow, so only the first line needs a check
            self._stand(line, priority)
        return line.sequences[0]

    def _stand(self, line: _Line, priority: int) -> None:
        """Move the line to the place of its key, or remove it if it is empty."""
        turns = self._turns.setdefault(priority, [])
        at = bisect_left(turns, line.key, key=_KEY)
        if at < len(turns) and turns[at] is line:
            del turns[at]
        if line.sequences:
            line.key = self._key(line)
            insort(turns, line, key=_KEY)
        elif not turns:
            del self._turns[priority]

    def _key(self, line: _Line) -> tuple[int, Rank]:
        return self.served[line.client], line.sequences[0].rank


def place(ranked: list[Sequence], sequence: Sequence) -> int:
    """Return the index that the sequence has, or would have, in a list in order of rank."""
    return bisect_left(ranked, sequence.rank, key=_RANK)
