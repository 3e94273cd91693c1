"""An overloaded server as clients see it: refusals, their latency, and lost requests.

First its capacity is measured, with as many clients as it computes at a time; then requests are sent at `--times` that
rate as a Poisson process, independent of the server's answers. Half of them use a new connection each, half use
connections that are kept.

    python bench/serving/overload.py --seconds 60 --out bench/results/overload/<machine>.json
    python bench/serving/overload.py --url http://127.0.0.1:8000      a server that runs already

The client is one process that parses only the parts of HTTP and JSON that it counts. Its share of a core is reported,
because on a small machine it takes that from the server.

- reset: the connection broke off before the answer was whole. lost: no whole answer within `--patience`.
- refused: 429 or 503; its latency is that of the whole answer, from the moment the request was due.
- implied: what the last place of the queue waits for: (running + waiting places) / requests answered a second.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit
from urllib.request import urlopen

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.records import Figure, figure, figures_of, line_of, record, run_of

_READY_S = 60.0
LATE = {"p50_ms": 0.5, "p99_ms": 0.99, "longest_ms": 1.0}
_MEASURE_S = 8.0  # of the capacity
_END = b"data: [DONE]\n\n\r\n0\r\n\r\n"  # of a stream in chunks


@dataclass
class Tally:
    """The outcomes of the requests; latencies in seconds."""

    outcomes: Counter[str] = field(default_factory=Counter)
    refusals: list[float] = field(default_factory=list)
    first_tokens: list[float] = field(default_factory=list)
    answered: list[float] = field(default_factory=list)  # moments


class Asked(asyncio.Protocol):
    """One connection, with one request at a time on it."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._transport: asyncio.Transport | None = None
        self.done: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the new connection."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def ask(self, request: bytes, due_s: float) -> asyncio.Future[None]:
        """Send the request. The future is done once its outcome is known."""
        assert self._transport is not None
        self._seen, self._due_s, self._first_s = b"", due_s, 0.0
        self.done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self.done

    @property
    def open(self) -> bool:
        """Return whether another request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def data_received(self, data: bytes) -> None:
        """Recognize a refusal by its status, and an answer by its end."""
        now_s = time.monotonic()
        if self._first_s and len(self._seen) > 4096:
            self._seen = self._seen[-64:]
        self._seen += data
        if not self._first_s:
            head, found, body = self._seen.partition(b"\r\n\r\n")
            if not found:
                return
            status = head[9:12].decode()
            if status != "200":
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r", 1)[0])
                if len(body) >= length:
                    self._refused(status, now_s)
                return
            if b"data: " not in body:
                return
            self._first_s = now_s
            self._tally.first_tokens.append(now_s - self._due_s)
        if self._seen.endswith(_END):
            self._tally.answered.append(now_s)
            self._end("answered" if b'"error"' not in self._seen else "error event")

    def _refused(self, status: str, now_s: float) -> None:
        if status in ("429", "503"):
            self._tally.refusals.append(now_s - self._due_s)
        self._end(status)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the request; as a reset if its answer was not complete."""
        self._end("reset")

    def _end(self, outcome: str) -> None:
        if self.done is not None and not self.done.done():
            self._tally.outcomes[outcome] += 1
            self.done.set_result(None)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()


class Clients:
    """All clients; those that keep their connections share the idle ones."""

    def __init__(self, url: str, tokens: int, patience_s: float) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._tokens, self._patience_s = tokens, patience_s
        self._idle: list[Asked] = []
        self.tally = Tally()

    def _request(self, keep: bool) -> bytes:
        said = f"{random.random()} What is a glacier, and how does it move down into the valley? " * 4
        body = {"messages": [{"role": "user", "content": said}], "stream": True, "ignore_eos": True}
        content = json.dumps({**body, "max_tokens": self._tokens}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {self._address[0]}\r\nContent-Type: application/json\r\n"
        head += "" if keep else "Connection: close\r\n"
        return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content

    async def ask(self, due_s: float, keep: bool) -> None:
        """Send one request and wait for its end."""
        one: Asked | None = None
        while keep and self._idle and (one is None or not one.open):
            one = self._idle.pop()
        try:
            async with asyncio.timeout(self._patience_s):
                if one is None or not one.open:
                    make = asyncio.get_running_loop().create_connection(lambda: Asked(self.tally), *self._address)
                    one = (await make)[1]
                await one.ask(self._request(keep), due_s)
        except OSError as error:
            self.tally.outcomes[f"no connection ({type(error).__name__})"] += 1
        except TimeoutError:
            self.tally.outcomes["lost"] += 1
            keep = False
        if one is not None:
            if keep and one.open:
                self._idle.append(one)
            else:
                one.close()

    async def close(self) -> None:
        """Close all connections."""
        for one in self._idle:
            one.close()
        await asyncio.sleep(0.1)  # the loop closes them


async def capacity(url: str, tokens: int, places: int, seconds: float) -> float:
    """Return answered requests per second of this many clients, without the first two seconds."""
    clients, end = Clients(url, tokens, 60), time.monotonic() + seconds + 2

    async def again() -> None:
        while time.monotonic() < end:
            await clients.ask(time.monotonic(), keep=True)

    await asyncio.gather(*(again() for _ in range(places)))
    await clients.close()
    answered = [moment for moment in clients.tally.answered if end - seconds <= moment <= end]
    return len(answered) / seconds


async def overload(url: str, tokens: int, rate: float, seconds: float, patience_s: float) -> tuple[Tally, float]:
    """Send `rate` requests a second. Returns: the tally; the share of a core that the client took."""
    clients, begin, used = Clients(url, tokens, patience_s), time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    due_s, tasks, count = begin, set[asyncio.Task[None]](), 0
    while (due_s := due_s + random.expovariate(rate)) < begin + seconds:
        if (wait_s := due_s - time.monotonic()) > 0:
            await asyncio.sleep(wait_s)
        count += 1
        task = asyncio.create_task(clients.ask(due_s, keep=count % 2 == 0))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    now = resource.getrusage(resource.RUSAGE_SELF)
    share = (now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime) / (time.monotonic() - begin)
    await asyncio.gather(*tasks)
    await clients.close()
    return clients.tally, share


@contextlib.contextmanager
def serving(flags: list[str]) -> Iterator[str]:
    """Run a server with the demo model. Yields: its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile() as log:
        argv = [sys.executable, "-m", "forearm", "serve", "--host", "127.0.0.1", "--port", str(port), *flags]
        process = subprocess.Popen(argv, stdout=log, stderr=log)
        try:
            end = time.monotonic() + _READY_S
            while not ready(url):
                assert process.poll() is None, "the server has ended"
                assert time.monotonic() < end, "the server does not get ready"
                time.sleep(0.1)
            yield url
        finally:
            process.terminate()
            process.wait(60)
            log.seek(0)
            told = [line for line in log.read().decode().splitlines() if "tokens/s" not in line]
            print(*told[-5:], sep="\n", file=sys.stderr)


def ready(url: str) -> bool:
    """Return whether the server is ready."""
    try:
        with urlopen(f"{url}/readyz", timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def percentile(values: list[float], share: float) -> float:
    """Return a percentile; 0 of no values."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def report(tally: Tally, rate: float, asked: float, args: argparse.Namespace, share: float) -> list[Figure]:
    """Return the figures."""
    goodput = tally.outcomes["answered"] / (max(tally.answered) - args.began) if tally.answered else 0.0
    implied_s = (args.seqs + args.queued) / goodput if goodput else 0.0
    refusals, first = tally.refusals, tally.first_tokens
    late = {name: 1e3 * percentile(refusals, share) for name, share in LATE.items()}
    begun = {name: 1e3 * percentile(first, share) for name, share in LATE.items()}

    def one(row: str, quantity: str, value: float) -> Figure:
        return figure("demo model", "", row, quantity, value)

    return [
        one(f"capacity, {args.tokens} tokens each", "requests_s", rate),
        one(f"asked for, during {args.seconds:g} s", "requests_s", asked),
        *(one(f"outcome: {name}", "requests", count) for name, count in sorted(tally.outcomes.items())),
        *figures_of("demo model", "", "a refusal", late),
        *figures_of("demo model", "", "first token of the admitted", begun),
        one("first token that the queue implies", "seconds", implied_s),
        one("answered", "requests_s", goodput),
        one("client", "cpu_share", share),
    ]


async def measure(url: str, args: argparse.Namespace) -> list[Figure]:
    """Measure the capacity, then the overload."""
    rate = await capacity(url, args.tokens, args.seqs, _MEASURE_S)
    args.began = time.monotonic()
    tally, share = await overload(url, args.tokens, args.times * rate, args.seconds, args.patience)
    return report(tally, rate, args.times * rate, args, share)


def main() -> None:
    """Measure, and print or record the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="")
    parser.add_argument("--times", type=float, default=10)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--tokens", type=int, default=256, help="of each answer")
    parser.add_argument("--seqs", type=int, default=8, help="--max-num-seqs")
    parser.add_argument("--queued", type=int, default=32, help="--max-num-queued-reqs")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--patience", type=float, default=120)
    parser.add_argument("--threads", type=int, default=0, help="of the engine; 0: as it chooses")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    flags = ["--max-num-seqs", str(args.seqs), "--max-num-queued-reqs", str(args.queued)]
    flags += ["--api-server-count", str(args.workers)]
    with contextlib.nullcontext(args.url) if args.url else serving(flags) as url:
        found = uvloop.run(measure(url, args))
    print(*map(line_of, found), sep="\n")
    if args.out is not None:
        record(args.out, run_of(found, args.threads))


if __name__ == "__main__":
    main()
