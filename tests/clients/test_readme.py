"""The curl lines of the README, run unchanged except for the port and the model's name."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from tests.e2e.served import serve

README = (Path(__file__).parents[2] / "README.md").read_text()
LINES = [block for block in re.findall(r"^```\w*\n(.*?)^```", README, re.MULTILINE | re.DOTALL) if "curl " in block]


def test_curl_lines_are_answered(tmp_path: Path) -> None:
    names = sorted({name for block in LINES for name in re.findall(r'"model": "([^"]+)"', block)})
    if not LINES or not names:
        pytest.fail("the README has no curl line with a model")
    with serve(tmp_path, "--served-model-name", *names) as served:
        for block in LINES:
            line = block.replace("http://localhost:8000", served.url).replace(
                "curl ", "curl --silent --fail-with-body "
            )
            ended = subprocess.run(["bash", "-ec", line], capture_output=True, text=True, timeout=60)
            assert ended.returncode == 0, ended.stdout + ended.stderr
            assert json.loads(ended.stdout)["choices"][0]["message"]["content"]
