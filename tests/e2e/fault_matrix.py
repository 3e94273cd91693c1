"""Random faults in a running server: each process x signal x moment, and each system call x error.

    python -m tests.e2e.fault_matrix --runs 2000 --seed 7 --lanes 2

After every fault each client has an answer or an error within SILENCE_S, an answer is the one that comes without the
fault, the server is ready again within READY_S or has ended, and then nothing of it is left and its port is free.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import itertools
import random
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from tests.e2e.asking import ASKS, Reply, ask
from tests.e2e.failing_calls import FailingCalls
from tests.e2e.served import Served, serve

READY_S = 60.0
GONE_S = 40.0
CLIENTS = 5
LATEST_S = 0.6  # each client has had a few answers by then, and more than one of ASKS is under way
CALLS_S = 1.0  # most time for the calls of a fault
PROCESSES = ("serve", "master", "worker", "engine", "helper")
_SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGQUIT", "SIGHUP", "SIGSTOP", "SIGSEGV", "SIGABRT", "SIGPIPE")
_ERRORS = {
    "open": (errno.EMFILE, errno.ENOSPC, errno.EIO),
    "read": (errno.EIO,),
    "write": (errno.ENOSPC, errno.EIO, 0),
    "grow": (errno.ENOSPC,),
    "sync": (errno.EIO,),
    "accept": (errno.EMFILE, errno.ENFILE),
    "socket": (errno.EMFILE,),
    "pipe": (errno.EMFILE,),
    "fork": (errno.EAGAIN, errno.ENOMEM),
    "send": (0,),
    "allocate": (errno.ENOMEM,),
}
# What the processes mind: a signal beyond these ends a process at once, whatever it has open.
_MINDED = {
    "serve": ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR2", "SIGSTOP", "SIGPIPE"),
    "master": ("SIGTERM", "SIGHUP", "SIGSTOP", "SIGPIPE"),
    "worker": ("SIGTERM", "SIGHUP", "SIGSTOP", "SIGPIPE"),
}
FLAGS = ("--api-server-count", "2", "--shutdown-timeout", "3", "--served-model-name", "demo")


@dataclass(frozen=True)
class Fault:
    """A fault `after_s` the clients began: a signal by its name, or the next `times` system calls that fail."""

    process: str
    act: str
    error: int = 0
    times: int = 1
    after_s: float = 0.0
    stopped_s: float = 0.0

    def __str__(self) -> str:
        what = self.act if self.act.startswith("SIG") else f"{self.act} {errno.errorcode.get(self.error, 'short')}"
        return f"{self.process} {what}"

    @property
    def cuts(self) -> bool:
        """Return whether connections may break, because the process that holds them ends before it can answer."""
        if self.process not in _MINDED:
            return False
        return self.act not in _MINDED[self.process] if self.act.startswith("SIG") else self.act == "allocate"

    @property
    def ends_process(self) -> bool:
        """Return whether the process ends."""
        if self.process == "helper" and self.act in ("SIGTERM", "SIGINT"):
            return False  # they come to all of a terminal or a service; it ends with its worker or engine
        return self.act.startswith("SIG") and self.act not in ("SIGHUP", "SIGUSR2", "SIGSTOP", "SIGPIPE")

    @property
    def ends_serve(self) -> bool:
        """Return whether the server ends for good."""
        return self.process == "serve" and self.ends_process

    @property
    def closes(self) -> bool:
        """Return whether connections that are not accepted yet may break: the port closes, for a while or for good."""
        # libuv takes connections for which there is no descriptor and closes them, so that it hears of the next ones.
        ending = ("SIGTERM", "SIGINT", "SIGQUIT", "SIGHUP", "accept")
        return self.cuts or (self.process in _MINDED and self.act in ending)


def draw(random_: random.Random) -> Fault:
    """Choose a fault; three of five are signals."""
    moment = random_.uniform(0, LATEST_S)
    if random_.random() < 0.6:
        process, act = random_.choice(PROCESSES), random_.choice(_SIGNALS)
        return Fault(process, act, after_s=moment, stopped_s=random_.uniform(0.1, 2))
    call = random_.choice(list(_ERRORS))
    times = random_.choice((1, 1, 3, 20))
    return Fault(random_.choice(PROCESSES[:4]), call, random_.choice(_ERRORS[call]), times, moment)


@dataclass
class Lane:
    """A sequence of servers, each with a sequence of faults. `expected`: answers without faults, by ask."""

    folder: Path
    expected: dict[str, str]
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    served: Served | None = None

    def __post_init__(self) -> None:
        (self.folder / "tmp").mkdir()
        self.calls = FailingCalls(self.folder)

    def server(self) -> Served:
        """The running server, or a new one."""
        if self.served is None or self.served.process.poll() is not None:
            self.stack.close()
            env = {**self.calls.environment, "TMPDIR": str(self.folder / "tmp")}
            self.served = self.stack.enter_context(serve(self.folder, *FLAGS, env=env))
            left = [path.name for path in (self.folder / "tmp").glob("forearm-*")]
            assert len(left) == 1, f"run folders of servers that were killed are still there: {left}"
        return self.served

    def log(self) -> str:
        """Return the end of the server's log."""
        return "" if self.served is None else self.served.log.read_text()[-3000:]

    def start_anew(self) -> None:
        """End the server in which a condition did not hold, and remove what it has left."""
        self.served = None
        self.stack.close()
        shutil.rmtree(self.folder / "tmp")
        (self.folder / "tmp").mkdir()

    def run(self, fault: Fault, random_: random.Random) -> Counter[str]:
        """One fault beside some clients. Returns: how many requests ended how.

        Raises: AssertionError naming what does not hold.
        """
        served = self.server()
        there = [served.process.pid, *(one.pid for one in psutil.Process(served.process.pid).children(recursive=True))]
        acted = threading.Event()
        with ThreadPoolExecutor(CLIENTS) as threads:
            asking = [
                threads.submit(_ask_until, served, random_.sample(list(ASKS), len(ASKS)), acted) for _ in range(CLIENTS)
            ]
            hit = self._act(served, fault)
            acted.set()
            replies = [one for client in asking for one in client.result()]
        for name, reply in replies:
            self._check(fault, name, reply)
        if fault.ends_serve:
            self._check_gone(served, there)
        else:
            if fault.ends_process and hit:
                within(GONE_S, lambda: not _lives(hit))
            self._check_ready(served, random_.choice(list(ASKS)))
        return Counter(reply.end for _, reply in replies)

    def _act(self, served: Served, fault: Fault) -> int:
        """Cause the fault. Returns: the process it happened to; 0 if there is no such process now."""
        time.sleep(fault.after_s)
        try:
            process = _process(served, fault.process)
            if not fault.act.startswith("SIG"):
                end = time.monotonic() + CALLS_S
                with self.calls.ordered(fault.act, fault.error, fault.times, process.pid):
                    while self.calls.failed < fault.times and time.monotonic() < end:
                        time.sleep(0.01)
                return process.pid
            process.send_signal(signal.Signals[fault.act])
            if fault.act == "SIGSTOP":
                time.sleep(fault.stopped_s)
                process.send_signal(signal.SIGCONT)
        except (psutil.NoSuchProcess, StopIteration, IndexError):
            return 0
        return process.pid

    def _check(self, fault: Fault, name: str, reply: Reply) -> None:
        said = f"{fault}: {name}: {reply}"
        assert reply.end not in ("hung", "wrong"), said
        if reply.end == "answer":
            assert reply.text == self.expected[name], f"{said}\nwithout the fault it is {self.expected[name]!r}"
        elif reply.end == "cut":
            assert fault.cuts or (fault.closes and reply.status == 0), said
        elif reply.end == "no connection":
            assert fault.closes, said
        else:
            assert reply.status in (200, 429, 499, 503) or (fault.error and reply.status == 500), said

    def _check_ready(self, served: Served, name: str) -> None:
        """Check that every worker is ready again and gives the same answer."""
        replies: list[Reply] = []

        def answers() -> bool:
            # One worker may find the engine 0.2 s before the other; the first may have taken all six probes.
            if _is_ready(served):
                replies.append(ask(served.url, name, "demo"))
            return bool(replies) and replies[-1].status != 503

        within(READY_S, answers)
        assert (replies[-1].end, replies[-1].text) == ("answer", self.expected[name]), f"afterwards: {name}: {replies}"

    def _check_gone(self, served: Served, pids: list[int]) -> None:
        served.process.wait(GONE_S)
        within(GONE_S, lambda: not any(map(_lives, pids)))
        port = int(served.url.rpartition(":")[2])
        within(GONE_S, lambda: _is_free(port))


def _process(served: Served, name: str) -> psutil.Process:
    """Return a process of the server by its name; of several workers or helpers the youngest."""
    serving = psutil.Process(served.process.pid)
    if name == "serve":
        return serving
    if name == "engine":
        return served.engine()
    if name == "worker":
        return served.workers()[-1]
    if name == "master":
        return next(one for one in serving.children() if "gunicorn" in one.cmdline())
    return [one for parent in (served.engine(), *served.workers()) for one in parent.children()][-1]


def _ask_until(served: Served, names: list[str], done: threading.Event) -> list[tuple[str, Reply]]:
    """Send one request after the other, the last one after the fault."""
    replies = []
    for name in itertools.cycle(names):
        is_last = done.is_set()
        replies.append((name, ask(served.url, name, "demo")))
        if replies[-1][1].end == "no connection":
            time.sleep(0.1)
        if is_last:
            return replies
    raise AssertionError("there is something to ask")


def _is_ready(served: Served) -> bool:
    try:
        return all(served.http.get("/readyz").status_code == 200 for _ in range(6))
    except Exception:
        return False


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def within(timeout_s: float, holds: Callable[[], bool]) -> None:
    """Wait until `holds` is true. Raises: AssertionError after `timeout_s`."""
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end, f"not so after {timeout_s:g} s"
        time.sleep(0.05)


def answers(folder: Path) -> dict[str, str]:
    """Return the answers without faults, by ask.

    Raises: AssertionError.
    """
    folder.mkdir()
    with serve(folder, *FLAGS) as served:
        replies = {name: ask(served.url, name, "demo") for name in ASKS}
    assert all(reply.end == "answer" and reply.text for reply in replies.values()), replies
    return {name: reply.text for name, reply in replies.items()}


def run_many(
    folder: Path, runs: int, seed: int, lanes: int, stop_at_first: bool = True
) -> tuple[Counter[str], list[str]]:
    """Run so many random faults on so many servers at a time. Returns: ends of requests, and what did not hold."""
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # a shell's background jobs ignore it, and so would the servers
    expected = answers(folder / "without")
    found: Counter[str] = Counter()
    wrong: list[str] = []
    numbers = iter(range(runs))
    lock = threading.Lock()

    def work(number: int) -> None:
        place = folder / f"lane{number}"
        place.mkdir()
        lane = Lane(place, expected)
        with contextlib.closing(lane.stack):
            while not (wrong and stop_at_first):
                with lock:
                    run = next(numbers, None)
                if run is None:
                    return
                random_ = random.Random(f"{seed} {run}")
                fault = draw(random_)
                try:
                    ends = lane.run(fault, random_)
                except Exception as error:
                    with lock:
                        wrong.append(f"seed {seed} run {run}: {fault}\n{type(error).__name__}: {error}\n{lane.log()}")
                    lane.start_anew()
                    continue
                with lock:
                    found.update(ends)
                    found["runs"] += 1

    with ThreadPoolExecutor(lanes) as threads:
        list(threads.map(work, range(lanes)))
    return found, wrong


def main() -> int:
    """Run as a command. Returns: 1 if anything did not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--only", type=int, help="this run of the seed alone")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        found, wrong = run_many(Path(folder), args.runs, args.seed, args.lanes, stop_at_first=False)
    for line in wrong:
        print(line, end="\n\n")
    print(f"{dict(found)} in {time.monotonic() - began:.0f} s; {len(wrong)} runs in which something did not hold")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
