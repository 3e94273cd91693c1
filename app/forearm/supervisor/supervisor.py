"""The supervisor: starts the engines on their cores, watches them and gunicorn, and ends them in order.

An engine that dies is started again after a growing pause; the API answers 503 meanwhile. A failure that no restart can
repair (a wrong setting, a port in use, an engine that never becomes ready) ends the server with a message. The engines
and gunicorn never outlive serve: the kernel signals them when it dies, for whatever reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from forearm import log as logs
from forearm.child_process import Child
from forearm.config.api_config import ApiConfig
from forearm.config.configs import Configs
from forearm.config.engine_config import EngineConfig
from forearm.config.environment import environment
from forearm.config.settings import to_json
from forearm.descriptors import watch_descriptors
from forearm.engine.host import placement
from forearm.engine.host.client_memory import portion
from forearm.engine.host.instructions import instructions
from forearm.engine.host.split_engines import EngineShare, allowed, describe, shares
from forearm.errors import ConfigError
from forearm.supervisor.addresses import answers, url
from forearm.supervisor.first_process import API_CONFIG, NO_BLAS, SECRETS
from forearm.supervisor.run_folder import RunFolder
from forearm.supervisor.serve import ModelFiles
from forearm.supervisor.watchdog import engine_hangs

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
STEADY_S = 60.0  # after this long a death is not taken for a failed start: the pause is short again
MOST_FAILED_STARTS = 3  # of an engine, without getting ready once
GRACE_S = 5.0  # beyond --shutdown-timeout, before a child is killed
# Memory of serve and gunicorn's master, and of a worker with the tokenizer of a large vocabulary, without shared pages:
# 120 MB and 76 MB resident with the demo model.
OTHERS_BYTES, WORKER_BYTES = 128 << 20, 192 << 20
LONGEST_SOCKET_PATH = 100  # sun_path has 108 bytes
FAILED = 1


def prepare(configs: Configs, runtime: RunFolder, files: ModelFiles, api: Child) -> list[Child]:
    """Plan the engines and the API, write their configs, and bind gunicorn to its cores. Returns: the engines to start.

    Raises: ConfigError naming the setting.
    """
    if environment().get("FOREARM_TIER"):
        placement.tier()  # before an engine is started: this CPU may not run it. The test of the kernels takes 0.02 s
    engines = configs.serve.data_parallel_size
    plan = placement.plan(configs.engine, engines=engines)
    parts = shares(plan, configs.engine, engines)
    for line in (f"instructions: {instructions()}", *plan.lines, *describe(parts)):
        log.info("%s", line)
    configured, api_config = fill_in(configs, plan, parts, files, runtime)
    children = [
        engine_child(name, engine, allowed(part, plan, len(parts)), runtime, configs.serve.answer_timeout_s)
        for name, engine, part in zip(names(len(parts)), configured, parts, strict=True)
    ]
    api.bind(plan.api_cores)
    runtime.write(API_CONFIG, to_json(api_config))
    return children


def fill_in(
    configs: Configs, plan: placement.Plan, parts: Sequence[EngineShare], files: ModelFiles, runtime: RunFolder
) -> tuple[list[EngineConfig], ApiConfig]:
    """Complete the configs of the engines and the API: folders, sockets, cores, memory; no token of the hub."""
    sockets = tuple(str(runtime.path / f"{name}.sock") for name in names(len(parts)))
    if max(map(len, sockets)) > LONGEST_SOCKET_PATH:
        raise ConfigError(f"TMPDIR: {runtime.path} is too long for a Unix socket; choose a shorter one")
    given = bounded(configs.api, placement.memory(configs.engine))
    workers = given.workers or plan.api_workers
    engine = replace(
        configs.engine,
        spec_model=files.draft,
        others_bytes=others_bytes(given, workers) // len(parts),
        model=str(files.model),
        tokenizer=files.tokenizer,
        hf_token="",
        name=next(iter(given.served_model_name), configs.engine.short_name(files.model)),
        engines=len(parts),
    )
    engines = [shared(engine, index, part, at) for index, (part, at) in enumerate(zip(parts, sockets, strict=True))]
    api = replace(
        given,
        api_key=tuple(map(hidden, given.api_key)),
        model_folder=str(files.model),
        hf_token="",
        tokenizer=files.tokenizer,
        engine_sockets=sockets,
        workers=workers,
        priorities=configs.engine.scheduling_policy == "priority",
        computed_as=configs.engine.computed_as,
    )
    return engines, api


def shared(engine: EngineConfig, index: int, part: EngineShare, socket: str) -> EngineConfig:
    """Return the config of one engine of several, with its part of the machine."""
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
    """Return the digest that stands for an API key in a file."""
    return f"sha256:{sha256(key.encode()).hexdigest()}"


def names(engines: int) -> list[str]:
    """Name the engines, for their processes, sockets and log lines."""
    return ["engine"] if engines == 1 else [f"engine{index}" for index in range(engines)]


def bounded(api: ApiConfig, memory: placement.Memory) -> ApiConfig:
    """Fill in the bounds that were not set, so that what clients make the API hold fits the memory."""
    bodies, stored = api.body_memory_bytes, api.responses_store_bytes
    return replace(
        api,
        body_memory_bytes=portion(api.held_body_bytes, memory) if bodies is None else bodies,
        responses_store_bytes=portion(api.held_response_bytes, memory) if stored is None else stored,
    )


def others_bytes(api: ApiConfig, workers: int) -> int:
    """Return the memory of a server's processes besides the engines. A body counts twice: its bytes and its values."""
    stored = api.held_response_bytes if api.responses_store else 0  # its folder may be in memory
    return OTHERS_BYTES + stored + workers * (WORKER_BYTES + 2 * api.held_body_bytes)


def engine_child(name: str, engine: EngineConfig, cores: tuple[int, ...], runtime: RunFolder, answer_s: float) -> Child:
    """Make the child process of an engine, and write its config."""
    path = runtime.write(f"{name}.json", to_json(engine))
    return Child(
        name=name,
        argv=[sys.executable, "-m", "forearm.engine.process", str(path)],
        cores=cores,  # its threads bind themselves within these
        on_death=signal.SIGKILL,
        ready=lambda: answers(socket.AF_UNIX, engine.socket),
        withheld=SECRETS,
        pass_fds=(runtime.lock,),
        hangs=lambda pid: engine_hangs(engine.socket, answer_s, engine.execute_model_timeout_s),
        environment=NO_BLAS,
    )


async def watch(engines: Sequence[Child], api: Child, configs: Configs, run_path: Path) -> int:
    """Keep all children running until a signal or a final failure; then end the API, which drains, then the engines.

    A second signal kills all of them at once.
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
    kept = [asyncio.create_task(keep(child, ready_timeout_s)) for child in (api, *engines)]  # the API takes longest
    watching = watch_descriptors("no process can be watched or started again")
    others = [asyncio.create_task(one) for one in (stop.wait(), say_ready(engines, api, configs.api), watching)]
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
    """Make the engines and every API worker read keys and the log level again: the handler of SIGHUP."""
    for child in (*engines, api):
        if child.process is not None and child.process.poll() is None:
            pid = child.process.pid
            workers = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            # gunicorn's master would restart its workers on SIGHUP.
            for each in map(int, workers) if child is api else (pid,):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGHUP)


def change_level(run_path: Path, configured: str, engines: Sequence[Child], api: Child) -> None:
    """Switch every process between DEBUG and the configured log level: the handler of SIGUSR2."""
    logs.change_level(run_path, configured)
    read_again(engines, api)


async def keep(child: Child, ready_timeout_s: float) -> int:
    """Start a child, and again whenever it dies. Returns: its exit status when another start is of no use.

    A child that was ready once has right settings and is started without limit: memory may be short for a moment.
    """
    pause_s, failed_starts, again = FIRST_PAUSE_S, 0, False
    while True:
        started = time.monotonic()
        process = child.process or await child.start()
        if await until_ready(child, process, ready_timeout_s) and again:
            log.info("%s is ready again", child.name)
        status = await child.ended(process)
        if not child.once_ready.is_set():
            failed_starts += 1
            if status == ConfigError.exit_status:
                return status  # the child has logged the message
            if failed_starts == MOST_FAILED_STARTS or child.name == "API":
                log.error("%s ended before it was ready (%s); giving up", child.name, in_words(status))
                return status if status > 0 else FAILED
        if time.monotonic() - started > STEADY_S:
            pause_s = FIRST_PAUSE_S
        log.error("%s died (%s); restarting it in %g s", child.name, in_words(status), pause_s)
        await asyncio.sleep(pause_s)
        pause_s, again = min(2 * pause_s, LONGEST_PAUSE_S), True


async def until_ready(child: Child, process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Wait until a child is ready, or kill it after `timeout_s`. Returns: whether it became ready."""
    end = time.monotonic() + timeout_s
    while process.poll() is None:
        if child.ready():
            child.once_ready.set()
            return True
        if time.monotonic() > end:
            log.error("%s is not ready after %g s (VLLM_ENGINE_READY_TIMEOUT_S)", child.name, timeout_s)
            child.kill()
        await asyncio.sleep(0.1)
    return False


async def say_ready(engines: Sequence[Child], api: Child, config: ApiConfig) -> None:
    """Log one line when the server can take requests."""
    started = time.monotonic()
    for engine in engines:
        await engine.once_ready.wait()
    await api.once_ready.wait()
    where = url(config.host or "0.0.0.0", config.port, https=bool(config.ssl_certfile))
    log.info("ready after %.1f s: %s", time.monotonic() - started, f"unix:{config.uds}" if config.uds else where)


def in_words(status: int) -> str:
    """Describe how a process ended."""
    return f"exit status {status}" if status >= 0 else signal.Signals(-status).name
