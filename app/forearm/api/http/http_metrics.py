"""Count HTTP requests for Prometheus. Workers keep their values in files, which are read as one."""

from __future__ import annotations

from itertools import product
from typing import Any, Literal, get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from forearm.api.worker import metric_files
from forearm.metrics import HTTP, register

# What vLLM's metrics call the kind of a chat request.
RequestType = Literal["chat_completions", "responses", "other"]


class HttpMeter:
    """The HTTP metrics of a worker. folder: PROMETHEUS_MULTIPROC_DIR at the process's start; "": this is the only
    worker.
    """

    def __init__(self, folder: str = "") -> None:
        self._registry = CollectorRegistry()
        if folder:
            metric_files.use()
            MultiProcessCollector(self._registry, path=folder)  # type: ignore[no-untyped-call]
        self._families = register(HTTP, None if folder else self._registry)

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

    def log_lines_dropped(self, lines: int) -> None:
        """Count log lines that were dropped because nothing reads this worker's log."""
        self._families["forearm:log_lines_dropped"].inc(lines)

    def out_of_descriptors(self, seconds: float) -> None:
        """Count seconds in which this worker could not open files or connections."""
        self._families["forearm:out_of_descriptors_seconds"].inc(seconds)

    def start_series(self, model_name: str) -> None:
        """Create the series with labels at 0, so that they exist from the start."""
        for streaming, found in product((True, False), repeat=2):
            for request_type in get_args(RequestType):
                self._parser_series(model_name, streaming, found, request_type)

    def in_flight(self, change: int) -> None:
        """Count a request that does work when it begins (1) or ends (-1)."""
        self._families["forearm:http_requests_in_flight"].inc(change)

    def load(self) -> int:
        """Return the number of such requests now, over all workers."""
        return int(self._registry.get_sample_value("forearm:http_requests_in_flight") or 0)

    def tool_parser(self, model_name: str, streaming: bool, found: bool, request_type: RequestType) -> None:
        """Count a choice, or a delta of a stream, that a tool parser has read."""
        self._parser_series(model_name, streaming, found, request_type).inc()

    def _parser_series(self, model_name: str, streaming: bool, found: bool, request_type: RequestType) -> Any:
        mode, outcome = "streaming" if streaming else "non_streaming", "tool_call" if found else "no_tool_call"
        return self._families["vllm:tool_call_parser_invocations"].labels(model_name, mode, outcome, request_type)

    def refused_early(self) -> None:
        """Count a request that found the queue full before it was read."""
        self._families["forearm:requests_refused_early"].inc()

    def key_request(self, key: str) -> None:
        """Count an admitted request of the key of this name."""
        self._families["forearm:key_requests"].labels(key).inc()

    def key_tokens(self, key: str, kind: str, tokens: int) -> None:
        """Count tokens of a key. kind: prompt or generation."""
        self._families["forearm:key_tokens"].labels(key, kind).inc(tokens)

    def key_rejected(self, key: str, limit: str) -> None:
        """Count a refused request of a key. limit: requests, tokens or concurrency."""
        self._families["forearm:key_rejections"].labels(key, limit).inc()

    def unknown_field(self, name: str) -> None:
        """Count a request field that this server does not know."""
        self._families["forearm:unknown_request_fields"].labels(name).inc()
