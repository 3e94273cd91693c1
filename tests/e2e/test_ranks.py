"""`-tp=2` with a set of CPUs for each rank, as vLLM's page has it: two ranks in one engine, and the same answers."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from tests.e2e.served import serve

from forearm import LLM, SamplingParams

CPUS = psutil.Process().cpu_affinity() or []
QUESTION = "What is a glacier? " * 8


@pytest.mark.skipif(len(CPUS) < 2, reason="two ranks need two cores")
def test_the_command_of_vllms_page_has_a_rank_on_each_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = CPUS[:2]
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "0.1")
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", f"{first}|{second}")

    with serve(tmp_path, "-tp=2", "--distributed-executor-backend", "mp") as served:
        reply = served.http.post("/v1/completions", json={"prompt": QUESTION, "max_tokens": 16, "temperature": 0})

    log = served.log.read_text()
    assert reply.status_code == 200, reply.text
    assert f"rank 0: 1 thread on CPUs {first}" in log
    assert f"rank 1: 1 thread on CPUs {second}" in log
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND")
    alone = LLM(max_model_len=512, max_num_seqs=4)
    (output,) = alone.generate(QUESTION, SamplingParams(temperature=0.0, max_tokens=16), use_tqdm=False)
    assert reply.json()["choices"][0]["text"] == output.outputs[0].text
