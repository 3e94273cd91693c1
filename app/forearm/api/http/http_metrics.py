"""Count HTTP requests for Prometheus. Workers keep their values in files, which are read as one."""

from __future__ import annotations

from itertools import product
from typing import Any, Literal, get_args

from prometheus_client import CollectorRegistry, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector

from forearm.api.worker.metric_files import AllocatedDict
from forearm.metrics import HTTP, register

# What vLLM's metrics call the kind of a chat request.
RequestType = Literal["chat_completions", "responses", "other"]


class HttpMeter:
    """The HTTP metrics of a worker. folder: PROMETHEUS_MULTIPROC_DIR at the process's start; "": this is the only
    worker.
    """

    def __init__(self, folder: str, model_name: str) -> None:
        self._registry = CollectorRegistry()
        if folder:
            values.MmapedDict = AllocatedDict  # type: ignore[attr-defined, assignment]  # before the first metric
            MultiProcessCollector(self._registry, path=folder)  # type: ignore[no-untyped-call]
        self._families = register(HTTP, None if folder else self._registry)
        for streaming, found in product((True, False), repeat=2):  # series with labels exist from the start, at 0
            for request_type in get_args(RequestType):
                self.parser_series(model_name, streaming, found, request_type)

    def text(self) -> str:
        """Return the values of all workers in Prometheus' text format."""
        return generate_latest(self._registry).decode()

    def answered(
        self, method: str, status: int, handler: str, seconds: float, request_bytes: int, response_bytes: int
    ) -> None:
        """Count one completed request. handler: its route, not its path, which clients choose freely."""
        self._families["http_requests"].labels(method, f"{status // 100}xx", handler).inc()
        self._families["http_request_size_bytes"].labels(handler).observe(request_bytes)
        self._families["http_response_size_bytes"].labels(handler).observe(response_bytes)
        self._families["http_request_duration_seconds"].labels(method, handler).observe(seconds)
        self._families["http_request_duration_highr_seconds"].observe(seconds)

    def count(self, family: str, *labels: str, by: float = 1) -> None:
        """Add to a counter or gauge of metrics.HTTP."""
        metric = self._families[family]
        (metric.labels(*labels) if labels else metric).inc(by)

    def load(self) -> int:
        """Return the number of requests in flight that do work, over all workers."""
        return int(self._registry.get_sample_value("forearm:http_requests_in_flight") or 0)

    def parser_series(self, model_name: str, streaming: bool, found: bool, request_type: RequestType) -> Any:
        """Return the counter of choices, or deltas of streams, that a tool parser has read."""
        mode, outcome = "streaming" if streaming else "non_streaming", "tool_call" if found else "no_tool_call"
        return self._families["vllm:tool_call_parser_invocations"].labels(model_name, mode, outcome, request_type)
