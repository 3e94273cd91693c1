"""Arrival times of requests."""

from __future__ import annotations

import numpy as np
import pytest

from forearm.bench.arrivals import RampUp, send_times
from forearm.errors import ConfigError

COUNT = 20_000


def test_without_a_rate_all_go_at_once() -> None:
    assert send_times(3, float("inf"), 1.0, 0) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_intervals_have_the_mean_of_the_rate_and_the_variation_of_the_burstiness(burstiness: float) -> None:
    intervals = np.diff(send_times(COUNT, 8.0, burstiness, seed=3))

    assert intervals.mean() == pytest.approx(1 / 8, rel=0.01)
    # A gamma distribution of shape k varies by 1 / sqrt(k) of its mean; 1 is the exponential one of a Poisson process.
    assert intervals.std() / intervals.mean() == pytest.approx(burstiness**-0.5, rel=0.03)


def test_a_poisson_process_has_as_many_arrivals_in_a_second_as_poisson_says() -> None:
    counts = np.bincount(np.asarray(send_times(COUNT, 8.0, 1.0, seed=4)).astype(int))[:-1]

    assert counts.mean() == pytest.approx(8, rel=0.01)
    assert counts.var() == pytest.approx(8, rel=0.1)  # mean and variance of a Poisson distribution are the same


def test_endless_burstiness_is_an_even_beat() -> None:
    assert send_times(4, 2.0, float("inf"), 0) == pytest.approx([0.5, 1.0, 1.5, 2.0])


@pytest.mark.parametrize("seed", range(5))
def test_the_last_request_comes_when_the_rate_says_whatever_the_seed(seed: int) -> None:
    assert send_times(50, 5.0, 1.0, seed)[-1] == pytest.approx(10.0)


def test_a_seed_gives_the_same_times_and_another_gives_others() -> None:
    assert send_times(9, 1.0, 1.0, 1) == send_times(9, 1.0, 1.0, 1) != send_times(9, 1.0, 1.0, 2)


def test_a_ramp_grows_from_the_first_request_to_the_last() -> None:
    assert list(RampUp("linear", 1, 5).rates(5)) == pytest.approx([1, 2, 3, 4, 5])
    assert list(RampUp("exponential", 1, 16).rates(5)) == pytest.approx([1, 2, 4, 8, 16])
    assert list(RampUp("linear", 2, 5).rates(1)) == [2]
    assert send_times(3, float("inf"), float("inf"), 0, RampUp("linear", 1, 4)) == pytest.approx([1, 1.4, 1.65])


@pytest.mark.parametrize("ramp", [("linear", 0, 5), ("linear", 5, 1), ("exponential", -1, 1), ("steep", 1, 2)])
def test_a_ramp_that_cannot_be_is_refused(ramp: tuple[str, float, float]) -> None:
    with pytest.raises(ConfigError, match="--ramp-up"):
        RampUp(*ramp)
