"""Methods besides GET and POST, compressed bodies, and the page of the API."""

from __future__ import annotations

import gzip
import re

import pytest
from tests.api.server import Server, StartServer


@pytest.mark.parametrize("path", ["/livez", "/health", "/v1/models", "/metrics", "/", "/docs", "/openapi.json"])
def test_head_is_answered_as_get_without_its_body(server: Server, path: str) -> None:
    got, head = server.http.get(path), server.http.head(path)

    assert head.status_code == got.status_code == 200
    assert head.content == b""
    assert head.headers.get("content-type") == got.headers.get("content-type")


def test_head_of_what_is_not_there_is_404(server: Server) -> None:
    assert server.http.head("/nowhere").status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/chat/completions", "POST"),
        ("GET", "/v1/chat/completions", "POST"),
        ("HEAD", "/v1/chat/completions", "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("PATCH", "/v1/responses/resp_x", "DELETE, GET, HEAD"),
        ("GET", "/invocations", "POST"),
    ],
)
def test_a_405_tells_the_methods_that_are_there(server: Server, method: str, path: str, allowed: str) -> None:
    reply = server.http.request(method, path)

    assert reply.status_code == 405
    assert reply.headers["allow"] == allowed
    if method != "HEAD":
        told = f"Method Not Allowed: {method} of {path}; it takes {allowed}"
        assert reply.json()["error"]["message"] == told


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/invocations"])
def test_a_compressed_body_is_refused_by_name(server: Server, path: str) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}

    reply = server.http.post(path, content=gzip.compress(b"{}"), headers=headers)

    assert reply.status_code == 415
    assert "'gzip'" in reply.json()["error"]["message"]


def test_the_page_of_the_api_has_every_endpoint_and_loads_nothing(server: Server) -> None:
    page = server.http.get("/docs")

    for path in server.http.get("/openapi.json").json()["paths"]:
        assert f" {path}</code>" in page.text
    assert not re.search(r"<script|<link|<img|src=|url\(|@import|https?://", page.text.split("<details>")[0])
    assert "default-src 'none'" in page.headers["content-security-policy"]


def test_metrics_can_need_a_key(start_server: StartServer) -> None:
    server = start_server(api_key=("secret",), guard_metrics=True)

    assert server.http.get("/metrics").status_code == 200
    assert server.http.get("/metrics", headers={"Authorization": ""}).status_code == 401
    assert server.http.get("/livez", headers={"Authorization": ""}).status_code == 200
