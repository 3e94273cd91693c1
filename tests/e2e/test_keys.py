"""Limits of keys on a real server: over workers, with embeddings, with priorities."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from tests.e2e.pooling_models import minilm
from tests.e2e.served import Served, free_port, serve

KEY = "key-of-the-tests"


def keys_file(folder: Path, **limits: Any) -> tuple[str, str]:
    path = folder / "keys.json"
    path.write_text(json.dumps([{"name": "tests", "key": KEY, **limits}]))
    path.chmod(0o600)
    return "--api-keys-file", str(path)


def complete(served: Served, **fields: Any) -> httpx.Response:
    return served.http.post("/v1/completions", json={"prompt": "ice", "max_tokens": 1, **fields})


def test_a_limit_holds_over_all_workers_at_once(tmp_path: Path) -> None:
    flags = keys_file(tmp_path, requests_per_minute=30)
    with serve(tmp_path, "--api-server-count", "4", *flags, key=KEY) as served, ThreadPoolExecutor(16) as pool:
        begun_s = time.monotonic()
        replies = list(pool.map(lambda _: complete(served), range(60)))
        took_s = time.monotonic() - begun_s

    statuses = [reply.status_code for reply in replies]
    assert set(statuses) == {200, 429}
    # Half a request comes back each second.
    assert 30 <= statuses.count(200) <= min(31 + took_s / 2, 59)


def test_texts_to_embed_are_charged_too(tmp_path: Path) -> None:
    with serve(tmp_path, str(minilm()), *keys_file(tmp_path, tokens_per_minute=20), key=KEY) as served:
        asked = {"input": ["one two three four five six seven eight nine ten"] * 2}
        first, second = (served.http.post("/v1/embeddings", json=asked) for _ in range(2))

        assert (first.status_code, second.status_code) == (200, 429)
        assert first.json()["usage"]["prompt_tokens"] == 24
        assert 'forearm:key_tokens_total{key="tests",kind="prompt"} 24.0' in served.http.get("/metrics").text


def test_a_keys_priority_needs_the_policy(tmp_path: Path) -> None:
    with serve(tmp_path, "--scheduling-policy", "priority", *keys_file(tmp_path, priority=3), key=KEY) as served:
        assert complete(served).status_code == 200

    argv = [sys.executable, "-m", "forearm", "serve", "--port", str(free_port()), *keys_file(tmp_path, priority=3)]
    ended = subprocess.run(argv, capture_output=True, timeout=60, check=False)
    assert ended.returncode == 78
    assert b"tests has a priority; start the server with --scheduling-policy priority" in ended.stderr
    assert KEY.encode() not in ended.stderr
