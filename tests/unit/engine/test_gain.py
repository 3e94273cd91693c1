"""The gain of drafts on simulated machines over many steps, for any noise of single measurements."""

from __future__ import annotations

import math
import random
from statistics import median

import pytest

from forearm.engine.speculation.draft_length import DraftAccuracy, Gain


class Machine:
    """A step takes 1 s and `token_s` more for each token beyond the first, the clock is off by `noise`, and six of ten
    times a draft is to be had for an output.
    """

    def __init__(self, outputs: int, token_s: float, noise: float, seed: int = 0) -> None:
        self._outputs, self._token_s, self._noise = outputs, token_s, noise
        self._draw = random.Random(seed)
        self._gain, self._everyone = Gain(), DraftAccuracy(0.98)

    def run(self, share: float, steps: int) -> float:
        """New answers with such a share of right drafts. Returns: tokens a second over those without drafts."""
        tokens = seconds = 0.0
        shares = [DraftAccuracy() for _ in range(self._outputs)]
        for _ in range(steps):
            gained, took_s = self._step(share, shares)
            tokens += gained
            seconds += took_s
        return tokens / seconds / (self._outputs / (1 + self._token_s * (self._outputs - 1)))

    def _step(self, share: float, shares: list[DraftAccuracy]) -> tuple[int, float]:
        draw, everyone, outputs, tokens = self._draw, self._everyone, self._outputs, 0
        available = [8 if draw.random() < 0.6 else 0 for _ in range(outputs)]
        known = [one.after(everyone.after(0.5, 1.0), 2.0) for one in shares]
        lengths = self._gain.lengths(outputs, known, available, 0.0) if any(available) else [0] * outputs
        for one, could, length in zip(shares, available, lengths, strict=True):
            accepted = 0
            while accepted < length and draw.random() < share:
                accepted += 1
            tokens += 1 + accepted
            if length:
                one.observe(length, accepted)
                everyone.observe(length, accepted)
            elif could:
                one.fade(0.99)
        if not any(lengths):
            everyone.fade(0.99)
        took_s = 1 + self._token_s * (outputs + sum(lengths) - 1)
        clock_s = took_s * math.exp(draw.gauss(0, self._noise) - self._noise**2 / 2)
        self._gain.step(outputs + sum(lengths), sum(lengths), clock_s)
        return tokens, took_s


def speed(outputs: int, share: float, token_s: float, noise: float) -> float:
    """Return the speed over many steps."""
    return Machine(outputs, token_s, noise).run(share, 1200)


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("token_s", [0.02, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("outputs", [1, 8])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.4, 0.7, 0.95])
def test_drafts_cost_next_to_nothing_where_they_bring_nothing(
    share: float, outputs: int, token_s: float, noise: float
) -> None:
    assert speed(outputs, share, token_s, noise) > (0.93 if noise else 0.97)


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize(
    ("outputs", "share", "token_s", "least"),
    [
        (1, 0.95, 0.02, 4.0),
        (1, 0.7, 0.02, 1.8),
        (1, 0.4, 0.02, 1.2),
        (1, 0.95, 0.3, 1.8),
        (8, 0.95, 0.02, 2.2),
        (8, 0.7, 0.06, 1.04),
    ],
)
def test_drafts_bring_what_the_machine_and_the_text_give(
    outputs: int, share: float, token_s: float, least: float, noise: float
) -> None:
    assert speed(outputs, share, token_s, noise) > least


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize(
    ("outputs", "share", "token_s"), [(1, 0.0, 0.1), (1, 0.2, 0.3), (8, 0.0, 0.02), (8, 0.2, 0.1), (8, 0.4, 0.3)]
)
def test_a_text_whose_drafts_lose_is_noticed_within_16_steps(
    outputs: int, share: float, token_s: float, noise: float
) -> None:
    """The drafts of the text before were nearly always right. The first 16 steps cost a fifth at most, those after them
    and a whole answer of 96 tokens 7 %: medians over eight machines.
    """
    first, after, whole = [], [], []
    for seed in range(8):
        machine, same = (Machine(outputs, token_s, noise, seed) for _ in range(2))
        for one in (machine, same):
            one.run(0.95, 200)
        first.append(machine.run(share, 16))
        after.append(machine.run(share, 80))
        whole.append(same.run(share, 96))

    assert median(first) > 0.8
    assert median(after) > 0.93
    assert median(whole) > 0.93
