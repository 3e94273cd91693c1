"""A long prompt beside a stream, and what is told of it."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Thread

import httpx
from tests.e2e.served import UNLIMITED, Served, series, serve

PROMPT = list(range(300, 2100))


def tokens_beside_a_prompt(served: Served) -> int:
    """Return the number of tokens that a stream gets while another request's prompt of 1,800 tokens is computed."""
    told, over = [0], Event()

    def follow() -> None:
        with served.endless() as lines:
            for line in lines:
                told[0] += line.startswith("data: ")
                if over.is_set():
                    return

    thread = Thread(target=follow)
    thread.start()
    try:
        while told[0] < 5:
            over.wait(0.01)
        before = told[0]
        body = {"prompt": PROMPT, "max_tokens": 1, "temperature": 0}
        httpx.post(f"{served.url}/v1/completions", json=body, timeout=60).raise_for_status()
        return told[0] - before
    finally:
        over.set()
        thread.join()


def test_a_prompt_is_cut_so_that_a_stream_goes_on_beside_it(tmp_path: Path) -> None:
    """A prompt in tiles of 16 tokens takes 113 steps, each of which has a token of the stream; in whole budgets 4.

    Steps are counted: on a busy machine the stream's client has read few of its tokens (16 were seen) when the prompt's
    answer comes.
    """
    with serve(tmp_path, *UNLIMITED, "--target-inter-token-latency", "0.0001", "--no-enable-prefix-caching") as served:
        tokens_beside_a_prompt(served)  # the first time, it is measured what a token takes
        before = large_steps(served)

        assert tokens_beside_a_prompt(served) > 4
        assert large_steps(served) == before


def large_steps(served: Served) -> float:
    """Return the number of steps so far that computed more than 64 tokens."""
    values = series(served.http.get("/metrics").text)
    steps = {name: value for name, value in values.items() if name.startswith("vllm:iteration_tokens_total")}
    small = [value for name, value in steps.items() if 'le="64.0"' in name]
    every = [value for name, value in steps.items() if 'le="+Inf"' in name]
    assert len(small) == len(every) == 1
    return every[0] - small[0]
