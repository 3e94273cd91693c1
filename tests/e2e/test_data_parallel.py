"""`--data-parallel-size 2`: two engines behind one port, as a user starts them."""

from __future__ import annotations

import re
import signal
from itertools import islice
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.e2e.served import UNLIMITED, Served, series, serve, wait_until

CORES = len(psutil.Process().cpu_affinity() or [])
TWO = pytest.mark.skipif(CORES < 2, reason="two engines need two cores")
LONG = "Tell me, please, everything that you know about glaciers, rivers, lakes and the sea. " * 6


def engines(served: Served) -> list[psutil.Process]:
    """Return the engines' processes by index."""
    return sorted(served.engines(), key=lambda p: p.cmdline()[-1])


def figures(served: Served, metric: str) -> dict[str, float]:
    """Return the value of a metric for each engine."""
    values = series(served.http.get("/metrics").text)
    return {
        found[1]: value
        for name, value in values.items()
        if name.startswith(f"{metric}{{") and (found := re.search(r'engine="(\d+)"', name))
    }


def prompts(served: Served) -> dict[str, float]:
    """Return the prompt tokens processed by each engine."""
    return figures(served, "vllm:prompt_tokens_total")


def answer(served: Served, content: str, **fields: object) -> tuple[str, int]:
    """Return the text of an answer, and the number of cached tokens of its prompt."""
    reply = served.chat(content, max_tokens=8, temperature=0, **fields)
    assert reply.status_code == 200, reply.text
    body = reply.json()
    return body["choices"][0]["message"]["content"], body["usage"]["prompt_tokens_details"]["cached_tokens"]


@TWO
def test_two_engines_divide_cores_and_requests_and_one_outlives_the_other(tmp_path: Path) -> None:
    flags = (*UNLIMITED, "--data-parallel-size", "2", "--enable-prompt-tokens-details", "--api-server-count", "1")
    with serve(tmp_path, *flags) as served:
        first, second = engines(served)
        assert not threads_on(first) & threads_on(second)
        the_same_prompt_goes_where_it_was(served)
        metrics_are_told_apart(served)
        a_dead_engines_streams_break_and_the_others_go_on(served)
    assert "engine 0: 1 thread on CPUs" in served.log.read_text() or CORES > 2


def threads_on(engine: psutil.Process) -> set[int]:
    """Return the CPUs to which single threads of a process are pinned."""
    tasks = Path(f"/proc/{engine.pid}/task").iterdir()
    allowed = [re.search(r"Cpus_allowed_list:\s+(\d+)\n", (task / "status").read_text()) for task in tasks]
    found = {int(one[1]) for one in allowed if one}
    assert found
    return found


def the_same_prompt_goes_where_it_was(served: Served) -> None:
    text, cached = answer(served, LONG)
    assert cached == 0
    before = prompts(served)
    for _ in range(4):
        again, cached = answer(served, LONG)
        assert again == text
        assert cached >= 64
    moved = {engine for engine, tokens in prompts(served).items() if tokens > before[engine]}
    assert len(moved) == 1
    for number in range(12):
        answer(served, f"{number} is a number. {LONG}")
    assert all(tokens > 0 for tokens in prompts(served).values()), "both work"


def metrics_are_told_apart(served: Served) -> None:
    text = served.http.get("/metrics").text
    families = [family.name for family in text_string_to_metric_families(text)]
    assert len(families) == len(set(families)), "a family stands once"
    assert sum(line.startswith("# TYPE vllm:num_requests_running ") for line in text.splitlines()) == 1
    names = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(names) == len(set(names)), "no series stands twice"
    for family in ("vllm:num_requests_running", "process_resident_memory_bytes"):
        assert {f'engine="{n}"' for n in (0, 1)} == {
            found[0] for name in names if name.startswith(family) and (found := re.search(r'engine="\d+"', name))
        }


def a_dead_engines_streams_break_and_the_others_go_on(served: Served) -> None:
    with served.endless(n=64) as one:
        index = next(index for index, running in figures(served, "vllm:num_requests_running").items() if running)
        with served.endless(n=64, cache_salt="x") as other:
            doomed = engines(served)[int(index)]
            doomed.send_signal(signal.SIGKILL)
            for number in range(4):
                assert served.chat(f"{number}?", max_tokens=3).status_code == 200, "the other engine answers"
            assert served.http.get("/readyz").status_code == 200
            assert "ServiceUnavailableError" in list(one)[-2]
            survivor = str(1 - int(index))
            generated = figures(served, "vllm:generation_tokens_total")[survivor]
            wait_until(lambda: figures(served, "vllm:generation_tokens_total")[survivor] > generated)
            assert not any('"error"' in line for line in islice(other, 200))
    wait_until(lambda: len(engines(served)) == 2 and set(prompts(served)) == {"0", "1"}, 60)
    assert doomed.pid not in [engine.pid for engine in engines(served)]
    assert served.process.poll() is None


def test_more_engines_than_threads_are_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match="choose at most"),
        serve(tmp_path, "--data-parallel-size", "64", env={"OMP_NUM_THREADS": "1"}),
    ):
        raise RuntimeError("it must not start")
