"""The times that `forearm plan` predicts beside those measured on this machine: steps of shapes with random weights.

    python bench/plan.py --shapes qwen2.5-0.5b,tinyllama-1.1b --out bench/results/plan/<machine>.json

On a shared machine limits change from one second to the next: each step is timed right after a measurement of the
limits, and the row shows the pair with the median error. On a busy machine use --threads 1 --busy, as root: steps are
measured in CPU time, and both run with real-time priority for parts of a second.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean, median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.engine import BLOCK, STEP_TOKENS, limits, numbers, seconds, step
from bench.executors import KV_DTYPE, allocate_cache, formats_of, make_executor
from bench.records import Figure, figures_of, line_of, record, run_of
from bench.shapes import SHAPES, Shape, shape_of

from forearm import _native
from forearm.engine.host.placement import Plan
from forearm.model.checkpoint.checkpoint import Checkpoint
from forearm.model.checkpoint.shards import StoredTensor
from forearm.plan.calibration import achieved
from forearm.plan.cost import Cost, Rates
from forearm.plan.work import StepWork, work_of

BUSY_GB = 0.5
BREATH_S = 0.3  # between pairs, for other processes


@dataclass(frozen=True)
class Row:
    """One step: seconds measured, and predicted from the limits at that time."""

    shape: str
    format: str
    step: str
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1

    def figures(self) -> list[Figure]:
        """Return the measured time, the predicted time and the relative error."""
        times = {"step_ms": 1e3 * self.measured_s, "predicted_ms": 1e3 * self.predicted_s}
        return figures_of(self.shape, self.format, self.step, times | {"predicted_error": self.error})


def work(shape: Shape, format: str) -> StepWork:
    """Return the work of a step as `forearm plan` computes it from a checkpoint of this shape."""
    nowhere = StoredTensor("", Path(), "BF16", (1,), 0, 2)
    sources = tuple((part, nowhere) for part in shape.parts())
    formats = formats_of(shape.model, format)
    return work_of(Checkpoint(Path(), shape.model, "bfloat16", "bfloat16", 4096, sources, formats))


def rows(shape_name: str, format: str, args: argparse.Namespace) -> Iterator[Row]:
    """Yield every step of one shape in one format."""
    shape = shape_of(shape_name)
    costs = work(shape, format)
    executor = make_executor(shape, format, KV_DTYPE, (), args.threads, STEP_TOKENS, max(args.decode))
    decoded = [(count, args.context) for count in args.decode] + [(1, context) for context in args.contexts]
    most = max([count * (context + BLOCK) for count, context in decoded] + args.prefill)
    allocate_cache(executor, -(-most // BLOCK), max(args.decode))
    placed = Plan(args.threads, (), (), 1, (), (args.threads,))
    with undisturbed(args):
        timed = achieved([matrices.format for matrices in (*costs.body, *costs.head)], placed)

    def cost(rates: Rates) -> Cost:
        return Cost(costs, replace(rates, achieved=timed), STEP_TOKENS)

    for count, context in decoded:
        pairs = watched(executor, count, context, 1, args)
        decode_s = partial(_decode_s, cost, count, context)
        yield row(shape_name, format, f"decode {count} at {context}", pairs, decode_s)
    for count in args.prefill:
        pairs = watched(executor, 1, 0, count, args)
        yield row(shape_name, format, f"prefill {count}", pairs, partial(_prefill_s, cost, count))


def _decode_s(cost: Callable[[Rates], Cost], sequences: int, context: int, rates: Rates) -> float:
    return cost(rates).decode_s(sequences, context)


def _prefill_s(cost: Callable[[Rates], Cost], tokens: int, rates: Rates) -> float:
    return cost(rates).prefill_s(tokens)


def watched(
    executor: _native.Executor, sequences: int, first: int, count: int, args: argparse.Namespace
) -> list[tuple[float, Rates]]:
    """Return steps within --seconds, each the shorter of two, with the limits measured right before."""
    action = step(executor, sequences, first, count)
    taken = cpu_seconds if args.busy else seconds
    action()
    found: list[tuple[float, Rates]] = []
    begin = time.monotonic()
    while time.monotonic() - begin < args.seconds:
        with undisturbed(args):
            look = limits(args, BUSY_GB if args.busy else 1.0)
            step_s = min(taken(action), taken(action))
        rates = Rates(look["read_gb_s"], look["fma_gflops"], look["bf16_gflops"], look["int8_gops"], measured=True)
        found.append((step_s, rates))
        time.sleep(BREATH_S if args.busy else 0.0)
    return found


def row(shape: str, format: str, name: str, pairs: list[tuple[float, Rates]], of: Callable[[Rates], float]) -> Row:
    """Return the pair with the median error."""
    errors = sorted((of(rates) / step_s, step_s, of(rates)) for step_s, rates in pairs)
    _, measured_s, predicted_s = errors[len(errors) // 2]
    return Row(shape, format, name, measured_s, predicted_s)


def cpu_seconds(action: Callable[[], None]) -> float:
    """Return the CPU time of one call of one thread."""
    begin = time.process_time()
    action()
    return time.process_time() - begin


@contextlib.contextmanager
def undisturbed(args: argparse.Namespace) -> Iterator[None]:
    """Run with real-time priority if --busy is given."""
    if args.busy:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        yield
    finally:
        if args.busy:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--shapes", default="qwen2.5-0.5b", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--formats", default="bfloat16,int8,int4")
    parser.add_argument("--context", type=int, default=256, help="position of the decoded token")
    parser.add_argument("--decode", type=numbers, default=[1, 8, 32], help="sequences of a step")
    parser.add_argument("--contexts", type=numbers, default=[4096], help="further positions, for one sequence")
    parser.add_argument("--prefill", type=numbers, default=[512, 2048], help="tokens of a prompt, at most 2048")
    parser.add_argument("--seconds", type=float, default=8.0, help="for each kind of step")
    parser.add_argument("--busy", action="store_true", help="others use this machine: CPU time, real-time priority")
    parser.add_argument("--out", type=Path, help="machine's file that the figures are added to")
    args = parser.parse_args()
    args.cores = ""
    if args.busy and args.threads != 1:
        parser.error("--busy counts one thread: give --threads 1")

    busy = ["Others used the machine: CPU time of one thread, at real-time priority."] if args.busy else []
    found: list[Row] = []
    for shape in args.shapes.split(","):
        for format in args.formats.split(","):
            for row in rows(shape, format, args):
                print(*map(line_of, row.figures()), sep="\n", flush=True)
                found.append(row)
            if args.out:
                figures = [figure for row in found for figure in row.figures()]
                record(args.out, run_of(figures, args.threads, _native.tier(), notes=busy))
    errors = sorted(abs(row.error) for row in found)
    print(f"{len(errors)} steps: median error {median(errors):.0%}, mean {mean(errors):.0%}, largest {errors[-1]:.0%}")


if __name__ == "__main__":
    main()
