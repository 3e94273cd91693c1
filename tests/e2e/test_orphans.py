"""Nothing that serve started outlives it, however it ends."""

from __future__ import annotations

from pathlib import Path

import psutil

from tests.e2e.served import serve, wait_until


def test_a_killed_serve_takes_engine_and_workers_along(tmp_path: Path) -> None:
    with serve(tmp_path) as served, served.endless():
        started = psutil.Process(served.process.pid).children(recursive=True)
        assert len(started) >= 3  # engine, gunicorn's master, a worker

        served.process.kill()

        wait_until(lambda: not any(process.is_running() for process in started), timeout_s=25)
