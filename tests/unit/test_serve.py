"""Supervision of the engine and the API, with small real programs in their place."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forearm.child_process import Child
from forearm.config import configs
from forearm.errors import ConfigError
from forearm.supervisor import supervisor
from forearm.supervisor.first_process import FirstProcess, first_process, started_early
from forearm.supervisor.run_folder import RunFolder
from forearm.supervisor.serve import server
from forearm.supervisor.supervisor import keep, watch
from forearm.supervisor.watchdog import is_stopped

# Writes its process id, says that it is ready, and runs until SIGTERM.
LIVES = """
import os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
(folder / f"{sys.argv[2]}.{os.getpid()}").touch()
def end(*_):
    (folder / f"{sys.argv[2]}-ended-{time.monotonic_ns()}").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
(folder / f"{sys.argv[2]}-ready").touch()
while True: time.sleep(0.01)
"""
IGNORES = "import pathlib, signal, sys, time; signal.signal(15, signal.SIG_IGN)\n" + LIVES.replace(
    "signal.signal(signal.SIGTERM, end)", ""
)


def child(name: str, code: str, folder: Path) -> Child:
    return Child(
        name=name,
        argv=[sys.executable, "-c", code, str(folder), name],
        cores=(),
        on_death=signal.SIGKILL,
        ready=(folder / f"{name}-ready").exists,
        environment={},
        hangs=lambda pid: is_stopped(pid, 60),
    )


def pids(folder: Path, name: str) -> list[int]:
    return [int(path.suffix[1:]) for path in folder.glob(f"{name}.*")]


async def until(condition: Callable[[], object], timeout_s: float = 20) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        await asyncio.sleep(0.01)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(supervisor, "GRACE_S", 5.0)


def settings(**given: str) -> configs.Configs:
    return configs.read({name: [value] for name, value in given.items()}, {})


async def test_a_signal_ends_the_api_first_and_then_the_engine(tmp_path: Path) -> None:
    engine, api = child("engine", LIVES, tmp_path), child("API", LIVES, tmp_path)
    watching = asyncio.create_task(watch([engine], api, settings(), tmp_path))
    await until(lambda: engine.once_ready.is_set() and api.once_ready.is_set())

    os.kill(os.getpid(), signal.SIGTERM)

    assert await watching == 0
    [engine_ended] = tmp_path.glob("engine-ended-*")
    [api_ended] = tmp_path.glob("API-ended-*")
    assert int(api_ended.name.rsplit("-", 1)[1]) < int(engine_ended.name.rsplit("-", 1)[1])


async def test_a_killed_engine_is_started_again(tmp_path: Path) -> None:
    engine, api = child("engine", LIVES, tmp_path), child("API", LIVES, tmp_path)
    watching = asyncio.create_task(watch([engine], api, settings(), tmp_path))
    await until(lambda: len(pids(tmp_path, "engine")) == 1 and api.once_ready.is_set())

    os.kill(pids(tmp_path, "engine")[0], signal.SIGKILL)
    await until(lambda: len(pids(tmp_path, "engine")) == 2)

    os.kill(os.getpid(), signal.SIGINT)
    assert await watching == 0
    assert all(gone(pid) for name in ("engine", "API") for pid in pids(tmp_path, name))


async def test_a_start_for_which_memory_is_short_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel refuses the first fork, as it does when memory or processes are exhausted."""
    real, refusals = subprocess.Popen, [OSError(12, "Cannot allocate memory")]

    def short(*argv: Any, **settings: Any) -> subprocess.Popen[bytes]:
        if refusals:
            raise refusals.pop()
        return real(*argv, **settings)

    monkeypatch.setattr("forearm.child_process.RETRY_S", 0.01)
    monkeypatch.setattr(subprocess, "Popen", short)
    engine = child("engine", LIVES, tmp_path)

    process = await engine.start()

    assert process.poll() is None
    assert "engine cannot be started: [Errno 12] Cannot allocate memory" in caplog.text
    process.kill()
    process.wait()


async def test_an_engine_with_a_wrong_setting_ends_the_whole(tmp_path: Path) -> None:
    engine, api = child("engine", "raise SystemExit(78)", tmp_path), child("API", LIVES, tmp_path)

    assert await watch([engine], api, settings(), tmp_path) == 78
    assert all(gone(pid) for pid in pids(tmp_path, "API"))


# Its first start becomes ready and crashes, the next two fail as if memory were short, the fourth succeeds.
SHORT_OF_MEMORY = """
import os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
(folder / f"{sys.argv[2]}.{os.getpid()}").touch()
started = len(list(folder.glob(f"{sys.argv[2]}.*")))
if started in (2, 3): sys.exit(78)
(folder / f"{sys.argv[2]}-ready").touch()
while True: time.sleep(0.01)
"""


@pytest.mark.parametrize("name", ["engine", "API"])
async def test_what_was_ready_once_is_started_until_it_is_again(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    one = child(name, SHORT_OF_MEMORY, tmp_path)
    keeping = asyncio.create_task(keep(one, ready_timeout_s=10))
    await until(one.once_ready.is_set)

    (tmp_path / f"{name}-ready").unlink()
    one.kill()
    await until(lambda: f"{name} is ready again" in caplog.text)

    assert len(pids(tmp_path, name)) == 4
    keeping.cancel()
    await one.end(0.1)


# Exits and leaves a process of its group that only SIGKILL ends.
LEAVES_ONE = """
import os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork():
    (folder / f"{sys.argv[2]}-ready").touch()
    time.sleep(0.2)
    os._exit(1)
(folder / f"{sys.argv[2]}.{os.getpid()}").touch()
while True: time.sleep(0.01)
"""


async def test_what_a_dead_process_leaves_ends_before_another_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forearm.child_process.LEFTOVER_S", 0.1)
    one = child("API", LEAVES_ONE, tmp_path)
    one.on_death = signal.SIGTERM
    keeping = asyncio.create_task(keep(one, ready_timeout_s=10))

    await until(lambda: len(pids(tmp_path, "API")) == 2)

    assert sum(not gone(pid) for pid in pids(tmp_path, "API")) == 1
    keeping.cancel()
    await one.end(0.1)
    assert all(map(gone, pids(tmp_path, "API")))


async def test_an_engine_that_never_gets_ready_is_given_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = child("engine", "raise SystemExit(5)", tmp_path)

    assert await keep(engine, ready_timeout_s=10) == 5
    assert caplog.text.count("restarting it") == 2
    assert "engine ended before it was ready (exit status 5); giving up" in caplog.text


async def test_an_engine_that_takes_too_long_is_killed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = child("engine", "import time; time.sleep(60)", tmp_path)

    assert await keep(engine, ready_timeout_s=0.3) == 1
    assert "is not ready after 0.3 s (VLLM_ENGINE_READY_TIMEOUT_S)" in caplog.text
    assert "SIGKILL" in caplog.text


async def test_an_api_that_cannot_start_is_given_up_at_once(tmp_path: Path) -> None:
    engine, api = child("engine", LIVES, tmp_path), child("API", "raise SystemExit(3)", tmp_path)

    assert await watch([engine], api, settings(), tmp_path) == 3
    assert all(gone(pid) for pid in pids(tmp_path, "engine"))


async def test_what_ignores_the_signal_is_killed_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "GRACE_S", 0.2)
    stubborn = child("API", IGNORES, tmp_path)
    await stubborn.start()
    await until(stubborn.ready)

    await stubborn.end(timeout_s=0.2)

    assert "has not ended after 0.2 s; killing it" in caplog.text
    assert all(gone(pid) for pid in pids(tmp_path, "API"))


async def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    engine, api = child("engine", LIVES, tmp_path), child("API", IGNORES, tmp_path)
    watching = asyncio.create_task(watch([engine], api, settings(shutdown_timeout_s="60"), tmp_path))
    await until(lambda: engine.once_ready.is_set() and api.once_ready.is_set())
    started = time.monotonic()

    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)

    await watching
    assert time.monotonic() - started < 10


async def test_no_process_outlives_a_killed_serve(tmp_path: Path) -> None:
    program = f"""
import asyncio, sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
from tests.unit.test_serve import LIVES, child, settings, watch
folder = Path({str(tmp_path)!r})
asyncio.run(watch([child("engine", LIVES, folder)], child("API", LIVES, folder), settings(), folder))
"""
    server = subprocess.Popen([sys.executable, "-c", program])
    await until(lambda: pids(tmp_path, "engine") and pids(tmp_path, "API"))

    server.kill()
    server.wait()

    await until(lambda: all(gone(pid) for name in ("engine", "API") for pid in pids(tmp_path, name)))


async def test_a_child_runs_on_the_cores_planned(tmp_path: Path) -> None:
    one = min(os.sched_getaffinity(0))
    bound = child("API", LIVES, tmp_path)
    bound.cores = (one,)

    process = await bound.start()

    assert os.sched_getaffinity(process.pid) == {one}
    await bound.end(timeout_s=5)


async def test_a_child_that_was_started_before_the_plan_is_bound_later_and_not_started_twice(tmp_path: Path) -> None:
    one = min(os.sched_getaffinity(0))
    api, engine = child("API", LIVES, tmp_path), child("engine", LIVES, tmp_path)
    process = await api.start()

    api.bind((one,))
    watching = asyncio.create_task(watch([engine], api, settings(), tmp_path))
    await until(lambda: api.once_ready.is_set() and engine.once_ready.is_set())

    assert os.sched_getaffinity(process.pid) == {one}
    assert pids(tmp_path, "API") == [process.pid]
    os.kill(os.getpid(), signal.SIGTERM)
    assert await watching == 0


async def test_a_process_reads_its_config_only_when_it_is_complete(tmp_path: Path) -> None:
    """Gunicorn starts before there is a config, and gunicorn_conf.py waits for the lock like this."""
    folder = RunFolder(tmp_path, 0)
    code = (
        "import fcntl, sys\nprint('runs', flush=True)\nwith open(sys.argv[1]) as file:\n"
        "    fcntl.flock(file, fcntl.LOCK_SH)\n    print(file.read())"
    )

    with folder.held("api.json"):
        reader = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", code, str(tmp_path / "api.json")), stdout=asyncio.subprocess.PIPE
        )
        assert reader.stdout is not None
        assert await reader.stdout.readline() == b"runs\n"
        folder.write("api.json", "part")
        folder.write("api.json", "the whole")

    assert await reader.stdout.read() == b"the whole\n"
    assert await reader.wait() == 0


async def test_gunicorn_ends_if_the_engines_cannot_be_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Child] = []

    def refuse(configs: object, runtime: object, files: object, api: Child) -> list[Child]:
        begun.append(api)
        assert api.process is not None
        os.kill(api.process.pid, 0)
        raise ConfigError("--cores: none")

    monkeypatch.setattr(supervisor, "prepare", refuse)
    lock = os.open(tmp_path / "run.lock", os.O_CREAT | os.O_RDWR)

    with pytest.raises(ConfigError, match="--cores: none"):
        await server(settings(), first_process(RunFolder(tmp_path, lock)))

    assert begun[0].process is None
    os.close(lock)


def test_gunicorn_and_the_run_folder_end_if_the_command_line_is_wrong() -> None:
    found: list[FirstProcess] = []

    def refuse() -> None:
        with started_early() as first:
            found.append(first)
            assert first.process is not None
            assert first.process.poll() is None
            raise ConfigError("unknown flag --por")

    with pytest.raises(ConfigError, match="unknown flag --por"):
        refuse()

    assert found[0].process is not None
    assert found[0].process.returncode == -signal.SIGKILL
    assert not found[0].runtime.path.exists()


@pytest.mark.parametrize(
    ("program", "unused"),
    [
        (
            "import forearm.cli.main, forearm.cli.serve",
            ("asyncio", "argparse", "dataclasses", "forearm.config.configs"),
        ),
        ("import forearm.supervisor.supervisor", ("numpy", "msgspec", "zipfile", "huggingface_hub", "httpx")),
        (
            "import forearm.api.worker.worker\n"
            "from forearm.api.app import create_app\n"
            "from forearm.config.api_config import ApiConfig\n"
            "from forearm.model.checkpoint.hub import find_model\n"
            "create_app(ApiConfig(model_folder=str(find_model('')), engine_sockets=('engine.sock',)))",
            ("numpy", "transformers", "huggingface_hub", "httpx", "pydantic.v1"),
        ),
    ],
    ids=["gunicorn's start", "supervisor", "API"],
)
def test_a_start_imports_nothing_that_a_first_answer_does_not_use(program: str, unused: tuple[str, ...]) -> None:
    """The first answer waits for serve's imports up to gunicorn's start, and for those of the API's process."""
    program += f"\nimport sys\nprint([name for name in {unused} if name in sys.modules])"

    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file or directory"),
        ("{", "Expecting property name"),
        ("[]", "it is no JSON object"),
        ("{}", "dictionary doesn't specify a version"),
        ('{"version": 1, "handlers": {"file": {"class": "nowhere.Handler"}}}', "No module named 'nowhere'"),
        ('{"version": 1, "root": {"handlers": ["absent"]}}', "Unable to add handler 'absent'"),
    ],
)
def test_a_file_that_configures_no_log_is_named(tmp_path: Path, content: str | None, said: str) -> None:
    file = tmp_path / "log.json"
    if content is not None:
        file.write_text(content)

    command = [sys.executable, "-m", "forearm", "serve", "--log-config-file", str(file)]  # a process of its own to log
    done = subprocess.run(command, capture_output=True, text=True)

    assert done.returncode == 78
    (line,) = done.stderr.splitlines()
    assert f"--log-config-file {file}: " in line
    assert said in line
