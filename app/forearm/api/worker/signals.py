"""Handle SIGHUP, which serve passes on to every worker: reload what may change while the server runs."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def on_hangup(*calls: Callable[[], None]) -> Iterator[None]:
    """Call these functions on every SIGHUP, and once now, because one that arrived while the worker started was
    ignored.

    If the app does not run in its process's main thread, no signal arrives.
    """

    def call_all() -> None:
        for call in calls:
            call()

    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGHUP, call_all)
    except (ValueError, RuntimeError):
        yield
        return
    call_all()
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
