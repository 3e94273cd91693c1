"""`forearm serve` starts with what `forearm plan` predicts to fit; `forearm doctor` finds the server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.e2e.served import serve

SEQUENCE = 2048 * 3072  # bytes of keys and values of the demo model's longest sequence, in bfloat16
SETTINGS = ("--max-num-seqs", "4", "--max-num-batched-tokens", "256")


def command(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "forearm", *argv], capture_output=True, text=True, timeout=120)


def asked(*argv: str) -> dict[str, Any]:
    done = command(*argv, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_plan_is_what_the_server_starts_with(tmp_path: Path) -> None:
    planned = asked("plan", *SETTINGS)

    with serve(tmp_path, *SETTINGS) as server:
        log = server.log.read_text()
        doctor = asked("doctor", "--host", "127.0.0.1", "--port", server.url.rpartition(":")[2])

    assert f"engine: {planned['placement']['threads']} thread" in log
    blocks = re.search(r"KV cache .* in (\d+) blocks of 32 tokens: ([\d.]+) sequences of (\d+) tokens", log)
    assert blocks is not None, log
    assert int(blocks[1]) * 32 == planned["memory"]["kv_tokens"]
    assert int(blocks[3]) == planned["memory"]["max_model_len"]
    states = {finding["check"]: finding for finding in doctor["findings"]}
    assert "is used by a running server" in states["port"]["what"]
    assert states["server"]["status"] == "ok"
    assert "is ready" in states["server"]["what"]


def test_what_just_fits_starts_and_a_block_less_is_refused_by_both(tmp_path: Path) -> None:
    just = ("--kv-cache-memory-bytes", str(SEQUENCE), *SETTINGS)
    less = ("--kv-cache-memory-bytes", str(SEQUENCE - 32 * 3072), *SETTINGS)

    assert asked("plan", *just)["memory"]["contexts"] == 1.0
    with serve(tmp_path, *just) as server:
        assert server.chat(max_tokens=1).status_code == 200

    refused = command("plan", *less)
    assert refused.returncode == 1
    assert "It does not fit: one sequence of 2048 tokens needs" in refused.stdout
    started = command("serve", "--host", "127.0.0.1", "--port", "0", *less)
    assert started.returncode == 78
    assert "one sequence of 2048 tokens needs" in started.stderr


def test_vllms_collect_env_prints_the_doctors_report() -> None:
    assert {finding["check"] for finding in asked("collect-env")["findings"]} >= {"kernel", "cpu", "cores", "memory"}
