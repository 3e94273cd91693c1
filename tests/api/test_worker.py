"""gunicorn's worker, between its fork and its event loop."""

from __future__ import annotations

import subprocess
import sys

# The child gets its signal before its first line, the earliest possible moment.
MASTER = """
import os, signal
from forearm.api.worker.worker import Worker, hold_signals_while_forking

signal.signal(signal.SIGTERM, lambda *_: None)  # the master's, which a worker inherits
hold_signals_while_forking()
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
if child := os.fork():
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), signal.pthread_sigmask(signal.SIG_BLOCK, ()))
else:
    Worker.init_signals(object.__new__(Worker))
"""


def test_a_worker_told_to_end_before_it_minds_signals_ends() -> None:
    master = subprocess.run([sys.executable, "-c", MASTER], check=True, capture_output=True, text=True)

    assert master.stdout == "-15 set()\n"
