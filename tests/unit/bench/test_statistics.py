"""The figures of a run, against the same by hand."""

from __future__ import annotations

import pytest

from forearm.bench.statistics import RequestOutcome, figures, latencies_s, most_at_once, pooling_figures, spread

# Three requests within ten seconds: one of three tokens, one of one token in two events, one that failed.
RUN = [
    RequestOutcome(10, start_s=100.0, ttft_s=1.0, itl_s=[0.5, 1.5], latency_s=3.0, output_tokens=3, text="abc"),
    RequestOutcome(30, start_s=102.0, queued_s=0.25, ttft_s=2.0, itl_s=[1.0], latency_s=3.0, output_tokens=1, text="d"),
    RequestOutcome(50, start_s=101.0, ttft_s=9.0, error="HTTP 400: no"),
]


def test_totals_and_throughputs_are_those_of_the_requests_that_succeeded() -> None:
    found = figures(RUN, 10.0, {})

    assert (found["completed"], found["failed"]) == (2, 1)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (40, 4)
    assert found["request_throughput"] == pytest.approx(0.2)
    assert found["output_throughput"] == pytest.approx(0.4)
    assert found["total_token_throughput"] == pytest.approx(4.4)
    assert found["request_goodput"] is None
    assert found["output_lens"] == [3, 1, 0]
    assert found["errors"] == ["", "", "HTTP 400: no"]


def test_requests_for_vectors_count_their_inputs() -> None:
    found = pooling_figures(
        [RequestOutcome(10, sequences=4, latency_s=1.0), RequestOutcome(20), RequestOutcome(5, error="no")], 2.0
    )

    assert (found["completed"], found["failed"]) == (2, 1)
    assert (found["total_input_tokens"], found["total_input_sequences"]) == (30, 5)
    assert (found["request_throughput"], found["input_sequence_throughput"]) == (1.0, 2.5)
    assert found["total_token_throughput"] == 15.0


def test_tpot_leaves_out_the_first_token_and_requests_that_have_no_other() -> None:
    values = latencies_s(RUN)

    assert values["tpot"] == [pytest.approx((3.0 - 1.0) / 2)]
    assert values["ttft"] == [1.0, 2.0]
    assert values["itl"] == [0.5, 1.5, 1.0]
    assert values["e2el"] == [3.0, 3.0]
    assert values["e2el_including_client_queue"] == [3.0, 3.25]


def test_a_spread_is_in_milliseconds_with_linear_percentiles_and_the_deviation_of_the_population() -> None:
    found = spread("itl", [0.001, 0.002, 0.003, 0.006], [50, 99, 99.9])

    assert list(found) == ["mean_itl_ms", "median_itl_ms", "std_itl_ms", "p50_itl_ms", "p99_itl_ms", "p99.9_itl_ms"]
    assert found["mean_itl_ms"] == pytest.approx(3.0)
    assert found["median_itl_ms"] == found["p50_itl_ms"] == pytest.approx(2.5)
    assert found["std_itl_ms"] == pytest.approx(((4 + 1 + 0 + 9) / 4) ** 0.5)
    assert found["p99_itl_ms"] == pytest.approx(3 + 0.97 * 3)  # between the third and the last: 0.99 * 3 = 2.97
    assert found["p99.9_itl_ms"] == pytest.approx(3 + 0.997 * 3)


def test_nothing_measured_is_0() -> None:
    assert spread("ttft", [], [99]) == dict.fromkeys(
        ("mean_ttft_ms", "median_ttft_ms", "std_ttft_ms", "p99_ttft_ms"), 0.0
    )
    assert figures([RUN[2]], 1.0, {"ttft": 1.0})["request_goodput"] == 0.0


@pytest.mark.parametrize(
    ("objectives_ms", "good"),
    [
        ({"ttft": 2000.0}, 2),
        ({"ttft": 1999.0}, 1),
        ({"tpot": 999.0}, 1),  # the request of one token has no TPOT to miss
        ({"ttft": 1500.0, "e2el": 3000.0}, 1),
        ({"e2el": 2999.0}, 0),
    ],
)
def test_a_good_request_keeps_to_every_objective(objectives_ms: dict[str, float], good: int) -> None:
    assert figures(RUN, 10.0, objectives_ms)["request_goodput"] == pytest.approx(good / 10)


def test_the_fullest_second_is_counted_from_the_first_request_on() -> None:
    # Tokens 1.0, 1.5 and 3.0 seconds after the start, and of the other 4.0 and 5.0: two in the second second.
    assert figures(RUN, 10.0, {})["max_output_tokens_per_s"] == 2.0


def test_requests_at_once_are_counted_exactly() -> None:
    def at(start_s: float, latency_s: float) -> RequestOutcome:
        return RequestOutcome(1, start_s=start_s, latency_s=latency_s)

    assert most_at_once([at(0, 2), at(1, 2), at(2, 1)]) == 2  # the third begins as the first ends
    assert most_at_once([at(0, 3), at(1, 1), at(1.5, 1)]) == 3
    assert most_at_once([]) == 0
