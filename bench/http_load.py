"""Requests at once over HTTP: how long each waits for its first token, and for each token after that."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import mean
from typing import Any

import httpx
from bench.peers.contestants import Missing


@dataclass(frozen=True)
class Load:
    """Mean seconds to a request's first token and for each one after it; tokens per second of all requests together."""

    ttft_s: float
    tpot_s: float
    tokens_s: float

    @classmethod
    def of(cls, times_s: list[tuple[float, float]], tokens: int) -> Load:
        """From each request's seconds to its first and to its last token, counted from the common start."""
        first, last = zip(*times_s, strict=True)
        tpot = mean((b - a) / (tokens - 1) for a, b in times_s)
        return cls(mean(first), tpot, len(times_s) * tokens / max(last))


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


@contextmanager
def server(command: list[str], port: int, timeout_s: float, environment: dict[str, str]) -> Iterator[str]:
    """A server until the context is left; yields its address once it answers a completion.

    Raises: Missing with its last words when it ends or takes too long.
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
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _answers(address: str) -> bool:
    try:
        return httpx.post(f"{address}/v1/completions", json=_body([300, 301], 2, False), timeout=60).is_success
    except httpx.HTTPError:
        return False


def _body(ids: list[int], tokens: int, stream: bool) -> dict[str, Any]:
    body = {"prompt": ids, "max_tokens": tokens, "stream": stream, "temperature": 0, "ignore_eos": True}
    return body | {"model": "model"}


def load(address: str, prompts: list[list[int]], tokens: int) -> Load:
    """All prompts at once, greedily, `tokens` tokens each, streamed."""
    return Load.of(asyncio.run(_all(address, prompts, tokens)), tokens)


async def _all(address: str, prompts: list[list[int]], tokens: int) -> list[tuple[float, float]]:
    async with httpx.AsyncClient(base_url=address, timeout=600) as client:
        begin = time.perf_counter()

        async def one(ids: list[int]) -> tuple[float, float]:
            first = last = 0.0
            async with client.stream("POST", "/v1/completions", json=_body(ids, tokens, True)) as reply:
                if reply.is_error:
                    raise Missing(f"HTTP {reply.status_code}: {(await reply.aread())[:200].decode()}")
                async for line in reply.aiter_lines():
                    if '"choices":[{' in line.replace(" ", ""):
                        last = time.perf_counter() - begin
                        first = first or last
            return first, last

        return await asyncio.gather(*map(one, prompts))
