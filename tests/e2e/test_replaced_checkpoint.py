"""A checkpoint whose bytes change while it is served, without its names, sizes and times: the engine starts anew."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from tests.e2e.served import READY_TIMEOUT_S, is_ready, serve, wait_until

from forearm.model.checkpoint.checkpoint import open_checkpoint
from forearm.model.checkpoint.hub import DEMO_MODEL
from forearm.model.checkpoint.shards import StoredTensor
from forearm.model.checkpoint.weight_cache import PAGE_BYTES, key_of


def change_unseen(folder: Path) -> None:
    """A byte of the largest tensor, between the pages of the cache's key."""
    checkpoint = open_checkpoint(folder)
    key, path = key_of(checkpoint), folder / "model.safetensors"
    tensors = (stored for _, stored in checkpoint.sources if isinstance(stored, StoredTensor))
    largest = max(tensors, key=lambda stored: stored.end - stored.begin)
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(largest.begin + PAGE_BYTES + 100)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert key_of(checkpoint) == key


def test_an_engine_whose_weights_are_no_longer_the_checkpoints_starts_anew(tmp_path: Path) -> None:
    folder, cache = Path(shutil.copytree(DEMO_MODEL, tmp_path / "model")), tmp_path / "cache"
    argv = ("--model", str(folder), "--weight-cache", str(cache))
    with serve(tmp_path, *argv):
        deadline = time.monotonic() + 60
        while not list(cache.glob("*.source")):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    change_unseen(folder)
    (record,) = cache.glob("*.source")
    before = record.read_text()

    with serve(tmp_path, *argv) as served:
        deadline = time.monotonic() + 60
        while not record.exists() or record.read_text() == before:
            assert time.monotonic() < deadline, served.log.read_text()
            time.sleep(0.1)
        wait_until(lambda: is_ready(served), READY_TIMEOUT_S, served.log.read_text)
        assert served.chat(max_tokens=4).status_code == 200

    assert "it is deleted, and made anew at the next start" in served.log.read_text()
