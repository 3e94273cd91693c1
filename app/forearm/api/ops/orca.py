"""Report the engines' load in a header of the answer, for load balancers that ask for it (ORCA, as in vLLM).

`endpoint-load-metrics-format: JSON` (or TEXT) in a request adds `endpoint-load-metrics` to its answer.
"""

from __future__ import annotations

import json

from forearm.api.engine_client.engine_client import EngineClient
from forearm.errors import EngineUnavailable

ASK, TELL = "endpoint-load-metrics-format", "endpoint-load-metrics"


async def load_header(form: str, engine: EngineClient) -> str | None:
    """Return the header's value; None for an unknown format, or while there is no engine."""
    states = []
    for connection in engine.connections:
        try:
            states.append(await connection.ask_state())
        except EngineUnavailable:  # noqa: PERF203  (one or two engines)
            continue
    if not states:
        return None
    named = {
        "kv_cache_usage_perc": max(state.kv_usage for state in states),
        "num_requests_waiting": float(sum(state.waiting for state in states)),
        "num_requests_running": float(sum(state.running for state in states)),
    }
    if form.strip().lower() == "json":
        return "JSON " + json.dumps({"named_metrics": named})
    if form.strip().lower() == "text":
        return "TEXT " + ", ".join(f"named_metrics.{name}={value}" for name, value in named.items())
    return None
