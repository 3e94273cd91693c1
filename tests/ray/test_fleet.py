"""forearm.ray on a local Ray cluster: two replicas of the demo model. Runs where Ray is: `make ray`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import psutil
import pytest
from tests.e2e.served import free_port, wait_until

ray = pytest.importorskip("ray", reason="Ray is not installed here; make ray")

URL_TIMEOUT_S = 60
LONG = "Tell me, please, everything that you know about glaciers, rivers, lakes and the sea. " * 6


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Two replicas behind a door."""
    from forearm.ray import Arguments, app

    port = free_port()
    ray.init(num_cpus=2, object_store_memory=80 << 20, include_dashboard=False, log_to_driver=False)
    ray.serve.start(http_options={"host": "127.0.0.1", "port": port})
    arguments: dict[str, Any] = {"cpus": 0.5, "door_cpus": 0, "min_replicas": 2, "max_replicas": 2, "drain_s": 20}
    ray.serve.run(app(Arguments(flags=["--enable-prompt-tokens-details", "--api-server-count", "1"], **arguments)))
    yield f"http://127.0.0.1:{port}"
    ray.serve.shutdown()
    ray.shutdown()


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
