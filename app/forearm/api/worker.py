"""gunicorn's worker class and log: uvicorn on uvloop and httptools, with our time to drain and our log lines."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import ssl
from pathlib import Path
from typing import Any, ClassVar

from gunicorn.glogging import Logger  # type: ignore[import-untyped]
from uvicorn_worker import UvicornWorker  # type: ignore[import-untyped]

from forearm.api.protocol import Protocol

_LOOK_S = 10.0  # between looks at the files of --enable-ssl-refresh: certificates are renewed days before they end

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


class Worker(UvicornWorker):  # type: ignore[misc]
    """On SIGTERM it takes no new connections and lets open requests end; after `graceful_timeout` it cancels them.

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
        self.config.timeout_graceful_shutdown = self.cfg.graceful_timeout
        logging.getLogger("uvicorn.error").propagate = True

    def init_signals(self) -> None:
        """What came since the fork ends it now; SIGHUP does not: the app minds that from its start on."""
        super().init_signals()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)

    async def _serve(self) -> None:
        refreshing = asyncio.create_task(self._refresh_ssl()) if self.ssl_refresh else None
        try:
            await super()._serve()
        finally:
            if refreshing is not None:
                refreshing.cancel()

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
