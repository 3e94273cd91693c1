"""Endpoints for load balancers, orchestrators and developers: probes, load, ORCA, SageMaker's path, administration."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tests.api.letters import write_letters
from tests.api.server import Server, StartServer, serving, wait_until

from forearm.config.api_config import ApiConfig


def test_a_probe_for_each_question(start_server: StartServer) -> None:
    server = start_server()
    paths = ("/livez", "/startupz", "/readyz", "/health", "/ping")
    assert [server.http.get(path).status_code for path in paths] == [200] * 5
    assert server.http.post("/ping").status_code == 200

    server.engine.step_age_s = 400
    assert [server.http.get(path).status_code for path in paths] == [200, 200, 503, 503, 503]
    assert "retry-after" in server.http.get("/readyz").headers

    server.engine.stop()
    wait_until(lambda: server.http.get("/readyz").status_code == 503)
    assert [server.http.get(path).status_code for path in paths[:2]] == [200, 200]  # the engine was connected before


def test_before_the_model_is_loaded_a_server_has_not_started(tmp_path: Path) -> None:
    model = tmp_path / "letters"
    model.mkdir()
    write_letters(model)

    with serving(ApiConfig(engine_sockets=(str(tmp_path / "engine.sock"),), model_folder=str(model))) as url:
        reply = httpx.get(f"{url}/startupz", timeout=60)

        assert (reply.status_code, httpx.get(f"{url}/livez", timeout=60).status_code) == (503, 200)
        assert reply.headers["retry-after"]


def test_the_load_is_what_is_being_answered(server: Server) -> None:
    assert server.http.get("/load").json() == {"server_load": 0}
    server.engine.silent = True

    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(server.complete, "hello", max_tokens=10) for _ in range(3)]
        wait_until(lambda: server.http.get("/load").json() == {"server_load": 3})
        server.engine.silent = False
        assert [one.result().status_code for one in waiting] == [200] * 3

    wait_until(lambda: server.http.get("/load").json() == {"server_load": 0})


@pytest.mark.parametrize("stream", [False, True])
def test_answers_tell_the_load_where_a_balancer_asks(server: Server, stream: bool) -> None:
    body = {"prompt": "hello", "max_tokens": 2, "stream": stream}

    as_json = server.http.post("/v1/completions", json=body, headers={"endpoint-load-metrics-format": "JSON"})
    as_text = server.http.post("/v1/completions", json=body, headers={"endpoint-load-metrics-format": "text"})
    unknown = server.http.post("/v1/completions", json=body, headers={"endpoint-load-metrics-format": "xml"})
    unasked = server.http.post("/v1/completions", json=body)

    form, _, load = as_json.headers["endpoint-load-metrics"].partition(" ")
    assert form == "JSON"
    named = json.loads(load)["named_metrics"]
    assert (named["kv_cache_usage_perc"], named["num_requests_waiting"]) == (0.0, 0.0)
    assert as_text.headers["endpoint-load-metrics"].startswith("TEXT named_metrics.kv_cache_usage_perc=0.0, named_")
    assert "endpoint-load-metrics" not in unknown.headers
    assert "endpoint-load-metrics" not in unasked.headers


def test_sagemakers_path_leads_to_what_the_body_is(server: Server) -> None:
    chat = server.http.post("/invocations", json={"messages": [{"role": "user", "content": "hello"}]})
    text = server.http.post("/invocations", json={"prompt": "hello", "max_tokens": 3, "stream": True})

    assert chat.json()["object"] == "chat.completion"
    assert "data: [DONE]" in text.text
    assert 'handler="/v1/completions"' in server.http.get("/metrics").text


@pytest.mark.parametrize("content", [b"{}", b"[]", b"", b"\xff", b"[" * 100_000, b'{"prompt": 1}'])
def test_sagemakers_path_refuses_what_is_neither(server: Server, content: bytes) -> None:
    reply = server.http.post("/invocations", content=content, headers={"Content-Type": "application/json"})

    assert reply.status_code == 400
    assert reply.json()["error"]["type"] == "BadRequestError"


def test_sagemakers_path_wants_a_key_and_has_a_limit(start_server: StartServer) -> None:
    server = start_server(api_key=("secret",), max_body_bytes=100)

    assert httpx.post(f"{server.url}/invocations", json={"prompt": "x"}, timeout=60).status_code == 401
    assert server.http.post("/invocations", json={"prompt": "x" * 200}).status_code == 413


def test_the_tokenizer_is_told_with_its_flag_alone(server: Server, start_server: StartServer) -> None:
    assert server.http.get("/tokenizer_info").status_code == 404

    told = start_server(tokenizer_info=True).http.get("/tokenizer_info").json()

    assert told["eos_token"] == "<eos>"
    assert told["tokenizer_class"]
    assert "messages" in told["chat_template"]


def test_a_profile_is_made_with_its_flag_alone_and_wants_a_key(server: Server, start_server: StartServer) -> None:
    assert server.http.post("/start_profile").status_code == 404
    own = start_server(profiler_config={"profiler": "torch", "torch_profiler_dir": "/there"}, api_key=("very-secret",))

    assert httpx.post(f"{own.url}/start_profile", timeout=60).status_code == 401
    assert own.http.get("/start_profile").status_code == 405
    assert own.http.post("/start_profile").status_code == 200
    assert own.http.post("/stop_profile").status_code == 200
    assert own.engine.profiled == [True, False]

    own.engine.disk_full = True
    failed = own.http.post("/stop_profile")
    assert (failed.status_code, failed.json()["error"]["message"]) == (500, "the disk is full")
    own.engine.stop()
    wait_until(lambda: own.http.post("/start_profile").status_code == 503)


def test_developers_see_the_settings_and_no_secret(server: Server, start_server: StartServer) -> None:
    assert server.http.get("/server_info").status_code == 404
    assert server.http.post("/reset_prefix_cache").status_code == 404
    own = start_server(dev_mode=True, api_key=("very-secret",))

    reply = own.http.get("/server_info")

    assert httpx.get(f"{own.url}/server_info", timeout=60).status_code == 401
    assert "very-secret" not in reply.text
    assert reply.json()["api"]["api_key"] == "***"
    assert reply.json()["engines"][0]["max_model_len"] == 1000
    assert own.http.post("/reset_prefix_cache").status_code == 200
