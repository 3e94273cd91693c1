"""Measure hostile request bodies against one API worker: its memory, stalls of its event loop, gaps of another stream.

    python bench/serving/hostile.py --mebibytes 10 20 --out bench/results/hostile/<machine>.json

The server has one worker and the demo model; --model MODEL --kind pooling tries the endpoints that pool. A probe asks
/livez over and over on a connection of its own, and a bystander reads a stream: the longest answer and the longest gap
beside each body are its figures. No body may be answered with a 5xx, and none may be left unanswered.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import httpx
from bench.records import Figure, figures_of, record, run_of
from tests.e2e.hostile_bodies import GENERATING, POOLING, Form, body
from tests.e2e.served import Served, serve

MIB = 1 << 20


@dataclass
class Figures:
    """The effect of one body. `stall_s`: the longest answer of /livez beside it; `gap_s`: the longest gap of
    a stream."""

    name: str
    path: str
    mebibytes: float
    status: int = 0
    seconds: float = 0.0
    stall_s: float = 0.0
    gap_s: float = 0.0
    rss_mebibytes: float = 0.0  # growth of the worker's resident set, a second after its answer
    said: str = ""


@dataclass
class Beside:
    """The longest duration of a repeated action since `reset`."""

    longest_s: float = 0.0
    begun_s: float = field(default_factory=time.perf_counter)

    def reset(self) -> None:
        """Start again; an action in progress counts from now on."""
        self.longest_s, self.begun_s = 0.0, time.perf_counter()

    def seen(self) -> None:
        """Note the end of one action."""
        now = time.perf_counter()
        self.longest_s = max(self.longest_s, now - self.begun_s)
        self.begun_s = now


@contextmanager
def probing(served: Served, kind: str) -> Iterator[tuple[Beside, Beside]]:
    """Measure in the background. Yields: the times of /livez, and the gaps of a stream if the model generates text."""
    ended, probe, stream = threading.Event(), Beside(), Beside()

    def ask() -> None:
        connection = connect(served)
        while not ended.wait(0.005):
            probe.begun_s = time.perf_counter()
            try:
                connection.request("GET", "/livez")
                connection.getresponse().read()
            except (OSError, http.client.HTTPException):  # the worker has died and is replaced
                connection = connect(served)
            probe.seen()
        connection.close()

    def read() -> None:
        while not ended.is_set():
            with suppress(httpx.HTTPError, StopIteration, AssertionError), served.endless() as lines:
                stream.begun_s = time.perf_counter()
                for _ in lines:
                    stream.seen()
                    if ended.is_set():
                        break

    threads = [threading.Thread(target=ask)] + [threading.Thread(target=read)] * (kind == "generate")
    for thread in threads:
        thread.start()
    try:
        yield probe, stream
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def connect(served: Served) -> http.client.HTTPConnection:
    """Open a new connection."""
    return http.client.HTTPConnection(served.url.removeprefix("http://"), timeout=120)


def send(served: Served, path: str, content: bytes) -> tuple[int, str]:
    """Return the status (0: no answer) and the message of an error."""
    connection = connect(served)
    try:
        connection.request("POST", path, content, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        answer = reply.read()
    except (OSError, http.client.HTTPException) as error:
        return 0, repr(error)
    finally:
        connection.close()
    try:
        return reply.status, json.loads(answer)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return reply.status, ""


def attack(served: Served, name: str, form: Form, size: int, beside: tuple[Beside, Beside]) -> Figures:
    """Send one body and measure its effect."""
    content = body(form, size)
    (worker,) = served.workers()
    figures = Figures(name, form[0], round(len(content) / MIB, 1))
    before = worker.memory_info().rss
    time.sleep(0.2)
    for one in beside:
        one.reset()
    begun = time.perf_counter()
    figures.status, figures.said = send(served, form[0], content)
    figures.seconds = time.perf_counter() - begun
    time.sleep(0.1)
    figures.stall_s, figures.gap_s = (one.longest_s for one in beside)
    time.sleep(0.9)
    if not worker.is_running():
        figures.said = "the worker died"
        return figures
    figures.rss_mebibytes = (worker.memory_info().rss - before) / MIB
    return figures


def row(figures: Figures) -> str:
    """Return one line of the table."""
    return (
        f"{figures.name:28} {figures.path:22} {figures.mebibytes:5.1f} MiB  {figures.status:3d} "
        f"{figures.seconds:6.2f} s  stall {figures.stall_s * 1000:6.0f} ms  gap {figures.gap_s * 1000:6.0f} ms  "
        f"rss {figures.rss_mebibytes:+6.0f} MiB  {figures.said[:90]}"
    )


def recorded(figures: Figures) -> list[Figure]:
    """Return one body's figures in the form of bench/results."""
    row = f"{figures.path}: {figures.name}, {figures.mebibytes} MiB"
    times = {"stall_ms": 1000 * figures.stall_s, "gap_ms": 1000 * figures.gap_s, "seconds": figures.seconds}
    return figures_of("demo model", "", row, {"status": figures.status, **times, "memory_mib": figures.rss_mebibytes})


def failed(found: list[Figures]) -> list[Figures]:
    """Return the bodies without an answer, or with an error of the server."""
    return [figures for figures in found if not 200 <= figures.status < 500]


def main() -> None:
    """Run the corpus."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mebibytes", type=float, nargs="+", default=[10, 20])
    parser.add_argument("--only", default="", help="bodies whose name has this")
    parser.add_argument("--kind", choices=("generate", "pooling"), default="generate")
    parser.add_argument("--model", nargs="*", default=[], help="flags of forearm serve that name the model")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    corpus = GENERATING if args.kind == "generate" else POOLING
    found: list[Figures] = []
    with tempfile.TemporaryDirectory() as folder:
        flags: list[Any] = [*args.model, "--api-server-count", "1"]
        with serve(Path(folder), *flags) as served, probing(served, args.kind) as beside:
            time.sleep(1)
            for size in args.mebibytes:
                for name, form in corpus.items():
                    if args.only in name:
                        found.append(attack(served, name, form, int(size * MIB), beside))
                        print(row(found[-1]), flush=True)
    if args.out is not None:
        record(args.out, run_of([figure for one in found for figure in recorded(one)]))
    print(f"{len(found)} bodies, the longest stall {max(one.stall_s for one in found):.3f} s")
    if failed(found):
        raise SystemExit(f"not answered, or with an error of the server: {[one.name for one in failed(found)]}")


if __name__ == "__main__":
    main()
