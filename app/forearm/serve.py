"""`forearm serve`: starts the engine and gunicorn on their cores, watches them, and ends them in order.

The engine is started again when it dies, with a growing pause; the API answers 503 meanwhile. What no restart can help
(a wrong setting, a port in use, an engine that never gets ready) ends the whole with its message. Neither outlives
serve: the kernel signals both when it dies, however that happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from forearm import log as logs
from forearm.addresses import answers, api_answers, check_address
from forearm.config import ApiConfig, Configs, EngineConfig, environment
from forearm.drafting import drafting_asked
from forearm.engine import placement
from forearm.errors import ConfigError
from forearm.model.hub import find_model
from forearm.settings import to_json

log = logging.getLogger(__name__)

_libc = ctypes.CDLL(None)  # before any fork
PR_SET_PDEATHSIG = 1  # linux/prctl.h
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
STEADY_S = 60.0  # a child that lived this long died by accident: the pause starts small again
MOST_FAILED_STARTS = 3  # of an engine, without getting ready once
GRACE_S = 5.0  # beyond --shutdown-timeout, before a child is killed
# Memory of serve and gunicorn's master, and of a worker with the tokenizer of a large vocabulary, less what they share:
# 120 MB and 76 MB resident with the demo model's.
OTHERS_BYTES, WORKER_BYTES = 128 << 20, 192 << 20
LONGEST_SOCKET_PATH = 100  # sun_path has 108 bytes
FAILED = 1


@dataclass
class Child:
    """A process to keep. `ready` tells whether it serves; `on_death` is the signal that it gets when serve dies."""

    name: str
    argv: list[str]
    cores: tuple[int, ...]
    on_death: signal.Signals
    ready: Callable[[], bool]
    environment: dict[str, str]
    process: asyncio.subprocess.Process | None = None
    once_ready: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> asyncio.subprocess.Process:
        """Start it in a process group of its own: Ctrl-C at the terminal is for serve alone."""
        self.process = await asyncio.create_subprocess_exec(
            *self.argv,
            env={**environment(), **self.environment},
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=self._settle,
        )
        return self.process

    def _settle(self) -> None:
        """In the child, before its program: die with serve, run on the cores planned."""
        _libc.prctl(PR_SET_PDEATHSIG, self.on_death)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until it minds it itself
        if self.cores:
            os.sched_setaffinity(0, self.cores)

    async def end(self, timeout_s: float) -> None:
        """Ask it to finish; kill it, and whatever it has started, when it has not after `timeout_s`."""
        if self.process is None:
            return
        if self.process.returncode is None:
            self.process.terminate()
        try:
            await asyncio.wait_for(self.process.wait(), timeout_s)
        except asyncio.TimeoutError:
            log.warning("%s has not ended after %g s and is killed", self.name, timeout_s)
            self.kill()
            await self.process.wait()

    def kill(self) -> None:
        """Kill it and whatever it has started."""
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


def serve(configs: Configs, notes: Sequence[str]) -> int:
    """Run until SIGTERM, SIGINT or a failure that no restart helps. Returns: the exit status.

    Raises: ConfigError for what can be seen to be wrong before anything is started.
    """
    logs.set_up(configs.serve, "serve")
    for note in notes:
        log.info("%s", note)
    check_address(configs.api)
    if (drafting := drafting_asked(configs.engine)) is not None:
        log.info("drafts: %s, at most %d tokens", drafting.method, drafting.tokens)
    runtime = Path(tempfile.mkdtemp(prefix="forearm-"))  # 0700: nobody else reaches the sockets and keys in it
    try:
        return asyncio.run(server(configs, runtime))
    finally:
        shutil.rmtree(runtime, ignore_errors=True)


def server(configs: Configs, runtime: Path) -> Coroutine[Any, Any, int]:
    """Engine and API, with sockets and configs in `runtime`: awaited, they run until `watch` ends them.

    Raises: ConfigError.
    """
    folder = find(configs.serve.model, configs.serve.revision, configs)
    plan = placement.plan(configs.engine)
    for line in plan.lines:
        log.info("%s", line)
    return watch(*prepare(configs, plan, folder, runtime), configs, runtime)


def find(model: str, revision: str, configs: Configs) -> Path:
    """The folder of a model or tokenizer; downloaded here, once, with its progress at the terminal."""
    given = configs.serve
    return find_model(model, revision=revision, download_dir=given.download_dir, token=given.hf_token)


def fill_in(configs: Configs, plan: placement.Plan, folder: Path, runtime: Path) -> tuple[EngineConfig, ApiConfig]:
    """What the engine and the API need to know beyond what was set. The hub's token stays here."""
    engine_socket = str(runtime / "engine.sock")
    if len(engine_socket) > LONGEST_SOCKET_PATH:
        raise ConfigError(f"TMPDIR: {runtime} is too long for a Unix socket; choose a shorter one")
    given = configs.api
    workers = given.workers or plan.api_workers
    tokenizer = str(find(given.tokenizer, given.tokenizer_revision, configs)) if given.tokenizer else ""
    drafting = drafting_asked(configs.engine)
    draft = str(find(drafting.model, drafting.revision, configs)) if drafting and drafting.model else ""
    engine = replace(
        configs.engine,
        spec_model=draft,
        others_bytes=others_bytes(workers),
        model=str(folder),
        tokenizer=tokenizer,
        hf_token="",
        name=next(iter(given.served_model_name), configs.engine.model or folder.name),
        socket=engine_socket,
        cores=plan.cores,
        threads=plan.threads,
    )
    api = replace(
        given,
        model_folder=str(folder),
        hf_token="",
        tokenizer=tokenizer,
        engine_sockets=(engine_socket,),
        workers=workers,
        priorities=configs.engine.scheduling_policy == "priority",
    )
    return engine, api


def others_bytes(workers: int) -> int:
    """Memory that a server's processes besides the engine take."""
    return OTHERS_BYTES + workers * WORKER_BYTES


def prepare(configs: Configs, plan: placement.Plan, folder: Path, runtime: Path) -> tuple[Child, Child]:
    """The engine and the API, their configs written where they read them."""
    engine, api = fill_in(configs, plan, folder, runtime)
    engine_path, api_path = runtime / "engine.json", runtime / "api.json"
    engine_path.write_text(to_json(engine))
    api_path.write_text(to_json(api))
    return (
        Child(
            name="engine",
            argv=[sys.executable, "-m", "forearm.engine.process", str(engine_path)],
            cores=(),  # its threads bind themselves
            on_death=signal.SIGKILL,
            ready=lambda: answers(socket.AF_UNIX, engine.socket),
            environment={},
        ),
        Child(
            name="API",
            argv=[sys.executable, "-m", "gunicorn", "--config", "python:forearm.api.gunicorn_conf"],
            cores=plan.api_cores,
            on_death=signal.SIGTERM,  # gunicorn passes it on; at SIGQUIT its uvicorn workers would hang for 30 s
            ready=lambda: api_answers(api),
            # Without the second, transformers says in every log that torch is not there: it need not be.
            environment={"FOREARM_API_CONFIG": str(api_path), "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1"},
        ),
    )


async def watch(engine: Child, api: Child, configs: Configs, runtime: Path) -> int:
    """Keep both until a signal or a final failure; then end the API, which drains, and the engine after it.

    A second signal ends both at once.
    """
    stop = asyncio.Event()

    def interrupt() -> None:
        if stop.is_set():
            api.kill()
            engine.kill()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, interrupt)
    loop.add_signal_handler(signal.SIGHUP, read_again, engine, api)
    loop.add_signal_handler(signal.SIGUSR2, change_level, runtime, configs.serve.logging_level, engine, api)
    ready_timeout_s = configs.serve.engine_ready_timeout_s
    kept = [asyncio.create_task(keep(child, ready_timeout_s)) for child in (engine, api)]
    others = [asyncio.create_task(stop.wait()), asyncio.create_task(say_ready(engine, api, configs.api))]
    try:
        await asyncio.wait([*kept, others[0]], return_when=asyncio.FIRST_COMPLETED)
        failed = [task.result() for task in kept if task.done()]
    finally:
        for task in (*kept, *others):
            task.cancel()
        drain_s = configs.serve.shutdown_timeout_s if stop.is_set() else 0
        log.info("stopping%s", f"; open requests have {drain_s:g} s" if drain_s else "")
        await api.end(drain_s + GRACE_S)
        await engine.end(GRACE_S)
        log.info("stopped")
    return failed[0] if failed else 0


def read_again(engine: Child, api: Child) -> None:
    """SIGHUP: the engine and every API worker read again what may change while they run (keys, the log's level)."""
    for child in (engine, api):
        if child.process is not None and child.process.returncode is None:
            pid = child.process.pid
            workers = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            # gunicorn's master itself would end its workers and start others.
            for each in map(int, workers) if child is api else (pid,):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGHUP)


def change_level(runtime: Path, configured: str, engine: Child, api: Child) -> None:
    """SIGUSR2: every process logs at DEBUG, and after the next one as configured."""
    logs.change_level(runtime, configured)
    read_again(engine, api)


async def keep(child: Child, ready_timeout_s: float) -> int:
    """Start it, and again whenever it dies. Returns: the exit status when that is of no use."""
    pause_s, failed_starts, again = FIRST_PAUSE_S, 0, False
    while True:
        started = time.monotonic()
        process = await child.start()
        was_ready = await until_ready(child, process, ready_timeout_s)
        if was_ready and again:
            log.info("%s is ready again", child.name)
        status = await process.wait()
        if status == ConfigError.exit_status:
            return status  # its message stands in the log
        failed_starts = 0 if was_ready else failed_starts + 1
        if failed_starts == MOST_FAILED_STARTS or (not was_ready and child.name == "API"):
            log.error("%s ended before it was ready (%s); giving up", child.name, in_words(status))
            return status if status > 0 else FAILED
        if time.monotonic() - started > STEADY_S:
            pause_s = FIRST_PAUSE_S
        log.error("%s died (%s); it is started again in %g s", child.name, in_words(status), pause_s)
        await asyncio.sleep(pause_s)
        pause_s, again = min(2 * pause_s, LONGEST_PAUSE_S), True


async def until_ready(child: Child, process: asyncio.subprocess.Process, timeout_s: float) -> bool:
    """Whether it got ready; it is killed when that takes longer than `timeout_s`."""
    end = time.monotonic() + timeout_s
    while process.returncode is None:
        if child.ready():
            child.once_ready.set()
            return True
        if time.monotonic() > end:
            log.error("%s is not ready after %g s (VLLM_ENGINE_READY_TIMEOUT_S)", child.name, timeout_s)
            child.kill()
        await asyncio.sleep(0.1)
    return False


async def say_ready(engine: Child, api: Child, config: ApiConfig) -> None:
    """One line when requests can come."""
    started = time.monotonic()
    await engine.once_ready.wait()
    await api.once_ready.wait()
    where = f"unix:{config.uds}" if config.uds else f"http://{config.host or '0.0.0.0'}:{config.port}"
    log.info("ready after %.1f s: %s", time.monotonic() - started, where)


def in_words(status: int) -> str:
    """How a process ended."""
    return f"exit status {status}" if status >= 0 else signal.Signals(-status).name
