"""A run folder in a small memory, as in a container, that becomes full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.served import Served, serve, wait_until

SIZE = 8 << 20


@pytest.fixture
def small(short: Path) -> Iterator[Path]:
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", str(short)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs to mount a tmpfs")
    yield short
    subprocess.run(["umount", "-l", str(short)], check=True)


def fill(folder: Path) -> Path:
    path = folder / "full"
    with path.open("wb") as file:
        try:
            while True:
                os.write(file.fileno(), b"x" * 4096)
        except OSError:
            pass
    return path


def pids(served: Served) -> set[int]:
    return {worker.pid for worker in served.workers()}


def test_a_full_run_folder_costs_metrics_and_stored_responses_but_no_answer(tmp_path: Path, small: Path) -> None:
    with serve(tmp_path, "--api-server-count", "2", env={"TMPDIR": str(small)}) as served:
        stored = served.http.post("/v1/responses", json={"input": "x", "max_output_tokens": 2}).json()["id"]
        filling = fill(small)
        before = pids(served)

        for number in range(40):  # each handler and status has metrics of its own
            assert served.chat(max_tokens=2).status_code == 200
            assert served.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 2}).status_code == 200
            assert served.http.get(f"/v1/models/{number}").status_code == 404
            served.http.request("PUT", "/v1/chat/completions")
        assert served.http.get("/metrics").status_code == 200
        answered = served.http.post("/v1/responses", json={"input": "x", "max_output_tokens": 2})
        assert (answered.status_code, answered.json()["status"]) == (200, "incomplete")
        assert served.http.get(f"/v1/responses/{stored}").status_code == 200
        assert pids(served) == before, "no worker has died"

        served.workers()[0].kill()  # and one that begins now does not either
        wait_until(lambda: len(now := pids(served)) == served.connections() == 2 and now != before)
        begun = pids(served)
        for _ in range(40):
            assert served.chat(max_tokens=2).status_code == 200
        assert served.http.get("/metrics").status_code == 200
        assert pids(served) == begun

        filling.unlink()
        again = served.http.post("/v1/responses", json={"input": "x", "max_output_tokens": 2}).json()["id"]
        assert served.http.get(f"/v1/responses/{again}").status_code == 200
    assert "is not stored" in served.log.read_text()


def test_stored_responses_leave_room_in_the_run_folder(tmp_path: Path, small: Path) -> None:
    env = {"TMPDIR": str(small), "FOREARM_RESPONSES_STORE_BYTES": str(4 << 20)}
    with serve(tmp_path, "--api-server-count", "1", env=env) as served:
        for number in range(150):
            body = {"input": f"{number}", "instructions": "x", "metadata": {f"{n}": "y" * 500 for n in range(16)}}
            kept = served.http.post("/v1/responses", json={**body, "stream": number % 2 == 0, "max_output_tokens": 8})
            assert kept.status_code == 200
            room = os.statvfs(small)
            assert room.f_bavail * room.f_frsize > SIZE // 4
        newest = served.http.post("/v1/responses", json={"input": "x", "max_output_tokens": 2}).json()["id"]
        assert served.http.get(f"/v1/responses/{newest}").status_code == 200
    assert "is not stored" not in served.log.read_text()
