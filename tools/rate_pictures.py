"""Rate curves of bench/results, drawn as `forearm bench plot` draws them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.records import Figure
from tools.measured import Measured

from forearm.bench.plot import svg
from forearm.bench.report import BenchResult

ALT = "Mean time to first token, and mean time per output token, against throughput, a point for each request rate"
_KEYS = {"ttft_s": "mean_ttft_ms", "tpot_s": "mean_tpot_ms"}


def rate_pictures(measured: Measured, folder: Path) -> dict[Path, str]:
    """Return the SVG of each machine's last run, by the path of its file."""
    return {
        folder / f"rates-{machine}.svg": svg(points(results.runs[-1].figures))
        for machine, results in measured.kinds.get("rates", {}).items()
    }


def points(figures: Sequence[Figure]) -> list[BenchResult]:
    """Return curves in the form of `forearm bench serve`: an entry for each engine and rate."""
    found: dict[tuple[str, str], BenchResult] = {}
    for one in figures:
        label, rate = one.peer or f"forearm {one.format}", one.row.removeprefix("rate_")
        entry = found.setdefault((label, rate), {"label": f"{label}, {one.shape}", "request_rate": float(rate)})
        if one.quantity in _KEYS:
            entry[_KEYS[one.quantity]] = 1000 * one.value
        else:
            entry["total_token_throughput"] = one.value
    return list(found.values())
