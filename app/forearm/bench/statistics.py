"""Statistics of a run from the measurements of its requests, by vLLM's definitions and under its JSON keys.

Of one request, all times by the client's clock, t0 when it begins to send the request:
  TTFT  time to first token: from t0 to the first event of the stream that has a choice
  ITL   inter-token latency: between two such events; a list for each request (an event may carry several tokens)
  E2EL  end-to-end latency: from t0 to the last such event
  TPOT  time per output token, the first excepted: (E2EL - TTFT) / (output tokens - 1); requests of one token have none
  client queue time: from when the request was due to t0, where --max-concurrency holds it back
Means, medians, standard deviations (of the population) and percentiles (linear between neighbours) are over the
requests that succeeded; of ITL over all intervals of all of them. Throughputs are over the whole run, from the first
request's turn to the last one's end.

Source: vllm/benchmarks/serve.py, `calculate_metrics` and `benchmark`, and lib/endpoint_request_func.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

OBJECTIVES = ("ttft", "tpot", "e2el")  # of --goodput


@dataclass
class RequestOutcome:
    """The measurements of one request of `sequences` prompts. Times are seconds of time.perf_counter().

    error: empty where it succeeded.
    """

    prompt_tokens: int
    sequences: int = 1
    start_s: float = 0.0
    queued_s: float = 0.0
    ttft_s: float = 0.0
    itl_s: list[float] = field(default_factory=list)
    latency_s: float = 0.0
    output_tokens: int = 0
    text: str = ""
    error: str = ""

    @property
    def tpot_s(self) -> float:
        """Return the mean time of an output token after the first; 0 if there is none."""
        return (self.latency_s - self.ttft_s) / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0


def figures(
    outcomes: Sequence[RequestOutcome], duration_s: float, objectives_ms: Mapping[str, float]
) -> dict[str, Any]:
    """Return all figures but the spreads of latencies. `objectives_ms`: the limits of a good request, by OBJECTIVES."""
    done = [one for one in outcomes if not one.error]
    prompt_tokens = sum(one.prompt_tokens for one in done)
    output_tokens = sum(one.output_tokens for one in done)
    busiest = 0.0  # events with tokens in the busiest second, in whole seconds from the first request on
    if done:
        began_s = min(one.start_s for one in done)
        times = [one.start_s + one.ttft_s + np.cumsum([0.0, *one.itl_s]) - began_s for one in done]
        busiest = float(np.bincount(np.concatenate(times).astype(int)).max())
    return {
        "duration": duration_s,
        "completed": len(done),
        "failed": len(outcomes) - len(done),
        "total_input_tokens": prompt_tokens,
        "total_output_tokens": output_tokens,
        "request_throughput": len(done) / duration_s,
        "request_goodput": goodput(done, duration_s, objectives_ms) if objectives_ms else None,
        "output_throughput": output_tokens / duration_s,
        "total_token_throughput": (prompt_tokens + output_tokens) / duration_s,
        "input_lens": [one.prompt_tokens for one in outcomes],
        "output_lens": [0 if one.error else one.output_tokens for one in outcomes],
        "ttfts": [one.ttft_s for one in outcomes],
        "itls": [one.itl_s for one in outcomes],
        "latencies": [one.latency_s for one in outcomes],
        "start_times": [one.start_s for one in outcomes],
        "queue_times": [one.queued_s for one in outcomes],
        "generated_texts": [one.text for one in outcomes],
        "errors": [one.error for one in outcomes],
        "max_output_tokens_per_s": busiest,
        "max_concurrent_requests": most_at_once(done),
        "rtfx": 0.0,  # of speech recognition; there is none here
    }


def pooling_figures(outcomes: Sequence[RequestOutcome], duration_s: float) -> dict[str, Any]:
    """Return the figures of requests that generate no tokens."""
    done = [one for one in outcomes if not one.error]
    tokens, sequences = sum(one.prompt_tokens for one in done), sum(one.sequences for one in done)
    return {
        "duration": duration_s,
        "completed": len(done),
        "failed": len(outcomes) - len(done),
        "total_input_tokens": tokens,
        "total_input_sequences": sequences,
        "request_throughput": len(done) / duration_s,
        "input_sequence_throughput": sequences / duration_s,
        "total_token_throughput": tokens / duration_s,
        "input_lens": [one.prompt_tokens for one in outcomes],
        "latencies": [one.latency_s for one in outcomes],
        "queue_times": [one.queued_s for one in outcomes],
        "errors": [one.error for one in outcomes],
    }


def goodput(done: Sequence[RequestOutcome], duration_s: float, objectives_ms: Mapping[str, float]) -> float:
    """Return the requests a second that met every objective. Source: DistServe, arXiv:2401.09670, section 2."""
    measured = {"ttft": lambda one: one.ttft_s, "tpot": lambda one: one.tpot_s, "e2el": lambda one: one.latency_s}
    good = sum(all(1e3 * measured[name](one) <= most for name, most in objectives_ms.items()) for one in done)
    return good / duration_s


def most_at_once(done: Sequence[RequestOutcome]) -> int:
    """Count the most requests open at the same time; one that ends as another begins is not counted with it."""
    changes = [(one.start_s, 1) for one in done] + [(one.start_s + one.latency_s, -1) for one in done]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def latencies_s(outcomes: Sequence[RequestOutcome]) -> dict[str, list[float]]:
    """Return the values of each metric, by the names of --percentile-metrics."""
    done = [one for one in outcomes if not one.error]
    return {
        "ttft": [one.ttft_s for one in done],
        "tpot": [one.tpot_s for one in done if one.output_tokens > 1],
        "itl": [interval for one in done for interval in one.itl_s],
        "e2el": [one.latency_s for one in done],
        "client_queue_time": [one.queued_s for one in done],
        "e2el_including_client_queue": [one.queued_s + one.latency_s for one in done],
    }


def spread(metric: str, values_s: Sequence[float], percentiles: Sequence[float]) -> dict[str, float]:
    """Return mean, median, standard deviation and percentiles in milliseconds; 0 where nothing was measured."""
    values = 1e3 * np.asarray(values_s if len(values_s) else [0.0])
    found = {
        f"mean_{metric}_ms": float(values.mean()),
        f"median_{metric}_ms": float(np.median(values)),
        f"std_{metric}_ms": float(values.std()),
    }
    return found | {f"p{word(p)}_{metric}_ms": float(np.percentile(values, p)) for p in percentiles}


def word(percentile: float) -> str:
    """Return a percentile as text: 99 or 99.9."""
    return str(int(percentile)) if math.floor(percentile) == percentile else str(percentile)
