"""Packed weights that load_native writes in the background."""

from __future__ import annotations

import threading
import time


def wait_until_kept() -> None:
    """Wait until every weight file that this process has begun to write is there."""
    # Threads that are not started yet are listed too, and can't be joined.
    while any(thread.name == "weight cache" for thread in threading.enumerate()):
        time.sleep(0.001)
