"""Spans of requests, as a collector gets them; the exporter is OpenTelemetry's, the receivers are real."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from tests.api.server import Server, StartServer, wait_until
from tests.otlp import Receiver, attributes, over_grpc, over_http

from forearm.api.http.tracing import Tracer
from forearm.errors import ConfigError

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(("receiving", "protocol"), [(over_grpc, "grpc"), (over_http, "http/protobuf")])
def test_a_request_is_a_span_within_its_callers_trace(
    start_server: StartServer, receiving: Callable[[], AbstractContextManager[Receiver]], protocol: str
) -> None:
    with receiving() as receiver:
        server = start_server(otlp_traces_endpoint=receiver.url, otlp_traces_protocol=protocol)
        body = {"prompt": "hello", "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "n": 2}
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "mine"}
        assert server.http.post("/v1/completions", json=body, headers=headers).status_code == 200
        wait_until(lambda: bool(receiver.spans))

    (span,) = receiver.spans
    assert (span.name, span.trace_id.hex(), span.parent_span_id.hex()) == ("llm_request", TRACE, PARENT)
    told = attributes(span)
    assert told["gen_ai.request.id"] == "mine"
    assert told["gen_ai.response.model"] == "letters"
    assert (told["gen_ai.usage.prompt_tokens"], told["gen_ai.usage.completion_tokens"]) == (5, 6)
    assert (told["gen_ai.request.n"], told["gen_ai.request.max_tokens"]) == (2, 3)
    assert (told["gen_ai.request.temperature"], told["gen_ai.request.top_p"]) == (0.5, 0.9)
    assert told["gen_ai.response.finish_reasons"] == ["length", "length"]
    whole_s = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
    assert told["gen_ai.latency.e2e"] == pytest.approx(whole_s)
    parts = ("time_in_queue", "time_in_model_prefill", "time_in_model_decode")
    assert sum(told[f"gen_ai.latency.{part}"] for part in parts) <= whole_s
    assert 0 < told["gen_ai.latency.time_to_first_token"] <= whole_s


def traced(start_server: StartServer, receiver: Receiver) -> Server:
    return start_server(otlp_traces_endpoint=receiver.url, otlp_traces_protocol="http/protobuf")


def test_a_stream_that_is_left_ends_its_span(start_server: StartServer) -> None:
    with over_http() as receiver:
        server = traced(start_server, receiver)
        server.engine.holds_at = 1
        body = {"prompt": "hello", "max_tokens": 900, "stream": True}
        with server.http.stream("POST", "/v1/completions", json=body) as reply:
            next(reply.iter_lines())
        wait_until(lambda: bool(receiver.spans))

    told = attributes(receiver.spans[0])
    assert 0 < told["gen_ai.usage.completion_tokens"] < 900
    assert "gen_ai.response.finish_reasons" not in told


def test_what_the_engine_never_takes_is_no_span(start_server: StartServer) -> None:
    with over_http() as receiver:
        server = traced(start_server, receiver)
        assert server.complete("hello", temperature=9).status_code == 400
        server.engine.places = 0
        assert server.complete("hello").status_code == 429
        server.engine.places = 9
        assert server.complete("hello", max_tokens=1).status_code == 200
        wait_until(lambda: bool(receiver.spans))

    assert len(receiver.spans) == 1


@pytest.mark.parametrize("header", ["", "00-", "00-zz-yy-01", "0" * 4000, f"00-{'0' * 32}-{PARENT}-01", "ff-\xe9"])
def test_a_trace_that_is_none_is_left_out(header: str) -> None:
    sent: list[tuple[Any, ...]] = []
    tracer = Tracer("http://127.0.0.1:9", "grpc", "m")
    tracer.send = lambda *span: sent.append(span)  # type: ignore[method-assign]
    watcher = tracer.begin({"traceparent": header}, "one")

    watcher.submitted([[1, 2]], None)
    watcher.over()

    ((parent, _, told, _),) = sent
    assert not parent  # an empty context: the span begins a trace
    assert told["gen_ai.usage.prompt_tokens"] == 2


def test_a_missing_collector_disturbs_no_request(start_server: StartServer) -> None:
    server = start_server(otlp_traces_endpoint="http://127.0.0.1:9/v1/traces", otlp_traces_protocol="http/protobuf")

    assert [server.complete("hello", max_tokens=1).status_code for _ in range(3)] == [200] * 3


def test_without_the_packages_the_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)

    with pytest.raises(ConfigError, match=r"is not installed; pip install 'forearm\[otlp\]'"):
        Tracer("http://127.0.0.1:4317", "grpc", "m")


def test_no_package_for_traces_is_loaded_without_the_flag() -> None:
    code = "import forearm.api.app, sys; print([m for m in sys.modules if m.startswith(('opentelemetry.sdk', 'grpc'))])"

    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert told.stdout.strip() == "[]"
