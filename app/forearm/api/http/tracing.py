"""Send a span for each request over OTLP to --otlp-traces-endpoint: `pip install forearm[otlp]`.

Span and attributes have vLLM's names (its tracing.py); a request's `traceparent` header makes its span the child of the
caller's.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from forearm import wire
from forearm.errors import ConfigError

_NS = 1_000_000_000
_FLUSH_MS = 5000


class Tracer:
    """Makes spans and sends them from a separate thread. Call `start` once in each worker, after gunicorn's fork."""

    def __init__(self, endpoint: str, protocol: str, model_name: str) -> None:
        """Check that the packages are installed.

        Raises: ConfigError if they are not.
        """
        self._endpoint = endpoint
        self._protocol = protocol
        self._model_name = model_name
        self._provider: Any = None
        self._tracer: Any = None
        try:
            import opentelemetry.sdk.trace
            import opentelemetry.trace.propagation.tracecontext

            _exporter(protocol)
        except ImportError as error:
            raise ConfigError(
                f"--otlp-traces-endpoint {endpoint}: {error.name} is not installed; pip install 'forearm[otlp]'"
            ) from None
        self._sdk = opentelemetry.sdk.trace
        self._context = opentelemetry.trace.propagation.tracecontext.TraceContextTextMapPropagator()

    def start(self) -> None:
        """Start sending."""
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporter = _exporter(self._protocol)
        own = {"insecure": not self._endpoint.startswith("https:")} if self._protocol == "grpc" else {}
        self._provider = self._sdk.TracerProvider(resource=Resource.create({"service.name": "forearm"}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter(endpoint=self._endpoint, **own)))
        self._tracer = self._provider.get_tracer("forearm.llm_engine")

    def close(self) -> None:
        """Send the remaining spans within a few seconds."""
        if self._provider is not None:
            self._provider.force_flush(_FLUSH_MS)
            self._provider.shutdown()

    def begin(self, headers: Mapping[str, str], request_id: str) -> RequestTrace:
        """Return the observer of a request that has just arrived."""
        return RequestTrace(self, self._context.extract(dict(headers)), request_id)

    def send(self, parent: Any, begun_ns: int, attributes: Mapping[str, Any], ended_ns: int) -> None:
        """Send one completed span."""
        if self._tracer is None:
            return
        from opentelemetry.trace import SpanKind

        named = {"gen_ai.response.model": self._model_name, **attributes}
        span = self._tracer.start_span("llm_request", parent, SpanKind.SERVER, named, start_time=begun_ns)
        span.end(ended_ns)


def _exporter(protocol: str) -> Any:
    """Return the exporter class for this protocol.

    Raises: ImportError.
    """
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp

    return OverHttp


class RequestTrace:
    """Observes one HTTP request and sends its span at the end.

    Times are measured in the worker from the request's arrival; the queue time is reported by the engine.
    """

    def __init__(self, tracer: Tracer, parent: Any, request_id: str) -> None:
        self._tracer = tracer
        self._parent = parent
        self._begun_ns = time.time_ns()
        self._first_ns: int | None = None
        self._last_ns = 0
        self._queue_s = 0.0
        self._attributes: dict[str, Any] = {"gen_ai.request.id": request_id}
        self._generated = 0
        self._ends: list[str] = []

    def submitted(self, prompts: Sequence[Sequence[int]], params: wire.SamplingParams | None) -> None:
        """Record the request's parameters."""
        self._attributes["gen_ai.usage.prompt_tokens"] = sum(len(prompt) for prompt in prompts)
        if params is not None:
            asked = {"n": params.n, "temperature": params.temperature, "top_p": params.top_p}
            if params.max_tokens is not None:
                asked["max_tokens"] = params.max_tokens
            self._attributes |= {f"gen_ai.request.{name}": value for name, value in asked.items()}
            self._attributes["gen_ai.usage.num_sequences"] = params.n * len(prompts)

    def tokens(self, message: wire.Tokens) -> None:
        """Record the times of the tokens."""
        self._last_ns = time.time_ns()
        if self._first_ns is None:
            self._first_ns = self._last_ns
        if message.queue_s is not None:
            self._queue_s = message.queue_s
        self._generated += len(message.token_ids)
        if message.finish_reason is not None:
            self._ends.append(message.finish_reason)

    def over(self) -> None:
        """Send the span, unless the engine never accepted the request."""
        if "gen_ai.usage.prompt_tokens" not in self._attributes:
            return
        ended_ns = time.time_ns()
        attributes = {**self._attributes, "gen_ai.usage.completion_tokens": self._generated}
        latency = {"e2e": ended_ns - self._begun_ns, "time_in_queue": round(self._queue_s * _NS)}
        if self._first_ns is not None:
            first_ns = self._first_ns - self._begun_ns
            latency |= {
                "time_to_first_token": first_ns,
                "time_in_model_prefill": max(first_ns - latency["time_in_queue"], 0),
                "time_in_model_decode": self._last_ns - self._first_ns,
                "time_in_model_inference": max(self._last_ns - self._begun_ns - latency["time_in_queue"], 0),
            }
        attributes |= {f"gen_ai.latency.{name}": value / _NS for name, value in latency.items()}
        if self._ends:
            attributes["gen_ai.response.finish_reasons"] = tuple(self._ends)
        self._tracer.send(self._parent, self._begun_ns, attributes, ended_ns)
