"""A run's result as vLLM shows and saves it: the table on the terminal, the JSON file and its name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from forearm.bench.load import Traffic
from forearm.bench.statistics import word

WIDTH = 50
BenchResult = dict[str, Any]

METRICS = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
    "client_queue_time": ("Client Queue Time", "Client-side Queueing"),
    "e2el_including_client_queue": ("E2EL incl. Client Queue", "Queue-inclusive End-to-end Latency"),
}
# Too long for a file that somebody reads, unless --save-detailed asks for them.
DETAILS = ("input_lens", "output_lens", "start_times", "ttfts", "itls", "generated_texts", "errors")


def traffic(given: Traffic) -> Iterator[str]:
    """Describe the run before it starts."""
    ramp = given.ramp_up
    if ramp is None:
        yield f"Traffic request rate: {given.rate}"
    else:
        yield f"Traffic ramp-up strategy: {ramp.strategy}."
        yield f"Will increase RPS from {ramp.start_rps:g} to {ramp.end_rps:g} RPS over the duration of the benchmark."
    kind = "Poisson process" if given.burstiness == 1 else "Gamma distribution"
    yield f"Burstiness factor: {given.burstiness} ({kind})"
    yield f"Maximum request concurrency: {given.max_concurrency}"


def table(result: BenchResult, percentiles: Sequence[float]) -> str:
    """Return the table that is printed, with the METRICS whose spread `result` has."""
    lines = [f"{' Serving Benchmark Result ':=^{WIDTH}}", *_totals(result)]
    for metric, (name, title) in METRICS.items():
        if f"mean_{metric}_ms" in result:
            lines.append(f"{title:-^{WIDTH}}")
            lines += [
                _row(f"{kind.title()} {name} (ms):", result[f"{kind}_{metric}_ms"]) for kind in ("mean", "median")
            ]
            lines += [_row(f"P{word(p)} {name} (ms):", result[f"p{word(p)}_{metric}_ms"]) for p in percentiles]
    if "spec_decode_num_drafts" in result:
        lines += [f"{'Speculative Decoding':-^{WIDTH}}", *_speculation(result)]
    return "\n".join([*lines, "=" * WIDTH])


def _totals(result: BenchResult) -> Iterator[str]:
    yield _row("Successful requests:", result["completed"])
    yield _row("Failed requests:", result["failed"])
    if result["max_concurrency"] is not None:
        yield _row("Maximum request concurrency:", result["max_concurrency"])
    if result["request_rate"] != "inf":
        yield _row("Request rate configured (RPS):", result["request_rate"])
    yield _row("Benchmark duration (s):", result["duration"])
    yield _row("Total input tokens:", result["total_input_tokens"])
    if "total_input_sequences" in result:
        yield _row("Request throughput (req/s):", result["request_throughput"])
        yield _row("Input throughput (inputs/s):", result["input_sequence_throughput"])
        yield _row("Total token throughput (tok/s):", result["total_token_throughput"])
        return
    yield _row("Total generated tokens:", result["total_output_tokens"])
    yield _row("Request throughput (req/s):", result["request_throughput"])
    if result["request_goodput"] is not None:
        yield _row("Request goodput (req/s):", result["request_goodput"])
    yield _row("Output token throughput (tok/s):", result["output_throughput"])
    yield _row("Peak output token throughput (tok/s):", result["max_output_tokens_per_s"])
    yield _row("Peak concurrent requests:", float(result["max_concurrent_requests"]))
    yield _row("Total token throughput (tok/s):", result["total_token_throughput"])


def _speculation(result: BenchResult) -> Iterator[str]:
    yield _row("Acceptance rate (%):", result["spec_decode_acceptance_rate"])
    yield _row("Acceptance length:", result["spec_decode_acceptance_length"])
    yield _row("Drafts:", result["spec_decode_num_drafts"])
    yield _row("Draft tokens:", result["spec_decode_draft_tokens"])
    yield _row("Accepted tokens:", result["spec_decode_accepted_tokens"])
    rates = result["spec_decode_per_position_acceptance_rates"]
    if rates:
        yield "Per-position acceptance (%):"
        yield from (_row(f"  Position {i}:", 100 * rate) for i, rate in enumerate(rates))


def _row(label: str, value: float) -> str:
    return f"{label:<40} {value:<10.2f}" if isinstance(value, float) else f"{label:<40} {value:<10}"


def file_name(result: BenchResult, rate: float) -> str:
    """Return vLLM's name for the file of this result."""
    label = result["label"] or result["backend"]
    most = result["max_concurrency"]
    concurrency = f"-concurrency{most}" if most is not None else ""
    model = str(result["model_id"]).rsplit("/", 1)[-1]
    traffic = f"{rate}qps"
    if "ramp_up_strategy" in result:
        start, end = result["ramp_up_start_rps"], result["ramp_up_end_rps"]
        traffic = f"ramp-up-{result['ramp_up_strategy']}-{start:g}qps-{end:g}qps"
    return f"{label}-{traffic}{concurrency}-{model}-{result['date']}.json"


def kept(result: Mapping[str, Any], detailed: bool) -> BenchResult:
    """Return the part of a result that goes into the file."""
    return {name: value for name, value in result.items() if detailed or name not in DETAILS}


def save(result: Mapping[str, Any], path: Path, append: bool) -> None:
    """Write the result to the file, or append it as a line.

    Raises: OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a" if append else "w", encoding="utf-8") as file:
        file.write(("\n" if append and file.tell() else "") + json.dumps(result))


def load(path: Path) -> list[BenchResult]:
    """Return the results in a file: one, or one on each line.

    Raises: OSError, ValueError.
    """
    text = path.read_text(encoding="utf-8")
    try:
        return [json.loads(text)]
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
