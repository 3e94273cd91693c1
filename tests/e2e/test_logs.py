"""A server's log never stops the server."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import httpx
from tests.e2e.served import free_port, serve, stop, wait_until


def test_an_unread_log_stops_nothing_and_counts_dropped_lines(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{(port := free_port())}"
    # A line for each request: more than a pipe holds and may wait.
    argv = [sys.executable, "-m", "forearm", "serve", "--host", "127.0.0.1", "--port", str(port)]
    argv += ["--access-log", "--api-server-count", "1"]
    reading, writing = os.pipe()
    process = subprocess.Popen(argv, stdout=writing, stderr=writing)
    os.close(writing)
    try:
        with httpx.Client(base_url=url, timeout=30) as http:
            wait_until(lambda: ready(http), 90)
            for _ in range(3000):
                assert http.get("/livez").status_code == 200
            assert http.post("/v1/completions", json={"prompt": "Ice", "max_tokens": 1}).status_code == 200
            os.set_blocking(reading, False)
            said = bytearray()
            wait_until(lambda: b"log lines were dropped" in said or take(reading, said), 30)
            dropped = int(bytes(said).partition(b" log lines were dropped")[0].rpartition(b" ")[2])
            assert 0 < dropped < 1500
            wait_until(lambda: f"forearm:log_lines_dropped_total {dropped}.0" in http.get("/metrics").text)
    finally:
        stop(process)
        os.close(reading)
    assert process.returncode == 0


def test_a_log_that_is_truncated_goes_on_at_its_new_end(tmp_path: Path) -> None:
    """logrotate's copytruncate does so: without O_APPEND the next line would follow a hole of the old length."""
    with serve(tmp_path, "--access-log") as served:
        served.http.get("/livez")
        wait_until(lambda: "GET /livez 200" in served.log.read_text())
        os.truncate(served.log, 0)

        served.http.get("/readyz")

        wait_until(lambda: b"GET /readyz 200" in served.log.read_bytes())
        assert b"\0" not in served.log.read_bytes()


def ready(http: httpx.Client) -> bool:
    """Return whether the server accepts requests."""
    try:
        return http.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def take(reading: int, said: bytearray) -> bool:
    """Read what there is. Returns: False."""
    with contextlib.suppress(BlockingIOError):
        said += os.read(reading, 1 << 20)
    return False
