"""gunicorn's worker class and log: uvicorn on uvloop and httptools, with the server's drain time and log format."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import ssl
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

from gunicorn.arbiter import Arbiter  # type: ignore[import-untyped]
from gunicorn.glogging import Logger  # type: ignore[import-untyped]
from gunicorn.workers.workertmp import WorkerTmp  # type: ignore[import-untyped]
from uvicorn import Server
from uvicorn_worker import UvicornWorker  # type: ignore[import-untyped]

from forearm.api.engine_client.engine_client import EngineClient
from forearm.api.http.protocol import Protocol
from forearm.errors import EngineUnavailable
from forearm.timeouts import within

_CHECK_S = 10.0  # between checks of the files of --enable-ssl-refresh: certificates are renewed days before they expire

# The time to answer open requests with an error when the drain time is over; then gunicorn kills the worker.
FINAL_ANSWERS_S = 2
# Between heartbeats of a worker, and the longest time without a look at them (gunicorn's master looks every second) for
# which the master itself is not taken to have been paused: both far below gunicorn_conf.timeout.
BEAT_S, LONGEST_LOOK_S = 5.0, 10.0
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)

log = logging.getLogger(__name__)


def hold_signals_while_forking() -> None:
    """Block termination signals while this process, gunicorn's master, forks a worker, so that the worker gets them
    later.

    Until a worker handles signals itself they reach the master's handler, which puts them into a queue that the
    worker does not read, or they are lost: CPython discards in a child what arrived before its first line. A worker
    that was forked when the server began to drain went on serving until `graceful_timeout` killed it.
    """
    master = os.getpid()

    def hold(how: int) -> None:
        if os.getpid() == master:
            signal.pthread_sigmask(how, _ENDING)

    os.register_at_fork(before=lambda: hold(signal.SIG_BLOCK), after_in_parent=lambda: hold(signal.SIG_UNBLOCK))


class DrainingServer(Server):
    """Ends open requests when the drain time is over, or at once if gunicorn's master has died.

    Each gets the reason: requests in an engine fail as when the engine dies, and all others are cancelled.
    """

    def __init__(self, worker: Worker) -> None:
        super().__init__(config=worker.config)
        self._engine: EngineClient = worker.wsgi.state.services.engine
        self._master, self._drain_s = worker.ppid, worker.cfg.graceful_timeout - FINAL_ANSWERS_S

    async def _wait_tasks_to_complete(self) -> None:
        drain_s = self._drain_s if os.getppid() == self._master else 0
        with contextlib.suppress(asyncio.TimeoutError):
            await within(super()._wait_tasks_to_complete(), drain_s)
            return
        tasks = set(self.server_state.tasks)
        if tasks:
            log.warning("the drain time is over: %d open requests are ended", len(tasks))
            for connection in self._engine.connections:
                connection.fail_open(EngineUnavailable("the server is shutting down"))
            _, tasks = await asyncio.wait(tasks, timeout=FINAL_ANSWERS_S / 4)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=FINAL_ANSWERS_S / 4)


class Heartbeat(WorkerTmp):  # type: ignore[misc]
    """The time of a worker's last heartbeat, which is not older than the end of the master's last pause.

    Whatever pauses the master (`docker pause`, a snapshot of the machine, a swapped or starved container) pauses its
    workers: gunicorn would take all of them for hanging, and kill them with their streams, once they run again.
    """

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self._looked_at = self._resumed_at = time.monotonic()

    def last_update(self) -> float:
        """Return when the worker was last known to run, on the monotonic clock: the master asks for it."""
        now = time.monotonic()
        if now - self._looked_at > LONGEST_LOOK_S:
            self._resumed_at = now
        self._looked_at = now
        return max(float(super().last_update()), self._resumed_at)


class Worker(UvicornWorker):  # type: ignore[misc]
    """A worker that on SIGTERM accepts no new connections and lets open requests finish, as long as DrainingServer
    allows.

    ssl_refresh: whether the key and the certificate are read again when they change; gunicorn_conf.py sets it.
    """

    # AccessMiddleware writes the access log.
    CONFIG_KWARGS: ClassVar[dict[str, Any]] = {
        "loop": "uvloop",
        "http": Protocol,
        "server_header": False,
        "access_log": False,
    }
    ssl_refresh: ClassVar[bool] = False
    tmp: WorkerTmp

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tmp.close()
        self.tmp = Heartbeat(self.cfg)
        logging.getLogger("uvicorn.error").propagate = True

    def init_signals(self) -> None:
        """Handle pending termination signals now; SIGHUP is ignored until the app handles it."""
        super().init_signals()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)

    async def _serve(self) -> None:
        beside = [asyncio.create_task(self._beat())]
        if self.ssl_refresh:
            beside.append(asyncio.create_task(self._refresh_ssl()))
        self.config.app = self.wsgi
        server = DrainingServer(self)
        # uvicorn-worker's own handler only reaches gunicorn's part, and the worker would never end.
        asyncio.get_running_loop().add_signal_handler(signal.SIGQUIT, server.handle_exit, signal.SIGQUIT, None)
        try:
            await server.serve(sockets=self.sockets)
        finally:
            for task in beside:
                task.cancel()
        if not server.started:
            sys.exit(Arbiter.WORKER_BOOT_ERROR)

    async def _beat(self) -> None:
        """Tell the master that the event loop runs. uvicorn does so by the clock on the wall, which may be set back."""
        while True:
            with contextlib.suppress(OSError):  # the next one may succeed, and the master waits for several
                self.notify()
            await asyncio.sleep(BEAT_S)

    async def _refresh_ssl(self) -> None:
        """Use a changed certificate for new connections; a file that cannot be read changes nothing."""
        files = [self.cfg.certfile, self.cfg.keyfile]
        seen = _changes(files)
        while True:
            await asyncio.sleep(_CHECK_S)
            now = _changes(files)
            context = self.config.ssl
            if now != seen and isinstance(context, ssl.SSLContext):
                seen = now
                try:
                    context.load_cert_chain(*files)
                    log.info("the certificate was read again")
                except (OSError, ssl.SSLError) as error:
                    log.error("the certificate cannot be read again: %s; the old one stays", error)


def _changes(files: list[str | None]) -> list[int]:
    """Return when each file was last written, in nanoseconds; 0 for a missing file."""
    paths = [Path(file) for file in files if file]
    return [path.stat().st_mtime_ns if path.exists() else 0 for path in paths]


class Log(Logger):  # type: ignore[misc]
    """Writes gunicorn's own lines in the format of all others."""

    def setup(self, cfg: Any) -> None:
        """Use the root logger's handlers."""
        super().setup(cfg)
        self.error_log.handlers.clear()
        self.error_log.propagate = True
