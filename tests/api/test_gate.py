"""Requests that the engines have no room for are refused before their bodies are read."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.api.server import Server, StartServer, wait_until

from forearm import wire


@pytest.fixture
def full(start_server: StartServer) -> Server:
    """Yield a server whose engine has reported a full queue."""
    server = start_server()
    server.engine.tell(wire.Load(room=0, retry_after_s=7))
    wait_until(lambda: server.complete().status_code == 429)
    return server


def test_a_full_engine_is_not_asked_and_the_body_not_parsed(full: Server) -> None:
    asked = len(full.engine.submits)
    refused = full.http.post("/v1/completions", content=b"no JSON", headers={"content-type": "application/json"})

    assert (refused.status_code, refused.headers["retry-after"]) == (429, "7")
    assert refused.json()["error"]["type"] == "RateLimitError"
    assert "queue is full" in refused.json()["error"]["message"]
    assert len(full.engine.submits) == asked


def test_anthropics_clients_are_told_in_their_form(full: Server) -> None:
    refused = full.http.post("/v1/messages", json={})

    assert refused.status_code == 429
    assert refused.json()["error"]["type"] == "rate_limit_error"


def test_what_gives_the_engine_no_work_is_answered(full: Server) -> None:
    assert full.http.post("/tokenize", json={"prompt": "hello"}).status_code == 200
    assert full.http.get("/v1/models").status_code == 200


def test_refusals_are_counted_with_their_route(full: Server) -> None:
    text = full.http.get("/metrics").text

    assert 'http_requests_total{handler="/v1/completions",method="POST",status="4xx"}' in text
    assert "forearm:requests_refused_early_total" in text


def test_room_is_for_so_many_and_no_more_until_the_engine_tells_again(start_server: StartServer) -> None:
    server = start_server()
    server.engine.tell(wire.Load(room=0, retry_after_s=1))
    wait_until(lambda: server.complete().status_code == 429)
    server.engine.tell(wire.Load(room=4, retry_after_s=1))
    wait_until(lambda: server.complete(max_tokens=1).status_code == 200)  # the worker has heard it; room is for 3 now

    with ThreadPoolExecutor(10) as pool:
        statuses = sorted(pool.map(lambda _: server.complete(max_tokens=2).status_code, range(10)))
    assert statuses == [200] * 3 + [429] * 7

    server.engine.tell(wire.Load(room=1, retry_after_s=1))
    wait_until(lambda: server.complete(max_tokens=1).status_code == 200)


def test_an_engine_that_is_away_is_told_before_the_body_is_parsed(start_server: StartServer) -> None:
    server = start_server()
    server.engine.stop()
    wait_until(lambda: server.http.get("/readyz").status_code == 503)

    assert server.http.post("/v1/completions", content=b"no JSON").status_code == 503
