"""Whether drafts are worth their time: seconds of steps as measured, and what share of drafted tokens was right."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]

_NEW = 0.2  # weight of a newly measured time; steps of one kind differ by a few percent
_PLAIN_AFTER = 64  # steps with drafts, after which one without tells what they save
# Of a step's mean time for a token, what one token more is taken to cost where nothing larger was measured: reading
# weights is most of a small step. Too little is tried once and then known.
_FIRST_SLOPE, _LEAST_SLOPE = 0.25, 0.05
# Tokens a second with drafts over those without, from which on they are worth it: of many lengths with uncertain times
# the best looks better than it is.
_WORTH = 1.05


@dataclass
class Share:
    """Of drafted tokens that were looked at, how many were right; what was long ago counts less.

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


class StepTimes:
    """Seconds of a step by the number of its tokens: measured ones, and straight lines between them."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    def saw(self, tokens: int, seconds: float) -> None:
        """A step took so long. One that was held up counts as twice the usual."""
        size = rounded(tokens)
        known = self._seconds.get(size, seconds)
        self._seconds[size] = known + _NEW * (min(seconds, 2 * known) - known)

    def knows(self, tokens: int) -> bool:
        """Whether a step of about so many tokens was measured."""
        return rounded(tokens) in self._seconds

    def of(self, tokens: npt.NDArray[np.int64]) -> Float64Array:
        """Seconds of steps of so many tokens; more tokens never take less time."""
        sizes = sorted(self._seconds)
        seconds = np.maximum.accumulate([self._seconds[size] for size in sizes])
        last, mean = sizes[-1], seconds[-1] / sizes[-1]
        slope = _FIRST_SLOPE * mean
        if len(sizes) > 1:
            slope = max(_LEAST_SLOPE * mean, (seconds[-1] - seconds[-2]) / (last - sizes[-2]))
        return np.asarray(np.interp(tokens, sizes, seconds) + slope * np.maximum(0, tokens - last))


class Gain:
    """Chooses how long drafts may be, so that most tokens a second are to be expected."""

    def __init__(self) -> None:
        self._steps = StepTimes()
        self._since_plain: defaultdict[int, int] = defaultdict(lambda: _PLAIN_AFTER)

    def step(self, tokens: int, drafts: int, seconds: float) -> None:
        """A step of so many tokens, `drafts` of them guessed, took so long."""
        self._steps.saw(tokens, seconds)
        size = rounded(tokens - drafts)
        self._since_plain[size] = self._since_plain[size] + 1 if drafts else 0

    def lengths(self, tokens: int, shares: Sequence[float], available: Sequence[int], round_s: float) -> list[int]:
        """How many tokens to draft for each output, in a step of `tokens` without drafts.

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
        seconds = self._steps.of(tokens + np.arange(len(chances) + 1))
        if round_s:
            seconds += round_s * np.maximum.accumulate([0, *(length for _, length, _ in chances)])
        speed = expected / seconds
        best = int(np.argmax(speed))
        if speed[best] > _WORTH * speed[0]:
            for _, _, number in chances[:best]:
                lengths[number] += 1
        return lengths


def rounded(tokens: int) -> int:
    """Numbers of tokens whose steps are taken for equal: exact below 32, then to five binary digits."""
    step = 1 << max(0, tokens.bit_length() - 5)
    return (tokens + step // 2) // step * step
