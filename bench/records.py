"""The form of every file of measured figures: bench/results/<kind>/<machine>.json.

Benches write with `record`; tools/performance_page.py makes docs/performance.md and its pictures of what is there. A
kind is what was measured (compare, engine, kernels ...); a machine is named as in epyc-zen4-2-cores.
"""

from __future__ import annotations

import datetime
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import msgspec

# Quantity: its words, its unit.
QUANTITIES = {
    "tokens_s": ("speed", "tokens/s"),
    "ttft_s": ("time to first token", "s"),
    "tpot_s": ("time per output token", "s"),
    "start_s": ("start to first token", "s"),
    "packing_start_s": ("start that packs the weights", "s"),
    "peak_mb": ("largest resident set", "MB"),
    "read_gb_s": ("memory bandwidth then", "GB/s"),
    "weights_gb_s": ("weights read", "GB/s"),
    "gb_read": ("read by a step", "GB"),
    "share_of_read": ("of the bandwidth", "%"),
    "gflops": ("multiplications", "GFLOP/s"),
    "fma_gflops": ("peak of FMA then", "GFLOP/s"),
    "bf16_gflops": ("peak of bf16 then", "GFLOP/s"),
    "int8_gops": ("peak of int8 then", "GOP/s"),
    "peak_gflops": ("peak of the format then", "GFLOP/s"),
    "share_of_peak": ("of the peak", "%"),
    "share_of_fma": ("of FMA's peak", "%"),
    "share_of_limit": ("of the nearer limit", "%"),
    "share_of_dense": ("of the speed of a dense model with as many active parameters", "%"),
    "gain_of_threads": ("speed, times one thread's", "x"),
    "barriers_per_layer": ("barriers a layer", ""),
    "packed_gb": ("packed weights", "GB"),
    "scratch_gb": ("scratch", "GB"),
    "instructions_per_token": ("instructions", "millions/token"),
    "multiplications_per_token": ("vector multiplications", "millions/token"),
    "cycles": ("cycles", ""),
    "instructions": ("instructions", ""),
    "stalled-cycles-frontend": ("cycles without instructions", ""),
    "stalled-cycles-backend": ("cycles that wait", ""),
    "LLC-load-misses": ("loads from memory", ""),
    "dTLB-load-misses": ("loads without a translation", ""),
    "layer_error": ("layer's error", "%"),
    "perplexity_rise": ("perplexity", "%"),
    "same_best_token": ("same best token", "%"),
    "standard_error": ("standard error", "%"),
    "divergence": ("KL divergence", "nats"),
    "bits_a_weight": ("bits of a layer's weight", ""),
    "right_answers": ("right answers", "%"),
    "step_ms": ("step", "ms"),
    "python_ms": ("Python's part of it", "ms"),
    "python_share": ("Python's share", "%"),
    "switches_s": ("context switches of a core", "/s"),
    "idle_cpu_share": ("processor time when idle", "%"),
    "memory_mib": ("memory", "MiB"),
    "predicted_ms": ("predicted", "ms"),
    "predicted_error": ("prediction's error", "%"),
    "texts_s": ("texts", "texts/s"),
    "median_texts_s": ("median", "texts/s"),
    "gain": ("speed with drafts, times without", "x"),
    "accepted": ("drafted tokens accepted", "%"),
    "drafted_a_token": ("drafted for each token", "tokens"),
    "steps": ("steps, of those without", "%"),
    "without_ms": ("step without a format", "ms"),
    "with_ms": ("step with it", "ms"),
    "step_cost": ("a step costs more by", "%"),
    "tokens_a_step": ("tokens of a line a step", "tokens"),
    "step_cost_alike": ("beside as many tokens without", "%"),
    "token_cost": ("a token costs more by", "%"),
    "requests": ("requests", ""),
    "at_end": ("at the end", ""),
    "most": ("at most", ""),
    "growth_per_hour": ("growth an hour over the second half", ""),
    "median_s": ("median", "s"),
    "longest_s": ("longest", "s"),
    "p50_ms": ("50 %", "ms"),
    "p99_ms": ("99 %", "ms"),
    "longest_ms": ("longest", "ms"),
    "requests_s": ("requests", "requests/s"),
    "cpu_share": ("of a core", "%"),
    "status": ("status", ""),
    "stall_ms": ("longest answer of /livez beside it", "ms"),
    "gap_ms": ("longest gap of a stream beside it", "ms"),
    "seconds": ("time", "s"),
}
LESS_IS_BETTER = frozenset({"ttft_s", "tpot_s", "start_s", "packing_start_s", "peak_mb", "instructions_per_token"})
_DIGITS = 5  # of a figure that are kept


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    """One measured value of forearm, or of a peer beside it.

    shape: of bench/shapes.py, or a model's name. format: forearm's weight format, also where the value is a peer's.
    row: what was done, as prefill_512. quantity: of QUANTITIES; a share is a fraction, shown in %.
    rounds: value of each round, of which `value` is the median. peer: the engine and its own format; empty: forearm.
    ratio: how many times better forearm is than this peer, the median of the rounds' ratios.
    """

    shape: str
    format: str
    row: str
    quantity: str
    value: float
    unit: str
    rounds: list[float] = []
    peer: str = ""
    ratio: float | None = None


class Run(msgspec.Struct, frozen=True, omit_defaults=True):
    """One command's figures. commit: empty where it was not noted. threads: 0 where the engine chose.

    versions: of the peers. notes: what a reader must know of these figures.
    """

    command: str
    date: str
    commit: str
    tier: str
    threads: int
    figures: list[Figure]
    versions: dict[str, str] = {}
    notes: list[str] = []


class Results(msgspec.Struct):
    """One file: a machine, and its runs in the order of time."""

    machine: str
    runs: list[Run]


def figure(
    shape: str,
    format: str,
    row: str,
    quantity: str,
    rounds: list[float] | float,
    peer: str = "",
    ratio: float | None = None,
) -> Figure:
    """Return the figure of these rounds, or of one value, with its quantity's unit."""
    values = rounds if isinstance(rounds, list) else [rounds]
    value, kept = _kept(median(values)), [_kept(one) for one in values] if len(values) > 1 else []
    unit = QUANTITIES[quantity][1]
    return Figure(shape, format, row, quantity, value, unit, kept, peer, None if ratio is None else _kept(ratio))


def figures_of(shape: str, format: str, row: str, found: Mapping[str, float], peer: str = "") -> list[Figure]:
    """Return a figure for each quantity of one row."""
    return [figure(shape, format, row, quantity, value, peer) for quantity, value in found.items()]


def run_of(
    figures: list[Figure],
    threads: int = 0,
    tier: str = "",
    versions: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
) -> Run:
    """Return these figures as a run of the present command, today, at the commit that is checked out."""
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    command = shlex.join(["python", *(Path(word).name if "/" in word else word for word in sys.argv)])
    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return Run(command, date, commit, tier, threads, figures, dict(versions or {}), list(notes))


def line_of(one: Figure) -> str:
    """Return a figure as a line for the terminal."""
    words, unit = QUANTITIES[one.quantity]
    value = f"{100 * one.value:.3g} %" if unit == "%" else f"{one.value:.4g} {unit}".rstrip()
    names = " ".join(filter(None, (one.shape, one.format, one.row, one.peer)))
    return f"{names}: {words} {value}" + (f" ({one.ratio:.2f}x)" if one.ratio else "")


def _kept(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def read(path: Path) -> Results:
    """Return the content of a file.

    Raises: msgspec.ValidationError where it has another form.
    """
    return msgspec.json.decode(path.read_bytes(), type=Results)


def record(path: Path, run: Run, machine: str = "") -> None:
    """Add a run to a machine's file; it takes the place of an earlier one of the same command, date and commit.

    machine: what a new file calls it; empty: as Linux names the CPU.
    """
    results = read(path) if path.exists() else Results(machine or machine_name(), [])
    same = (run.command, run.date, run.commit)
    results.runs = [one for one in results.runs if (one.command, one.date, one.commit) != same] + [run]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text_of(results))


def text_of(results: Results) -> str:
    """Return the file's text: JSON with one figure a line, so that a change shows what it changes."""
    runs = []
    for run in results.runs:
        head = msgspec.json.encode(msgspec.structs.replace(run, figures=[])).decode()
        figures = ",\n   ".join(msgspec.json.encode(one).decode() for one in run.figures)
        runs.append(head.replace('"figures":[]', f'"figures":[\n   {figures}\n  ]'))
    machine = msgspec.json.encode(results.machine).decode()
    return f'{{\n "machine":{machine},\n "runs":[\n  ' + ",\n  ".join(runs) + "\n ]\n}\n"


def machine_name() -> str:
    """Return the CPU as Linux names it, and how many of its cores this process may use."""
    cores = len(os.sched_getaffinity(0))
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.lower().startswith(("model name", "cpu part")):
            return f"{line.split(':', 1)[1].strip()}, {cores} cores"
    return f"{platform.processor()}, {cores} cores"
