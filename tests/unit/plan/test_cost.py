"""The cost model gives back what was measured, and moves as it must."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench.executors import formats_of
from bench.records import read
from bench.shapes import shape_of

from forearm.model.checkpoint.checkpoint import Checkpoint
from forearm.model.checkpoint.shards import StoredTensor
from forearm.plan.cost import KV_READ, Cost, Rates
from forearm.plan.load import RequestTokens, Slo, at_batch, at_rate, most_requests_s
from forearm.plan.work import work_of

RESULTS = Path(__file__).resolve().parents[3] / "bench" / "results" / "engine"
EXPERTS = "qwen3-30b-a3b@4"  # 128 experts, of which a token chooses 8


def measured(machine: str, shape: str) -> dict[tuple[str, str, str], float]:
    """Return what was measured, by format, row and quantity."""
    figures = (one for run in read(RESULTS / f"{machine}.json").runs for one in run.figures if one.shape == shape)
    return {(one.format, one.row, one.quantity): one.value for one in figures if one.value is not None}


MEASURED = measured("epyc-zen4-2-cores", "qwen2.5-0.5b")
WITH_EXPERTS = measured("epyc-zen5-2-cores", EXPERTS)
LABELS = list(dict.fromkeys(row for _, row, _ in MEASURED if row != "memory"))
LENGTHS = RequestTokens(512, 128)


def checkpoint(shape: str, format: str) -> Checkpoint:
    config = shape_of(shape).model
    nowhere = StoredTensor("", Path(), "BF16", (1,), 0, 2)
    sources = tuple((part, nowhere) for part in shape_of(shape).parts())
    return Checkpoint(Path(), config, "bfloat16", "bfloat16", 4096, sources, formats_of(config, format))


def cost(format: str = "bfloat16", shape: str = "qwen2.5-0.5b", **rates: Any) -> Cost:
    limits = replace(Rates(38.5, float_gflops=234.5, bf16_gflops=469.0, int8_gops=938.0), **rates)
    return Cost(work_of(checkpoint(shape, format)), limits, 2048)


@pytest.mark.parametrize("format", ["bfloat16", "int8", "int4"])
@pytest.mark.parametrize("label", LABELS)
def test_what_was_measured_is_given_back_within_ten_percent(label: str, format: str) -> None:
    peak = {"bf16_gflops" if format == "bfloat16" else "int8_gops": MEASURED[format, label, "peak_gflops"]}
    predicted = cost(format, read_gb_s=MEASURED.get((format, label, "read_gb_s"), 32.5), **peak)
    kind, count, *at = label.split("_")

    seconds = predicted.prefill_s(int(count)) if kind == "prefill" else predicted.decode_s(int(count), int(at[1]))

    assert int(count) / seconds == pytest.approx(MEASURED[format, label, "tokens_s"], rel=0.10)


@pytest.mark.parametrize("format", ["bfloat16", "int8", "int4"])
@pytest.mark.parametrize("label", ["decode_1_at_512", "decode_8_at_512", "decode_32_at_512", "prefill_512"])
def test_experts_are_predicted_within_a_quarter(label: str, format: str) -> None:
    """Eight sequences choose 52 of 128 experts, not 8: bytes that each reads alone would predict twice the speed."""
    peak = WITH_EXPERTS[format, label, "peak_gflops"]
    limits = {"bf16_gflops" if format == "bfloat16" else "int8_gops": peak}
    limits["read_gb_s"] = WITH_EXPERTS.get((format, label, "read_gb_s"), 83.0)
    predicted = cost(format, EXPERTS, **limits)
    kind, count, *at = label.split("_")

    seconds = predicted.prefill_s(int(count)) if kind == "prefill" else predicted.decode_s(int(count), int(at[1]))

    assert int(count) / seconds == pytest.approx(WITH_EXPERTS[format, label, "tokens_s"], rel=0.26)
    if kind == "decode":
        read_gb = predicted.work.read_bytes(int(count), int(count)) / 1e9
        assert read_gb == pytest.approx(WITH_EXPERTS[format, label, "gb_read"], rel=0.15)  # less keys and values


def test_one_stream_is_bound_by_bytes_and_a_prompt_by_multiplications() -> None:
    slow, fast = cost("int8"), cost("int8", read_gb_s=77.0)
    assert slow.decode_s(1, 256) == pytest.approx(2 * fast.decode_s(1, 256), rel=0.06)
    assert slow.prefill_s(1024) == pytest.approx(fast.prefill_s(1024), rel=0.06)

    strong = cost("int8", int8_gops=1876.0, bf16_gflops=938.0)
    assert slow.prefill_s(1024) == pytest.approx(2 * strong.prefill_s(1024), rel=0.06)


def test_narrower_weights_and_longer_contexts_count() -> None:
    assert cost("int4").decode_s(1, 64) < cost("int8").decode_s(1, 64) < cost().decode_s(1, 64)
    assert cost().decode_s(8, 4096) > cost().decode_s(8, 64)
    assert cost().prefill_s(4096) > 2 * cost().prefill_s(2048)


def test_states_are_read_and_written_whatever_the_context() -> None:
    with_states = replace(cost(), work=replace(cost().work, state_bytes=10**9))
    for context in (64, 4096):
        more_s = with_states.decode_s(1, context) - cost().decode_s(1, context)
        assert more_s == pytest.approx(2 / (KV_READ * cost().rates.read_gb_s))


def test_clients_together_get_more_and_each_waits_longer() -> None:
    batches = [at_batch(cost(), count, LENGTHS) for count in (1, 4, 16)]

    assert batches[0].output_tokens_s < batches[1].output_tokens_s < batches[2].output_tokens_s
    assert batches[0].tpot_s < batches[1].tpot_s < batches[2].tpot_s
    assert batches[0].output_tokens_s == pytest.approx(128 / (batches[0].ttft_s + 128 * batches[0].tpot_s), rel=0.01)


def test_the_best_rate_keeps_the_slo_and_a_little_more_does_not() -> None:
    slo = Slo(ttft_s=3.0, tpot_s=0.1)

    best = most_requests_s(cost(), LENGTHS, slo, 128)

    assert best is not None
    assert best.ttft_s <= 3.0
    assert best.tpot_s <= 0.1
    more = at_rate(cost(), best.requests_s * 1.05, LENGTHS, 128)
    assert more is None or not slo.met_by(more.ttft_s, more.tpot_s)
    assert most_requests_s(cost(), LENGTHS, Slo(tpot_s=0.001), 128) is None


def test_a_rate_that_prompts_alone_would_fill_has_no_steady_state() -> None:
    assert at_rate(cost(), 1 / cost().prefill_s(512), LENGTHS, 128) is None
    assert at_rate(cost(), 0.01, LENGTHS, 128) is not None
