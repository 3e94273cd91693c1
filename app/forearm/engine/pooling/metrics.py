"""The metrics of an engine that pools: those of the same names, where they have a meaning there."""

from __future__ import annotations

import time

from forearm.engine.metrics.engine_metrics import Meter
from forearm.engine.pooling.requests import PoolingRequest


class PoolingMeter(Meter):
    """A Meter fed by a PoolingLoop."""

    def step(self, tokens: int) -> None:
        """A step of so many tokens was computed, all of prompts."""
        super().step(tokens)
        self.prefilled_tokens += tokens

    def filled(self, running: int, waiting: int) -> None:
        """How full the engine is now."""
        self._plain["vllm:num_requests_running"].set(running)
        self._plain["vllm:num_requests_waiting"].set(waiting)
        self._count("vllm:num_requests_waiting_by_reason", reason="capacity").set(waiting)
        now_s = time.monotonic()
        if now_s - self._history[-1][0] >= 1.0:
            self._history.append((now_s, self.prefilled_tokens, self.generated_tokens))

    def request_ended(self, request: PoolingRequest, reason: str, now_s: float) -> None:
        """All texts of a request are computed, or it ends without: abort, error."""
        self._count("vllm:request_success", finished_reason=reason).inc()
        self._observe("vllm:e2e_request_latency_seconds", now_s - request.arrived_s)
        if request.scheduled_s is not None:
            self._observe("vllm:request_queue_time_seconds", request.scheduled_s - request.arrived_s)
            self._observe("vllm:request_inference_time_seconds", now_s - request.scheduled_s)
        if reason == "stop":
            tokens = request.tokens
            self.prompt_tokens += tokens
            self._plain["vllm:prompt_tokens"].inc(tokens)
            self._count("vllm:prompt_tokens_by_source", source="local_compute").inc(tokens)
            self._observe("vllm:request_prompt_tokens", tokens)
