"""Measure the executor whose modules transformers computes, beside the native one, on models that both have.

    python bench/modules.py --shapes qwen2.5-0.5b@8,smollm2-135m --out bench/results/modules/<machine>.json

Random weights of a shape of bench/shapes.py. Steps of both executors take turns in one process, so that other load on
the machine affects both alike: 512 tokens of a prompt, and a token of 1 and 8 sequences at position 256. The ratio
beside the native executor's speed is this one's share of it, the median of the pairs' ratios.

    python bench/modules.py --peers DIR

Whole engines instead of executors, beside vLLM with model_impl="transformers" that bench/compare.py installed there:
by turns, each in a process of its own: a prompt of 512 tokens to its first token, and the median step of 1 and 8
sequences after prompts of 256.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.peers.contestants import python_of
from bench.peers.driven import Driven, prefill_s, step_s
from bench.records import Figure, figure, line_of, record, run_of
from bench.shapes import Shape, prompt, shape_of, write_model

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
START_S = 600.0  # most seconds for a start or an answer: vLLM compiles when it starts
SETTLE_S = 0.3  # until the threads of the other engine stop spinning


def opened(folder: Path, impl: str, args: argparse.Namespace) -> NativeExecutor:
    """Return the executor of --model-impl `impl` with a KV cache."""
    config = EngineConfig(
        model=str(folder), model_impl=impl, dtype="bfloat16", quantization=args.quantization, max_num_seqs=8,
        threads=args.threads, weight_cache="",
    )  # fmt: skip
    fitting = fit(config, folder, memory_of(config), args.threads)
    cores = Cores(args.threads, (), (args.threads,))
    executor = load(config, fitting.checkpoint, fitting.limits, cores, progress=False)
    executor.allocate(BLOCKS, 8)
    return executor


def step(sequences: int, first: int, count: int) -> Batch:
    """Return a step of `count` tokens from position `first` on for each sequence."""
    blocks, starts = -(-(first + count) // 32), range(0, sequences * count + 1, count)
    tokens = np.random.default_rng(1).integers(0, 1000, sequences * count).tolist()
    positions = list(range(first, first + count)) * sequences
    block_starts = int32(range(0, sequences * blocks + 1, blocks))
    rows = int32(start - 1 for start in starts[1:])
    states = int32(range(sequences))  # of models whose layers keep some
    return Batch(
        int32(tokens), int32(positions), int32(starts), block_starts, int32(range(sequences * blocks)), rows,
        states=states,
    )  # fmt: skip


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


def beside_native(name: str, args: argparse.Namespace) -> list[Figure]:
    """Return the figures of both executors on one shape."""
    executors = [opened(args.work / name, impl, args) for impl in ("transformers", "forearm")]
    found: list[Figure] = []
    for row, (sequences, first, count, runs) in STEPS.items():
        own, native = measured(executors, step(sequences, first, count), runs)
        rates = [[sequences * count / seconds for seconds in one] for one in (own, native)]
        found += compared(name, args, row, rates[0], rates[1], NATIVE)
    return found


def beside_vllm(name: str, args: argparse.Namespace) -> list[Figure]:
    """Return the figures of the transformers executor and of vLLM's on one shape."""
    settings = {"model": str((args.work / name).resolve()), "threads": args.threads, "model_impl": "transformers"}
    settings |= {"format": "bfloat16", "context": 1024, "sequences": 8}
    both = [Driven(python_of(one, args.peers.resolve()), one, settings, START_S) for one in ("forearm", "vllm")]
    found: list[Figure] = []
    try:
        for row, rate in ENGINE_ROWS.items():
            rates: list[list[float]] = [[], []]
            for round in range(args.rounds + 1):
                for engine, values in zip(both, rates, strict=True):
                    time.sleep(SETTLE_S)
                    values.append(rate(engine, shape_of(name), 1000 * round))
            found += compared(name, args, row, rates[0][1:], rates[1][1:], f"vLLM {both[1].version}, transformers")
    finally:
        for engine in both:
            engine.close()
    return found


def prefill_rate(engine: Driven, shape: Shape, seed: int) -> float:
    """Return the tokens per second of a prompt up to its first token."""
    return 512 / prefill_s(engine.generate([prompt(shape, 512, seed)], 1))


def decode_rate(engine: Driven, shape: Shape, seed: int, sequences: int) -> float:
    """Return the tokens per second of the median step of all sequences."""
    prompts = [prompt(shape, 256, seed + i) for i in range(sequences)]
    return sequences / step_s(engine.generate(prompts, 25), sequences)


ENGINE_ROWS: dict[str, Callable[[Driven, Shape, int], float]] = {
    "prefill_512": prefill_rate,
    "decode_1": partial(decode_rate, sequences=1),
    "decode_8": partial(decode_rate, sequences=8),
}


def compared(
    name: str, args: argparse.Namespace, row: str, own: list[float], other: list[float], peer: str
) -> list[Figure]:
    """Return and print the figures of two by turns. The ratio is ours to the other's, pair by pair."""
    format = "bfloat16" if args.quantization == "none" else args.quantization
    ratio = median(a / b for a, b in zip(own, other, strict=True))
    found = [
        figure(name, format, row, "tokens_s", median(own)),
        figure(name, format, row, "tokens_s", median(other), peer, ratio),
    ]
    print(*map(line_of, found), sep="\n", flush=True)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="qwen2.5-0.5b,smollm2-135m", help="of bench/shapes.py, comma-separated")
    parser.add_argument("--quantization", default="none")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--work", type=Path, default=Path("build/modules"), help="for models")
    parser.add_argument("--peers", type=Path, help="where bench/compare.py installed vLLM, to be measured beside")
    parser.add_argument("--rounds", type=int, default=5, help="of whole engines, after one that warms up")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    recorded: list[Figure] = []
    for name in args.shapes.split(","):
        write_model(shape_of(name), args.work / name)
        recorded += beside_vllm(name, args) if args.peers else beside_native(name, args)
    if args.out:
        record(args.out, run_of(recorded, args.threads, _native.tier()))


if __name__ == "__main__":
    main()
