"""Drafts on machines of our own making: what they bring in the long run, whatever the clock makes of single steps."""

from __future__ import annotations

import math
import random

import pytest

from forearm.engine.gain import Gain, Share


def speed(outputs: int, share: float, token_s: float, noise: float) -> float:
    """Tokens a second with drafts over those without, on a machine where a step takes 1 s and `token_s` more for each
    token beyond the first, a clock is off by `noise`, and six of ten times a draft is to be had.
    """
    draw = random.Random(0)
    gain, everyone, shares = Gain(), Share(0.98), [Share() for _ in range(outputs)]
    tokens = seconds = 0.0
    for _ in range(1200):
        available = [8 if draw.random() < 0.6 else 0 for _ in range(outputs)]
        known = [one.after(everyone.after(0.5, 1.0), 2.0) for one in shares]
        lengths = gain.lengths(outputs, known, available, 0.0) if any(available) else [0] * outputs
        for one, could, length in zip(shares, available, lengths, strict=True):
            accepted = 0
            while accepted < length and draw.random() < share:
                accepted += 1
            tokens += 1 + accepted
            if length:
                one.saw(length, accepted)
                everyone.saw(length, accepted)
            elif could:
                one.fade(0.99)
        if not any(lengths):
            everyone.fade(0.99)
        took_s = 1 + token_s * (outputs + sum(lengths) - 1)
        seconds += took_s
        clock_s = took_s * math.exp(draw.gauss(0, noise) - noise * noise / 2)
        gain.step(outputs + sum(lengths), sum(lengths), clock_s)
    return tokens / seconds / (outputs / (1 + token_s * (outputs - 1)))


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
