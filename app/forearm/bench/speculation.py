"""Statistics of speculative decoding during a run, from the server's counters before and after it.

Source: vllm/benchmarks/serve.py, `fetch_spec_decode_metrics`; names: vllm/v1/spec_decode/metrics.py.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

_LINE = re.compile(r"vllm:spec_decode_(?P<name>\w+)_total(?:\{(?P<labels>[^}]*)\})? (?P<value>\S+)")
_POSITION = re.compile(r'position="(\d+)"')

Counts = dict[str, float]  # drafts, draft and accepted tokens; accepted ones by position too


def counts(metrics: str) -> Counts:
    """Sum the counters in the text of /metrics over all engines; empty if the server does not speculate."""
    found: Counter[str] = Counter()
    for line in metrics.splitlines():
        if match := _LINE.fullmatch(line.strip()):
            position = _POSITION.search(match["labels"] or "")
            name = f"at {position[1]}" if position else match["name"]
            found[name] += float(match["value"])  # type: ignore[assignment]
    return dict(found)


def gained(before: Counts, after: Counts) -> dict[str, Any]:
    """Return the statistics under vLLM's JSON keys; {} where nothing was drafted."""
    rose = {name: value - before.get(name, 0.0) for name, value in after.items()}
    drafts, drafted = rose.get("num_drafts", 0.0), rose.get("num_draft_tokens", 0.0)
    accepted = rose.get("num_accepted_tokens", 0.0)
    if not drafts or not drafted:
        return {}
    positions = sorted((name for name in rose if name.startswith("at ")), key=lambda name: int(name[3:]))
    return {
        "spec_decode_acceptance_rate": 100 * accepted / drafted,
        "spec_decode_acceptance_length": 1 + accepted / drafts,
        "spec_decode_num_drafts": int(drafts),
        "spec_decode_draft_tokens": int(drafted),
        "spec_decode_accepted_tokens": int(accepted),
        "spec_decode_per_position_acceptance_rates": [rose[name] / drafts for name in positions],
    }
