"""Measure the cost of thousands of waiting requests in the engine's loop: to accept, admit and abort them.

    python bench/waiting.py

Prints microseconds to accept a request, microseconds to admit one (queue, prefix cache, blocks) and end it, and
milliseconds to abort 16,384 outputs; for several numbers of requests, all of one client or each of its own. Nothing is
computed.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from forearm.engine.admission import Admission, Terms
from forearm.engine.cache.blocks import BlockPool
from forearm.engine.scheduler import Scheduler, StepLimits
from forearm.engine.sequence import Request
from forearm.wire import SamplingParams, Submit

RUNNING = 128


def queued(count: int, clients: int, outputs: int = 1) -> tuple[Scheduler, list[Request], float]:
    """Return a scheduler with `count` requests of `clients` clients, and the seconds that accepting them took."""
    scheduler = Scheduler(StepLimits(512, RUNNING, RUNNING), BlockPool(4096))
    admission = Admission(Terms(vocab_size=50_000, max_model_len=2048))
    params = SamplingParams(n=outputs, max_tokens=16)
    submits = [
        Submit(request_id=str(i), prompt_token_ids=[i, *range(31)], params=params, client=str(i % clients))
        for i in range(count)
    ]
    begun_s = time.perf_counter()
    requests = [admission.request(0, submit, 0.0) for submit in submits]
    for request in requests:
        scheduler.add(request)
    return scheduler, requests, time.perf_counter() - begun_s


def drained(scheduler: Scheduler) -> float:
    """Admit all requests, end each at once, and return the seconds that this took."""
    begun_s = time.perf_counter()
    while scheduler.open_outputs:
        for piece in scheduler.schedule():
            scheduler.remove(piece.sequence)
    return time.perf_counter() - begun_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="*", default=[100, 1000, 10_000])
    args = parser.parse_args()
    for count in args.requests:
        for clients in (1, count):
            scheduler, _, taken_s = queued(count, clients)
            left_s = drained(scheduler)
            print(
                f"{count} requests of {clients} clients: {1e6 * taken_s / count:.1f} us to accept, "
                f"{1e6 * left_s / count:.1f} us to admit and end, each"
            )
    scheduler, (request,), taken_s = queued(1, 1, outputs=16384)
    scheduler.schedule()
    begun_s = time.perf_counter()
    scheduler.drop(request)
    for sequence in request.open:
        scheduler.remove(sequence)
    print(f"16384 outputs: {1e3 * taken_s:.2f} ms to accept, {1e3 * (time.perf_counter() - begun_s):.2f} ms to abort")


if __name__ == "__main__":
    main()
