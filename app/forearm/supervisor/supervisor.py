"""`forearm serve`: starts the engines and gunicorn on their cores, watches them, and ends them in order.

An engine is started again when it dies, with a growing pause; the API answers 503 meanwhile. What no restart can help
(a wrong setting, a port in use, an engine that never gets ready) ends the whole with its message. Neither outlives
serve: the kernel signals both when it dies, however that happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from forearm import log as logs
from forearm.child_process import Child
from forearm.config.api_config import ApiConfig
from forearm.config.configs import Configs
from forearm.config.engine_config import EngineConfig
from forearm.config.settings import to_json
from forearm.config.speculative import drafting_asked
from forearm.engine.host import placement
from forearm.engine.host.client_memory import portion
from forearm.engine.host.split_engines import Share, allowed, describe, shares
from forearm.errors import ConfigError
from forearm.model.checkpoint.hub import find_model, find_tokenizer
from forearm.model.families.generation import sampling_defaults
from forearm.supervisor.addresses import answers, api_answers, check_tls, held_address
from forearm.supervisor.run_folder import RunFolder, run_folder
from forearm.supervisor.watchdog import engine_hangs, is_stopped

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
STEADY_S = 60.0  # a child that lived this long died by accident: the pause starts small again
MOST_FAILED_STARTS = 3  # of an engine, without getting ready once
GRACE_S = 5.0  # beyond --shutdown-timeout, before a child is killed
# Memory of serve and gunicorn's master, and of a worker with the tokenizer of a large vocabulary, less what they share:
# 120 MB and 76 MB resident with the demo model's.
OTHERS_BYTES, WORKER_BYTES = 128 << 20, 192 << 20
LONGEST_SOCKET_PATH = 100  # sun_path has 108 bytes
FAILED = 1
# What the others need of these is in their configs.
SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "VLLM_API_KEY")
# numpy's OpenBLAS starts a thread for each core, which spins for a while, and nobody here multiplies with it.
NO_BLAS = {"OPENBLAS_NUM_THREADS": "1"}


def serve(configs: Configs, notes: Sequence[str]) -> int:
    """Run until SIGTERM, SIGINT or a failure that no restart helps. Returns: the exit status.

    Raises: ConfigError for what can be seen to be wrong before anything is started.
    """
    logs.set_up(configs.serve, "serve")
    for note in notes:
        log.info("%s", note)
    check_tls(configs.api)
    placement.tier()  # before anything is started: FOREARM_TIER may name one that cannot run here
    if (drafting := drafting_asked(configs.engine)) is not None:
        log.info("drafts: %s, at most %d tokens", drafting.method, drafting.tokens)
    with held_address(configs.api), run_folder() as runtime:
        return asyncio.run(server(configs, runtime))


def server(configs: Configs, runtime: RunFolder) -> Coroutine[Any, Any, int]:
    """Engine and API, with sockets and configs in `runtime`: awaited, they run until `watch` ends them.

    Raises: ConfigError.
    """
    # Here, once, with its progress at the terminal.
    folder = find_model(configs.serve.model, revision=configs.serve.revision, **configs.serve.hub)
    defaults = sampling_defaults(folder, configs.api.generation_config, configs.api.override_generation_config)
    if defaults:
        shown = ", ".join(f"{name} {value}" for name, value in defaults.items())
        log.info("sampling where a request does not say: %s (--generation-config vllm: neutral)", shown)
    engines = configs.serve.data_parallel_size
    plan = placement.plan(configs.engine, engines=engines)
    parts = shares(plan, configs.engine, engines)
    for line in (*plan.lines, *describe(parts)):
        log.info("%s", line)
    return watch(*prepare(configs, plan, parts, folder, runtime), configs, runtime.path)


def fill_in(
    configs: Configs, plan: placement.Plan, parts: Sequence[Share], folder: Path, runtime: RunFolder
) -> tuple[list[EngineConfig], ApiConfig]:
    """What the engines and the API need to know beyond what was set. The hub's token stays here."""
    sockets = tuple(str(runtime.path / f"{name}.sock") for name in names(len(parts)))
    if max(map(len, sockets)) > LONGEST_SOCKET_PATH:
        raise ConfigError(f"TMPDIR: {runtime.path} is too long for a Unix socket; choose a shorter one")
    given = bounded(configs.api, placement.memory(configs.engine))
    hub, drafting = configs.serve.hub, drafting_asked(configs.engine)
    workers = given.workers or plan.api_workers
    tokenizer = ""
    if given.tokenizer:
        tokenizer = str(find_tokenizer(given.tokenizer, revision=given.tokenizer_revision, **hub))
    draft = str(find_model(drafting.model, revision=drafting.revision, **hub)) if drafting and drafting.model else ""
    engine = replace(
        configs.engine,
        spec_model=draft,
        others_bytes=others_bytes(given, workers) // len(parts),
        model=str(folder),
        tokenizer=tokenizer,
        hf_token="",
        name=next(iter(given.served_model_name), configs.engine.model or folder.name),
        engines=len(parts),
    )
    engines = [shared(engine, index, part, at) for index, (part, at) in enumerate(zip(parts, sockets, strict=True))]
    api = replace(
        given,
        api_key=tuple(map(hidden, given.api_key)),
        model_folder=str(folder),
        hf_token="",
        tokenizer=tokenizer,
        engine_sockets=sockets,
        workers=workers,
        priorities=configs.engine.scheduling_policy == "priority",
        computed_as=configs.engine.computed_as,
    )
    return engines, api


def shared(engine: EngineConfig, index: int, part: Share, socket: str) -> EngineConfig:
    """The config of one engine of several, with its part of the machine."""
    return replace(
        engine,
        index=index,
        socket=socket,
        cores=part.cores,
        threads=part.threads,
        ranks=part.ranks,
        visible_memory_nodes=part.nodes,
        memory_share_bytes=part.memory_bytes,
    )


def hidden(key: str) -> str:
    """What stands for a key where it is written down."""
    return f"sha256:{sha256(key.encode()).hexdigest()}"


def names(engines: int) -> list[str]:
    """Of the engines' processes, sockets and log lines."""
    return ["engine"] if engines == 1 else [f"engine{index}" for index in range(engines)]


def bounded(api: ApiConfig, memory: placement.Memory) -> ApiConfig:
    """With bounds on what clients make it hold, where none were set, that fit this memory."""
    bodies, stored = api.body_memory_bytes, api.responses_store_bytes
    return replace(
        api,
        body_memory_bytes=portion(api.held_body_bytes, memory) if bodies is None else bodies,
        responses_store_bytes=portion(api.held_response_bytes, memory) if stored is None else stored,
    )


def others_bytes(api: ApiConfig, workers: int) -> int:
    """Memory that a server's processes besides the engine take. Of a body, its bytes and what is made of them."""
    stored = api.held_response_bytes if api.responses_store else 0  # its folder may be in memory
    return OTHERS_BYTES + stored + workers * (WORKER_BYTES + 2 * api.held_body_bytes)


def prepare(
    configs: Configs, plan: placement.Plan, parts: Sequence[Share], folder: Path, runtime: RunFolder
) -> tuple[list[Child], Child]:
    """The engines and the API, their configs written where they read them."""
    engines, api = fill_in(configs, plan, parts, folder, runtime)
    api_path = runtime.write("api.json", to_json(api))
    return (
        [
            engine_child(name, engine, allowed(part, plan, len(parts)), runtime, configs.serve.answer_timeout_s)
            for name, engine, part in zip(names(len(parts)), engines, parts, strict=True)
        ],
        Child(
            name="API",
            argv=[sys.executable, "-m", "gunicorn", "--config", "python:forearm.api.worker.gunicorn_conf"],
            cores=plan.api_cores,
            on_death=signal.SIGTERM,  # gunicorn passes it on, and its workers drain
            ready=lambda: api_answers(api),
            withheld=SECRETS,
            pass_fds=(runtime.lock,),
            hangs=lambda pid: is_stopped(pid, configs.serve.answer_timeout_s),
            # Without the second, transformers says in every log that torch is not there: it need not be.
            environment={"FOREARM_API_CONFIG": str(api_path), "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1", **NO_BLAS},
        ),
    )


def engine_child(name: str, engine: EngineConfig, cores: tuple[int, ...], runtime: RunFolder, answer_s: float) -> Child:
    """An engine, its config written where it reads it."""
    path = runtime.write(f"{name}.json", to_json(engine))
    return Child(
        name=name,
        argv=[sys.executable, "-m", "forearm.engine.process", str(path)],
        cores=cores,  # within these its threads bind themselves
        on_death=signal.SIGKILL,
        ready=lambda: answers(socket.AF_UNIX, engine.socket),
        withheld=SECRETS,
        pass_fds=(runtime.lock,),
        hangs=lambda pid: engine_hangs(engine.socket, answer_s, engine.execute_model_timeout_s),
        environment=NO_BLAS,
    )


async def watch(engines: Sequence[Child], api: Child, configs: Configs, run_path: Path) -> int:
    """Keep all until a signal or a final failure; then end the API, which drains, and the engines after it.

    A second signal ends all at once.
    """
    stop = asyncio.Event()

    def interrupt() -> None:
        if stop.is_set():
            for child in (api, *engines):
                child.kill()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, interrupt)
    loop.add_signal_handler(signal.SIGHUP, read_again, engines, api)
    loop.add_signal_handler(signal.SIGUSR2, change_level, run_path, configs.serve.logging_level, engines, api)
    ready_timeout_s = configs.serve.engine_ready_timeout_s
    kept = [asyncio.create_task(keep(child, ready_timeout_s)) for child in (*engines, api)]
    others = [asyncio.create_task(stop.wait()), asyncio.create_task(say_ready(engines, api, configs.api))]
    try:
        await asyncio.wait([*kept, others[0]], return_when=asyncio.FIRST_COMPLETED)
        failed = [task.result() for task in kept if task.done()]
    finally:
        for task in (*kept, *others):
            task.cancel()
        drain_s = configs.serve.shutdown_timeout_s if stop.is_set() else 0
        log.info("stopping%s", f"; open requests have {drain_s:g} s" if drain_s else "")
        await api.end(drain_s + GRACE_S)
        await asyncio.gather(*(engine.end(GRACE_S) for engine in engines))
        log.info("stopped")
    return failed[0] if failed else 0


def read_again(engines: Sequence[Child], api: Child) -> None:
    """SIGHUP: the engines and every API worker read again what may change while they run (keys, the log's level)."""
    for child in (*engines, api):
        if child.process is not None and child.process.returncode is None:
            pid = child.process.pid
            workers = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            # gunicorn's master itself would end its workers and start others.
            for each in map(int, workers) if child is api else (pid,):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGHUP)


def change_level(run_path: Path, configured: str, engines: Sequence[Child], api: Child) -> None:
    """SIGUSR2: every process logs at DEBUG, and after the next one as configured."""
    logs.change_level(run_path, configured)
    read_again(engines, api)


async def keep(child: Child, ready_timeout_s: float) -> int:
    """Start it, and again whenever it dies. Returns: the exit status when that is of no use.

    What was ready once is right, and is started until it is again: memory or a port may be short for a moment.
    """
    pause_s, failed_starts, again = FIRST_PAUSE_S, 0, False
    while True:
        started = time.monotonic()
        process = await child.start()
        if await until_ready(child, process, ready_timeout_s) and again:
            log.info("%s is ready again", child.name)
        status = await child.ended(process)
        if not child.once_ready.is_set():
            failed_starts += 1
            if status == ConfigError.exit_status:
                return status  # its message stands in the log
            if failed_starts == MOST_FAILED_STARTS or child.name == "API":
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


async def say_ready(engines: Sequence[Child], api: Child, config: ApiConfig) -> None:
    """One line when requests can come."""
    started = time.monotonic()
    for engine in engines:
        await engine.once_ready.wait()
    await api.once_ready.wait()
    where = f"unix:{config.uds}" if config.uds else f"http://{config.host or '0.0.0.0'}:{config.port}"
    log.info("ready after %.1f s: %s", time.monotonic() - started, where)


def in_words(status: int) -> str:
    """How a process ended."""
    return f"exit status {status}" if status >= 0 else signal.Signals(-status).name
