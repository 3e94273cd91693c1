"""gunicorn's worker, between its fork and its event loop; and what its HTTP protocol writes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from gunicorn.config import Config  # type: ignore[import-untyped]
from starlette.types import Receive, Scope, Send
from tests.api.server import wait_until

from forearm.api.http.protocol import Protocol
from forearm.api.worker import worker
from forearm.api.worker.worker import Heartbeat

# The child gets its signal before its first line, the earliest possible moment.
MASTER = """
import os, signal
from forearm.api.worker.worker import Worker, hold_signals_while_forking

signal.signal(signal.SIGTERM, lambda *_: None)  # the master's, which a worker inherits
hold_signals_while_forking()
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
if child := os.fork():
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), signal.pthread_sigmask(signal.SIG_BLOCK, ()))
else:
    Worker.init_signals(object.__new__(Worker))
"""


def test_a_worker_told_to_end_before_it_minds_signals_ends() -> None:
    master = subprocess.run([sys.executable, "-c", MASTER], check=True, capture_output=True, text=True)

    assert master.stdout == "-15 set()\n"


def beat_before(heartbeat: Heartbeat, ago_s: float) -> None:
    """Make the worker's last heartbeat older."""
    then = time.monotonic() - ago_s
    os.utime(heartbeat.fileno(), (then, then))


@pytest.fixture
def heartbeat() -> Iterator[Heartbeat]:
    """Yield the heartbeat of a new worker."""
    with contextlib.closing(Heartbeat(Config())) as made:
        yield made


def test_a_worker_without_heartbeats_is_silent_for_as_long_as_its_master_watched(heartbeat: Heartbeat) -> None:
    beat_before(heartbeat, 61)
    started = time.monotonic()

    for _ in range(12):
        silent_s = time.monotonic() - heartbeat.last_update()
        time.sleep(0.1)

    assert silent_s >= time.monotonic() - started - 0.2


def test_a_pause_of_the_master_and_its_workers_is_no_silence(
    heartbeat: Heartbeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "LONGEST_LOOK_S", 0.2)
    heartbeat.last_update()

    time.sleep(0.3)
    beat_before(heartbeat, 61)

    assert time.monotonic() - heartbeat.last_update() < 30


class Answers:
    """An app whose answer's body comes with the head, or at /later once `go` is set."""

    def __init__(self) -> None:
        self.go = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        if scope["path"] == "/later":
            await asyncio.to_thread(self.go.wait)
        await send({"type": "http.response.body", "body": b"body"})


@pytest.fixture
def answers() -> Iterator[tuple[Answers, socket.socket]]:
    """Yield an app behind the worker's protocol, and a connection to it."""
    app, listening = Answers(), socket.socket()
    listening.bind(("127.0.0.1", 0))
    config = uvicorn.Config(app, http=Protocol, loop="uvloop", lifespan="off", log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    wait_until(lambda: server.started)
    with socket.create_connection(listening.getsockname(), timeout=60) as connection:
        yield app, connection
    server.should_exit = True
    thread.join()
    listening.close()


def ask(connection: socket.socket, path: str) -> None:
    connection.sendall(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode())


def segments(connection: socket.socket) -> int:
    """Return how many segments with data have arrived: tcpi_data_segs_in of Linux's tcp_info."""
    found: int = struct.unpack_from("I", connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192), 152)[0]
    return found


def read_answer(connection: socket.socket) -> bytes:
    answer = b""
    while not answer.endswith(b"\r\n\r\nbody"):
        answer += connection.recv(1 << 16)
    return answer


def test_a_head_leaves_together_with_a_body_that_is_there(answers: tuple[Answers, socket.socket]) -> None:
    _, connection = answers

    for count in range(1, 4):
        ask(connection, "/")
        assert read_answer(connection).startswith(b"HTTP/1.1 200 OK\r\n")
        assert segments(connection) == count


def test_a_head_does_not_wait_for_a_body_that_comes_later(answers: tuple[Answers, socket.socket]) -> None:
    app, connection = answers

    ask(connection, "/later")
    assert connection.recv(1 << 16).endswith(b"\r\n\r\n")
    app.go.set()
    assert connection.recv(1 << 16) == b"body"
