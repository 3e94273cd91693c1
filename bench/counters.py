"""Read the CPU's performance counters while code runs, if perf is installed and allowed to read them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

EVENTS = "cycles,instructions,stalled-cycles-frontend,stalled-cycles-backend,LLC-load-misses,dTLB-load-misses"
ATTACH_S = 0.3  # perf opens the counters of every thread


@contextmanager
def counted() -> Iterator[dict[str, float]]:
    """Count events of all threads of this process; when the context ends, the dict has those that could be counted.

    It stays empty where there is no perf, or perf_event_paranoid or the hypervisor forbids it.
    """
    found: dict[str, float] = {}
    perf = shutil.which("perf")
    if not perf:
        yield found
        return
    command = [perf, "stat", "-x", ",", "-e", EVENTS, "-p", str(os.getpid())]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        time.sleep(ATTACH_S)
        try:
            yield found
        finally:
            process.send_signal(signal.SIGINT)
            _, text = process.communicate()
    found |= parsed(text)


def parsed(text: str) -> dict[str, float]:
    """Return the events in perf's lines of value,unit,event,…; those without a number are left out."""
    fields = [line.split(",") for line in text.splitlines()]
    return {f[2].split(":")[0]: float(f[0]) for f in fields if len(f) > 2 and f[0].replace(".", "").isdigit()}
