"""The process behind fork_client.py: it runs each job in a fork, which can be killed and may crash.

The protocol is lines of JSON: first what all jobs share, then jobs; each job gets one line back. The process ends when
its socket, which is its standard input, is closed. A fork inherits what the process has prepared for all jobs.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from forearm.errors import InvalidRequest
from forearm.json_types import Json
from forearm.text.sandbox.deep_threads import STACK_BYTES, deep_threads

FORKS = 8  # at a time
WAITING = 256  # jobs; more are refused
# A job that takes longer gets a lower priority, and is ended when others wait for a fork.
SLOW_S = 0.5
_LONGEST_LINE = 256 << 20


_libc = ctypes.CDLL(None)  # before any fork
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True)
class SandboxTask:
    """The kind of work that jobs do. `do` makes a job's answer; it may raise InvalidRequest.

    fork_bytes: memory that a fork may use beside its stack and the process's own memory. limit_s: time limit of a
    job.
    """

    name: str
    do: Callable[[Json], Json]
    limit_s: float
    fork_bytes: int


@dataclass
class _Job:
    given: Json
    since_s: float = field(default_factory=time.monotonic)

    def refusal(self, message: str) -> bytes:
        """Return the answer that the job failed, which names its field."""
        named = self.given["field"]
        return _line({"id": self.given["id"], "error": f"{named}: {message}", "param": named})

    def busy(self) -> bytes:
        """Return the answer that the job is refused because too many wait."""
        return _line({"id": self.given["id"], "busy": True})


@dataclass
class _Fork:
    """A fork that runs a job. got: its answer so far."""

    job: _Job
    pid: int
    pipe: int
    begun_s: float = field(default_factory=time.monotonic)
    got: bytearray = field(default_factory=bytearray)
    is_slow: bool = False

    @property
    def age_s(self) -> float:
        """Seconds since the fork began."""
        return time.monotonic() - self.begun_s


class ForkServer:
    """Takes jobs from the socket, runs forks for them, and sends their answers. It has one thread."""

    def __init__(self, connection: socket.socket, work: SandboxTask) -> None:
        self._connection, self._work = connection, work
        self._selector = selectors.DefaultSelector()
        self._selector.register(connection, selectors.EVENT_READ)
        self._waiting: deque[_Job] = deque()
        self._working: dict[int, _Fork] = {}  # by pipe, the oldest first
        self._dying: set[int] = set()
        self._read = bytearray()

    def run(self, begun: bytes) -> None:
        """Serve until the socket is closed, then kill all forks. begun: bytes that were already read."""
        self._take(begun)
        open_ = True
        while open_:
            while self._waiting and len(self._working) < FORKS:
                job, (pipe, answer) = self._waiting.popleft(), os.pipe()
                pid = os.fork()
                if pid == 0:
                    self._connection.close()
                    os.close(pipe)
                    _do(self._work, job.given, answer)
                os.close(answer)
                with suppress(OSError):
                    os.setpgid(pid, pid)  # the fork does so too, because either may run first
                self._working[pipe] = _Fork(job, pid, pipe)
                self._selector.register(pipe, selectors.EVENT_READ)
            for key, _ in self._selector.select(0.05 if self._working or self._dying else None):
                if key.fileobj is self._connection:
                    came = self._connection.recv(1 << 20)
                    self._take(came)
                    open_ = bool(came) and len(self._read) <= _LONGEST_LINE
                else:
                    self._receive(self._working[key.fd])
            self._end_late()
            # On a busy machine a slow fork may take a second to die after SIGKILL.
            self._dying -= {pid for pid in self._dying if os.waitpid(pid, os.WNOHANG)[0]}
        for one in list(self._working.values()):
            self._kill(one)

    def _take(self, came: bytes) -> None:
        self._read += came
        *lines, rest = self._read.split(b"\n") if b"\n" in came else [self._read]
        self._read = bytearray(rest)
        for line in lines:
            job = _Job(json.loads(line))
            if len(self._waiting) < WAITING:
                self._waiting.append(job)
            else:
                self._connection.sendall(job.busy())

    def _receive(self, one: _Fork) -> None:
        part = os.read(one.pipe, 1 << 20)
        one.got += part
        if part:
            return
        most = self._work.fork_bytes >> 20
        early = f"{self._work.name} ended early, possibly because it took more than {most} MB; simplify it"
        self._end(one, bytes(one.got) if one.got.endswith(b"\n") else one.job.refusal(early))

    def _end_late(self) -> None:
        """End jobs past the time limit, and the oldest slow jobs where others wait."""
        longer = f"{self._work.name} takes longer than"
        limit_s = self._work.limit_s
        for one in list(self._working.values()):
            if one.age_s > limit_s:
                self._end(one, one.job.refusal(f"{longer} {limit_s:g} s; simplify it"))
            elif one.age_s > SLOW_S and not one.is_slow:
                one.is_slow = True
                with suppress(OSError):
                    os.setpriority(os.PRIO_PGRP, one.pid, 15)  # all of its threads
        wanted = len(self._waiting) + len(self._working) - FORKS
        for one in [one for one in self._working.values() if one.is_slow][: max(wanted, 0)]:
            self._end(one, one.job.refusal(f"{longer} {SLOW_S:g} s, and others wait; simplify it, or try again later"))
        while self._waiting and time.monotonic() - self._waiting[0].since_s > limit_s:
            self._connection.sendall(self._waiting.popleft().busy())

    def _end(self, one: _Fork, answer: bytes) -> None:
        self._kill(one)
        self._connection.sendall(answer)

    def _kill(self, one: _Fork) -> None:
        self._selector.unregister(one.pipe)
        del self._working[one.pipe]
        os.close(one.pipe)
        os.kill(one.pid, signal.SIGKILL)  # it may have ended, but its pid is not reused before waitpid
        self._dying.add(one.pid)


def _do(work: SandboxTask, given: Json, answer: int) -> None:
    """Run one job in the fork, write one line, and exit without Python's finalization."""
    try:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setpgid(0, 0)
        os.nice(5)  # streams go first
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + STACK_BYTES + work.fork_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            line = _line({"id": given["id"], "answer": deep_threads(1, "fork").submit(work.do, given).result()})
        except InvalidRequest as error:
            line = _line({"id": given["id"], "error": str(error), "param": error.param})
        with os.fdopen(answer, "wb") as pipe:
            pipe.write(line)
    except Exception as error:
        print(f"forearm: {work.name} failed: {error!r:.300}", file=sys.stderr)
    finally:
        os._exit(0)


def _line(answer: Json) -> bytes:
    return json.dumps(answer).encode() + b"\n"


def serve(work_of: Callable[[Json], SandboxTask]) -> None:
    """Serve the socket that is the standard input. work_of: makes the task from what all jobs share."""
    # A terminal or a service sends them to every process, but the parent may still be draining.
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, signal.SIG_IGN)
    with socket.socket(fileno=0) as connection:
        came = bytearray()
        while b"\n" not in came:
            part = connection.recv(1 << 20)
            if not part:
                return
            came += part
        line, _, rest = came.partition(b"\n")
        forks = ForkServer(connection, work_of(json.loads(line)))
        del line, came
        gc.collect()
        gc.freeze()  # otherwise a fork's garbage collection copies every page whose objects it marks
        with suppress(BrokenPipeError, ConnectionResetError):
            forks.run(bytes(rest))
