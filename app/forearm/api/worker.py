"""gunicorn's worker class: uvicorn on uvloop and httptools, with our time to drain."""

from __future__ import annotations

from typing import Any

from uvicorn_worker import UvicornWorker  # type: ignore[import-untyped]


class Worker(UvicornWorker):  # type: ignore[misc]
    """On SIGTERM it takes no new connections and lets open requests end; after `graceful_timeout` it cancels them."""

    CONFIG_KWARGS = {"loop": "uvloop", "http": "httptools", "server_header": False}  # noqa: RUF012  (as its parent)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.config.timeout_graceful_shutdown = self.cfg.graceful_timeout
