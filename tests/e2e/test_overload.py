"""A server that is asked for ten times what it can do, by a client that does not wait for it."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from bench.serving.overload import capacity, overload, percentile
from tests.e2e.served import series, serve

PLACES, QUEUED, TOKENS = 4, 8, 200


def test_what_is_too_much_is_refused_quickly_and_nothing_is_lost(tmp_path: Path) -> None:
    flags = ("--max-num-seqs", str(PLACES), "--max-num-queued-reqs", str(QUEUED), "--api-server-count", "2")
    with serve(tmp_path, *flags) as served:
        rate = asyncio.run(capacity(served.url, TOKENS, PLACES, 2))
        tally, _ = asyncio.run(overload(served.url, TOKENS, min(10 * rate, 200), 6, 60))
        counted = series(served.http.get("/metrics").text)
        assert served.chat(max_tokens=3).status_code == 200, "it recovers"

    assert set(tally.outcomes) == {"answered", "429"}, tally.outcomes
    # Before refusals came from the worker their 99th percentile was above a second on the same two cores.
    assert percentile(tally.refusals, 0.5) < 0.25
    assert percentile(tally.refusals, 0.99) < 1.5
    assert counted["forearm:requests_refused_early_total"] > 0.8 * tally.outcomes["429"]


def test_a_refusal_is_read_though_the_body_was_not(tmp_path: Path) -> None:
    """A body of megabytes on a connection that closes: reset by the kernel, where the server just closed its end."""
    with serve(tmp_path, key="secret", env={"VLLM_API_KEY": "secret"}) as served:
        parts = urlsplit(served.url)
        body = b" " * (8 << 20)
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        for _ in range(5):
            with socket.create_connection((parts.hostname, parts.port), timeout=20) as client:
                client.sendall(head.encode() + body)
                answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
            assert answer.startswith(b"HTTP/1.1 401 ")
        assert httpx.get(f"{served.url}/health", timeout=60).status_code == 200
