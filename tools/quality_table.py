"""The table of what rounding costs, from bench/results/quality."""

from __future__ import annotations

from bench.records import Run
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
    "int4, float activations",
    "int4-g32",
    "int4-g64",
    "int4-fast",
    "Q8_0",
    "Q6_K",
    "Q5_K_M",
    "Q4_K_M",
    "Q4_0",
    "Q5_K_M by forearm",
    "Q4_K_M by forearm",
    "Q4_0 by forearm",
    "GGUF Q4_1",
    "KV int8",
    "KV fp8_e4m3",
    "KV fp8_e5m2",
)


def quality_table(measured: Measured) -> str:
    """Return the losses of each format and peer, of the run with the most predictions, of those the latest."""
    shown_of: dict[tuple[str, str], dict[str, str]] = {}
    machines = measured.kinds["quality"].items()
    runs = [(run, machine) for machine, results in machines for run in results.runs]
    for run, machine in sorted(runs, key=lambda one: (_predictions(one[0]), one[0].date)):
        of_run: dict[tuple[str, str], dict[str, str]] = {}
        for one in run.figures:
            if one.row.endswith(" predictions"):
                where = f"{one.row}, [{run.date}](../bench/results/quality/{machine}.json)"
                of_run.setdefault((one.format, one.peer), {"measured": where})[one.quantity] = shown(
                    one.value, one.unit
                )
        shown_of |= of_run
    columns = ("bits_a_weight", "perplexity_rise", "standard_error", "divergence", "same_best_token", "measured")
    ordered = sorted(shown_of.items(), key=lambda item: QUALITY.index(item[0][0]))
    rows = ([own, peer or "forearm", *(cells.get(one, "–") for one in columns)] for (own, peer), cells in ordered)
    return table(["Weights", "Engine", *map(title_of, columns)], rows)


def _predictions(run: Run) -> int:
    rows = (one.row for one in run.figures)
    return max((int(row.split()[0].replace(",", "")) for row in rows if row.endswith(" predictions")), default=0)
