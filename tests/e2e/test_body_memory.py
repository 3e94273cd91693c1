"""Bodies of many connections at once: one worker holds so many bytes of them, and gives the memory back."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.e2e.served import Served, serve, wait_until

MIB = 1 << 20
LONGEST, HELD, CONNECTIONS = 8 * MIB, 24 * MIB, 30
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
BEGUN = b'{"messages": [{"role": "user", "content": "'


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    env = {"FOREARM_MAX_BODY_BYTES": str(LONGEST), "FOREARM_BODY_MEMORY_BYTES": str(HELD)}
    with serve(tmp_path_factory.mktemp("held"), "--api-server-count", "1", env=env) as running:
        yield running


@contextlib.contextmanager
def connected(served: Served) -> Iterator[socket.socket]:
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 30) as connection:
        yield connection


def resident(worker: psutil.Process) -> int:
    return int(worker.memory_info().rss)


def test_bodies_that_do_not_end_take_no_more_than_their_memory(served: Served) -> None:
    (worker,) = served.workers()
    assert served.chat(max_tokens=1, user="x" * (LONGEST // 2)).status_code == 200  # what is taken once stays
    before = resident(worker)
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connected(served)) for _ in range(CONNECTIONS)]
        for connection in connections:
            connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % LONGEST + BEGUN)
            connection.sendall(b"x" * (LONGEST - 2 * MIB))
        least = CONNECTIONS - HELD // (LONGEST - 2 * MIB)
        wait_until(lambda: sum(begins_with(one, b"HTTP/1.1 503 ") for one in connections) >= least)
        assert sum(begins_with(one, b"HTTP/1.1 503 ") for one in connections) < CONNECTIONS
        # What uvicorn has of each connection beside: 64 KiB and one read of 256 KiB.
        assert resident(worker) - before < HELD + CONNECTIONS * MIB
    wait_until(lambda: resident(worker) - before < HELD // 2, 30, lambda: f"{(resident(worker) - before) // MIB} MiB")
    assert served.chat(max_tokens=1).status_code == 200


def begins_with(connection: socket.socket, said: bytes) -> bool:
    """Return whether the server has answered, and its answer begins like this."""
    connection.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        return connection.recv(len(said), socket.MSG_PEEK) == said
    return False


def answer_to_a_head(served: Served) -> bytes:
    """Return what the server says to a head whose body does not follow; nothing: it waits for the body."""
    with connected(served) as connection:
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % LONGEST)
        connection.settimeout(1)
        try:
            begun = connection.recv(1 << 16)
        except TimeoutError:
            return b""
        connection.settimeout(30)
        return begun + b"".join(iter(lambda: connection.recv(1 << 16), b""))


def test_a_body_for_which_there_is_no_memory_is_refused_before_it_is_sent(served: Served) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            connection = stack.enter_context(connected(served))
            connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % LONGEST + BEGUN + b"x" * (LONGEST - MIB))
        answers: list[bytes] = []
        wait_until(
            lambda: bool(answers.append(answer_to_a_head(served)) or answers[-1]), 30
        )  # once all three are taken

    said = answers[-1]
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nretry-after: 2" in head.lower()
    assert "FOREARM_BODY_MEMORY_BYTES" in json.loads(body)["error"]["message"]


def test_the_memory_of_a_body_is_there_again_after_its_request(served: Served, tmp_path: Path) -> None:
    for _ in range(2 * HELD // LONGEST):
        assert served.chat(max_tokens=1, user="x" * (LONGEST - MIB)).status_code == 200
        assert served.chat(max_tokens=1, temperature="x" * (LONGEST - MIB)).status_code == 400
