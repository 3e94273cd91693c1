"""The examples of offline inference, as a user of vLLM types them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "app/examples/offline_inference/basic"


@pytest.mark.parametrize(
    ("name", "flags", "answers"),
    [
        ("basic.py", ["--max-tokens", "4", "--temperature", "0"], 4),
        ("chat.py", ["--dtype=bfloat16", "--max-model-len", "256", "--max-tokens", "4", "--seed", "1"], 11),
    ],
)
def test_an_example_takes_vllm_flags_and_prints_an_answer_for_each_prompt(
    name: str, flags: list[str], answers: int
) -> None:
    ran = subprocess.run([sys.executable, EXAMPLES / name, *flags], capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("Prompt: ") == answers
    texts = [line for line in ran.stdout.splitlines() if line.startswith(("Output: ", "Answer: "))]
    assert len(texts) == answers
    assert all(len(text) > len("Output: ''") for text in texts)
