"""forearm.ray on a local Ray cluster: two replicas of the demo model. Runs where Ray is: `make ray`."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import psutil
import pytest
from tests.e2e.served import free_port, wait_until

ray = pytest.importorskip("ray", reason="Ray is not installed here; make ray")
serve = pytest.importorskip("ray.serve")

URL_TIMEOUT_S = 60
LONG = "Tell me, please, everything that you know about glaciers, rivers, lakes and the sea. " * 6


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Two replicas behind a door."""
    port = free_port()
    ray.init(num_cpus=2, object_store_memory=80 << 20, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    deploy(min_replicas=2, max_replicas=2)
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()
    ray.shutdown()


def deploy(*flags: str, **arguments: Any) -> None:
    """The application, or its next version; returns once that is ready."""
    from forearm.ray import Arguments, app

    every: dict[str, Any] = {"cpus": 0.5, "door_cpus": 0, "drain_s": 20}
    all_flags = ["--enable-prompt-tokens-details", "--api-server-count", "1", *flags]
    serve.run(app(Arguments(flags=all_flags, **every, **arguments)))


def engines() -> list[psutil.Process]:
    """All of this cluster's, which are children of this process's children."""
    everyone = [p for p in psutil.process_iter(["cmdline"]) if "forearm.engine.process" in (p.info["cmdline"] or ())]
    return [p for p in everyone if any("ray::" in " ".join(a.cmdline()) for a in p.parents())]


def cached(url: str, content: str) -> int:
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 4, "temperature": 0}
    reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=URL_TIMEOUT_S)
    assert reply.status_code == 200, reply.text
    return int(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_chat_streams_through_the_door(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=URL_TIMEOUT_S, max_retries=0) as client:
        stream = client.chat.completions.create(
            model=client.models.list().data[0].id,
            messages=[{"role": "user", "content": "What is a glacier?"}],
            max_tokens=20,
            stream=True,
        )
        chunks = list(stream)
    assert len(chunks) > 10
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_errors_come_as_the_server_says_them(url: str) -> None:
    refused = httpx.post(f"{url}/v1/chat/completions", json={"messages": []}, timeout=URL_TIMEOUT_S)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"]
    embeddings = httpx.post(f"{url}/v1/embeddings", json={"input": "x"}, timeout=URL_TIMEOUT_S)
    assert embeddings.status_code == 400


def test_a_prompt_goes_where_it_was_computed(url: str) -> None:
    assert cached(url, LONG) == 0
    assert [cached(url, LONG) >= 64 for _ in range(6)] == [True] * 6


def test_a_new_version_takes_over_without_a_failed_request(url: str) -> None:
    """One client asks again and again, while both replicas are replaced."""
    statuses: list[int] = []
    over = threading.Event()

    def ask() -> None:
        body = {"prompt": "A river is", "max_tokens": 8}
        while not over.is_set():
            statuses.append(httpx.post(f"{url}/v1/completions", json=body, timeout=URL_TIMEOUT_S).status_code)

    client = threading.Thread(target=ask)
    client.start()
    before = {engine.pid for engine in engines()}
    deploy("--served-model-name", "newer", min_replicas=2, max_replicas=2)
    wait_until(lambda: len(engines()) == 2 and not before & {engine.pid for engine in engines()}, 60)
    over.set()
    client.join()

    assert httpx.get(f"{url}/v1/models", timeout=URL_TIMEOUT_S).json()["data"][0]["id"] == "newer"
    assert len(statuses) > 10
    assert set(statuses) == {200}


def test_an_engine_killed_is_not_seen_by_others_and_comes_back(url: str) -> None:
    before = engines()
    assert len(before) == 2
    before[0].kill()
    for number in range(8):
        assert cached(url, f"{number}. What is a river?") >= 0
    wait_until(lambda: len(engines()) == 2 and before[0].pid not in [p.pid for p in engines()], 60)


def test_a_stream_outlives_its_replicas_server_only_with_an_error(url: str) -> None:
    body = {"messages": [{"role": "user", "content": LONG}], "stream": True, "ignore_eos": True, "max_tokens": 1500}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=URL_TIMEOUT_S) as reply:
        lines = (line for line in reply.iter_lines() if line)
        next(lines)
        for engine in engines():
            engine.kill()
        rest = list(lines)
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2].removeprefix("data: "))["error"]["code"] == 503


def test_more_open_requests_than_wanted_start_another_replica(url: str) -> None:
    serve.delete("default")  # a next version would keep its two replicas until 10 minutes have passed without load
    deploy(min_replicas=1, max_replicas=2, target_ongoing_requests=1)
    wait_until(lambda: len(engines()) == 1, 60)
    over = threading.Event()

    def ask() -> None:
        body = {"prompt": "A river is", "max_tokens": 1500, "ignore_eos": True}
        while not over.is_set():
            httpx.post(f"{url}/v1/completions", json=body, timeout=URL_TIMEOUT_S)

    clients = [threading.Thread(target=ask) for _ in range(4)]
    for client in clients:
        client.start()
    try:
        wait_until(lambda: len(engines()) == 2, 120)  # Ray waits 30 s before it believes the load
    finally:
        over.set()
        for client in clients:
            client.join()
