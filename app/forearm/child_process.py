"""A child process of `forearm serve`: started, watched, asked to end, and killed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forearm.spawn import spawn
from forearm.timeouts import within

log = logging.getLogger(__name__)

RETRY_S = 1.0  # between attempts to start where the kernel had no memory, process or descriptor left
LEFTOVER_S = 5.0  # for processes of a dead child to end by themselves


async def end_of(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end of a process, in a thread. Returns: its exit status."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def tell(status: int) -> None:
        if not ended.done():
            ended.set_result(status)

    def wait() -> None:
        status = process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits any more
            loop.call_soon_threadsafe(tell, status)

    threading.Thread(target=wait, name="end of a process", daemon=True).start()
    return await ended


async def _not_watched(pid: int) -> str:
    await asyncio.Event().wait()
    return ""


@dataclass
class Child:
    """A process that serve keeps running.

    ready      tells whether it serves
    hangs      watches the process with this id; returns a description when it hangs
    on_death   the signal that it gets when serve dies, and that its own children get when it dies
    withheld   environment variables that it does not inherit
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
    process: subprocess.Popen[bytes] | None = None
    once_ready: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> subprocess.Popen[bytes]:
        """Start it; again and again while the kernel has no memory, process or descriptor for it."""
        while True:
            try:
                self.process = spawn(
                    self.argv, self.on_death, self.environment, self.withheld, self.cores, self.pass_fds
                )
                return self.process
            except OSError as error:  # noqa: PERF203  (a start is far dearer than the try)
                log.error("%s cannot be started: %s; trying again in %g s", self.name, error, RETRY_S)
                await asyncio.sleep(RETRY_S)

    def bind(self, cores: tuple[int, ...]) -> None:
        """Move the process to these cores; () leaves it where it is. Threads that it starts later inherit them."""
        self.cores = cores
        if cores and self.process is not None:
            with contextlib.suppress(ProcessLookupError):  # it has ended: the next start is on these cores
                os.sched_setaffinity(self.process.pid, cores)

    async def ended(self, process: subprocess.Popen[bytes]) -> int:
        """Wait until the process and all that it has started are gone, and return its exit status.

        A process that hangs is killed.
        """
        ending, watching = asyncio.create_task(end_of(process)), asyncio.create_task(self.hangs(process.pid))
        try:
            await asyncio.wait([ending, watching], return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                log.error("%s hangs: %s; killing it", self.name, watching.result())
                self.kill()
            await self.gone()
            return await ending
        finally:
            watching.cancel()
            ending.cancel()

    async def end(self, timeout_s: float) -> None:
        """Send SIGTERM; after `timeout_s` kill the process and all that it has started."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.terminate()
        try:
            await within(end_of(self.process), timeout_s)
        except asyncio.TimeoutError:
            log.warning("%s has not ended after %g s; killing it", self.name, timeout_s)
            self.kill()
        await self.gone()

    async def gone(self) -> None:
        """Wait until it has ended and none of its children is left, which could hold the port, cores and memory."""
        if self.process is None:
            return
        await end_of(self.process)
        self._signal(self.on_death)
        end = time.monotonic() + LEFTOVER_S
        while _is_running(self.process.pid):
            if time.monotonic() > end:
                self.kill()
            await asyncio.sleep(0.02)
        self.process = None

    def kill(self) -> None:
        """Kill it and all that it has started."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)


def _is_running(group: int) -> bool:
    """True while a process of this group runs. Ended ones may stay as zombies under an init that collects none."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended meanwhile
            state, _, of = stat.read_text().rpartition(")")[2].split()[:3]
            if int(of) == group and state not in "ZX":
                return True
    return False
