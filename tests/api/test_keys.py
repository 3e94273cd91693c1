from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tests.api.server import StartServer, wait_until

from forearm.api.http.api_keys import KeyRing, digest_of, read_keys
from forearm.api.http.quota import duration
from forearm.api.http.rate_limit import KEYS, RateLimits, RateTable
from forearm.errors import ConfigError

SECRET = "sk-team-a-0123456789"
DIGEST = digest_of(SECRET.encode())
FORKS = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # only the children are counted


def write(path: Path, *entries: dict[str, Any]) -> str:
    path.write_text(json.dumps({"keys": entries}))
    path.chmod(0o600)
    return str(path)


def asked(url: str, key: str = SECRET, **fields: Any) -> httpx.Response:
    body = {"prompt": "hello", "max_tokens": 4, **fields}
    return httpx.post(f"{url}/v1/completions", json=body, headers={"Authorization": f"Bearer {key}"}, timeout=60)


def test_requests_beyond_a_keys_limit_are_429_with_openais_headers(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(
        api_keys_file=write(tmp_path / "keys.json", {"name": "a", "key": SECRET, "requests_per_minute": 2})
    )

    first, second, third = (asked(server.url) for _ in range(3))

    assert [first.status_code, second.status_code, third.status_code] == [200, 200, 429]
    assert first.headers["x-ratelimit-limit-requests"] == "2"
    assert [r.headers["x-ratelimit-remaining-requests"] for r in (first, second, third)] == ["1", "0", "0"]
    assert 28 <= int(third.headers["retry-after"]) <= 31
    assert third.headers["x-ratelimit-reset-requests"].startswith(("59", "1m"))
    assert "x-ratelimit-limit-tokens" not in third.headers
    error = third.json()["error"]
    assert error["type"] == "RateLimitError"
    assert "2 requests a minute" in error["message"]
    assert SECRET not in third.text


def test_openais_client_sees_a_rate_limit_error(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(
        api_keys_file=write(tmp_path / "keys.json", {"name": "a", "key": SECRET, "requests_per_minute": 1})
    )

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=SECRET, max_retries=0) as client:
        client.completions.create(model="letters", prompt="hello", max_tokens=1)
        with pytest.raises(openai.RateLimitError, match="requests a minute"):
            client.completions.create(model="letters", prompt="hello", max_tokens=1)


def test_tokens_of_prompts_and_answers_are_charged(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(
        api_keys_file=write(tmp_path / "keys.json", {"name": "a", "key": SECRET, "tokens_per_minute": 100})
    )

    first = asked(server.url, prompt="hello", max_tokens=80)  # 5 and 80
    second = asked(server.url, prompt="hello", max_tokens=80, stream=True)
    third = asked(server.url)

    assert [first.status_code, second.status_code, third.status_code] == [200, 200, 429]
    assert first.headers["x-ratelimit-remaining-tokens"] == "100"
    assert 14 <= int(second.headers["x-ratelimit-remaining-tokens"]) <= 16
    assert 40 <= int(third.headers["retry-after"]) <= 45  # 70 below zero, at 100 a minute
    metrics = httpx.get(f"{server.url}/metrics", timeout=60).text
    assert 'forearm:key_tokens_total{key="a",kind="prompt"} 10.0' in metrics
    assert 'forearm:key_tokens_total{key="a",kind="generation"} 160.0' in metrics
    assert 'forearm:key_rejections_total{key="a",limit="tokens"} 1.0' in metrics


def test_a_refused_request_costs_no_tokens(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(
        api_keys_file=write(tmp_path / "keys.json", {"name": "a", "key": SECRET, "tokens_per_minute": 100})
    )
    server.engine.places = 0

    assert asked(server.url).status_code == 429  # the engine's

    server.engine.places = 9
    assert int(asked(server.url).headers["x-ratelimit-remaining-tokens"]) >= 99


def test_as_many_at_a_time_as_the_key_may(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(
        api_keys_file=write(tmp_path / "keys.json", {"name": "a", "key": SECRET, "max_concurrent": 2})
    )
    server.engine.silent = True

    with ThreadPoolExecutor(5) as pool:
        asking = [pool.submit(asked, server.url) for _ in range(5)]
        wait_until(lambda: sum(one.done() for one in asking) == 3 and len(server.engine.running) == 2)
        server.engine.silent = False
        statuses = [one.result().status_code for one in asking]

    assert sorted(statuses) == [200, 200, 429, 429, 429]
    assert asked(server.url).status_code == 200


def test_a_keys_requests_go_no_earlier_than_its_priority(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(
        api_keys_file=write(tmp_path / "keys.json", {"name": "a", "key": SECRET, "priority": 5}), priorities=True
    )

    for priority in (-3, 5, 8):
        asked(server.url, priority=priority)

    assert [submit.priority for submit in server.engine.submits] == [5, 5, 8]


def test_the_engine_is_told_whose_a_request_is_by_the_keys_name_else_by_the_address(
    start_server: StartServer, tmp_path: Path
) -> None:
    keyed = start_server(api_keys_file=write(tmp_path / "keys.json", {"name": "team-a", "key": SECRET}))
    asked(keyed.url)
    plain = start_server()
    asked(plain.url)

    assert [submit.client for submit in keyed.engine.submits] == ["team-a"]
    assert [submit.client for submit in plain.engine.submits] == ["127.0.0.1"]


def test_anthropics_header_brings_a_key_too(start_server: StartServer) -> None:
    server = start_server(api_key=("secret-key",))

    assert httpx.get(f"{server.url}/v1/models", headers={"x-api-key": "secret-key"}, timeout=60).status_code == 200
    assert httpx.get(f"{server.url}/v1/models", headers={"x-api-key": "other"}, timeout=60).status_code == 401


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("keys.json", '[{"name": "a", "sha256": "%s"}]'),
        ("keys.yaml", "keys:\n- name: a\n  sha256: %s\n"),
        ("keys.toml", '[[keys]]\nname = "a"\nsha256 = "%s"\n'),
    ],
)
def test_a_file_may_be_json_yaml_or_toml_and_have_digests(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text % sha256(SECRET.encode()).hexdigest())

    ring = KeyRing((), str(tmp_path / name), False)

    found = ring.find(SECRET.encode())
    assert found is not None
    assert found.name == "a"
    assert ring.find(b"other") is None


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"key": SECRET}, "entry 1: name must be"),
        ({"name": "a b", "key": SECRET}, "entry 1: name must be"),
        ({"name": "a"}, "either key or sha256"),
        ({"name": "a", "key": SECRET, "sha256": "0" * 64}, "either key or sha256"),
        ({"name": "a", "key": "short"}, "at least 8"),
        ({"name": "a", "sha256": SECRET}, "64 hexadecimal digits"),
        ({"name": "a", "key": SECRET, "requests_per_minute": 0}, "requests_per_minute must be"),
        ({"name": "a", "key": SECRET, "tokens_per_minute": "many"}, "tokens_per_minute must be"),
        ({"name": "a", "key": SECRET, "max_concurrent": True}, "max_concurrent must be"),
        ({"name": "a", "key": SECRET, SECRET: 1}, "1 unknown fields"),
        (SECRET, "is not an object"),
    ],
)
def test_a_mistake_is_named_and_the_key_is_not(tmp_path: Path, entry: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as error:
        read_keys(Path(write(tmp_path / "keys.json", entry)))

    assert SECRET not in str(error.value)


@pytest.mark.parametrize("name", ["keys.json", "keys.yaml", "keys.toml"])
def test_a_file_that_cannot_be_read_gives_no_key_away(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(f'{{"name" "a" "{SECRET}": [}}')

    with pytest.raises(ConfigError, match="cannot be read as") as error:
        read_keys(tmp_path / name)

    assert SECRET not in str(error.value)


def test_a_broken_file_changes_nothing_when_it_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    ring = KeyRing((), write(path, {"name": "a", "key": SECRET}), False)

    path.write_text("{")
    ring.reload()
    assert ring.find(SECRET.encode())

    write(path, {"name": "b", "key": "another-key"})
    ring.reload()
    assert ring.find(SECRET.encode()) is None
    assert ring.find(b"another-key")


@FORKS
def test_workers_share_what_is_left(tmp_path: Path) -> None:
    """The table is made before workers are forked, as in gunicorn."""
    table, limits = RateTable(), RateLimits(requests_per_minute=300)

    def work() -> int:
        return sum(not table.admit(DIGEST, limits).refused for _ in range(100))

    began_s = time.monotonic()
    taken = [os.fdopen(_in_child(work)) for _ in range(8)]
    counts = [int(pipe.read()) for pipe in taken]
    for pipe in taken:
        pipe.close()
        os.wait()

    come_back = (time.monotonic() - began_s) * limits.requests_per_minute / 60
    assert 300 <= sum(counts) <= 301 + come_back
    table.close()


def _in_child(work: Any) -> int:
    """Run a function in a forked child and return the end of a pipe that its result comes through."""
    out, into = os.pipe()
    if os.fork() == 0:
        os.write(into, str(work()).encode())
        os._exit(0)
    os.close(into)
    return out


@FORKS
def test_requests_of_a_worker_that_died_are_open_no_more() -> None:
    table, limits = RateTable(), RateLimits(max_concurrent=1)

    def work() -> str:
        return table.admit(DIGEST, limits).refused

    for _ in range(2):  # neither file ever disappears
        with os.fdopen(_in_child(work)) as pipe:
            assert pipe.read() == ""
        os.wait()

    assert table.admit(DIGEST, limits).refused == ""
    assert table.admit(DIGEST, limits).refused == "concurrency"
    table.close()


def test_many_keys_have_a_record_each_and_the_table_ends() -> None:
    table, limits = RateTable(), RateLimits(requests_per_minute=1)

    for number in range(KEYS):
        assert table.admit(digest_of(b"%d" % number), limits).refused == ""
    assert table.admit(digest_of(b"7"), limits).refused == "requests"
    with pytest.raises(ConfigError, match="4096 different keys"):
        table.admit(digest_of(b"one more"), limits)
    table.close()


def test_an_admission_costs_microseconds() -> None:
    table, limits = RateTable(), RateLimits(requests_per_minute=1 << 30, tokens_per_minute=1 << 30, max_concurrent=1000)

    begun_s = time.thread_time()  # CPU time: the machine may do something else meanwhile
    for _ in range(1000):
        table.admit(DIGEST, limits)
        table.charge(DIGEST, limits, 10)
        table.leave(DIGEST)
    took_s = time.thread_time() - begun_s

    assert took_s < 0.5  # 0.023 s on an EPYC (Zen 4)
    table.close()


@pytest.mark.parametrize(
    ("seconds", "written"), [(0, "0ms"), (0.0123, "13ms"), (6.5, "6.5s"), (59.99, "1m0s"), (90, "1m30s")]
)
def test_durations_are_written_as_openai_does(seconds: float, written: str) -> None:
    assert duration(seconds) == written
