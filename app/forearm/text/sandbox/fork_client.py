"""Run jobs whose amount of work clients choose, each in a fork of a separate process (fork_server.py).

A thread cannot be stopped when its work takes minutes, and Python work would hold the GIL of open streams.
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

from forearm.errors import EngineUnavailable, InvalidRequest, Overloaded
from forearm.json_types import Json


@dataclass
class _Process:
    """A running process and the futures of its unanswered jobs."""

    connection: socket.socket
    process: subprocess.Popen[bytes]
    asking: dict[int, Future[Json]] = field(default_factory=dict)
    is_over: bool = False

    def end(self) -> None:
        """Close the socket, which ends the process, and wait for it."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.process.wait()


class ForkClient:
    """Starts a module as a process at the first job, and again if it ends. The process ends with this object.

    shared: makes what all jobs share. All methods may be called from any thread.
    """

    def __init__(self, module: str, shared: Callable[[], Json]) -> None:
        self._module, self._shared = module, shared
        self._sender = ThreadPoolExecutor(1, module.rpartition(".")[2])  # its thread owns the attributes below
        self._numbers = count()
        self._process: _Process | None = None

    def start(self, job: str) -> Future[Json]:
        """Return the answer to a job as a future. job: a JSON object whose `field` is the request's, for errors.

        The future has InvalidRequest, naming the field, where the job fails or exceeds its limits; Overloaded
        where too many jobs wait; EngineUnavailable where the process has ended. It cannot be cancelled.
        """
        answer: Future[Json] = Future()
        answer.set_running_or_notify_cancel()
        self._sender.submit(self._send, job, answer)
        return answer

    def _send(self, job: str, answer: Future[Json]) -> None:
        number, process = next(self._numbers), None
        try:
            if self._process is None or self._process.is_over:
                ours, theirs = socket.socketpair()
                with theirs:
                    argv = [sys.executable, "-m", self._module]
                    started = subprocess.Popen(argv, stdin=theirs.fileno(), stdout=subprocess.DEVNULL)
                made = _Process(ours, started)
                weakref.finalize(self, made.end)
                threading.Thread(target=_receive, args=(made,), name="answers", daemon=True).start()
                ours.sendall(json.dumps(self._shared()).encode() + b"\n")
                self._process = made
            process = self._process
            process.asking[number] = answer
            process.connection.sendall(b'{"id": %d, %s\n' % (number, job[1:].encode()))
        except Exception as error:
            if process is None or process.asking.pop(number, None) is not None:  # otherwise `_receive` has answered
                answer.set_exception(EngineUnavailable(f"{self._module} cannot be reached: {error}"))


def _receive(made: _Process) -> None:
    """Set the results of jobs as their answers arrive, until the process ends (runs in a thread)."""
    with made.connection, suppress(OSError), made.connection.makefile("rb") as lines:
        for line in lines:
            answer = json.loads(line)
            asking = made.asking.pop(answer["id"])
            if "answer" in answer:
                asking.set_result(answer["answer"])
            elif "busy" in answer:
                asking.set_exception(Overloaded("too many requests of this kind are waiting; try again later"))
            else:
                asking.set_exception(InvalidRequest(answer["error"], answer["param"]))
    made.is_over = True
    made.process.wait()
    while made.asking:  # jobs that are sent after `is_over` start another process
        made.asking.popitem()[1].set_exception(EngineUnavailable("its process has ended; try again"))
