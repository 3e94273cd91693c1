"""Senders that dribble, heads and bodies without end, clients that never read: each has a time limit or a bound."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator

import psutil
import pytest
from tests.e2e.served import ENDLESS, Served, series, serve, wait_until

LIMIT_S = 2.0
WHOLE_S = 8.0
UNREAD_S = 0.5  # of the longest answer, which takes 0.6 s on a fast machine, eight at once several times as long
SLACK_S = 20.0  # the machines that run this have other things to do
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
JSON = b"Content-Type: application/json\r\n"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    env = {"FOREARM_RECEIVE_TIMEOUT": str(LIMIT_S), "FOREARM_SEND_TIMEOUT": str(UNREAD_S)}
    env["FOREARM_BODY_TIMEOUT"] = str(WHOLE_S)
    # The model's own generation config ends answers at 128 tokens; log-probabilities make a stream of megabytes.
    flags = ("--api-server-count", "1", "--generation-config", "vllm", "--max-logprobs", "300")
    with serve(tmp_path_factory.mktemp("senders"), *flags, env={**env, "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "1"}) as running:
        yield running
        assert running.chat(max_tokens=2).status_code == 200
        assert "Traceback" not in running.log.read_text()


@contextlib.contextmanager
def connected(served: Served) -> Iterator[socket.socket]:
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), LIMIT_S + SLACK_S) as connection:
        yield connection


def closed_after(connection: socket.socket, begun: bytes, dribbled: bytes, most: int = 1 << 20) -> tuple[float, bytes]:
    """Send `begun`, then `dribbled` again and again until the server closes the connection.

    Returns: seconds since the first byte, and what it said.
    """
    begun_s, said, sent = time.monotonic(), b"", 0
    connection.sendall(begun)
    connection.settimeout(0.1)
    while time.monotonic() - begun_s < LIMIT_S + SLACK_S and sent < most:
        try:
            connection.sendall(dribbled)
            sent += len(dribbled)
        except TimeoutError:
            pass  # it does not read, for now
        except OSError:
            break
        with contextlib.suppress(TimeoutError):
            try:
                part = connection.recv(1 << 16)
            except ConnectionError:
                break
            if not part:
                break
            said += part
    else:
        pytest.fail(f"still open after {time.monotonic() - begun_s:.1f} s and {sent} bytes; it said {said[:200]!r}")
    return time.monotonic() - begun_s, said


@pytest.mark.parametrize(
    ("begun", "dribbled"),
    [
        (b"", b""),
        (b"\r\n", b"\r\n"),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nX-A: ", b"b"),
        (HEAD + b"X-A: 1\r\n", b"X-B: 2\r\n"),
        (HEAD + JSON + b"Content-Length: 100000\r\n\r\n{", b" "),
        (HEAD + JSON + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        (b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n", b" "),
    ],
    ids=["nothing", "line ends", "a header", "headers", "a body", "chunks", "a body that nobody reads"],
)
def test_a_request_that_dribbles_ends_at_the_limit(served: Served, begun: bytes, dribbled: bytes) -> None:
    with connected(served) as connection:
        seconds, said = closed_after(connection, begun, dribbled)

    assert 0.9 * LIMIT_S < seconds < LIMIT_S + SLACK_S
    assert b" 408 " in said[:20] or b" 404 " in said[:20]


def test_a_body_that_comes_slowly_but_steadily_is_read(served: Served) -> None:
    body = b'{"max_tokens": 2, "messages": [{"role": "user", "content": "What is ice?"}]' + b" " * 12_000 + b"}"
    with connected(served) as connection:
        connection.sendall(HEAD + JSON + b"Content-Length: %d\r\n\r\n" % len(body))
        for at in range(0, len(body), 400):
            connection.sendall(body[at : at + 400])
            time.sleep(0.1)

        assert b" 200 " in connection.recv(1 << 16)[:20]


def test_a_whole_body_has_a_limit_however_steadily_it_comes(served: Served) -> None:
    with connected(served) as connection:
        seconds, said = closed_after(connection, HEAD + JSON + b"Content-Length: 1000000\r\n\r\n{", b" " * 1000)

    assert 0.9 * WHOLE_S < seconds < WHOLE_S + SLACK_S
    assert b" 408 " in said[:20]
    assert b"within 8 s" in said


def test_a_long_body_is_no_long_head(served: Served) -> None:
    for size in (60_000, 70_000, 200_000, 2_000_000):
        reply = served.chat(max_tokens=1, user="x" * size)  # in as few packets as the kernel makes of it

        assert reply.status_code == 200, (size, reply.text)


@pytest.mark.parametrize(
    ("begun", "more"),
    [
        (b"GET /health HTTP/1.1\r\nHost: x\r\nX-A: ", b"b" * 10_000),
        (b"GET /health HTTP/1.1\r\nHost: x\r\n", b"X-A: bbbbbbbb\r\n" * 1000),
        (b"GET /", b"a" * 10_000),
    ],
    ids=["a header", "headers", "a path"],
)
def test_a_head_without_end_is_refused_before_it_takes_memory(served: Served, begun: bytes, more: bytes) -> None:
    with connected(served) as connection:
        _, said = closed_after(connection, begun, more)

    assert said[:13] in (b"", b"HTTP/1.1 431 ", b"HTTP/1.1 400 ")  # nothing, where the kernel dropped it with our bytes


def open_to(worker: psutil.Process) -> int:
    """Connections of clients."""
    return sum(one.status == "ESTABLISHED" and bool(one.raddr) for one in worker.net_connections("tcp"))


def aborted(served: Served) -> float:
    """Return the requests that ended because their client had gone."""
    values = series(served.http.get("/metrics").text)
    return sum(v for name, v in values.items() if name.startswith("vllm:request_success_total") and '"abort"' in name)


def test_a_client_that_never_reads_is_left_and_its_request_ends(served: Served) -> None:
    (worker,) = served.workers()
    before, aborted_before = worker.memory_info().rss, aborted(served)
    body = json.dumps({**ENDLESS, "stream": True, "n": 4, "logprobs": True, "top_logprobs": 300})
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            connection = stack.enter_context(connected(served))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sent = HEAD + JSON + b"Content-Length: %d\r\n\r\n%s" % (len(body), body.encode())
            connection.sendall(sent)
        # 1900 tokens of an output would be 60 MB: more than sockets hold.
        wait_until(lambda: aborted(served) == aborted_before + 2 and open_to(worker) <= 1)
        assert served.running() == 0

    assert worker.memory_info().rss - before < 100 << 20


def test_an_idle_connection_is_closed(served: Served) -> None:
    with connected(served) as connection:
        begun_s = time.monotonic()
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        while connection.recv(1 << 16):
            pass

    assert 0.9 < time.monotonic() - begun_s < 1 + SLACK_S


def test_a_stream_may_take_longer_than_its_request(served: Served) -> None:
    with served.endless(max_tokens=500, stream_options={"include_usage": True}) as lines:
        begun_s, got = time.monotonic(), list[str]()
        for line in lines:  # slowly, but it is read
            got.append(line)
            time.sleep(0.001 if time.monotonic() - begun_s > 2 * LIMIT_S else 0.05)

    assert got[-1] == "data: [DONE]"
    assert json.loads(got[-2].removeprefix("data: "))["usage"]["completion_tokens"] == 500
    assert time.monotonic() - begun_s > 2 * LIMIT_S
