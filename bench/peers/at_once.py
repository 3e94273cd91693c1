"""Requests at once: the time to the first token of each, and per token after that (measured by forearm.bench)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from statistics import mean
from typing import Any

import httpx
from bench.peers.contestants import Missing
from bench.peers.driven import Driven

from forearm.bench.datasets import Sample
from forearm.bench.http import Http
from forearm.bench.load import LoadRun, Traffic, run
from forearm.bench.request import RequestForm, ask
from forearm.bench.statistics import RequestOutcome

_FORM = RequestForm("/v1/completions", "openai", ignore_eos=True, extra={"temperature": 0})


async def over_http(
    address: str, prompts: Sequence[list[int]], tokens: int, rate: float = float("inf"), seed: int = 0
) -> LoadRun:
    """Stream `tokens` tokens of all prompts, greedily: all at once, or `rate` per second as a Poisson process."""
    http = Http(address)
    samples = [Sample(prompt, len(prompt), tokens) for prompt in prompts]
    try:
        return await run(
            samples,
            Traffic(rate, seed=seed),
            lambda _, sample: ask(http, _FORM, sample, "model", lambda _text: tokens),  # a server may count none
            lambda: None,
        )
    finally:
        http.close()


def in_process(engine: Driven, prompts: list[list[int]], tokens: int) -> LoadRun:
    """Generate for all prompts at once in an engine that has no server."""
    outcomes = [RequestOutcome(len(prompt), output_tokens=tokens) for prompt in prompts]
    last_s = 0.0
    for last_s, numbers in engine.generate(prompts, tokens):
        for number in numbers:
            outcomes[number].ttft_s = outcomes[number].ttft_s or last_s
            outcomes[number].latency_s = last_s
    return LoadRun(outcomes, last_s)


def waited(done: LoadRun) -> dict[str, float]:
    """Return mean seconds to a request's first token and per token after it, and tokens per second of all requests.

    Raises: Missing with the first request's error.
    """
    for outcome in done.outcomes:
        if outcome.error:
            raise Missing(outcome.error)
    return {
        "ttft_s": mean(one.ttft_s for one in done.outcomes),
        "tpot_s": mean(one.tpot_s for one in done.outcomes),
        "tokens_s": sum(one.output_tokens for one in done.outcomes) / done.duration_s,
    }


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


@contextmanager
def server(command: list[str], port: int, timeout_s: float, environment: dict[str, str]) -> Iterator[str]:
    """Run a server until the context ends; yield its address once it answers a completion.

    Raises: Missing with the last line of its log if it ends or takes too long.
    """
    address = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile("w+") as log:
        environment = os.environ | {"HF_HUB_OFFLINE": "1"} | environment
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        try:
            begin = time.monotonic()
            while not _answers(address):
                if process.poll() is not None or time.monotonic() - begin > timeout_s:
                    log.seek(0)
                    last = [line.strip() for line in log.read().splitlines() if line.strip()][-1:]
                    raise Missing(f"the server gave no answer: {' '.join(last)[-200:]}")
                time.sleep(0.5)
            yield address
        finally:
            with suppress(ProcessLookupError):  # all of it has ended
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _answers(address: str) -> bool:
    body: dict[str, Any] = {"prompt": [300, 301], "max_tokens": 2, "temperature": 0, "model": "model"}
    try:
        return httpx.post(f"{address}/v1/completions", json=body, timeout=60).is_success
    except httpx.HTTPError:
        return False
