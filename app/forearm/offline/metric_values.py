"""The metrics of LLM.get_metrics, as vLLM's classes have them (vllm/v1/metrics/reader.py)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client.metrics_core import Metric

_POSITIONS = "vllm:spec_decode_num_accepted_tokens_per_pos"


@dataclass
class MetricValue:
    """A metric without its value. `labels`: those that tell the series of one name apart, too."""

    name: str
    labels: dict[str, str]


@dataclass
class GaugeValue(MetricValue):
    """A number that goes up and down."""

    value: float = 0.0


@dataclass
class CounterValue(MetricValue):
    """A number that goes up: an int, unless it counts seconds."""

    value: float = 0


@dataclass
class VectorValue(MetricValue):
    """Counts by position in a draft: those of accepted tokens."""

    values: list[int] = field(default_factory=list)


@dataclass
class HistogramValue(MetricValue):
    """Observations: how many, their sum, and how many were at most the upper bound that is the key; "+Inf" is all."""

    count: int = 0
    sum: float = 0.0
    buckets: dict[str, int] = field(default_factory=dict)


def metric_values(families: Iterable[Metric]) -> list[MetricValue]:
    """Return a value for each series of the engine's own metrics; those of the Python process are left out."""
    return [one for family in families if family.name.startswith(("vllm:", "forearm:")) for one in _values(family)]


def _values(family: Metric) -> Iterator[MetricValue]:
    histograms: dict[tuple[str, ...], HistogramValue] = {}
    positions: dict[int, int] = {}
    labels: dict[str, str] = {}
    for sample in family.samples:
        labels = {name: value for name, value in sample.labels.items() if name not in ("le", "position")}
        if family.type == "histogram":
            one = histograms.setdefault(tuple(labels.values()), HistogramValue(family.name, labels))
            if sample.name.endswith("_bucket"):
                one.buckets[sample.labels["le"]] = int(sample.value)
            elif sample.name.endswith("_sum"):
                one.sum = sample.value
            elif sample.name.endswith("_count"):
                one.count = int(sample.value)
        elif family.name == _POSITIONS:
            positions[int(sample.labels["position"])] = int(sample.value)
        elif family.type == "counter":
            value = float(sample.value)
            yield CounterValue(family.name, labels, int(value) if value.is_integer() else value)
        elif family.type == "gauge":
            yield GaugeValue(family.name, labels, sample.value)
    yield from histograms.values()
    if positions:
        yield VectorValue(_POSITIONS, labels, [positions[at] for at in sorted(positions)])
