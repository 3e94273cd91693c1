"""The command line itself: quick, and with messages instead of tracebacks."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forearm import __version__
from forearm.cli import main

HEAVY = ("torch", "transformers", "numpy", "fastapi", "pydantic", "gunicorn", "httpx", "yaml")


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "forearm", *argv], capture_output=True, text=True, timeout=60)


def test_the_command_is_there_before_one_can_blink_and_brings_nothing_heavy() -> None:
    code = (
        "import sys, time; t = time.process_time(); import forearm.cli.main; took = time.process_time() - t; "
        f"print(took, [m for m in {HEAVY!r} if m in sys.modules])"
    )

    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout for _ in range(3)]

    assert min(float(run.split()[0]) for run in runs) < 0.3
    assert all(run.split(maxsplit=1)[1].strip() == "[]" for run in runs), runs


def test_the_server_can_be_loaded_without_torch() -> None:
    modules = "forearm.supervisor.supervisor, forearm.offline.llm, forearm.api.app"
    code = f"import sys; sys.modules['torch'] = None; import {modules}; print('fine')"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert done.stdout == "fine\n", done.stderr


def test_version_and_usage() -> None:
    assert re.fullmatch(rf"forearm {re.escape(__version__)}( [0-9a-f]{{12}})?\n", run("--version").stdout)
    assert run("-v").stdout == run("--version").stdout  # as of vllm
    assert "forearm COMMAND" in run("--help").stdout


def test_no_command_and_an_unknown_one_print_the_usage_and_fail() -> None:
    assert run().returncode == 2
    unknown = run("server")
    assert unknown.returncode == 2
    assert "there is no command server; did you mean serve?" in unknown.stderr
    assert "did you mean" not in run("xyzzy").stderr
    assert "did you mean" not in run("create").stderr  # Ollama's, and not chat
    assert "there is no kind serv; did you mean serve?" in run("bench", "serv").stderr


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["serve", "--device", "cuda"], "forearm serve: --device cuda: forearm runs on CPUs"),
        (["serve", "--no-such"], "forearm serve: unknown flag --no-such"),
        (["generate", "--messages", "/no/such/file"], "forearm generate: --messages /no/such/file: No such file"),
        (["generate", "model", "ice", "--prompt", "ice"], "forearm generate: ice: the prompt is given by a flag, too"),
        (["chat", "--no-such"], "forearm chat: "),
        (["serve", "--ssl-keyfile", "/k"], "forearm serve: --ssl-keyfile /k: HTTPS needs a certificate, too"),
        (["serve", "--ssl-certfile", "/no/such"], "forearm serve: --ssl-certfile /no/such: no such file"),
        (["serve", "--ssl-certfile", __file__], f"forearm serve: --ssl-certfile {__file__}: "),
    ],
)
def test_a_mistake_is_one_line_and_the_status_of_a_wrong_setting(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main.main(argv)

    said = capsys.readouterr().err
    assert status == 78
    assert said.startswith(message)
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ("chat --port 8080", "forearm chat: unknown flag --port; write --url http://HOST:PORT"),
        ("health --port=8080", "forearm health: unknown flag --port; write --url http://HOST:PORT"),
        ("chat --max-token 5", "forearm chat: unknown flag --max-token; did you mean --max-tokens?"),
        ("list --all", "forearm list: unknown flag --all; --help lists the flags"),
        ("chat hello", "forearm chat: hello: one word too many; --help lists what the command takes"),
    ],
)
def test_a_flag_that_a_command_has_not_is_told_what_to_write(
    argv: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(argv.split()) == 78
    assert capsys.readouterr().err == f"{told}\n"


def test_a_model_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "missing"

    assert main.main(["serve", str(missing), "--port", "0"]) == 78
    assert str(missing) in capsys.readouterr().err


def test_a_port_in_use_is_found_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        started = time.monotonic()

        assert main.main(["serve", "--host", "127.0.0.1", "--port", str(port)]) == 78

    assert f"--port {port}: Address already in use" in capsys.readouterr().err
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("command", ["serve", "generate"])
def test_a_tier_that_this_cpu_cannot_run_is_one_line_and_the_status_of_a_wrong_setting(command: str) -> None:
    environment = os.environ | {"FOREARM_TIER": "vax"}
    words = [
        sys.executable,
        "-m",
        "forearm",
        command,
        *(["--host", "127.0.0.1", "--port", "0"] if command == "serve" else []),
    ]

    done = subprocess.run(words, input="", capture_output=True, text=True, env=environment)

    assert done.returncode == 78
    assert "FOREARM_TIER is 'vax'" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_reader_that_has_seen_enough_gets_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "forearm", "--help"], stdout=pipe, stderr=subprocess.PIPE, text=True
        )
        planned = subprocess.run(
            [sys.executable, "-m", "forearm", "plan"], stdout=pipe, stderr=subprocess.PIPE, text=True
        )

    assert (done.stderr, planned.stderr) == ("", "")
    assert (done.returncode, planned.returncode) == (141, 141)


def test_help_of_serve_lists_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    from forearm.config import configs

    with pytest.raises(SystemExit) as end:
        main.main(["serve", "--help"])

    shown = capsys.readouterr().out
    assert end.value.code == 0
    assert [flag for s in configs.SETTINGS.values() for flag in s.flags if flag not in shown] == []


def test_help_has_parts_with_defaults_and_choices(capsys: pytest.CaptureFixture[str]) -> None:
    for words, told, untold in (
        (["help", "serve"], "--max-num-seqs", "no such"),
        (["serve", "--help=all"], "--max-num-seqs", "no such"),
        (["help", "bench", "latency"], "--num-iters-warmup", "--random-input-len"),
        (["serve", "--help=supervisor"], "--data-parallel-size", "--max-num-seqs"),
        (["serve", "--help=max-num-seqs"], "(default: 128)", "--runner"),
        (["serve", "--help=--runner"], "{auto,generate,pooling}", "--max-num-seqs"),
    ):
        with pytest.raises(SystemExit) as end:
            main.main(words)
        out = capsys.readouterr().out
        assert (end.value.code, told in out, untold in out) == (0, True, False), words

    assert main.main(["serve", "--help=zzz"]) == 78
    assert "groups are api, common, engine" in capsys.readouterr().err


def test_the_image_passes_every_command_on() -> None:
    script = (
        (Path(__file__).resolve().parents[2] / "deploy" / "image" / "entrypoint.sh").read_text().replace("\\\n", "")
    )
    (line,) = (line for line in script.splitlines() if 'exec forearm "$@"' in line)

    passed = {word.strip() for word in line.partition(")")[0].split("|")}

    assert passed >= set(main.COMMANDS)


def test_the_demo_does_not_talk_to_another_server() -> None:
    tool = Path(__file__).resolve().parents[2] / "tools" / "demo.py"
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = subprocess.run([sys.executable, tool, "--once", "--port", str(port)], capture_output=True, text=True)

    assert (done.returncode, done.stdout) == (1, "")
    assert f"port {port}: Address already in use; take another: PORT=" in done.stderr


def test_an_output_that_is_full_is_told_in_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        argv = [sys.executable, "-m", "forearm", "help"]
        ended = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)

    assert (ended.returncode, ended.stderr) == (1, "forearm help: standard output: No space left on device\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_as_those_of_dev_null(closed: str) -> None:
    command = f'"{sys.executable}" -m forearm plan {closed}'

    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert bool(ended.stdout) == (">&-" not in closed.replace("2>&-", ""))


def test_what_a_locale_lacks_is_printed_with_escapes() -> None:
    ascii_alone = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    argv = [sys.executable, "-m", "forearm", "plan", "no-m\u00f6del"]

    ended = subprocess.run(argv, capture_output=True, timeout=60, env=ascii_alone)

    assert ended.returncode == 78
    assert b"Traceback" not in ended.stderr
    assert ended.stderr.isascii()


@pytest.mark.parametrize("argv", [("generate", "--prompt"), ("generate",), ("run", ""), ("chat", "-q")])
def test_bytes_that_are_no_text_are_named(argv: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "forearm", *argv]
    if argv[0] == "chat":  # the check comes before a server is asked
        command[-1:] = ["--url", "http://127.0.0.1:9", "--model-name", "any", "-q"]
    piped = argv in (("generate",), ("run", ""))
    word, text = ([], b"gr\xfc\xdfe") if piped else ([b"gr\xfc\xdfe"], b"")

    ended = subprocess.run([*map(os.fsencode, command), *word], input=text, capture_output=True, timeout=120)

    assert ended.returncode == 1
    said = ended.stderr.decode().splitlines()
    assert len(said) == 1, said
    assert "UTF-8" in said[0]
    assert "byte 0xfc after" in said[0]


def test_sigterm_ends_a_command_as_a_signal_does() -> None:
    argv = [sys.executable, "-m", "forearm", "generate"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as waiting:  # for its prompt
        _wait_for_handler(waiting.pid, signal.SIGTERM)
        waiting.terminate()
        status = waiting.wait(30)
        assert waiting.stderr is not None
        said = waiting.stderr.read()

    assert (status, said) == (-signal.SIGTERM, b"")


def _wait_for_handler(pid: int, number: signal.Signals) -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        [caught] = re.findall(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
        if int(caught, 16) >> (number - 1) & 1:
            return
        time.sleep(0.01)
    pytest.fail(f"{pid} does not handle {number.name}")


def test_an_import_that_ctrl_c_interrupts_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> int:  # as pybind11 ends the import of a module in C++
        raise ImportError("initialization failed") from KeyboardInterrupt()

    monkeypatch.setitem(main.COMMANDS, "plan", interrupted)

    assert main.main(["plan"]) == 130
