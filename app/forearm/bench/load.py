"""One run: sends requests at their times, within the limit of concurrency, and waits for all answers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from forearm.bench.arrivals import RampUp, send_times
from forearm.bench.datasets import Sample
from forearm.bench.statistics import RequestOutcome


@dataclass(frozen=True)
class Traffic:
    """The arrival of requests: `rate` a second (inf: all at once; arrivals.py); `max_concurrency`: None is no limit."""

    rate: float
    burstiness: float = 1.0
    max_concurrency: int | None = None
    ramp_up: RampUp | None = None
    seed: int = 0


@dataclass
class LoadRun:
    """The outcome of a run. `rate_changes`: when a ramp passed each whole number of requests a second, as in vLLM."""

    outcomes: list[RequestOutcome]
    duration_s: float
    rate_changes: list[dict[str, Any]] = field(default_factory=list)


async def run(
    samples: Sequence[Sample],
    traffic: Traffic,
    ask: Callable[[int, Sample], Awaitable[RequestOutcome]],
    ended: Callable[[], object],
) -> LoadRun:
    """Send each sample, with its number, at its time; `ended` is called after each answer."""
    gate = asyncio.Semaphore(traffic.max_concurrency) if traffic.max_concurrency else contextlib.nullcontext()

    async def one(number: int, sample: Sample, due_s: float) -> RequestOutcome:
        async with gate:
            outcome = await ask(number, sample)
        outcome.queued_s = outcome.start_s - due_s
        ended()
        return outcome

    times = send_times(len(samples), traffic.rate, traffic.burstiness, traffic.seed, traffic.ramp_up)
    rates = None if traffic.ramp_up is None else traffic.ramp_up.rates(len(samples))
    passed, changes = 0, list[dict[str, Any]]()
    tasks: list[asyncio.Task[RequestOutcome]] = []
    begin = time.perf_counter()
    try:
        for number, (sample, after_s) in enumerate(zip(samples, times, strict=True)):
            wait_s = begin + after_s - time.perf_counter()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            if rates is not None:
                first = passed + 1 if number else int(rates[0])
                passed = max(passed, int(rates[number]))
                changes += [{"rps": rate, "timestamp": datetime.now().isoformat()} for rate in range(first, passed + 1)]
            tasks.append(asyncio.create_task(one(number, sample, time.perf_counter())))
        outcomes = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    return LoadRun(list(outcomes), time.perf_counter() - begin, changes)
