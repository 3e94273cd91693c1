"""`forearm generate` answers in its own process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from forearm.model.checkpoint.hub import DEMO_MODEL


def generate(*argv: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "forearm", "generate", "--max-tokens", "8", "--temperature", "0", *argv]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=120)


def test_the_demo_model_goes_on_from_a_prompt_and_nothing_else_is_said() -> None:
    done = generate("--prompt", "A glacier is", "--raw")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


def test_the_prompt_may_stand_behind_the_model_as_for_run() -> None:
    said = generate(str(DEMO_MODEL), "A glacier is", "--raw").stdout

    assert said == generate(str(DEMO_MODEL), "--prompt", "A glacier is", "--raw").stdout != ""


def test_figures_and_the_log_come_when_asked_for() -> None:
    done = generate("--prompt", "A glacier is", "--raw", "--stats", "--log-level", "INFO")

    assert re.search(r"\[3 prompt tokens, \d+ tokens in ", done.stderr)
    assert "INFO generate" in done.stderr


def test_a_prompt_is_a_user_s_message_where_the_model_has_a_template(tmp_path: Path) -> None:
    messages = tmp_path / "messages.json"
    messages.write_text(json.dumps([{"role": "user", "content": "What is a glacier?"}]))

    asked, piped, listed = (
        generate("--prompt", "What is a glacier?", "--stats"),
        generate(text="What is a glacier?"),
        generate("--messages", str(messages)),
    )

    assert asked.stdout.startswith("A glacier is")
    assert asked.stdout == piped.stdout == listed.stdout
    [tokens] = re.findall(r"(\d+) prompt tokens", asked.stderr)
    assert int(tokens) > 8  # with those of the template
    raw = generate("--messages", str(messages), "--raw")
    assert (raw.returncode, raw.stderr[:25]) == (78, "forearm generate: --raw: ")


def test_the_answer_is_printed_while_it_is_computed() -> None:
    command = [sys.executable, "-m", "forearm", "generate", "--prompt", "What is a glacier?"]
    pieces = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        while piece := os.read(process.stdout.fileno(), 4096):
            pieces.append(piece)

    assert b"".join(pieces).startswith(b"A glacier is")
    assert len(pieces) > 2  # and the line's end: several writes


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--temperature", "2.1"), "temperature is 2.1; it must be between 0.0 and 2.0"),
        (("--top-p", "3"), "top_p is 3.0; it must be between 0.0 and 1.0"),
        (("--max-tokens", "0"), "max_tokens is 0; it must be 1 or more"),
    ],
)
def test_a_parameter_out_of_range_is_told_before_a_model_is_looked_for(flags: tuple[str, str], told: str) -> None:
    done = generate("nothing/there", "--prompt", "a", *flags)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"forearm generate: {told}")


def test_messages_that_are_no_list_are_told(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text('{"role": "user", "content": "Hello"}')

    done = generate("--messages", str(tmp_path / "one.json"))

    assert (done.returncode, done.stderr.count("\n")) == (78, 1)
    assert "one.json: it must be a list, as [{" in done.stderr


def test_an_empty_prompt_is_one_and_standard_input_is_not_read() -> None:
    command = [sys.executable, "-m", "forearm", "generate", "--prompt", "", "--max-tokens", "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:  # it stays open
        assert process.wait(120) == 0
