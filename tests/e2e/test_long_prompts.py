"""A long prompt beside a stream, and the steps it takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.served import UNLIMITED, Served, series, serve

PROMPT = list(range(300, 2100))


def large_steps_of_a_prompt(served: Served) -> float:
    """Return how many steps compute more than 1,024 tokens while a prompt of 1,800 comes beside four outputs.

    On a fast machine they may end before the prompt does; then it is tried again.
    """
    for _ in range(10):
        with served.endless(n=4):
            before = large_steps(served)
            served.http.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 1}).raise_for_status()
            if served.running():
                return large_steps(served) - before
    raise AssertionError("1,900 tokens came 10 times before a prompt's answer")


def large_steps(served: Served) -> float:
    """Return the number of steps so far that computed more than 1,024 tokens."""
    values = series(served.http.get("/metrics").text)
    steps = {name: value for name, value in values.items() if name.startswith("vllm:iteration_tokens_total")}
    small = [value for name, value in steps.items() if 'le="1024.0"' in name]
    every = [value for name, value in steps.items() if 'le="+Inf"' in name]
    assert len(small) == len(every) == 1
    return every[0] - small[0]


@pytest.mark.parametrize(("target_s", "large"), [("0", 1), ("0.0001", 0)])
def test_a_prompt_beside_a_stream_is_cut_for_the_target(tmp_path: Path, target_s: str, large: int) -> None:
    """A budget of 2,048 tokens takes all 1,800 of the prompt; with a target, a stream's tokens come in between.

    A busy machine's steps without prompts take longer, and those with prompts up to twice that (172 tokens were seen):
    one of three prompts is enough.
    """
    flags = ("--target-inter-token-latency", target_s, "--max-num-batched-tokens", "2048", "--no-enable-prefix-caching")
    with serve(tmp_path, *UNLIMITED, *flags) as served:
        large_steps_of_a_prompt(served)  # the first time, it is measured what a token takes

        assert min(large_steps_of_a_prompt(served) for _ in range(3)) == large
