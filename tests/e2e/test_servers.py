"""`forearm ps`, `stop`, and what `list` and `rm` say of a model that a server has open."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.served import serve
from tests.unit.test_stored_models import cache as cache


def forearm(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "forearm", *argv], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("word", ["we/demo", "port", "pid"])
def test_a_server_is_listed_its_model_is_kept_and_stop_ends_it(
    word: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ("--download-dir", str(cache))
    env = {"HF_HUB_OFFLINE": "1", "TMPDIR": str(tmp_path)}
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with serve(tmp_path, "we/demo", *where, env=env) as served:
        listed = forearm("ps").stdout.splitlines()
        assert len(listed) == 2
        name, address, pid, state, memory, *_ = listed[1].split()
        assert (name, address, pid, state) == ("we/demo", served.url, str(served.process.pid), "ready")
        assert 50 < int(memory) < 2000
        assert served.url in forearm("list", *where).stdout
        answered = forearm("chat", "-q", "What is a glacier?", "--max-tokens", "4")
        assert (answered.returncode, answered.stderr) == (0, "")
        assert answered.stdout.strip()
        refused = forearm("rm", "we/demo", *where)
        assert refused.returncode == 78
        assert "stop it first: forearm stop we/demo" in refused.stderr

        wrong = forearm("stop", "other")
        assert f"no server has that name; running: we/demo at {served.url}" in wrong.stderr
        done = forearm("stop", {"port": served.url.rsplit(":", 1)[1], "pid": pid}.get(word, word))
        assert (done.returncode, done.stderr) == (0, "")
        assert served.process.wait(5) == 0
        assert forearm("ps").stdout.count("\n") == 1
