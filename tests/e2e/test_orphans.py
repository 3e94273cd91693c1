"""Nothing that serve started outlives it, however it ends."""

from __future__ import annotations

from pathlib import Path

import psutil
from tests.e2e.served import UNLIMITED, serve, wait_until


def gone(process: psutil.Process) -> bool:
    """Ended; it may wait for an init that does not collect it."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_killed_serve_takes_engine_and_workers_along(tmp_path: Path) -> None:
    with serve(tmp_path, *UNLIMITED) as served, served.endless(n=64):
        started = psutil.Process(served.process.pid).children(recursive=True)
        assert len(started) >= 3  # engine, gunicorn's master, a worker

        served.process.kill()

        wait_until(lambda: all(map(gone, started)))
