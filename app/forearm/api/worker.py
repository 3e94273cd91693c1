"""gunicorn's worker class and log: uvicorn on uvloop and httptools, with our time to drain and our log lines."""

from __future__ import annotations

from typing import Any

from gunicorn.glogging import Logger  # type: ignore[import-untyped]
from uvicorn_worker import UvicornWorker  # type: ignore[import-untyped]


class Worker(UvicornWorker):  # type: ignore[misc]
    """On SIGTERM it takes no new connections and lets open requests end; after `graceful_timeout` it cancels them."""

    CONFIG_KWARGS = {"loop": "uvloop", "http": "httptools", "server_header": False}  # noqa: RUF012  (as its parent)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.config.timeout_graceful_shutdown = self.cfg.graceful_timeout


class Log(Logger):  # type: ignore[misc]
    """gunicorn's and uvicorn's own lines look like all others."""

    error_fmt = "%(asctime)s %(levelname)s api: %(message)s"
    datefmt = "%H:%M:%S"
