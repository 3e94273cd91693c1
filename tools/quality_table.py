"""The table of what rounding costs, from bench/results/quality."""

from __future__ import annotations

from tools.measured import Measured
from tools.tables import shown, table, title_of

# Formats in the order of the table.
QUALITY = (
    "bfloat16",
    "float16",
    "int8",
    "int8, float activations",
    "fp8",
    "int4",
    "int4-g32",
    "int4-g64",
    "int4-fast",
    "GGUF Q4_1",
    "KV int8",
    "KV fp8_e4m3",
    "KV fp8_e5m2",
)


def quality_table(measured: Measured) -> str:
    """Return the losses of each format, forearm's as they were measured last, and of each peer."""
    newest: dict[tuple[str, ...], dict[str, str]] = {}
    machines = measured.kinds["quality"].items()
    runs = [(run, machine) for machine, results in machines for run in results.runs]
    for run, machine in sorted(runs, key=lambda one: one[0].date):
        of_run: dict[tuple[str, ...], dict[str, str]] = {}
        for one in run.figures:
            if not one.row.startswith("second halves"):
                where = f"{one.row}, [{run.date}](../bench/results/quality/{machine}.json)"
                cells = of_run.setdefault((one.format, one.peer, one.row if one.peer else ""), {"measured": where})
                cells[one.quantity] = shown(one.value, one.unit)
        newest |= of_run
    columns = ("bits_a_weight", "perplexity_rise", "standard_error", "divergence", "same_best_token", "measured")
    ordered = sorted(newest.items(), key=lambda item: QUALITY.index(item[0][0]))
    rows = ([own, peer or "forearm", *(cells.get(one, "–") for one in columns)] for (own, peer, _), cells in ordered)
    return table(["Weights", "Engine", *map(title_of, columns)], rows)
