"""Counts HTTP requests for Prometheus. Several workers keep their numbers in files and are read as one."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from forearm.metrics import HTTP, register


class HttpMeter:
    """`folder` is where PROMETHEUS_MULTIPROC_DIR lay when this process began; "": this is the only worker."""

    def __init__(self, folder: str = "") -> None:
        self._registry = CollectorRegistry()
        if folder:
            MultiProcessCollector(self._registry, path=folder)  # type: ignore[no-untyped-call]
        self._families = register(HTTP, None if folder else self._registry)

    def text(self) -> str:
        """What all workers have counted, in Prometheus' text format."""
        return generate_latest(self._registry).decode()

    def answered(
        self, method: str, status: int, handler: str, seconds: float, request_bytes: int, response_bytes: int
    ) -> None:
        """One request is over. `handler` is its route, not its path: paths are the clients' to make up."""
        self._families["http_requests"].labels(method, f"{status // 100}xx", handler).inc()
        self._families["http_request_size_bytes"].labels(handler).inc(request_bytes)
        self._families["http_response_size_bytes"].labels(handler).inc(response_bytes)
        self._families["http_request_duration_seconds"].labels(method, handler).observe(seconds)
        self._families["http_request_duration_highr_seconds"].observe(seconds)

    def unknown_field(self, name: str) -> None:
        """A request had a field that this server does not know."""
        self._families["forearm:unknown_request_fields"].labels(name).inc()
