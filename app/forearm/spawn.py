"""Starts processes that end with this one. It imports little: `forearm serve` starts gunicorn before all else."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial

from forearm.config.environment import environment

_libc = ctypes.CDLL(None)  # before any fork
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with(parent: int, number: signal.Signals) -> None:
    """Ask the kernel for this signal when the process `parent` ends; exit at once if it has ended already."""
    _libc.prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def spawn(
    argv: Sequence[str],
    on_death: signal.Signals,
    changed: Mapping[str, str],
    withheld: Sequence[str] = (),
    cores: Sequence[int] = (),
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a process in a group of its own, so that Ctrl-C at the terminal reaches this process alone.

    on_death: the signal that it gets when this process ends. changed: its environment variables besides those it
    inherits, which are all but `withheld`.
    Raises: OSError if the kernel has no memory, process or descriptor for it.
    """
    inherited = {name: value for name, value in environment().items() if name not in withheld}
    return subprocess.Popen(
        argv,
        env={**inherited, **changed},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=partial(_before_exec, os.getpid(), on_death, cores),
        pass_fds=pass_fds,
    )


def _before_exec(parent: int, on_death: signal.Signals, cores: Sequence[int]) -> None:
    """Prepare the forked child before its program starts: it ends with its parent and runs on the planned cores."""
    die_with(parent, on_death)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the program installs its own handler
    if cores:
        os.sched_setaffinity(0, cores)
