"""Write docs/grafana/forearm.json, the Grafana dashboard. tests/house checks that it is current, tests/e2e that the
server has every metric in it.

python tools/dashboard.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

PATH = Path(__file__).resolve().parents[1] / "docs" / "grafana" / "forearm.json"
ONE = 'model_name="$model_name"'
COLUMNS, WIDTH, HEIGHT = 3, 8, 8  # Grafana's grid has 24 columns


class Panel(NamedTuple):
    """A panel of the dashboard. lines: its queries, each with its name in the legend."""

    title: str
    about: str
    unit: str
    lines: tuple[tuple[str, str], ...]
    kind: str = "timeseries"


def rate(name: str, more: str = "") -> str:
    """Return the query of a counter's rate, summed over engines."""
    return f"sum(rate({name}{{{ONE}{more}}}[$__rate_interval]))"


def quantiles(name: str) -> tuple[tuple[str, str], ...]:
    """Return the queries of a histogram's median, 95th and 99th percentile."""
    buckets = f"sum by (le) (rate({name}_bucket{{{ONE}}}[$__rate_interval]))"
    return tuple((f"histogram_quantile({q}, {buckets})", f"{float(q) * 100:g} %") for q in ("0.5", "0.95", "0.99"))


def gauge(name: str) -> str:
    """Return the query of a gauge, summed over engines."""
    return f"sum({name}{{{ONE}}})"


ROWS: dict[str, tuple[Panel, ...]] = {
    "Now": (
        Panel("Generated", "Generated tokens per second of all requests together.", "short",
              ((rate("vllm:generation_tokens_total"), "tokens/s"),), "stat"),
        Panel("Requests", "Number of requests that are running, and that wait for their first step.", "short",
              ((gauge("vllm:num_requests_running"), "running"),
               (gauge("vllm:num_requests_waiting"), "waiting")), "stat"),
        Panel("KV cache", "Share of the KV cache in use. Near 100 %, sequences are preempted and computed again.",
              "percentunit",
              ((f"max(vllm:kv_cache_usage_perc{{{ONE}}})", "used"),), "gauge"),
    ),
    "Speed": (
        Panel("Tokens per second", "Prompt tokens that are computed, and tokens that are generated.", "short",
              ((rate("vllm:generation_tokens_total"), "generated"), (rate("vllm:prompt_tokens_total"), "prompts"))),
        Panel("Time to first token", "Time from the arrival of a request to its first token, including the queue.", "s",
              quantiles("vllm:time_to_first_token_seconds")),
        Panel("Time between tokens", "Time from each token to the next one.", "s",
              quantiles("vllm:inter_token_latency_seconds")),
        Panel("Time per token of a request", "Mean time per output token of a request, without its first one.", "s",
              quantiles("vllm:request_time_per_output_token_seconds")),
        Panel("Whole requests", "Time from the arrival of a request to its last token.", "s",
              quantiles("vllm:e2e_request_latency_seconds")),
        Panel("Where the time goes", "Mean time that a request spends in each phase.", "s", tuple(
            (f"{rate(f'vllm:request_{phase}_time_seconds_sum')} / {rate(f'vllm:request_{phase}_time_seconds_count')}",
             phase) for phase in ("queue", "prefill", "decode"))),
    ),
    "Load": (
        Panel("Requests", "If requests wait for long, more arrive than can be computed.", "short",
              ((gauge("vllm:num_requests_running"), "running"), (gauge("vllm:num_requests_waiting"), "waiting"))),
        Panel("KV cache", "Share of the KV cache in use, and preemptions per second for lack of free blocks.",
              "percentunit",
              ((f"max(vllm:kv_cache_usage_perc{{{ONE}}})", "used"),
               (rate("vllm:num_preemptions_total"), "preemptions/s"))),
        Panel("Prefix cache", "Share of prompt tokens that were found in the cache and not computed.", "percentunit",
              ((f"{rate('vllm:prefix_cache_hits_total')} / {rate('vllm:prefix_cache_queries_total')}", "hits"),)),
        Panel("Finished requests", "Requests per second by finish reason.", "short",
              ((f"sum by (finished_reason) (rate(vllm:request_success_total{{{ONE}}}[$__rate_interval]))",
                "{{finished_reason}}"),)),
        Panel("Refused", "Requests per second that were refused: by the engine, with its reason; before their body was "
              "read; for a limit of their key.", "short",
              ((f"sum by (reason) (rate(vllm:admission_rejections_total{{{ONE}}}[$__rate_interval]))", "{{reason}}"),
               ("sum(rate(forearm:requests_refused_early_total[$__rate_interval]))", "queue full, body not read"),
               ("sum by (key, limit) (rate(forearm:key_rejections_total[$__rate_interval]))", "{{key}}: {{limit}}"))),
        Panel("Tokens per step", "Mean number of tokens in a step.", "short",
              ((f"{rate('vllm:iteration_tokens_total_sum')} / {rate('vllm:iteration_tokens_total_count')}",
                "tokens"),)),
    ),
    "Requests": (
        Panel("Prompt tokens", "Prompt tokens of a request.", "short", quantiles("vllm:request_prompt_tokens")),
        Panel("Generated tokens", "Generated tokens of a request.", "short",
              quantiles("vllm:request_generation_tokens")),
        Panel("Drafts", "Share of draft tokens that were accepted, if speculative decoding is on.", "percentunit",
              ((f"{rate('vllm:spec_decode_num_accepted_tokens_total')} / "
                f"{rate('vllm:spec_decode_num_draft_tokens_total')}", "accepted"),)),
    ),
    "HTTP and keys": (
        Panel("HTTP responses", "Responses per second by status.", "short",
              (("sum by (status) (rate(http_requests_total[$__rate_interval]))", "{{status}}"),)),
        Panel("Tokens by key", "Tokens per second that are charged to each key of --api-keys-file.", "short",
              (("sum by (key) (rate(forearm:key_tokens_total[$__rate_interval]))", "{{key}}"),)),
        Panel("Engine's memory", "Resident memory of the engine's process.", "bytes",
              (("sum(process_resident_memory_bytes)", "resident"),)),
        Panel("Engine's CPUs", "CPUs that the engine uses, and those that a CPU quota takes from it.", "short",
              (("sum(rate(process_cpu_seconds_total[$__rate_interval]))", "busy"),
               ("sum(rate(forearm:cpu_throttled_seconds_total[$__rate_interval]))", "stopped by the quota"))),
    ),
}  # fmt: skip


def dashboard() -> dict[str, Any]:
    """Return the dashboard in Grafana's import format (schema 39, Grafana 10.4 and newer)."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        panels.append({"type": "row", "title": title, "id": len(panels) + 1, "collapsed": False, "panels": [],
                       "gridPos": {"x": 0, "y": top, "w": 24, "h": 1}})  # fmt: skip
        for number, panel in enumerate(row):
            at = {"x": number % COLUMNS * WIDTH, "y": top + 1 + number // COLUMNS * HEIGHT, "w": WIDTH, "h": HEIGHT}
            panels.append(shown(panel, len(panels) + 1, at))
        top += 1 + -(-len(row) // COLUMNS) * HEIGHT
    return {
        "title": "forearm",
        "uid": "forearm",
        "tags": ["llm", "forearm"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [
            {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
            {"name": "model_name", "type": "query", "label": "Model", "refresh": 2, "datasource": source(),
             "query": {"query": "label_values(vllm:num_requests_running, model_name)", "refId": "models"}},
        ]},
        "panels": panels,
    }  # fmt: skip


def shown(panel: Panel, number: int, at: dict[str, int]) -> dict[str, Any]:
    """Return a panel in Grafana's format. at: its place on the grid."""
    made: dict[str, Any] = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": source(),
        "gridPos": at,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + i), "expr": query, "legendFormat": name, "datasource": source()}
            for i, (query, name) in enumerate(panel.lines)
        ],
    }
    if panel.unit == "percentunit":
        made["fieldConfig"]["defaults"]["max"] = 1
    return made


def source() -> dict[str, str]:
    """Return the data source that the user chooses at the top of the dashboard."""
    return {"type": "prometheus", "uid": "${datasource}"}


def text() -> str:
    """Return the content of the file."""
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(text())
