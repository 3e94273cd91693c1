"""Every Prometheus metric, in one list: vLLM's names, labels and buckets, so that its dashboards work unchanged.

The engine's loop updates ENGINE, the API workers update HTTP; each calls `register` once with its own registry. Names
that vLLM has retired are kept in OLD_NAMES. Left out are the names that vLLM shows only with a flag (vllm:kv_block_*,
vllm:estimated_*), with LoRA adapters (vllm:lora_requests_info) or with a KV connector
(vllm:num_requests_kv_fetch_by_stage). Counters of features that forearm does not have stay at 0.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Summary, disable_created_metrics
from prometheus_client import Histogram as _Histogram

_LATENCY_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_NEXT_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_TOKENS = tuple(digit * 10**power for power in range(8) for digit in (1, 2, 5))
_CHOICES = (1, 2, 5, 10, 20)
_ENGINE = ("model_name", "engine")
_CACHE = (
    *("block_size", "cache_dtype", "num_gpu_blocks", "enable_prefix_caching"),
    *("kv_cache_size_tokens", "kv_cache_max_concurrency"),
)


class Histogram(_Histogram):
    """A histogram that records a value many times at once: the streams of a step share one inter-token latency."""

    def observe_times(self, value: float, times: int) -> None:
        """Record `value` as `times` calls of `observe` would."""
        self._sum.inc(value * times)
        self._buckets[bisect_left(self._upper_bounds, value)].inc(times)


class Metric(NamedTuple):
    """One metric. `buckets` are upper bounds, in the unit of the name; set on histograms only."""

    kind: Any  # Counter, Gauge, Histogram or Summary
    name: str
    help: str
    labels: tuple[str, ...] = _ENGINE
    buckets: tuple[float, ...] = ()


ENGINE = (
    Metric(Gauge, "vllm:num_requests_running", "Requests being computed."),
    Metric(Gauge, "vllm:num_requests_waiting", "Requests waiting for their first step."),
    Metric(Gauge, "vllm:num_requests_waiting_by_reason", "Waiting requests by reason.", (*_ENGINE, "reason")),
    Metric(Gauge, "vllm:kv_cache_usage_perc", "Used share of the KV cache, 0 to 1."),
    Metric(Gauge, "vllm:engine_sleep_state", "1 for the state the engine is in.", (*_ENGINE, "sleep_state")),
    Metric(Gauge, "vllm:cache_config_info", "The KV cache's shape, as labels; the value is 1.", (*_ENGINE, *_CACHE)),
    Metric(Counter, "vllm:prompt_tokens", "Prompt tokens processed."),
    Metric(Counter, "vllm:prompt_tokens_by_source", "Prompt tokens, computed or cached.", (*_ENGINE, "source")),
    Metric(Counter, "vllm:prompt_tokens_cached", "Prompt tokens found in the prefix cache."),
    Metric(Counter, "vllm:prompt_tokens_cached_by_source", "Cached prompt tokens by cache.", (*_ENGINE, "source")),
    Metric(Counter, "vllm:generation_tokens", "Tokens generated."),
    Metric(Counter, "vllm:request_success", "Finished requests.", (*_ENGINE, "finished_reason")),
    Metric(Counter, "vllm:num_preemptions", "Sequences preempted because KV blocks were short."),
    Metric(Counter, "vllm:prefix_cache_queries", "Tokens looked up in the prefix cache."),
    Metric(Counter, "vllm:prefix_cache_hits", "Tokens found in the prefix cache."),
    Metric(Counter, "vllm:external_prefix_cache_queries", "Tokens looked up in other machines' caches: none."),
    Metric(Counter, "vllm:external_prefix_cache_hits", "Tokens found in other machines' caches: none."),
    Metric(Counter, "vllm:mm_cache_queries", "Images and sounds looked up: none."),
    Metric(Counter, "vllm:mm_cache_hits", "Images and sounds found: none."),
    Metric(Counter, "vllm:admission_rejections", "Requests refused before they were queued.", (*_ENGINE, "reason")),
    Metric(Counter, "vllm:corrupted_requests", "Requests ended by a NaN in their logits."),
    Metric(Counter, "vllm:watermark_requests", "Requests with a watermark: none."),
    Metric(Counter, "vllm:spec_decode_num_drafts", "Speculative drafts verified."),
    Metric(Counter, "vllm:spec_decode_num_draft_tokens", "Draft tokens verified."),
    Metric(Counter, "vllm:spec_decode_num_accepted_tokens", "Draft tokens accepted."),
    Metric(
        Counter,
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "Draft tokens accepted, by position in the draft, from 0.",
        (*_ENGINE, "position"),
    ),
    Metric(Histogram, "vllm:time_to_first_token_seconds", "Arrival to first token.", buckets=_FIRST_TOKEN_S),
    Metric(Histogram, "vllm:inter_token_latency_seconds", "Time between two tokens.", buckets=_NEXT_TOKEN_S),
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
        "Prompt tokens computed in prefill, without those from the prefix cache.",
        buckets=_TOKENS,
    ),
    Metric(Histogram, "vllm:request_params_n", "n of a request.", buckets=_CHOICES),
    Metric(Histogram, "vllm:request_num_preemptions", "Preemptions of a request.", buckets=_CHOICES),
    Metric(Histogram, "vllm:iteration_tokens_total", "Tokens computed in one step.", buckets=_STEP_TOKENS),
    Metric(
        Gauge,
        "forearm:weight_rounding_error",
        "Relative error of the quantized matrices: of the worst, and the mean of all; 0: none is quantized.",
        (*_ENGINE, "of"),
    ),
)

HTTP = (
    Metric(Counter, "forearm:log_lines_dropped", "Log lines dropped because the log is not read.", ()),
    Metric(Counter, "forearm:out_of_descriptors_seconds", "Time without a descriptor for a connection.", ()),
    Metric(Counter, "http_requests", "Requests answered.", ("method", "status", "handler")),
    Metric(Summary, "http_request_size_bytes", "Bytes of request bodies.", ("handler",)),
    Metric(Summary, "http_response_size_bytes", "Bytes of response bodies.", ("handler",)),
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
        "Request to end of response, all handlers, in fine buckets.",
        (),
        buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 4, 5, 7.5, 10, 30, 60),
    ),
    Metric(Gauge, "forearm:http_requests_in_flight", "Requests with a body that are being answered.", ()),
    Metric(
        Counter,
        "vllm:tool_call_parser_invocations",
        "Calls of a tool parser: one for each choice, or for each delta of a stream.",
        ("model_name", "mode", "outcome", "request_type"),
    ),
    Metric(
        Counter,
        "forearm:requests_refused_early",
        "Requests refused before they were read, as the queue was full (vllm:admission_rejections: afterwards).",
        (),
    ),
    Metric(Counter, "forearm:unknown_request_fields", "Request fields that this server does not know.", ("field",)),
    Metric(Counter, "forearm:key_requests", "Requests accepted, by the name of their key.", ("key",)),
    Metric(Counter, "forearm:key_tokens", "Tokens charged to a key, of prompts and of answers.", ("key", "kind")),
    Metric(Counter, "forearm:key_rejections", "Requests refused by a key's limit.", ("key", "limit")),
)

# Retired names of vLLM that dashboards and autoscalers still ask for: each shows its successor's value.
OLD_NAMES = {
    "vllm:gpu_cache_usage_perc": "vllm:kv_cache_usage_perc",
    "vllm:gpu_prefix_cache_queries": "vllm:prefix_cache_queries",
    "vllm:gpu_prefix_cache_hits": "vllm:prefix_cache_hits",
    "vllm:time_per_output_token_seconds": "vllm:inter_token_latency_seconds",
    "vllm:request_params_best_of": "vllm:request_params_n",
}
# Retired names without a successor: gauges, computed when they are read.
OLD_GAUGES = {
    "vllm:cpu_cache_usage_perc": "Keys and values are not swapped: 0.",
    "vllm:num_requests_swapped": "Keys and values are not swapped: 0.",
    "vllm:gpu_prefix_cache_hit_rate": "Prefix cache hits divided by queries, since the start.",
    "vllm:avg_prompt_throughput_toks_per_s": "Prompt tokens a second, over the last ten seconds.",
    "vllm:avg_generation_throughput_toks_per_s": "Generated tokens a second, over the last ten seconds.",
}


def engine_metrics(longest: int) -> list[Metric]:
    """ENGINE with token histograms whose buckets end at `longest`, the longest sequence in tokens, as in vLLM."""
    tokens = tuple(bound for bound in _TOKENS if bound <= longest)
    return [metric._replace(buckets=tokens) if metric.buckets is _TOKENS else metric for metric in ENGINE]


def register(metrics: Iterable[Metric], registry: CollectorRegistry | None) -> dict[str, Any]:
    """Make the metrics' objects, by name, in `registry`; None: in none (multi-process files are read back).

    The library appends `_total` to counters. The type is Any, because the caller knows which kind a name is.
    """
    disable_created_metrics()  # type: ignore[no-untyped-call]  # else an unused gauge for every counter
    made: dict[str, Any] = {}
    for metric in metrics:
        own: dict[str, Any] = {"buckets": metric.buckets} if metric.kind is Histogram else {}
        if metric.kind is Gauge:
            own["multiprocess_mode"] = "livesum"  # the sum over the workers that live
        made[metric.name] = metric.kind(metric.name, metric.help, metric.labels, registry=registry, **own)
    return made
