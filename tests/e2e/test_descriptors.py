"""A process without a free file descriptor says so within seconds, and works again once it has some."""

from __future__ import annotations

import contextlib
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
from tests.e2e.served import Served, is_ready, series, serve, wait_until


@contextlib.contextmanager
def without_descriptors(process: psutil.Process) -> Iterator[None]:
    """Leave a running process what it has open and nothing more."""
    before = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (1, before[1]))
    yield
    with contextlib.suppress(ProcessLookupError):  # it may have been replaced
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, before)


def says(served: Served, text: str) -> None:
    wait_until(lambda: text in served.log.read_text(), 20, served.log.read_text)


def test_a_worker_says_so_at_once_and_serves_on(tmp_path: Path) -> None:
    limited = ["prlimit", "--nofile=96:96"]
    with serve(tmp_path, "--api-server-count", "1", within=limited) as served, contextlib.ExitStack() as stack:
        address = ("127.0.0.1", int(served.url.rpartition(":")[2]))
        for _ in range(100):
            stack.enter_context(socket.create_connection(address, timeout=10))
        says(served, "no connection can be accepted")
        stack.close()
        wait_until(lambda: is_ready(served), 20, served.log.read_text)
        assert served.chat(max_tokens=3).status_code == 200
        values = series(served.http.get("/metrics").text)
        assert values["forearm:out_of_descriptors_seconds_total"] >= 1


def test_an_engine_says_so_and_takes_new_workers_later(tmp_path: Path) -> None:
    with serve(tmp_path, "--api-server-count", "2") as served:
        engine, (first, second) = served.engine(), served.workers()
        with without_descriptors(engine):
            says(served, "no worker can connect to this engine: Too many open files (limit 1)")
            first.kill()  # its successor finds an engine that cannot take it
            wait_until(lambda: {one.pid for one in served.workers()} - {first.pid, second.pid}, 20)
        says(served, "file descriptors are free again")
        wait_until(lambda: len(served.workers()) == 2 and all(asked(served) for _ in range(8)), 30)
        assert served.engine().pid == engine.pid
        assert "socket.accept() out of system resource" not in served.log.read_text()


def asked(served: Served) -> bool:
    """Return whether the engine answers on a new connection to either worker."""
    return served.chat(max_tokens=1).status_code == 200


def test_serve_says_so_kills_no_engine_for_it_and_starts_one_later(tmp_path: Path) -> None:
    env = {"FOREARM_ANSWER_TIMEOUT": "3"}
    with serve(tmp_path, "--api-server-count", "1", env=env) as served:
        engine, itself = served.engine(), psutil.Process(served.process.pid)
        with without_descriptors(itself):
            says(served, "no process can be watched or started again: Too many open files (limit 1)")
            assert served.chat(max_tokens=3).status_code == 200
            engine.kill()
            says(served, "engine cannot be started")
            assert served.chat(max_tokens=3).status_code == 503
        says(served, "file descriptors are free again")
        wait_until(lambda: is_ready(served), 30, served.log.read_text)
        assert served.chat(max_tokens=3).status_code == 200
        assert "hangs" not in served.log.read_text()


def test_a_master_that_cannot_replace_a_worker_is_itself_replaced(tmp_path: Path) -> None:
    with serve(tmp_path, "--api-server-count", "2") as served:
        worker = served.workers()[0]
        master = worker.parent()
        assert master is not None
        with without_descriptors(master):
            worker.kill()
            says(served, "Too many open files")
            says(served, "API is ready again")
        wait_until(lambda: len(served.workers()) == 2 and all(asked(served) for _ in range(8)), 30)


def test_too_low_a_limit_is_refused_before_anything_starts() -> None:
    argv = ["prlimit", "--nofile=40:40", sys.executable, "-m", "forearm", "serve", "--port", "0"]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 78
    assert "40 open files are allowed, at least 64 are needed" in ended.stderr
    assert "Traceback" not in ended.stderr
