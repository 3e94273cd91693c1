"""The parts that metrics.py adds to prometheus_client."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from forearm.metrics import ENGINE, Histogram, register


@pytest.mark.parametrize("value", [0.0, 0.01, 0.0100001, 80.0, 81.0])  # on a bound, between two, beyond the last
def test_a_value_observed_three_times_at_once_reads_as_if_observed_thrice(value: float) -> None:
    texts = []
    for times in ([3], [1, 1, 1]):
        registry = CollectorRegistry()
        family = register(ENGINE, registry)["vllm:inter_token_latency_seconds"]
        histogram = family.labels(model_name="m", engine="0")
        assert isinstance(histogram, Histogram)
        for count in times:
            if count == 1:
                histogram.observe(value)
            else:
                histogram.observe_times(value, count)
        texts.append(generate_latest(registry))

    assert texts[0] == texts[1]
