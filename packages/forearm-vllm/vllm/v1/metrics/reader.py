"""Types of the values that LLM.get_metrics returns, under vLLM's names."""

from forearm.offline.metric_values import CounterValue as Counter
from forearm.offline.metric_values import GaugeValue as Gauge
from forearm.offline.metric_values import HistogramValue as Histogram
from forearm.offline.metric_values import MetricValue as Metric
from forearm.offline.metric_values import VectorValue as Vector

__all__ = ["Counter", "Gauge", "Histogram", "Metric", "Vector"]
