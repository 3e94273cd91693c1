"""A real receiver of OTLP traces, over gRPC or HTTP, as a collector is one."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service


@dataclass
class Receiver:
    """`spans` as they came: protobuf messages."""

    url: str = ""
    spans: list[Any] = field(default_factory=list)

    def take(self, request: Any) -> None:
        """A batch."""
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans += scope.spans


def attributes(span: Any) -> dict[str, Any]:
    """Return a span's attributes as Python values."""
    return {one.key: _value(one.value) for one in span.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)


@contextlib.contextmanager
def over_grpc() -> Iterator[Receiver]:
    receiver = Receiver()

    class Service(service.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            receiver.take(request)
            return messages.ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(2))
    service.add_TraceServiceServicer_to_server(Service(), server)  # type: ignore[no-untyped-call]
    receiver.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield receiver
    finally:
        server.stop(1).wait()


@contextlib.contextmanager
def over_http() -> Iterator[Receiver]:
    receiver = Receiver()

    class Post(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                import gzip

                body = gzip.decompress(body)
            receiver.take(messages.ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Post)
    receiver.url = f"http://127.0.0.1:{server.server_port}/v1/traces"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
