"""Every Prometheus name, in one list: vLLM's names, labels and buckets, so that its dashboards work unchanged.

The engine feeds ENGINE from its loop, the API workers feed HTTP; each calls `register` once with its own registry.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

_LATENCY_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_NEXT_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_TOKENS = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))
_CHOICES = (1, 2, 5, 10, 20)
_ENGINE = ("model_name", "engine")


class Metric(NamedTuple):
    """One family. `buckets` are upper bounds, in the unit of the name; set on histograms only."""

    kind: Any  # Counter, Gauge or Histogram
    name: str
    help: str
    labels: tuple[str, ...] = _ENGINE
    buckets: tuple[float, ...] = ()


ENGINE = (
    Metric(Gauge, "vllm:num_requests_running", "Requests being computed."),
    Metric(Gauge, "vllm:num_requests_waiting", "Requests waiting for their first step."),
    Metric(Gauge, "vllm:kv_cache_usage_perc", "Used share of the KV cache, 0 to 1."),
    Metric(Gauge, "vllm:gpu_cache_usage_perc", "The same under its former name."),
    Metric(
        Gauge,
        "vllm:cache_config_info",
        "The KV cache's shape, as labels; the value is 1.",
        (*_ENGINE, "block_size", "cache_dtype", "num_gpu_blocks"),
    ),
    Metric(Counter, "vllm:prompt_tokens", "Prompt tokens taken in."),
    Metric(Counter, "vllm:prompt_tokens_cached", "Prompt tokens found in the prefix cache."),
    Metric(Counter, "vllm:generation_tokens", "Tokens generated."),
    Metric(Counter, "vllm:request_success", "Finished requests.", (*_ENGINE, "finished_reason")),
    Metric(Counter, "vllm:num_preemptions", "Sequences put out for want of KV blocks."),
    Metric(Counter, "vllm:prefix_cache_queries", "Tokens looked up in the prefix cache."),
    Metric(Counter, "vllm:prefix_cache_hits", "Tokens found in the prefix cache."),
    Metric(Counter, "vllm:admission_rejections", "Requests refused at the door.", (*_ENGINE, "reason")),
    Metric(Counter, "vllm:corrupted_requests", "Requests ended by a NaN in their logits."),
    Metric(Histogram, "vllm:time_to_first_token_seconds", "Arrival to first token.", buckets=_FIRST_TOKEN_S),
    Metric(Histogram, "vllm:inter_token_latency_seconds", "Time between two tokens.", buckets=_NEXT_TOKEN_S),
    Metric(
        Histogram,
        "vllm:time_per_output_token_seconds",
        "Time between two tokens, under its former name.",
        buckets=_NEXT_TOKEN_S,
    ),
    Metric(
        Histogram,
        "vllm:request_time_per_output_token_seconds",
        "A request's mean time per token after the first.",
        buckets=_NEXT_TOKEN_S,
    ),
    Metric(Histogram, "vllm:e2e_request_latency_seconds", "Arrival to last token.", buckets=_LATENCY_S),
    Metric(Histogram, "vllm:request_queue_time_seconds", "Arrival to first step.", buckets=_LATENCY_S),
    Metric(Histogram, "vllm:request_inference_time_seconds", "First step to last token.", buckets=_LATENCY_S),
    Metric(Histogram, "vllm:request_prefill_time_seconds", "First step to first token.", buckets=_LATENCY_S),
    Metric(Histogram, "vllm:request_decode_time_seconds", "First token to last token.", buckets=_LATENCY_S),
    Metric(Histogram, "vllm:request_prompt_tokens", "Prompt tokens of a request.", buckets=_TOKENS),
    Metric(Histogram, "vllm:request_generation_tokens", "Generated tokens of a request.", buckets=_TOKENS),
    Metric(
        Histogram,
        "vllm:request_max_num_generation_tokens",
        "Generated tokens of a request's longest output.",
        buckets=_TOKENS,
    ),
    Metric(Histogram, "vllm:request_params_max_tokens", "max_tokens of a request.", buckets=_TOKENS),
    Metric(
        Histogram,
        "vllm:request_prefill_kv_computed_tokens",
        "Prompt tokens computed, those from the prefix cache left out.",
        buckets=_TOKENS,
    ),
    Metric(Histogram, "vllm:request_params_n", "n of a request.", buckets=_CHOICES),
    Metric(Histogram, "vllm:request_num_preemptions", "Times a request was put out.", buckets=_CHOICES),
    Metric(Histogram, "vllm:iteration_tokens_total", "Tokens computed in one step.", buckets=_STEP_TOKENS),
)

HTTP = (
    Metric(Counter, "http_requests", "Requests answered.", ("method", "status", "handler")),
    Metric(Counter, "http_request_size_bytes", "Bytes of request bodies.", ("handler",)),
    Metric(Counter, "http_response_size_bytes", "Bytes of response bodies.", ("handler",)),
    Metric(
        Histogram,
        "http_request_duration_seconds",
        "Request to end of response.",
        ("method", "handler"),
        buckets=(0.1, 0.5, 1),
    ),
    Metric(
        Histogram,
        "http_request_duration_highr_seconds",
        "Request to end of response, all handlers, fine.",
        (),
        buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 4, 5, 7.5, 10, 30, 60),
    ),
    Metric(Counter, "forearm:unknown_request_fields", "Request fields this server does not know.", ("field",)),
)


def register(metrics: Iterable[Metric], registry: CollectorRegistry | None) -> dict[str, Any]:
    """The metrics as objects, by name, in `registry`; None keeps them out of any (multi-process files are read back).

    The library writes counters with `_total` at the end. Any, because the caller knows which kind a name is.
    """
    disable_created_metrics()  # type: ignore[no-untyped-call]  # a gauge for every counter, which nobody reads
    made: dict[str, Any] = {}
    for metric in metrics:
        buckets = {"buckets": metric.buckets} if metric.kind is Histogram else {}
        made[metric.name] = metric.kind(metric.name, metric.help, metric.labels, registry=registry, **buckets)
    return made
