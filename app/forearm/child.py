"""A process that serve keeps: how it is started, asked to end, and killed."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

from forearm.config import environment

log = logging.getLogger(__name__)

_libc = ctypes.CDLL(None)  # before any fork
PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass
class Child:
    """A process to keep. `ready` tells whether it serves; `on_death` is the signal that it gets when serve dies."""

    name: str
    argv: list[str]
    cores: tuple[int, ...]
    on_death: signal.Signals
    ready: Callable[[], bool]
    environment: dict[str, str]
    process: asyncio.subprocess.Process | None = None
    once_ready: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> asyncio.subprocess.Process:
        """Start it in a process group of its own: Ctrl-C at the terminal is for serve alone."""
        self.process = await asyncio.create_subprocess_exec(
            *self.argv,
            env={**environment(), **self.environment},
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=self._settle,
        )
        return self.process

    def _settle(self) -> None:
        """In the child, before its program: die with serve, run on the cores planned."""
        _libc.prctl(PR_SET_PDEATHSIG, self.on_death)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until it minds it itself
        if self.cores:
            os.sched_setaffinity(0, self.cores)

    async def end(self, timeout_s: float) -> None:
        """Ask it to finish; kill it, and whatever it has started, when it has not after `timeout_s`."""
        if self.process is None:
            return
        if self.process.returncode is None:
            self.process.terminate()
        try:
            await asyncio.wait_for(self.process.wait(), timeout_s)
        except asyncio.TimeoutError:
            log.warning("%s has not ended after %g s and is killed", self.name, timeout_s)
            self.kill()
            await self.process.wait()

    def kill(self) -> None:
        """Kill it and whatever it has started."""
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
