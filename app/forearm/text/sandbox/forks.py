"""The other end of forked.py: a process that does each job in a fork of its own, which can be killed and may crash.

Lines of JSON come and go: first what all jobs share, then jobs; each gets one line back. The process ends when its
socket, which is its standard input, does. A fork has at once what the process has made of what they share.
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
WAITING = 256  # jobs; more are turned away
# From then on a job has the cores only while nobody else wants them, and gives way where others wait for a fork.
SLOW_S = 0.5
_LONGEST_LINE = 256 << 20


_libc = ctypes.CDLL(None)  # before any fork
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True)
class SandboxTask:
    """What the jobs are. `do` makes a job's answer; it may raise InvalidRequest.

    fork_bytes: what a fork may take beside its stack and what the process has anyway. limit_s: how long it may take.
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
        """An answer: it cannot be done, which names the field."""
        named = self.given["field"]
        return _line({"id": self.given["id"], "error": f"{named}: {message}", "param": named})

    def busy(self) -> bytes:
        """An answer: there is no place for it."""
        return _line({"id": self.given["id"], "busy": True})


@dataclass
class _Fork:
    """One that works. `got`: what it has answered so far."""

    job: _Job
    pid: int
    pipe: int
    begun_s: float = field(default_factory=time.monotonic)
    got: bytearray = field(default_factory=bytearray)
    is_slow: bool = False

    @property
    def age_s(self) -> float:
        """Seconds that it has had."""
        return time.monotonic() - self.begun_s


class Forks:
    """Jobs from the socket, forks for them, answers to the socket. One thread."""

    def __init__(self, connection: socket.socket, work: SandboxTask) -> None:
        self._connection, self._work = connection, work
        self._selector = selectors.DefaultSelector()
        self._selector.register(connection, selectors.EVENT_READ)
        self._waiting: deque[_Job] = deque()
        self._working: dict[int, _Fork] = {}  # by pipe, the oldest first
        self._dying: set[int] = set()
        self._read = bytearray()

    def run(self, begun: bytes) -> None:
        """Until the socket ends, and then no fork is left. `begun`: what has been read of it already."""
        self._take(begun)
        open_ = True
        while open_:
            while self._waiting and len(self._working) < FORKS:
                self._fork(self._waiting.popleft())
            for key, _ in self._selector.select(0.05 if self._working or self._dying else None):
                if key.fileobj is self._connection:
                    open_ = self._listen()
                else:
                    self._hear(self._working[key.fd])
            self._end_late()
            self._bury()
        for one in list(self._working.values()):
            self._kill(one)

    def _listen(self) -> bool:
        """Whether the socket is still open."""
        came = self._connection.recv(1 << 20)
        self._take(came)
        return bool(came) and len(self._read) <= _LONGEST_LINE

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

    def _fork(self, job: _Job) -> None:
        pipe, answer = os.pipe()
        pid = os.fork()
        if pid == 0:
            self._connection.close()
            os.close(pipe)
            _do(self._work, job.given, answer)
        os.close(answer)
        with suppress(OSError):
            os.setpgid(pid, pid)  # the fork does so too: whoever is first
        self._working[pipe] = _Fork(job, pid, pipe)
        self._selector.register(pipe, selectors.EVENT_READ)

    def _hear(self, one: _Fork) -> None:
        part = os.read(one.pipe, 1 << 20)
        one.got += part
        if part:
            return
        most = self._work.fork_bytes >> 20
        early = f"{self._work.name} ended early, maybe for taking more than {most} MB; simplify it"
        self._end(one, bytes(one.got) if one.got.endswith(b"\n") else one.job.refusal(early))

    def _end_late(self) -> None:
        """Past the limit; or slow, where others wait: these give way, the oldest first."""
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
            self._end(one, one.job.refusal(f"{longer} {SLOW_S:g} s, and others wait; simplify it, or try it later"))
        while self._waiting and time.monotonic() - self._waiting[0].since_s > limit_s:
            self._connection.sendall(self._waiting.popleft().busy())

    def _end(self, one: _Fork, answer: bytes) -> None:
        self._kill(one)
        self._connection.sendall(answer)

    def _kill(self, one: _Fork) -> None:
        self._selector.unregister(one.pipe)
        del self._working[one.pipe]
        os.close(one.pipe)
        os.kill(one.pid, signal.SIGKILL)  # it may have ended; it is ours until it is waited for
        self._dying.add(one.pid)

    def _bury(self) -> None:
        """Those that have ended: on a machine with much to do, dying may take a slow one a second."""
        self._dying -= {pid for pid in self._dying if os.waitpid(pid, os.WNOHANG)[0]}


def _do(work: SandboxTask, given: Json, answer: int) -> None:
    """In the fork: one job, one line, and an end without what Python does at its end."""
    try:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setpgid(0, 0)
        os.nice(5)  # streams go first
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + STACK_BYTES + work.fork_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        line = deep_threads(1, "fork").submit(_answer, work, given).result()
        with os.fdopen(answer, "wb") as pipe:
            pipe.write(line)
    except Exception as error:
        print(f"forearm: {work.name} failed: {error!r:.300}", file=sys.stderr)
    finally:
        os._exit(0)


def _answer(work: SandboxTask, given: Json) -> bytes:
    try:
        return _line({"id": given["id"], "answer": work.do(given)})
    except InvalidRequest as error:
        return _line({"id": given["id"], "error": str(error), "param": error.param})


def _line(answer: Json) -> bytes:
    return json.dumps(answer).encode() + b"\n"


def serve_forks(work_of: Callable[[Json], SandboxTask]) -> None:
    """Serve the socket that is the standard input. `work_of`: takes what all jobs share."""
    # They come to all of a terminal or a service; whoever started this may drain yet.
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
        forks = Forks(connection, work_of(json.loads(line)))
        del line, came
        gc.collect()
        gc.freeze()  # a fork's collector would copy every page that it marks
        with suppress(BrokenPipeError, ConnectionResetError):
            forks.run(bytes(rest))
