"""Draft length, chosen by the share of drafted tokens that was accepted and by step times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forearm.engine.metrics.step_times import StepTimes, rounded

_PLAIN_AFTER = 64  # steps with drafts, after which one without tells what they save
# Tokens a second with drafts over those without, from which on they are worth it: of many lengths with uncertain times
# the best looks better than it is.
_WORTH = 1.05


@dataclass
class DraftAccuracy:
    """The share of drafted tokens that were accepted; older ones count less.

    keeps: what of the past is left after the next draft
    """

    keeps: float = 0.9
    right: float = 0.0
    wrong: float = 0.0

    def saw(self, drafted: int, accepted: int) -> None:
        """A draft was right as far as `accepted`; what comes after the first wrong token tells nothing."""
        self.fade(self.keeps)
        self.right += accepted
        self.wrong += accepted < drafted

    def fade(self, keeps: float) -> None:
        """Know less: what is not tried may have become right."""
        self.right *= keeps
        self.wrong *= keeps

    def after(self, before: float, weight: float) -> float:
        """The share, where `before` was taken for it and counts like `weight` tokens."""
        return (self.right + weight * before) / (self.right + self.wrong + weight)


class Gain:
    """Chooses how long drafts may be, so that most tokens a second are to be expected."""

    def __init__(self) -> None:
        self.times = StepTimes()
        self._since_plain: defaultdict[int, int] = defaultdict(lambda: _PLAIN_AFTER)

    def step(self, tokens: int, drafts: int, seconds: float) -> None:
        """A step of so many tokens, `drafts` of them guessed, took so long."""
        self.times.saw(tokens, seconds)
        size = rounded(tokens - drafts)
        self._since_plain[size] = self._since_plain[size] + 1 if drafts else 0

    def lengths(self, tokens: int, shares: Sequence[float], available: Sequence[int], round_s: float) -> list[int]:
        """Return how many tokens to draft for each output, in a step of `tokens` without drafts.

        shares     how likely a drafted token is to be right where those before it are
        available  most that can be drafted
        round_s    seconds that one token more of every draft takes
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
