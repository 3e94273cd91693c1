"""Measure the executor whose modules transformers computes, beside the native one, on models that both have.

    python bench/modules.py --shapes qwen2.5-0.5b@8,smollm2-135m --out bench/results/modules/<machine>.json

Random weights of a shape of bench/shapes.py. Steps of both executors take turns in one process, so that other load on
the machine affects both alike: 512 tokens of a prompt, and a token of 1 and 8 sequences at position 256. The ratio
beside the native executor's speed is this one's share of it, the median of the pairs' ratios.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.records import Figure, figure, line_of, record, run_of
from bench.shapes import shape_of, write_model

from forearm import _native
from forearm.config.engine_config import EngineConfig
from forearm.engine.batch import Batch, int32
from forearm.engine.executor import NativeExecutor
from forearm.engine.host.memory_plan import fit
from forearm.engine.host.split_engines import memory_of
from forearm.engine.start import Cores, load

BLOCKS = 128
STEPS = {"prefill_512": (1, 0, 512, 7), "decode_1": (1, 256, 1, 40), "decode_8": (8, 256, 1, 25)}  # and how often each
NATIVE = "the native executor"


def opened(folder: Path, impl: str, args: argparse.Namespace) -> NativeExecutor:
    """Return the executor of --model-impl `impl` with a KV cache."""
    config = EngineConfig(
        model=str(folder), model_impl=impl, dtype="bfloat16", quantization=args.quantization, max_num_seqs=8,
        threads=args.threads, weight_cache="",
    )  # fmt: skip
    fitting = fit(config, folder, memory_of(config), args.threads)
    cores = Cores(args.threads, (), (args.threads,))
    executor = load(config, fitting.checkpoint, fitting.limits, cores, progress=False)
    executor.allocate(BLOCKS, 1)
    return executor


def step(sequences: int, first: int, count: int) -> Batch:
    """Return a step of `count` tokens from position `first` on for each sequence."""
    blocks, starts = -(-(first + count) // 32), range(0, sequences * count + 1, count)
    tokens = np.random.default_rng(1).integers(0, 1000, sequences * count).tolist()
    positions = list(range(first, first + count)) * sequences
    block_starts = int32(range(0, sequences * blocks + 1, blocks))
    rows = int32(start - 1 for start in starts[1:])
    return Batch(int32(tokens), int32(positions), int32(starts), block_starts, int32(range(sequences * blocks)), rows)


def measured(executors: list[NativeExecutor], batch: Batch, runs: int) -> list[list[float]]:
    """Return the seconds of each executor's steps, which take turns, after two that warm up."""
    seconds: list[list[float]] = [[] for _ in executors]
    for run in range(runs + 2):
        for executor, found in zip(executors, seconds, strict=True):
            begin = time.perf_counter()
            executor.forward(batch)
            found.append(time.perf_counter() - begin)
            if run < 2:
                found.clear()
    return seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="qwen2.5-0.5b,smollm2-135m", help="of bench/shapes.py, comma-separated")
    parser.add_argument("--quantization", default="none")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--work", type=Path, default=Path("build/modules"), help="for models")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    recorded: list[Figure] = []
    format = "bfloat16" if args.quantization == "none" else args.quantization
    for name in args.shapes.split(","):
        write_model(shape_of(name), args.work / name)
        executors = [opened(args.work / name, impl, args) for impl in ("transformers", "forearm")]
        for row, (sequences, first, count, runs) in STEPS.items():
            own, native = measured(executors, step(sequences, first, count), runs)
            tokens = sequences * count
            ratio = median(b / a for a, b in zip(own, native, strict=True))
            lines = [
                figure(name, format, row, "tokens_s", tokens / median(own)),
                figure(name, format, row, "tokens_s", tokens / median(native), NATIVE, ratio),
            ]
            print(*map(line_of, lines), sep="\n", flush=True)
            recorded += lines
    if args.out:
        record(args.out, run_of(recorded, args.threads, _native.tier()))


if __name__ == "__main__":
    main()
