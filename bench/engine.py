"""Measure decode and prefill of the executor as shares of the machine's memory bandwidth and multiply peaks.

Random weights of a shape of bench/shapes.py (or of --layers of it), so nothing is downloaded:

    python bench/engine.py --shapes qwen2.5-0.5b --formats bfloat16,int8,int4 --out bench/results/engine/<machine>.json

Decode is given as GB/s of all bytes that a step must read: packed weights with their scales (one row of the embedding
table, only the chosen experts), keys and values of the context, and states. Prefill is given as GFLOP/s of all
multiplications including attention's, two operations each, against the peak of the instructions that multiply weights
of the format (int8 and int4: int8; int8-float and int4-float, whose activations are of 16 bits: bfloat16).

On a shared machine the limits change from one second to the next. Each step is therefore timed between two measurements
of its limit, which read as many bytes as decode does, and a share is the median of the ratios of such pairs.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.counters import counted
from bench.executors import KV_DTYPE, allocate_cache, formats_of, make_executor
from bench.records import Figure, figures_of, line_of, record, run_of
from bench.shapes import SHAPES, Shape, shape_of

from forearm import _native
from forearm.array_types import Int32Array
from forearm.model.checkpoint.formats import spec_bytes
from forearm.model.families.matrices import matrices

BLOCK = 32
STEP_TOKENS = 2048
PEAKS = {"float32": "fma_gflops", "float16": "fma_gflops", "bfloat16": "bf16_gflops"}  # quantized formats: int8_gops


def ints(values: object) -> Int32Array:
    return np.ascontiguousarray(values, dtype=np.int32)


def step(executor: _native.Executor, sequences: int, first: int, count: int) -> Callable[[], None]:
    """Return a step of `count` tokens from position `first` on for each sequence, each with one row of logits."""
    per_sequence = -(-(first + count) // BLOCK)
    rng = np.random.default_rng(1)
    starts = np.arange(sequences + 1) * count
    columns = (
        ints(rng.integers(0, 1000, sequences * count)),
        ints(np.tile(np.arange(first, first + count), sequences)),
        ints(starts),
        ints(np.arange(sequences + 1) * per_sequence),
        ints(np.arange(sequences * per_sequence)),
        ints(starts[1:] - 1),
    )
    states = ints(np.arange(sequences)) if executor.state_bytes_per_slot else None
    return lambda: executor.forward(*columns, states=states)


def touch_blocks(executor: _native.Executor, blocks: int, together: int) -> None:
    """Compute a token at the beginning of each block, which clears it.

    Memory that was never written would be read as the system's single page of zeros, which stays in a cache.
    """
    for first in range(0, blocks, together):
        own = ints(np.arange(first, min(first + together, blocks)))
        none, starts = ints(np.zeros(own.size)), ints(np.arange(own.size + 1))
        states = ints(np.arange(own.size)) if executor.state_bytes_per_slot else None
        executor.forward(none, none, starts, starts, own, ints([0]), states=states)


def seconds(action: Callable[[], None]) -> float:
    """Time one call, in seconds."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


@dataclass(frozen=True)
class Pairs:
    """Times of steps in seconds, and for each the mean of the limits before and after it, by _native.limits' names."""

    step_s: list[float]
    limits: dict[str, list[float]]

    def share(self, limit: str, amount: float) -> float:
        """Return the median share of a limit, for a step that reads `amount` GB or computes `amount` GFLOP."""
        return median(amount / s / most for s, most in zip(self.step_s, self.limits[limit], strict=True))


def cores_of(args: argparse.Namespace) -> list[int]:
    return [int(core) for core in args.cores.split(",")] if args.cores else []


def limits(args: argparse.Namespace, gigabytes: float = 1.0) -> dict[str, float]:
    """Measure the machine's limits once."""
    return _native.limits(cores_of(args), args.threads, megabytes=max(64, int(gigabytes * 1000)), seconds=0.0)


def measure_pairs(action: Callable[[], None], args: argparse.Namespace, gigabytes: float) -> Pairs:
    """Time `args.runs` steps after a warm-up, each between two measurements of the limits, of which the mean counts."""
    action()
    looks, steps = [limits(args, gigabytes)], []
    for _ in range(args.runs):
        steps.append(seconds(action))
        looks.append(limits(args, gigabytes))
    means = {name: [(a[name] + b[name]) / 2 for a, b in pairwise(looks)] for name in looks[0]}
    return Pairs(steps, means)


def weights_read(shape: Shape, name: str, sequences: int) -> float:
    """Return the bytes of packed weights that a step of one token for each sequence reads.

    Of experts only the chosen ones count, for choices that are even; the embedding table counts only as a tied head.
    """
    formats = formats_of(shape.model, name)
    return sum(
        spec_bytes(spec, formats[spec.name]) * (1 - (1 - spec.active / spec.experts) ** sequences)
        for spec in matrices(shape.model)
        if spec.role != "embedding" or shape.tied
    )


def measure_decode(
    executor: _native.Executor, shape: Shape, name: str, sequences: int, context: int, args: argparse.Namespace
) -> dict[str, float]:
    """Measure a step of one token for each sequence, at position `context`."""
    weights = weights_read(shape, name, sequences) / 1e9
    past = sequences * (context * executor.kv_bytes_per_block / BLOCK + executor.state_bytes_per_slot) / 1e9
    barriers = executor.barriers
    pairs = measure_pairs(step(executor, sequences, context, 1), args, weights + past)
    step_s = median(pairs.step_s)
    attention = 4e-9 * shape.layers * shape.hidden * context * sequences
    return {
        "tokens_s": sequences / step_s,
        "gb_read": weights + past,
        "read_gb_s": median(pairs.limits["read_gb_s"]),
        "share_of_read": pairs.share("read_gb_s", weights + past),
        "peak_gflops": median(pairs.limits[peak_of(name)]),
        "share_of_peak": pairs.share(peak_of(name), 2e-9 * shape.multiplied * sequences + attention),
        "barriers_per_layer": (executor.barriers - barriers) / (args.runs + 1) / shape.layers,
    }


def measure_prefill(
    executor: _native.Executor, shape: Shape, name: str, tokens: int, args: argparse.Namespace
) -> dict[str, float]:
    """Measure one prompt in one step."""
    pairs = measure_pairs(step(executor, 1, 0, tokens), args, 0.5)
    gflop = 2e-9 * ((shape.multiplied - shape.head) * tokens + shape.head)
    gflop += 2e-9 * shape.layers * shape.hidden * tokens * tokens  # half of the square is masked
    return {
        "tokens_s": tokens / median(pairs.step_s),
        "gflops": gflop / median(pairs.step_s),
        "peak_gflops": median(pairs.limits[peak_of(name)]),
        "share_of_peak": pairs.share(peak_of(name), gflop),
        "share_of_fma": pairs.share("fma_gflops", gflop),
    }


def peak_of(name: str) -> str:
    return PEAKS.get("bfloat16" if name.endswith("-float") else name, "int8_gops")


def measure(shape_name: str, shape: Shape, name: str, args: argparse.Namespace) -> list[Figure]:
    """Return all figures of one shape in one format."""
    decoded = [(sequences, args.context) for sequences in args.decode] + [(1, c) for c in args.contexts]
    executor = make_executor(
        shape, name, args.kv_cache_dtype, cores_of(args), args.threads, STEP_TOKENS, max(args.decode)
    )
    tokens = max([sequences * (context + BLOCK) for sequences, context in decoded] + args.prefill)
    blocks = -(-tokens // BLOCK)
    allocate_cache(executor, blocks, max(args.decode))
    touch_blocks(executor, blocks, max(args.decode))
    figures: list[Figure] = []

    def add(row: str, found: dict[str, float]) -> None:
        figures.extend(figures_of(shape_name, name, row, found))
        print(*map(line_of, figures[-len(found) :]), sep="\n", flush=True)

    add("memory", {"packed_gb": executor.packed_bytes / 1e9, "scratch_gb": executor.scratch_bytes / 1e9})
    for sequences, context in decoded:
        found = measure_decode(executor, shape, name, sequences, context, args)
        add(f"decode_{sequences}_at_{context}", found | count_step(step(executor, sequences, context, 1)))
    for count in args.prefill:
        found = measure_prefill(executor, shape, name, count, args)
        add(f"prefill_{count}", found | count_step(step(executor, 1, 0, count)))
    return figures


def count_step(action: Callable[[], None]) -> dict[str, float]:
    """Return the CPU's counters over one step of all threads; empty if they cannot be read."""
    with counted() as found:
        action()
    return found


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--cores", default="", help="CPU ids, one a thread, separated by commas; default: not pinned")
    parser.add_argument("--shapes", default="r1-distill-qwen-1.5b", help=f"of {', '.join(SHAPES)}")
    parser.add_argument(
        "--formats", default="bfloat16,int8,int4", help="float32 … int8, int4 (-g64, -g32; -float), mxfp4"
    )
    parser.add_argument("--kv-cache-dtype", default=KV_DTYPE)
    parser.add_argument("--layers", type=int, default=0, help="of the shape; 0: all")
    parser.add_argument("--context", type=int, default=256, help="position of the decoded token")
    parser.add_argument("--decode", type=numbers, default=[1, 8, 32], help="sequences of a step")
    parser.add_argument("--contexts", type=numbers, default=[4096], help="further positions, for one sequence")
    parser.add_argument("--prefill", type=numbers, default=[512, 2048], help="tokens of a prompt, at most 2048")
    parser.add_argument("--runs", type=int, default=9, help="steps of each kind")
    parser.add_argument("--out", type=Path, help="machine's file that they are added to")
    args = parser.parse_args()

    figures: list[Figure] = []
    for shape_name in args.shapes.split(","):
        for name in args.formats.split(","):
            figures += measure(shape_name, shape_of(shape_name).cut(args.layers), name, args)
            if args.out:
                record(args.out, run_of(figures, args.threads, _native.tier()))


if __name__ == "__main__":
    main()
