"""Operation of a running server: searchable logs, another log level, other keys, a new certificate."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.e2e.served import Served, serve, wait_until
from tests.otlp import attributes, over_grpc

OLD, NEW = "old-key-of-the-tests", "new-key-of-the-tests"


def write_keys(path: Path, *entries: dict[str, Any]) -> None:
    path.write_text(json.dumps(entries))
    path.chmod(0o600)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("operations")
    write_keys(folder / "keys.json", {"name": "old", "key": OLD})
    flags = ("--api-server-count", "3", "--served-model-name", "demo", "--api-keys-file", str(folder / "keys.json"),
             "--log-format", "json", "--access-log", "--disable-access-log-for-endpoints", "/metrics,/readyz",
             "--enable-log-requests", "--enable-log-outputs", "--max-log-len", "40")  # fmt: skip
    with serve(folder, *flags, key=OLD, env={"VLLM_SERVER_DEV_MODE": "1", "VLLM_LOG_STATS_INTERVAL": "0.5"}) as running:
        yield running


def lines(served: Served) -> list[dict[str, Any]]:
    """Return the whole lines of the log, each of which is a JSON object."""
    return [json.loads(line) for line in served.log.read_text().split("\n")[:-1] if line]


def about(served: Served, request_id: str) -> list[dict[str, Any]]:
    return [line for line in lines(served) if line.get("request_id") == request_id]


def test_every_line_of_a_request_carries_its_id(served: Served) -> None:
    headers = {"X-Request-Id": "find-me"}
    body = {"messages": [{"role": "user", "content": "What is a glacier?"}], "max_tokens": 12}
    reply = served.http.post("/v1/chat/completions", json=body, headers=headers)
    assert reply.headers["x-request-id"] == "find-me"
    wait_until(lambda: len(about(served, "find-me")) == 3)

    asked, said, access = about(served, "find-me")
    assert "What is a glacier?" in asked["message"]
    assert asked["process"] == "api"
    assert said["text"].startswith("A glacier")
    assert len(said["text"]) <= 40
    assert (access["method"], access["path"], access["status"]) == ("POST", "/v1/chat/completions", 200)
    assert (access["key"], access["bytes"]) == ("old", len(reply.content))
    assert access["seconds"] > 0


def test_figures_are_told_while_requests_run(served: Served) -> None:
    def told() -> list[dict[str, Any]]:
        return [line for line in lines(served) if line.get("generation_tokens_per_s", 0) > 0 and line["running"]]

    with served.busy():
        wait_until(lambda: bool(told()))

    assert told()[0]["process"] == "engine"
    assert 0 < told()[0]["kv_cache_percent"] < 100
    assert "tokens/s, 1 running, 0 waiting, KV cache" in told()[0]["message"]


def test_the_access_log_leaves_out_what_it_was_told_to(served: Served) -> None:
    for path in ("/metrics", "/readyz", "/version"):
        served.http.get(path, headers={"X-Request-Id": f"of{path.replace('/', '-')}"})
    wait_until(lambda: len(about(served, "of-version")) == 1)

    assert about(served, "of-metrics") == about(served, "of-readyz") == []


def test_no_line_can_be_forged_and_no_key_is_logged(served: Served) -> None:
    served.http.get("/nowhere%0A%7B%22level%22:%22ERROR%22%7D?token=secret", headers={"X-Request-Id": "a b\tc"})
    wait_until(lambda: bool(about(served, "abc")))

    assert about(served, "abc")[0]["path"] == "/nowhere%0A%7B%22level%22:%22ERROR%22%7D"
    assert not [line for line in lines(served) if OLD in json.dumps(line) or "secret" in json.dumps(line)]


def test_the_level_changes_in_every_process_while_it_runs(served: Served) -> None:
    def levels() -> list[str]:
        told = [line["message"] for line in lines(served) if line["message"].startswith("the log level is now")]
        return [re.findall(r"is now (\w+)", message)[0] for message in told]

    def at_debug(process: str) -> int:  # one that was still starting may say so twice
        return [line["process"] for line in lines(served) if line["level"] == "DEBUG"].count(process)

    os.kill(served.process.pid, signal.SIGUSR2)
    wait_until(lambda: levels() == ["DEBUG"])
    wait_until(lambda: at_debug("api") >= 3 and at_debug("engine") >= 1)
    for process, one in (("api", served.workers()[0]), ("engine", served.engine())):
        before = at_debug(process)
        one.kill()
        wait_until(lambda p=process, n=before: at_debug(p) > n, 60)  # the one that takes its place
    wait_until(lambda: served.http.get("/readyz").status_code == 200, 60)
    os.kill(served.process.pid, signal.SIGUSR2)
    wait_until(lambda: levels() == ["DEBUG", "INFO"])

    wait_until(lambda: served.connections() == len(served.workers()) == 3)


def test_keys_are_read_again_on_sighup_by_every_worker(served: Served) -> None:
    def statuses(key: str) -> set[int]:
        headers = {"Authorization": f"Bearer {key}"}
        return {httpx.get(f"{served.url}/v1/models", headers=headers, timeout=60).status_code for _ in range(20)}

    workers = {worker.pid for worker in served.workers()}
    path = served.log.parent / "keys.json"
    assert (statuses(OLD), statuses(NEW)) == ({200}, {401})

    with served.endless():
        path.write_text("{")
        os.kill(served.process.pid, signal.SIGHUP)
        wait_until(lambda: sum("the keys stay" in line["message"] for line in lines(served)) == 3)
        assert statuses(OLD) == {200}

        write_keys(path, {"name": "old", "key": OLD}, {"name": "new", "key": NEW, "requests_per_minute": 2})
        os.kill(served.process.pid, signal.SIGHUP)
        wait_until(lambda: statuses(NEW) == {200})

    assert {worker.pid for worker in served.workers()} == workers  # nobody was started anew
    body = {"prompt": "ice", "max_tokens": 1}
    asked = [
        served.http.post("/v1/completions", json=body, headers={"Authorization": f"Bearer {NEW}"}) for _ in range(9)
    ]
    assert [reply.status_code for reply in asked].count(200) == 2  # over three workers; one more after half a minute
    assert asked[-1].json()["error"]["type"] == "RateLimitError"


@contextlib.contextmanager
def half_sent(served: Served) -> Iterator[None]:
    """Send a request whose body does not end, so that it stays in progress until the end of the block."""
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {OLD}\r\n"
            "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{".encode()
        )
        yield


def test_the_load_is_that_of_all_workers(served: Served) -> None:
    def loads() -> set[int]:
        return {served.http.get("/load").json()["server_load"] for _ in range(10)}

    with half_sent(served), half_sent(served), half_sent(served), half_sent(served):
        wait_until(lambda: loads() == {4})
        assert loads() == {4}
    wait_until(lambda: loads() == {0})


def test_the_prefix_cache_is_forgotten_where_developers_ask(served: Served) -> None:
    def hits() -> float:
        text = served.http.get("/metrics").text
        return float(re.findall(r"^vllm:prefix_cache_hits_total\{.*\} (\S+)$", text, re.MULTILINE)[0])

    body = {"prompt": "A glacier is a slowly moving mass of ice. " * 20, "max_tokens": 1}
    for _ in range(2):
        served.http.post("/v1/completions", json=body)
    warm = hits()
    assert warm > 0

    assert served.http.post("/reset_prefix_cache").status_code == 200
    served.http.post("/v1/completions", json=body)
    assert hits() == warm
    served.http.post("/v1/completions", json=body)
    assert hits() > warm


def certificate(folder: Path, name: str) -> None:
    """A key and a certificate for this name, signed by itself."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem"), "-days", "2", "-subj", f"/CN={name}"],
        check=True, capture_output=True,
    )  # fmt: skip


def presented(url: str) -> str:
    """Return the name in the certificate that a new connection gets."""
    host, port = url.removeprefix("https://").split(":")
    shown = subprocess.run(
        ["openssl", "s_client", "-connect", f"{host}:{port}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    return str(re.findall(r"subject=.*CN ?= ?(\S+)", shown.stdout.decode())[0])


def test_a_renewed_certificate_is_used_without_a_restart_and_spans_go_out(tmp_path: Path) -> None:
    certificate(tmp_path, "first.example")
    insecure = httpx.HTTPTransport(verify=False)
    flags = ("--ssl-keyfile", str(tmp_path / "key.pem"), "--ssl-certfile", str(tmp_path / "cert.pem"))
    with over_grpc() as receiver:
        more = ("--enable-ssl-refresh", "--otlp-traces-endpoint", receiver.url, "--served-model-name", "demo")
        with serve(tmp_path, *flags, *more, scheme="https", transport=insecure) as running:
            assert presented(running.url) == "first.example"
            assert running.chat(max_tokens=8, ignore_eos=True).status_code == 200

            certificate(tmp_path, "second.example")
            wait_until(lambda: presented(running.url) == "second.example")
            assert running.chat(max_tokens=1).status_code == 200
            wait_until(lambda: len(receiver.spans) == 2)

    told = attributes(receiver.spans[0])
    assert told["gen_ai.usage.completion_tokens"] == 8
    assert told["gen_ai.latency.time_in_queue"] > 0  # told by the engine
    assert told["gen_ai.latency.time_in_model_decode"] > 0


def test_requests_of_a_worker_that_was_killed_are_load_no_more(served: Served) -> None:
    before = {worker.pid for worker in served.workers()}
    with contextlib.ExitStack() as streams:
        for _ in range(4):
            streams.enter_context(half_sent(served))
        wait_until(lambda: served.http.get("/load").json() == {"server_load": 4})

        for worker in served.workers():
            worker.kill()
        wait_until(lambda: len({worker.pid for worker in served.workers()} - before) == 3)
        wait_until(lambda: served.connections() == 3)

        assert served.http.get("/load").json() == {"server_load": 0}
        assert "http_requests_total" in served.http.get("/metrics").text  # what was counted stays
