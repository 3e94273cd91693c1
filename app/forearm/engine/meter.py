"""Feeds the engine's Prometheus metrics: gauges after each step, histograms as tokens come and requests end."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from forearm.engine.blocks import BLOCK_TOKENS
from forearm.engine.scheduler import Scheduler
from forearm.engine.sequence import Request, Sequence
from forearm.metrics import ENGINE, register


class Meter:
    """The registry of one engine. The loop's thread writes, any thread may read `text`.

    prompt_tokens, prompt_tokens_cached, generated_tokens: so far.
    """

    def __init__(self, model_name: str, engine: str, kv_dtype: str, blocks: int, prefix_caching: bool) -> None:
        self._registry = CollectorRegistry()
        self._labels = {"model_name": model_name, "engine": engine}
        self._families = register(ENGINE, self._registry)
        self._plain = {
            name: family.labels(**self._labels)
            for name, family in self._families.items()
            if set(family._labelnames) == set(self._labels)
        }
        self._prefix_caching = prefix_caching
        self._preemptions = self._told_tokens = 0  # as the registry has them
        self.prompt_tokens = 0
        self.prompt_tokens_cached = 0
        self.generated_tokens = 0
        shape = {"block_size": str(BLOCK_TOKENS), "cache_dtype": kv_dtype, "num_gpu_blocks": str(blocks)}
        self._families["vllm:cache_config_info"].labels(**self._labels, **shape).set(1)
        for reason in ("stop", "length", "abort", "error"):
            self._count("vllm:request_success", finished_reason=reason).inc(0)

    def text(self) -> str:
        """The registry in Prometheus' text format."""
        return generate_latest(self._registry).decode()

    def step(self, tokens: int) -> None:
        """A step of so many tokens was computed."""
        self._observe("vllm:iteration_tokens_total", tokens)

    def load(self, scheduler: Scheduler) -> None:
        """How full the engine is now."""
        usage = scheduler.blocks.used / scheduler.blocks.count
        self._plain["vllm:num_requests_running"].set(len(scheduler.running))
        self._plain["vllm:num_requests_waiting"].set(len(scheduler.waiting))
        self._plain["vllm:kv_cache_usage_perc"].set(usage)
        self._plain["vllm:gpu_cache_usage_perc"].set(usage)
        self._plain["vllm:num_preemptions"].inc(scheduler.preemptions - self._preemptions)
        self._plain["vllm:generation_tokens"].inc(self.generated_tokens - self._told_tokens)
        self._preemptions, self._told_tokens = scheduler.preemptions, self.generated_tokens

    def rejected(self, reason: str) -> None:
        """A request was refused at the door."""
        self._count("vllm:admission_rejections", reason=reason).inc()

    def corrupted(self) -> None:
        """A request met a NaN."""
        self._plain["vllm:corrupted_requests"].inc()

    def token(self, sequence: Sequence, now_s: float) -> None:
        """A token of this output was chosen; to be told before the sequence's times move on."""
        self.generated_tokens += 1
        if sequence.output_length > 1:
            self._observe("vllm:inter_token_latency_seconds", now_s - sequence.last_token_s)
            self._observe("vllm:time_per_output_token_seconds", now_s - sequence.last_token_s)
        elif sequence.request.first_token_s is None:
            self._prompt_done(sequence, now_s)

    def _prompt_done(self, sequence: Sequence, now_s: float) -> None:
        request = sequence.request
        prompt = len(request.prompt)
        self.prompt_tokens += prompt
        self.prompt_tokens_cached += sequence.cached_tokens
        self._plain["vllm:prompt_tokens"].inc(prompt)
        self._plain["vllm:prompt_tokens_cached"].inc(sequence.cached_tokens)
        if self._prefix_caching:
            self._plain["vllm:prefix_cache_queries"].inc(prompt)
            self._plain["vllm:prefix_cache_hits"].inc(sequence.cached_tokens)
        self._observe("vllm:time_to_first_token_seconds", now_s - request.arrived_s)
        self._observe("vllm:request_prefill_kv_computed_tokens", prompt - sequence.cached_tokens)

    def request_over(self, request: Request, reason: str, now_s: float) -> None:
        """All outputs of the request have ended; `reason` is the last one's, or error."""
        self._count("vllm:request_success", finished_reason=reason).inc()
        outputs = [sequence.output_length for sequence in request.sequences]
        self._observe("vllm:e2e_request_latency_seconds", now_s - request.arrived_s)
        self._observe("vllm:request_prompt_tokens", len(request.prompt))
        self._observe("vllm:request_generation_tokens", sum(outputs))
        self._observe("vllm:request_max_num_generation_tokens", max(outputs))
        self._observe("vllm:request_params_n", request.params.n)
        self._observe("vllm:request_num_preemptions", sum(one.preemptions for one in request.sequences))
        if request.params.max_tokens is not None:
            self._observe("vllm:request_params_max_tokens", request.params.max_tokens)
        self._phases(request, max(outputs), now_s)

    def _phases(self, request: Request, longest: int, now_s: float) -> None:
        if request.scheduled_s is None:
            return
        self._observe("vllm:request_queue_time_seconds", request.scheduled_s - request.arrived_s)
        self._observe("vllm:request_inference_time_seconds", now_s - request.scheduled_s)
        if request.first_token_s is None:
            return
        decode_s = now_s - request.first_token_s
        self._observe("vllm:request_prefill_time_seconds", request.first_token_s - request.scheduled_s)
        self._observe("vllm:request_decode_time_seconds", decode_s)
        if longest > 1:
            self._observe("vllm:request_time_per_output_token_seconds", decode_s / (longest - 1))

    def _observe(self, name: str, value: float) -> None:
        self._plain[name].observe(value)

    def _count(self, name: str, **labels: str) -> Any:
        return self._families[name].labels(**self._labels, **labels)
