"""`forearm generate` answers in its own process."""

from __future__ import annotations

import subprocess
import sys


def test_the_demo_model_goes_on_from_a_prompt() -> None:
    command = [sys.executable, "-m", "forearm", "generate", "--prompt", "A glacier is", "--max-tokens", "8"]

    done = subprocess.run(command, capture_output=True, text=True, timeout=120)

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "3 prompt tokens" in done.stderr
