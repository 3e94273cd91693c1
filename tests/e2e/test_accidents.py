"""Accidents: workers and engines that die, overload, a shutdown during requests."""

from __future__ import annotations

import contextlib
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from tests.e2e.served import UNLIMITED, Served, series, serve, wait_until


def test_a_full_queue_refuses_with_retry_after_and_recovers(tmp_path: Path) -> None:
    with serve(tmp_path, *UNLIMITED, "--max-num-seqs", "2", "--max-num-queued-reqs", "14") as served:
        with contextlib.ExitStack() as stack:
            stack.enter_context(served.endless(n=16))  # seconds of work for two places, and as many as fit
            # One client for all that wait: to make one takes 0.1 s, on a busy machine longer than the work.
            client = stack.enter_context(httpx.Client(base_url=served.url, timeout=60))
            bodies = [{"messages": [{"role": "user", "content": "x"}], "stream": True, "n": n} for n in [16] + 13 * [1]]
            for body in bodies:
                stack.enter_context(client.stream("POST", "/v1/chat/completions", json=body))
            refused = served.chat()
            assert refused.status_code in (429, 503)
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error"]["message"]

        wait_until(lambda: served.running() == 0)
        # The API workers are told of free places a moment later than the metrics show them.
        wait_until(lambda: served.chat(max_tokens=3).status_code == 200)


def test_a_worker_killed_frees_its_sequences_and_is_replaced(tmp_path: Path) -> None:
    with serve(tmp_path, *UNLIMITED, "--api-server-count", "2") as served, contextlib.ExitStack() as stack:
        # Seconds of work for all: the streams of the other worker are read to their end.
        streams = [stack.enter_context(served.endless(n=16, max_tokens=700)) for _ in range(6)]
        wait_until(lambda: served.running() == 6 * 16)
        answered = requests_answered(served)
        killed = max(served.workers(), key=open_to)

        killed.kill()
        wait_until(lambda: served.running() < 6 * 16)
        left = served.running()

        broken = sum(breaks_off(lines) for lines in streams)
        assert broken >= 3  # it had most of them
        assert left == (6 - broken) * 16
        wait_until(lambda: len(served.workers()) == 2 and killed.pid not in [p.pid for p in served.workers()])
        wait_until(lambda: served.connections() == 2)
        assert served.chat(max_tokens=3).status_code == 200
        assert requests_answered(served) > answered, "a dead worker's counters stay"


def open_to(worker: psutil.Process) -> int:
    """Return the connections that clients have not closed."""
    return sum(one.status == psutil.CONN_ESTABLISHED for one in worker.net_connections("tcp"))


def requests_answered(served: Served) -> float:
    """Return the requests answered by all workers so far."""
    values = series(served.http.get("/metrics").text)
    return sum(value for name, value in values.items() if name.startswith("http_requests_total"))


def breaks_off(lines: Iterator[str]) -> bool:
    """Return whether the stream's connection breaks before its end."""
    try:
        return list(lines)[-1] != "data: [DONE]"
    except httpx.TransportError:
        return True


def test_an_engine_killed_ends_its_streams_with_an_error_and_comes_back(tmp_path: Path) -> None:
    with serve(tmp_path, *UNLIMITED, "--api-server-count", "2") as served:
        with served.endless(n=64) as lines:
            killed = served.engine()
            with stopped(served.process):  # so that no other engine is there at once
                killed.kill()
                rest = list(lines)
                unready, refused = served.http.get("/readyz"), served.chat()

        assert rest[-2].startswith('data: {"error":{')
        assert '"code":503' in rest[-2]
        assert rest[-1] == "data: [DONE]"
        assert unready.status_code == 503
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, 503)
        assert int(refused.headers["retry-after"]) >= 1

        # Of two workers one may find the new engine a moment before the other.
        wait_until(lambda: served.connections() == 2 and served.http.get("/readyz").status_code == 200)
        assert served.engine().pid != killed.pid
        assert served.chat(max_tokens=3).status_code == 200


@contextlib.contextmanager
def stopped(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Keep a process from running."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def test_sigterm_lets_open_streams_end_and_takes_nothing_new(tmp_path: Path) -> None:
    with serve(tmp_path, *UNLIMITED, "--api-server-count", "2") as served:
        with served.endless(max_tokens=1500) as lines:
            served.process.send_signal(signal.SIGTERM)
            wait_until(lambda: refused_or_unready(served.url))
            rest = list(lines)

        assert rest[-1] == "data: [DONE]"
        assert '"finish_reason":"length"' in rest[-2]
        assert served.process.wait(60) == 0


def test_a_drain_has_an_end(tmp_path: Path) -> None:
    flags = (*UNLIMITED, "--shutdown-timeout", "1", "--max-num-seqs", "2", "--max-num-queued-reqs", "200")
    with serve(tmp_path, *flags) as served, served.endless(n=128) as lines:  # half a minute of work
        begun = time.monotonic()
        served.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(httpx.TransportError):
            list(lines)
        served.process.wait(60)

        assert time.monotonic() - begun < 25


def refused_or_unready(url: str) -> bool:
    """Return whether /readyz is 503, or its connection is refused."""
    try:
        return httpx.get(f"{url}/readyz", timeout=60).status_code == 503
    except httpx.TransportError:
        return True


def test_a_key_in_the_environment_guards_the_server(tmp_path: Path) -> None:
    with serve(tmp_path, env={"VLLM_API_KEY": "secret"}, key="secret") as served:
        assert httpx.post(f"{served.url}/v1/completions", json={"prompt": "x"}, timeout=60).status_code == 401
        assert httpx.post(f"{served.url}/tokenize", json={"prompt": "x"}, timeout=60).status_code == 401
        assert httpx.get(f"{served.url}/metrics", timeout=60).status_code == 200
        assert served.openai.models.list().data


def test_a_unix_socket_can_stand_for_the_port(tmp_path: Path) -> None:
    socket = tmp_path / "api.sock"
    transport = httpx.HTTPTransport(uds=str(socket))
    with serve(tmp_path, "--uds", str(socket), transport=transport) as served:
        assert served.chat(max_tokens=3).status_code == 200


def test_https_with_a_certificate(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    trusting = httpx.HTTPTransport(verify=ssl.create_default_context(cafile=certificate))
    with serve(
        tmp_path, "--ssl-keyfile", str(key), "--ssl-certfile", str(certificate), scheme="https", transport=trusting
    ) as served:
        assert served.chat(max_tokens=3).status_code == 200
        with pytest.raises(httpx.TransportError):
            httpx.get(served.url.replace("https", "http"), timeout=60)
        chat = [sys.executable, "-m", "forearm", "chat", "--url", served.url, "-q", "What is ice?", "--max-tokens", "3"]
        unknown = subprocess.run(chat, capture_output=True, text=True, timeout=60)
        named = subprocess.run(
            chat, capture_output=True, text=True, timeout=60, env={**os.environ, "SSL_CERT_FILE": str(certificate)}
        )
    assert unknown.stderr.endswith("or of its authority, in the variable SSL_CERT_FILE\n")
    assert (named.returncode, named.stderr) == (0, "")


@pytest.mark.parametrize(
    ("flags", "said"),
    [(["--chat-template", "no/such/file"], "no/such/file"), (["--generation-config", "no/such"], "no/such")],
)
def test_a_wrong_setting_of_the_api_ends_the_start_with_its_message(
    tmp_path: Path, flags: list[str], said: str
) -> None:
    with pytest.raises(AssertionError, match=said), serve(tmp_path, *flags):
        pass
