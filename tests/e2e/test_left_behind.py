"""Files of a killed server: no keys are in them, and they are gone once another server has started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest
from tests.e2e.served import serve, wait_until
from tests.e2e.test_orphans import gone

SECRET = "a-key-that-nobody-should-read"


def test_a_killed_server_leaves_no_key_and_its_folder_goes_with_the_next_start(tmp_path: Path, short: Path) -> None:
    environment = {"TMPDIR": str(short), "VLLM_API_KEY": SECRET, "HF_TOKEN": "hf_a-token"}
    with serve(tmp_path, env=environment, key=SECRET) as served:
        assert served.chat(max_tokens=3).status_code == 200
        [left] = short.glob("forearm-*")
        written = b"".join(file.read_bytes() for file in left.rglob("*") if file.is_file())
        assert SECRET.encode() not in written

        started = psutil.Process(served.process.pid).children(recursive=True)
        for one in started:
            assert not {"HF_TOKEN", "VLLM_API_KEY"} & one.environ().keys()
        for one in [psutil.Process(served.process.pid), *started]:
            with contextlib.suppress(psutil.NoSuchProcess):  # workers end with their master
                one.send_signal(signal.SIGKILL)
        served.process.wait()
        wait_until(lambda: all(map(gone, started)))
    assert left.is_dir()

    keep = short / "forearm-results"
    keep.mkdir()
    with serve(tmp_path, env=environment, key=SECRET) as first:
        assert not left.exists()
        [lives] = [path for path in short.glob("forearm-*") if path != keep]
        with serve(tmp_path, env=environment, key=SECRET) as second:
            assert second.chat(max_tokens=3).status_code == 200
            assert lives.is_dir()
        assert first.chat(max_tokens=3).status_code == 200
    assert list(short.iterdir()) == [keep]


def test_the_folder_of_a_killed_serve_goes_with_the_processes_that_it_started(tmp_path: Path, short: Path) -> None:
    with serve(tmp_path, env={"TMPDIR": str(short)}) as served:
        served.process.kill()
        wait_until(lambda: not any(short.iterdir()))


@pytest.mark.skipif(os.getuid() != 0, reason="only root may mount")
def test_without_room_or_a_place_to_write_the_start_ends_with_the_remedy(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match="set TMPDIR to a folder that can be written") as raised,
        serve(tmp_path, within=unwritable("/tmp", "/var/tmp")),
    ):
        pass
    assert "Traceback" not in str(raised.value)


@pytest.mark.skipif(os.getuid() != 0, reason="only root may mount")
def test_shared_memory_that_is_read_only_is_done_without(tmp_path: Path) -> None:
    with serve(tmp_path, within=unwritable()) as served:
        assert served.chat(max_tokens=3).status_code == 200


def unwritable(*folders: str) -> list[str]:
    """The beginning of a command whose process sees these folders read-only; its working directory too."""
    mounts = " && ".join(f"mount -t tmpfs -o ro none {folder}" for folder in (*folders, "/dev/shm"))
    return ["unshare", "--mount", "sh", "-c", f'{mounts} && cd /proc && exec "$@"', "sh"]


def test_a_unix_socket_belongs_to_one_server(tmp_path: Path, short: Path) -> None:
    at = short / "api.sock"
    flags = ("--uds", str(at))

    def transport() -> httpx.HTTPTransport:
        return httpx.HTTPTransport(uds=str(at))

    with serve(tmp_path, *flags, transport=transport()) as first:
        argv = [sys.executable, "-m", "forearm", "serve", *flags]
        refused = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        assert refused.returncode == 78
        assert f"--uds {at}: another server listens there" in refused.stderr
        assert first.chat(max_tokens=3).status_code == 200
        serving = psutil.Process(first.process.pid)
        for one in [*serving.children(recursive=True), serving]:  # gunicorn first: told to end, it removes the socket
            one.send_signal(signal.SIGKILL)
        first.process.wait()
    assert at.is_socket()
    with serve(tmp_path, *flags, transport=transport()) as second:
        assert second.chat(max_tokens=3).status_code == 200
    assert not any(short.iterdir())

    at.write_text("mine")
    with pytest.raises(AssertionError, match="the file exists and is no socket"), serve(tmp_path, *flags):
        pass
    assert at.read_text() == "mine"
