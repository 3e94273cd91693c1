"""A process that serve keeps: how it is started, asked to end, and killed."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from forearm.config.configs import environment

log = logging.getLogger(__name__)

_libc = ctypes.CDLL(None)  # before any fork
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
SHORT_S = 1.0  # until a start is tried again for which the kernel had no memory, process or descriptor
LEFT_S = 5.0  # what a child that died leaves behind has so long to end by itself


def die_with(parent: int, number: signal.Signals) -> None:
    """Get this signal when the process `parent`, which has made this one, ends; end at once if it has ended already."""
    _libc.prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


async def _not_watched(pid: int) -> str:
    await asyncio.Event().wait()
    return ""


@dataclass
class Child:
    """A process to keep.

    ready      whether it serves
    hangs      watches the process with this id, and returns how it hangs once it does
    on_death   the signal that it gets when serve dies, and that what it has started gets when it dies itself
    withheld   variables of the environment that it does not get
    pass_fds   file descriptors of serve that stay open in it
    """

    name: str
    argv: list[str]
    cores: tuple[int, ...]
    on_death: signal.Signals
    ready: Callable[[], bool]
    environment: dict[str, str]
    withheld: tuple[str, ...] = ()
    hangs: Callable[[int], Coroutine[Any, Any, str]] = _not_watched
    pass_fds: tuple[int, ...] = ()
    process: asyncio.subprocess.Process | None = None
    once_ready: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> asyncio.subprocess.Process:
        """Start it in a process group of its own: Ctrl-C at the terminal is for serve alone.

        Where memory, processes or descriptors are short it is tried again until they are not.
        """
        process = await self._started()
        while process is None:
            await asyncio.sleep(SHORT_S)
            process = await self._started()
        return process

    async def _started(self) -> asyncio.subprocess.Process | None:
        inherited = {name: value for name, value in environment().items() if name not in self.withheld}
        try:
            self.process = await asyncio.create_subprocess_exec(
                *self.argv,
                env={**inherited, **self.environment},
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=partial(self._settle, os.getpid()),
                pass_fds=self.pass_fds,
            )
        except OSError as error:
            log.error("%s cannot be started: %s; it is tried again in %g s", self.name, error, SHORT_S)
            return None
        return self.process

    def _settle(self, parent: int) -> None:
        """In the child, before its program: die with serve, run on the cores planned."""
        die_with(parent, self.on_death)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until it minds it itself
        if self.cores:
            os.sched_setaffinity(0, self.cores)

    async def ended(self, process: asyncio.subprocess.Process) -> int:
        """Its exit status, once it and all that it has started are gone; it is killed should it hang."""
        ending, watching = asyncio.create_task(process.wait()), asyncio.create_task(self.hangs(process.pid))
        try:
            await asyncio.wait([ending, watching], return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                log.error("%s hangs: %s; it is killed", self.name, watching.result())
                self.kill()
            await self.gone()
            return await ending
        finally:
            watching.cancel()
            ending.cancel()

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
        await self.gone()

    async def gone(self) -> None:
        """Return once it has ended and nothing that it started is left, which could hold the port, cores and memory."""
        if self.process is None:
            return
        await self.process.wait()
        self._signal(self.on_death)
        end = time.monotonic() + LEFT_S
        while _running(self.process.pid):
            if time.monotonic() > end:
                self.kill()
            await asyncio.sleep(0.02)
        self.process = None

    def kill(self) -> None:
        """Kill it and whatever it has started."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)


def _running(group: int) -> bool:
    """Whether a process of this group has not ended; one that has may wait for an init that does not collect it."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            state, _, of = stat.read_text().rpartition(")")[2].split()[:3]
            if int(of) == group and state not in "ZX":
                return True
    return False
