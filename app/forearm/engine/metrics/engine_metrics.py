"""Feeds the engine's Prometheus metrics: gauges after each step, histograms as tokens come and requests end."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from forearm.engine.cache.kv_groups import BLOCK_TOKENS, ONE_GROUP, KvGroups
from forearm.engine.host.kernel_tiers import Tiers, tell
from forearm.engine.host.throttling import Throttling
from forearm.engine.sequence import Request, Sequence
from forearm.metrics import OLD_GAUGES, OLD_NAMES, engine_metrics, register
from forearm.model.checkpoint.rounding_errors import RoundingErrors

_ANY_LENGTH = 1 << 20  # tokens
_RATE_S = 10.0  # period of the old throughput gauges, as in vLLM
_REASONS = ("InvalidRequest", "Overloaded", "EngineUnavailable")
_ENDS = ("stop", "length", "abort", "error", "repetition")
_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
_SLEEP_STATES = {"awake": 1, "weights_offloaded": 0, "discard_all": 0}


class Meter:
    """The registry of one engine. The loop's thread writes, any thread may read it.

    prompt_tokens, prompt_tokens_cached, generated_tokens: totals; a prompt counts when it is done, as in vLLM.
    prefilled_tokens: prompt tokens as they are computed, for rates. max_model_len: last bucket of histograms of tokens.
    old_names: show metrics under vLLM's former names as well.
    """

    def __init__(
        self,
        model_name: str,
        engine: str,
        kv_dtype: str,
        blocks: int,
        prefix_caching: bool,
        max_model_len: int = _ANY_LENGTH,
        old_names: bool = True,
        groups: KvGroups = ONE_GROUP,
    ) -> None:
        self._registry = CollectorRegistry()
        self.labels = {"model_name": model_name, "engine": engine}
        self._families = register(engine_metrics(max_model_len), self._registry)
        self._plain = {
            name: family.labels(**self.labels)
            for name, family in self._families.items()
            if set(family._labelnames) == set(self.labels)
        }
        self._prefix_caching = prefix_caching
        self._preemptions = self._told_tokens = 0  # values in the registry
        self._gaps_s: Counter[float] = Counter()  # times between tokens in the present step
        self.prompt_tokens = 0
        self.prompt_tokens_cached = 0
        self.prefilled_tokens = 0
        self.generated_tokens = 0
        # (time.monotonic(), prefilled tokens, generated tokens), at least a second apart, over the last _RATE_S
        self._history: deque[tuple[float, int, int]] = deque([(time.monotonic(), 0, 0)], maxlen=2 * int(_RATE_S))
        self._start_series(kv_dtype, blocks, max_model_len, groups.sequences(blocks, max_model_len))
        ProcessCollector(registry=self._registry)  # the engine's alone: a scrape may reach any of the API's workers
        GCCollector(registry=self._registry)
        self._registry.register(Throttling())
        tell()
        self._registry.register(Tiers())
        if old_names:
            self._registry.register(_OldNames(self, [self._families[name] for name in set(OLD_NAMES.values())]))

    def _start_series(self, kv_dtype: str, blocks: int, max_model_len: int, sequences: float) -> None:
        """Create all series with labels of their own: an alert on a missing series would never fire."""
        shape = {
            "block_size": BLOCK_TOKENS,
            "cache_dtype": kv_dtype,
            "num_gpu_blocks": blocks,
            "enable_prefix_caching": self._prefix_caching,
            "kv_cache_size_tokens": round(sequences * max_model_len),
            "kv_cache_max_concurrency": round(sequences, 2),
        }
        self._count("vllm:cache_config_info", **{name: str(value) for name, value in shape.items()}).set(1)
        for state, value in _SLEEP_STATES.items():
            self._count("vllm:engine_sleep_state", sleep_state=state).set(value)
        for end in _ENDS:
            self._count("vllm:request_success", finished_reason=end)
        for reason in _REASONS:
            self._count("vllm:admission_rejections", reason=reason)
        for source in _SOURCES:
            self._count("vllm:prompt_tokens_by_source", source=source)
        for source in _SOURCES[1:]:
            self._count("vllm:prompt_tokens_cached_by_source", source=source)
        self._count("vllm:num_requests_waiting_by_reason", reason="deferred")
        self._waiting = self._count("vllm:num_requests_waiting_by_reason", reason="capacity")
        self._count("vllm:spec_decode_num_accepted_tokens_per_pos", position="0")
        for which in ("mean", "worst"):
            self._count("forearm:weight_rounding_error", of=which)

    def rounding(self, errors: RoundingErrors) -> None:
        """Show the errors of the quantized matrices; a model of floats has none."""
        if errors.by_matrix:
            self._count("forearm:weight_rounding_error", of="mean").set(errors.mean)
            self._count("forearm:weight_rounding_error", of="worst").set(errors.by_matrix[errors.worst])

    def collect(self) -> list[Metric]:
        """Return the registry's families with their samples."""
        return list(self._registry.collect())

    def text(self) -> str:
        """Return the registry in Prometheus' text format."""
        return generate_latest(self._registry).decode()

    def throughput(self) -> tuple[float, float]:
        """Return prefilled and generated tokens per second, over the last ten seconds."""
        now_s = time.monotonic()
        seen = tuple(self._history)
        then_s, prefilled, generated = next((one for one in reversed(seen) if now_s - one[0] >= _RATE_S), seen[0])
        span_s = max(now_s - then_s, 1.0)
        return (self.prefilled_tokens - prefilled) / span_s, (self.generated_tokens - generated) / span_s

    def drafted(self, tokens: int, accepted: int) -> None:
        """Count a verified draft of `tokens` tokens, of which the first `accepted` were accepted."""
        self._plain["vllm:spec_decode_num_drafts"].inc()
        self._plain["vllm:spec_decode_num_draft_tokens"].inc(tokens)
        self._plain["vllm:spec_decode_num_accepted_tokens"].inc(accepted)
        for position in range(accepted):
            self._count("vllm:spec_decode_num_accepted_tokens_per_pos", position=str(position)).inc()

    def step(self, tokens: int) -> None:
        """Count a step of `tokens` tokens."""
        self._observe("vllm:iteration_tokens_total", tokens)

    def load(self, running: int, waiting: int, kv_usage: float, preemptions: int) -> None:
        """Set the gauges of the engine's load. preemptions: total."""
        self._plain["vllm:num_requests_running"].set(running)
        self._plain["vllm:num_requests_waiting"].set(waiting)
        self._waiting.set(waiting)
        self._plain["vllm:kv_cache_usage_perc"].set(kv_usage)
        self._plain["vllm:num_preemptions"].inc(preemptions - self._preemptions)
        self._plain["vllm:generation_tokens"].inc(self.generated_tokens - self._told_tokens)
        self._preemptions, self._told_tokens = preemptions, self.generated_tokens
        for gap_s, times in self._gaps_s.items():
            self._plain["vllm:inter_token_latency_seconds"].observe_times(gap_s, times)
        self._gaps_s.clear()
        now_s = time.monotonic()
        if now_s - self._history[-1][0] >= 1.0:
            self._history.append((now_s, self.prefilled_tokens, self.generated_tokens))

    def rejected(self, reason: str) -> None:
        """Count a request that admission refused."""
        self._count("vllm:admission_rejections", reason=reason).inc()

    def corrupted(self) -> None:
        """Count a request that ended with a NaN."""
        self._plain["vllm:corrupted_requests"].inc()

    def tokens(self, sequence: Sequence, count: int, now_s: float) -> None:
        """Count the `count` tokens that a step gave an output. Call it before the sequence's times are updated."""
        self.generated_tokens += count
        request = sequence.request
        if sequence.output_length > count:
            self._gaps_s[now_s - sequence.last_token_s] += 1
            return
        if request.first_token_s is not None:
            return  # another output of the request has counted the prompt
        prompt = len(request.prompt)
        self.prompt_tokens += prompt
        self.prompt_tokens_cached += sequence.cached_tokens
        self._plain["vllm:prompt_tokens"].inc(prompt)
        self._plain["vllm:prompt_tokens_cached"].inc(sequence.cached_tokens)
        self._count("vllm:prompt_tokens_by_source", source="local_compute").inc(prompt - sequence.cached_tokens)
        for name in ("vllm:prompt_tokens_by_source", "vllm:prompt_tokens_cached_by_source"):
            self._count(name, source="local_cache_hit").inc(sequence.cached_tokens)
        if self._prefix_caching:
            self._plain["vllm:prefix_cache_queries"].inc(prompt)
            self._plain["vllm:prefix_cache_hits"].inc(sequence.cached_tokens)
        self._observe("vllm:time_to_first_token_seconds", now_s - request.arrived_s)
        self._observe("vllm:request_prefill_kv_computed_tokens", prompt - sequence.cached_tokens)

    def request_over(self, request: Request, reason: str, now_s: float) -> None:
        """Count a request whose outputs have all ended; `reason` is the last one's, or error."""
        self._count("vllm:request_success", finished_reason=reason).inc()
        self._observe("vllm:e2e_request_latency_seconds", now_s - request.arrived_s)
        if request.scheduled_s is not None:
            self._observe("vllm:request_queue_time_seconds", request.scheduled_s - request.arrived_s)
            self._observe("vllm:request_inference_time_seconds", now_s - request.scheduled_s)
        if request.pooling is None:
            self._generated(request, now_s)
        elif reason == "stop":
            tokens = sum(len(text.token_ids) for text in request.pooling.texts)
            self.prompt_tokens += tokens
            self._plain["vllm:prompt_tokens"].inc(tokens)
            self._count("vllm:prompt_tokens_by_source", source="local_compute").inc(tokens)
            self._observe("vllm:request_prompt_tokens", tokens)

    def _generated(self, request: Request, now_s: float) -> None:
        """Observe the lengths and times of a finished generation request."""
        outputs = [sequence.output_length for sequence in request.sequences]
        self._observe("vllm:request_prompt_tokens", len(request.prompt))
        self._observe("vllm:request_generation_tokens", sum(outputs))
        self._observe("vllm:request_max_num_generation_tokens", max(outputs))
        self._observe("vllm:request_params_n", request.params.n)
        self._observe("vllm:request_num_preemptions", sum(one.preemptions for one in request.sequences))
        if request.params.max_tokens is not None:
            self._observe("vllm:request_params_max_tokens", request.params.max_tokens)
        if request.scheduled_s is None or request.first_token_s is None:
            return
        decode_s = now_s - request.first_token_s
        self._observe("vllm:request_prefill_time_seconds", request.first_token_s - request.scheduled_s)
        self._observe("vllm:request_decode_time_seconds", decode_s)
        if max(outputs) > 1:
            self._observe("vllm:request_time_per_output_token_seconds", decode_s / (max(outputs) - 1))

    def _observe(self, name: str, value: float) -> None:
        self._plain[name].observe(value)

    def _count(self, name: str, **labels: str) -> Any:
        return self._families[name].labels(**self.labels, **labels)


class _OldNames:
    """A collector that shows the meter's families under their former names, without counting them twice."""

    def __init__(self, meter: Meter, families: list[Any]) -> None:
        self._meter = meter
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, as prometheus_client asks for them."""
        now = {metric.name: metric for family in self._families for metric in family.collect()}
        for old, new in OLD_NAMES.items():
            metric = Metric(old, f"{new} under its former name.", now[new].type)
            metric.samples = [s._replace(name=old + s.name.removeprefix(new)) for s in now[new].samples]
            yield metric
        hits, queries = (now[f"vllm:prefix_cache_{what}"].samples[0].value for what in ("hits", "queries"))
        prompt, generation = self._meter.throughput()
        for (name, text), value in zip(
            OLD_GAUGES.items(), (0, 0, hits / (queries or 1), prompt, generation), strict=True
        ):
            gauge = GaugeMetricFamily(name, text, labels=list(self._meter.labels))
            gauge.add_metric(list(self._meter.labels.values()), value)
            yield gauge
