"""Draft length, chosen by the share of drafted tokens that was accepted and by step times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forearm.engine.metrics.step_times import StepTimes, rounded

_PLAIN_AFTER = 64  # steps with drafts, after which a step without measures their gain
# The least ratio of tokens per second with drafts to those without: among many lengths with uncertain times the best
# one looks better than it is.
_WORTH = 1.05
_NEW = 0.2  # weight of a newly measured time of a round


@dataclass
class DraftAccuracy:
    """The share of drafted tokens that were accepted; older ones count less.

    keeps: weight that the past retains after the next draft
    """

    keeps: float = 0.9
    right: float = 0.0
    wrong: float = 0.0

    def observe(self, drafted: int, accepted: int) -> None:
        """Count a draft with `accepted` accepted tokens; tokens after the first wrong one are not counted."""
        self.fade(self.keeps)
        self.right += accepted
        self.wrong += accepted < drafted

    def fade(self, keeps: float) -> None:
        """Reduce the weight of the past, because accuracy may change while no drafts are tried."""
        self.right *= keeps
        self.wrong *= keeps

    def after(self, before: float, weight: float) -> float:
        """Return the share of accepted tokens, with the prior `before`, which counts like `weight` tokens."""
        return (self.right + weight * before) / (self.right + self.wrong + weight)


class RoundTime:
    """The seconds of a round that drafts one more token of every output: a moving average."""

    seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Count a round. A much longer one counts as twice the average: the machine stood still."""
        weight = _NEW if self.seconds else 1.0
        self.seconds += weight * (min(seconds, 2 * self.seconds or seconds) - self.seconds)


class Gain:
    """Chooses the lengths of drafts with the most expected tokens per second."""

    def __init__(self) -> None:
        self.times = StepTimes()
        self._since_plain: defaultdict[int, int] = defaultdict(lambda: _PLAIN_AFTER)

    def step(self, tokens: int, drafts: int, seconds: float) -> None:
        """Learn from the time of a step of `tokens` tokens, including `drafts` drafted ones."""
        self.times.observe(tokens, seconds)
        size = rounded(tokens - drafts)
        self._since_plain[size] = self._since_plain[size] + 1 if drafts else 0

    def lengths(self, tokens: int, shares: Sequence[float], available: Sequence[int], round_s: float) -> list[int]:
        """Return how many tokens to draft for each output, in a step of `tokens` without drafts.

        shares     probability that a drafted token is accepted if those before it are
        available  most that can be drafted
        round_s    seconds for one more token of every draft
        """
        lengths = [0] * len(shares)
        if self._since_plain[rounded(tokens)] >= _PLAIN_AFTER:
            return lengths
        # Each drafted token with its chance; a longer draft's chances fall, so the best first are whole beginnings.
        chances = sorted(
            (-(share**length), length, number)
            for number, (share, most) in enumerate(zip(shares, available, strict=True))
            for length in range(1, most + 1)
        )
        expected = len(shares) + np.cumsum([0.0, *(-chance for chance, _, _ in chances)])
        seconds = self.times.of(tokens + np.arange(len(chances) + 1))
        if round_s:
            seconds += round_s * np.maximum.accumulate([0, *(length for _, length, _ in chances)])
        speed = expected / seconds
        best = int(np.argmax(speed))
        if speed[best] > _WORTH * speed[0]:
            for _, _, number in chances[:best]:
                lengths[number] += 1
        return lengths
