"""Arrival times of requests: a Poisson process, or a gamma process that is burstier or more even; ramps of the rate.

Source: vllm/benchmarks/serve.py, `get_request`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from forearm.errors import ConfigError

STRATEGIES = ("linear", "exponential")


@dataclass(frozen=True)
class RampUp:
    """A rate that grows from the first request to the last, in requests a second."""

    strategy: str
    start_rps: float
    end_rps: float

    def __post_init__(self) -> None:
        """Check the rates. Raises: ConfigError."""
        if self.strategy not in STRATEGIES:
            raise ConfigError(f"--ramp-up-strategy {self.strategy}: write one of {', '.join(STRATEGIES)}")
        if not 0 < self.start_rps <= self.end_rps:
            raise ConfigError(
                f"--ramp-up-start-rps {self.start_rps:g} --ramp-up-end-rps {self.end_rps:g}: the start must be "
                "more than 0, and the end no less than the start"
            )

    def rates(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Return the rate at each of `count` requests."""
        progress = np.arange(count) / max(count - 1, 1)
        if self.strategy == "linear":
            return self.start_rps + (self.end_rps - self.start_rps) * progress
        rates: np.ndarray[tuple[int], np.dtype[np.float64]] = (
            self.start_rps * (self.end_rps / self.start_rps) ** progress
        )
        return rates


def send_times(count: int, rate: float, burstiness: float, seed: int, ramp_up: RampUp | None = None) -> list[float]:
    """Return the seconds from the start of the run to each request.

    Intervals are gamma distributed with shape `burstiness` and mean 1 / rate: 1 is a Poisson process, less is burstier,
    inf is even. Without a ramp the times are scaled so that the last request is sent at count / rate exactly: otherwise
    a run's rate would be off by one or two per cent, differently for each seed.
    """
    if math.isinf(rate) and ramp_up is None:
        return [0.0] * count
    rates = np.full(count, rate) if ramp_up is None else ramp_up.rates(count)
    if math.isinf(burstiness):
        intervals = 1 / rates
    else:
        intervals = np.random.default_rng(seed).gamma(burstiness, 1 / (rates * burstiness))
    times = np.cumsum(intervals)
    if ramp_up is None and times[-1] > 0:
        times *= count / rate / times[-1]
    return [float(time) for time in times]
