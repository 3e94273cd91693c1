"""The engine as a process: `python -m forearm.engine.process CONFIG`, where CONFIG is EngineConfig as JSON in a file.

SIGTERM and SIGINT drain: open requests go on for at most --shutdown-timeout, new ones are refused, exit status 0.
Exit status 78 means an invalid setting, which a restart does not mend; after any other failure the supervisor starts
the process again.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

gc.disable()  # until the model is loaded: objects made by imports are never garbage

from forearm import log as logs
from forearm.config.engine_config import EngineConfig
from forearm.config.settings import from_json, to_json
from forearm.descriptors import report, watch_descriptors
from forearm.engine.host.client_memory import inbox_bytes
from forearm.engine.host.split_engines import memory_of
from forearm.engine.server import EngineServer
from forearm.engine.start import start
from forearm.errors import ConfigError

FAILED = 1
_LOOK_S = 1.0

log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Run the engine that the file `argv[0]` describes. Returns: the exit status."""
    file = Path(argv[0])
    config = from_json(EngineConfig, file.read_text())
    logs.set_up(config, "engine")
    outdated = threading.Event()
    gc.freeze()  # what the imports have made: the collection below need not look through it, which takes it 0.025 s
    try:
        loop = start(config, progress=sys.stderr.isatty(), outdated=outdated.set)
    except ConfigError as error:
        log.error("%s", error)
        return ConfigError.exit_status
    except (MemoryError, ValueError) as error:  # from the native executor: the text names what does not fit
        log.error("the model cannot be loaded: %s", error)
        return ConfigError.exit_status
    gc.collect()
    gc.freeze()  # these objects stay alive: scanning them in each collection would delay steps
    gc.enable()
    if loop.terms.pooling is None:
        _keep_plan(file, config, loop.terms.max_model_len, loop.scheduler.blocks.count)
    try:
        asyncio.run(
            _serve(EngineServer(loop, config.cores, inbox_bytes=inbox_bytes(memory_of(config))), config, outdated)
        )
    except Exception:
        log.exception("the engine has failed")
        return FAILED
    return FAILED if outdated.is_set() else 0


def _keep_plan(file: Path, config: EngineConfig, max_model_len: int, kv_blocks: int) -> None:
    """Save the memory plan, so that a restart after a crash uses the same context length, and at most as many KV blocks
    as the first start: fewer if memory is short by then.
    """
    if config.first_kv_blocks:
        if kv_blocks < config.first_kv_blocks:
            log.warning("KV cache: memory is short now, %d blocks instead of %d", kv_blocks, config.first_kv_blocks)
        return
    planned = replace(config, max_model_len=max_model_len, first_kv_blocks=kv_blocks)
    part = file.with_suffix(".part")
    try:
        part.write_text(to_json(planned))
        part.replace(file)
    except OSError as error:
        log.warning("%s: %s; after a crash memory is planned anew", file, error.strerror)


async def _serve(server: EngineServer, config: EngineConfig, outdated: threading.Event) -> None:
    here = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        here.add_signal_handler(number, server.drain, config.shutdown_timeout_s)
    run_folder = str(Path(config.socket).parent)
    here.add_signal_handler(signal.SIGHUP, logs.follow, run_folder)
    logs.follow(run_folder)  # the level may have changed before this start
    here.set_exception_handler(report)
    tasks = [
        asyncio.create_task(_end_outdated(server, config, outdated)),
        asyncio.create_task(watch_descriptors("no worker can connect to this engine")),
    ]
    if config.log_stats:
        tasks.append(asyncio.create_task(server.log_figures(config.log_stats_interval_s)))
    try:
        await server.run(Path(config.socket))
    finally:
        for task in tasks:
            task.cancel()


async def _end_outdated(server: EngineServer, config: EngineConfig, outdated: threading.Event) -> None:
    """Drain once the weight files turn out to have changed: the supervisor starts this process again."""
    while not outdated.is_set():  # noqa: ASYNC110  # a thread sets it
        await asyncio.sleep(_LOOK_S)
    server.drain(config.shutdown_timeout_s)


if __name__ == "__main__":
    status = main(sys.argv[1:])
    logging.shutdown()
    os._exit(status)  # at once: gigabytes of weights that are being kept for the next start would delay the end
