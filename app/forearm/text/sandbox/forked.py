"""Work that clients choose the amount of, in a process beside this one that does each job in a fork: see forks.py.

No thread can be taken off work that takes minutes, and Python's holds the GIL of those who stream.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

from forearm.errors import EngineUnavailable, ForearmError, InvalidRequest, Overloaded
from forearm.json_types import Json


@dataclass
class _Process:
    """One that runs, and who waits for it."""

    connection: socket.socket
    process: subprocess.Popen[bytes]
    asking: dict[int, Future[Json]] = field(default_factory=dict)
    is_over: bool = False

    def end(self) -> None:
        """It ends as its socket does; nobody is left behind."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.process.wait()


class Forked:
    """A module that is run as a process from the first job on, and again should it end. It ends with this object.

    shared: makes what all jobs share. All methods may be called from any thread.
    """

    def __init__(self, module: str, shared: Callable[[], Json]) -> None:
        self._module, self._shared = module, shared
        self._sender = ThreadPoolExecutor(1, module.rpartition(".")[2])  # owns what is below
        self._numbers = count()
        self._process: _Process | None = None

    def start(self, job: str) -> Future[Json]:
        """The answer to this job: JSON of an object whose `field` is the request's, for errors.

        The future has InvalidRequest, naming the field, where it cannot be done or takes too much; Overloaded where too
        many wait; EngineUnavailable where the process has ended. It cannot be cancelled.
        """
        answer: Future[Json] = Future()
        answer.set_running_or_notify_cancel()
        self._sender.submit(self._send, job, answer)
        return answer

    def _send(self, job: str, answer: Future[Json]) -> None:
        number, process = next(self._numbers), None
        try:
            if self._process is None or self._process.is_over:
                self._process = self._started()
            process = self._process
            process.asking[number] = answer
            process.connection.sendall(b'{"id": %d, %s\n' % (number, job[1:].encode()))
        except Exception as error:
            if process is None or process.asking.pop(number, None) is not None:  # else `_hear` has answered
                answer.set_exception(EngineUnavailable(f"{self._module} cannot be reached: {error}"))

    def _started(self) -> _Process:
        ours, theirs = socket.socketpair()
        with theirs:
            argv = [sys.executable, "-m", self._module]
            process = subprocess.Popen(argv, stdin=theirs.fileno(), stdout=subprocess.DEVNULL)
        made = _Process(ours, process)
        weakref.finalize(self, made.end)
        threading.Thread(target=_hear, args=(made,), name="answers", daemon=True).start()
        ours.sendall(json.dumps(self._shared()).encode() + b"\n")
        return made


def _hear(made: _Process) -> None:
    """On a thread: answers reach those who wait, until the process ends."""
    with made.connection, suppress(OSError), made.connection.makefile("rb") as lines:
        for line in lines:
            answer = json.loads(line)
            asking = made.asking.pop(answer["id"])
            if "answer" in answer:
                asking.set_result(answer["answer"])
            else:
                asking.set_exception(_error(answer))
    made.is_over = True
    made.process.wait()
    while made.asking:  # whoever comes after `is_over` begins another process
        made.asking.popitem()[1].set_exception(EngineUnavailable("the process for it has ended; try again"))


def _error(answer: Json) -> ForearmError:
    if "busy" in answer:
        return Overloaded("too many requests of this kind wait for a core")
    return InvalidRequest(answer["error"], answer["param"])
