"""Packed weights that load_native writes in the background."""

from __future__ import annotations

import threading


def wait_until_kept() -> None:
    """Wait until every weight file that this process has begun to write is there."""
    for thread in threading.enumerate():
        if thread.name == "weight cache":
            thread.join()
