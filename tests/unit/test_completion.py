"""`forearm completion`: words for a shell, from the help of the commands; the script of bash in a real bash."""

from __future__ import annotations

import subprocess
import sys

import pytest

from forearm.cli.completion import candidates
from forearm.cli.main import COMMANDS, main


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (["ser"], ["serve"]),
        (["help", "qu"], ["quantize"]),
        (["serve", "--max-model"], ["--max-model-len"]),
        (["serve", "m", "--dtype", "fl"], ["float16", "float32"]),
        (["chat", "--sys"], ["--system-prompt"]),
        (["bench", "latency", "--batch"], ["--batch-size"]),
        (["bench", "la"], ["latency"]),
        (["run", "smollm2"], ["smollm2"]),
        (["no-such-command", "--x"], []),
    ],
    ids=" ".join,
)
def test_the_last_word_is_completed(line: list[str], expected: list[str]) -> None:
    assert candidates(line, COMMANDS) == expected


def test_every_command_tells_its_flags() -> None:
    without = [name for name in COMMANDS if "--help" not in candidates([name, "--"], COMMANDS)]

    assert without == ["bench"], "which has kinds in place of flags"


def test_bash_completes() -> None:
    program = """
forearm() { "$PYTHON" -m forearm "$@"; }
source <(forearm completion bash)
COMP_WORDS=(forearm serve --max-num-b); COMP_CWORD=2
_forearm
echo "${COMPREPLY[@]}"
"""
    command = ["bash", "-c", f"PYTHON={sys.executable}{program}"]

    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "--max-num-batched-tokens\n"


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 78
    assert "tcsh: name one of bash, zsh, fish" in capsys.readouterr().err
