"""gunicorn's worker class and log: uvicorn on uvloop and httptools, with our time to drain and our log lines."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import ssl
import sys
from pathlib import Path
from typing import Any, ClassVar

from gunicorn.arbiter import Arbiter  # type: ignore[import-untyped]
from gunicorn.glogging import Logger  # type: ignore[import-untyped]
from uvicorn import Server
from uvicorn_worker import UvicornWorker  # type: ignore[import-untyped]

from forearm.api.engine_client.engine_client import EngineClient
from forearm.api.http.protocol import Protocol
from forearm.errors import EngineUnavailable

_LOOK_S = 10.0  # between looks at the files of --enable-ssl-refresh: certificates are renewed days before they end

# How long requests that a drain has no more time for have to answer so; gunicorn kills a worker that takes longer.
LAST_WORDS_S = 2
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)

log = logging.getLogger(__name__)


def hold_signals_while_forking() -> None:
    """From here on a worker that is told to end while this process, gunicorn's master, forks it is told later.

    Until it minds signals itself they reach the master's handler, which puts them into a queue that nobody reads in a
    worker, or nobody at all: CPython forgets in a child what came before its first line. A worker that was forked as
    the server began to drain went on to answer until `graceful_timeout` killed it.
    """
    master = os.getpid()

    def hold(how: int) -> None:
        if os.getpid() == master:
            signal.pthread_sigmask(how, _ENDING)

    os.register_at_fork(before=lambda: hold(signal.SIG_BLOCK), after_in_parent=lambda: hold(signal.SIG_UNBLOCK))


class DrainingServer(Server):
    """Open requests have the time of a drain to end, and none once gunicorn's master has died. Then each is told why:
    what an engine has fails as when the engine dies, and what is elsewhere is cancelled.
    """

    def __init__(self, worker: Worker) -> None:
        super().__init__(config=worker.config)
        self._engine: EngineClient = worker.wsgi.state.served.engine
        self._master, self._drain_s = worker.ppid, worker.cfg.graceful_timeout - LAST_WORDS_S

    async def _wait_tasks_to_complete(self) -> None:
        drain_s = self._drain_s if os.getppid() == self._master else 0
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(super()._wait_tasks_to_complete(), drain_s)
            return
        tasks = set(self.server_state.tasks)
        if tasks:
            log.warning("the time to drain is over: %d open requests are ended", len(tasks))
            self._engine.fail_all(EngineUnavailable("the server is shutting down"))
            _, tasks = await asyncio.wait(tasks, timeout=LAST_WORDS_S / 4)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=LAST_WORDS_S / 4)


class Worker(UvicornWorker):  # type: ignore[misc]
    """On SIGTERM it takes no new connections and lets open requests end, for so long as DrainingServer says.

    ssl_refresh: whether the key and the certificate are read again when they change; gunicorn_conf.py sets it.
    """

    # The edge has its own access log.
    CONFIG_KWARGS: ClassVar[dict[str, Any]] = {
        "loop": "uvloop",
        "http": Protocol,
        "server_header": False,
        "access_log": False,
    }
    ssl_refresh: ClassVar[bool] = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        logging.getLogger("uvicorn.error").propagate = True

    def init_signals(self) -> None:
        """What came since the fork ends it now; SIGHUP does not: the app minds that from its start on."""
        super().init_signals()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)

    async def _serve(self) -> None:
        refreshing = asyncio.create_task(self._refresh_ssl()) if self.ssl_refresh else None
        self.config.app = self.wsgi
        server = DrainingServer(self)
        # uvicorn-worker's own handler tells gunicorn's half alone, and the worker would go on for ever.
        asyncio.get_running_loop().add_signal_handler(signal.SIGQUIT, server.handle_exit, signal.SIGQUIT, None)
        try:
            await server.serve(sockets=self.sockets)
        finally:
            if refreshing is not None:
                refreshing.cancel()
        if not server.started:
            sys.exit(Arbiter.WORKER_BOOT_ERROR)

    async def _refresh_ssl(self) -> None:
        """New connections get the certificate that lies in the file; what cannot be read changes nothing."""
        files = [self.cfg.certfile, self.cfg.keyfile]
        seen = _changes(files)
        while True:
            await asyncio.sleep(_LOOK_S)
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
    """When each was last written, in nanoseconds; 0 while it is not there."""
    paths = [Path(file) for file in files if file]
    return [path.stat().st_mtime_ns if path.exists() else 0 for path in paths]


class Log(Logger):  # type: ignore[misc]
    """gunicorn's own lines look like all others."""

    def setup(self, cfg: Any) -> None:
        """No handlers of its own: the root's."""
        super().setup(cfg)
        self.error_log.handlers.clear()
        self.error_log.propagate = True
