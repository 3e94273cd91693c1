"""Decode and prefill of the executor against what the machine can do: memory bandwidth and multiply-add peak.

Random weights of the DeepSeek-R1-Distill-Qwen-1.5B shape (or of --layers fewer), so nothing is downloaded:

    python bench/engine.py --threads 2 --out bench/results/engine-<machine>.json

Decode is stated as GB/s of the packed weights that a step reads (all but the embedding table, of which it reads one
row), prefill as GFLOP/s of the multiplications with weights (two for each weight and token; attention's own, below
2 % at 512 tokens, are left out).

On a shared machine both limits change from one second to the next. So each step is timed next to its limit, reading
as many bytes as decode reads, and a share is the median of the ratios of such pairs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np

from forearm import _native
from forearm.engine.batch import Int32Array
from forearm.model.config import Layer, ModelConfig, Rope, WeightFormat, uniform_formats

BLOCK = 32
CONTEXT = 4096
DECODED = (1, 8, 32)  # sequences of a decode step

QWEN_1_5B = ModelConfig(
    model_type="qwen2",
    dtype="bfloat16",
    vocab_size=151936,
    hidden=1536,
    intermediate=8960,
    heads=12,
    kv_heads=2,
    head_dim=128,
    max_positions=131072,
    layers=(Layer(rope=0),) * 28,
    ropes=(Rope((10000.0 ** (-np.arange(0, 128, 2) / 128)).astype(np.float32)),),
    qkv_bias=True,
    attention_scale=128**-0.5,
)


def matrices(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Shape [rows, columns] of every matrix."""
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    hidden, wide = config.hidden, config.intermediate
    layer = {"q": (q, hidden), "k": (kv, hidden), "v": (kv, hidden), "o": (hidden, q)}
    layer |= {"gate": (wide, hidden), "up": (wide, hidden), "down": (hidden, wide)}
    shapes = {"embed": (config.vocab_size, hidden), "head": (config.vocab_size, hidden)}
    for i in range(len(config.layers)):
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def load(executor: _native.Executor, config: ModelConfig) -> None:
    """Fill with random weights: the bits of normal numbers around 1/sqrt(columns)."""
    rng = np.random.default_rng(0)
    pool = rng.normal(0, 1, 1 << 22).astype(np.float32)
    for name, (rows, columns) in matrices(config).items():
        for row in range(0, rows, 4096):
            count = min(4096, rows - row)
            values = np.resize(pool[int(rng.integers(1 << 20)) :], (count, columns)) * np.float32(columns**-0.5)
            executor.load_matrix(name, (values.view(np.uint32) >> 16).astype(np.uint16), "bfloat16", row)
    for i in range(len(config.layers)):
        for norm in ("input_norm", "pre_mlp_norm"):
            executor.load_vector(f"layers.{i}.{norm}", np.ones(config.hidden, np.float32))
        for name in "qkv":
            rows = matrices(config)[f"layers.{i}.{name}"][0]
            executor.load_vector(f"layers.{i}.{name}.bias", np.zeros(rows, np.float32))
    executor.load_vector("final_norm", np.ones(config.hidden, np.float32))
    executor.finish_loading()


def ints(values: object) -> Int32Array:
    return np.ascontiguousarray(values, dtype=np.int32)


def step(executor: _native.Executor, sequences: int, first: int, count: int) -> Callable[[], None]:
    """A step of `count` tokens from position `first` on for each sequence, each with its own blocks, one logit row."""
    per_sequence = CONTEXT // BLOCK
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
    return lambda: executor.forward(*columns)


def seconds(action: Callable[[], None]) -> float:
    """Of one call."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


@dataclass(frozen=True)
class Pairs:
    """Steps, and the limits measured right before and after each: seconds, GB/s and GFLOP/s."""

    step_s: list[float]
    read_gb_s: list[float]
    fma_gflops: list[float]

    def share_of_read(self, gigabytes: float) -> float:
        """Median share of the read bandwidth, for a step that reads so much."""
        return median(gigabytes / s / limit for s, limit in zip(self.step_s, self.read_gb_s, strict=True))

    def share_of_fma(self, gflop: float) -> float:
        """Median share of the multiply-add peak, for a step that computes so much."""
        return median(gflop / s / limit for s, limit in zip(self.step_s, self.fma_gflops, strict=True))


def measure_pairs(action: Callable[[], None], args: argparse.Namespace, gigabytes: float) -> Pairs:
    """`args.runs` steps, after one that does not count; each between two looks at the limits, whose mean is its own."""
    cores = [int(core) for core in args.cores.split(",")] if args.cores else []

    def look() -> tuple[float, float]:
        found = _native.limits(cores, args.threads, megabytes=int(gigabytes * 1000), seconds=0.0)
        return found["read_gb_s"], found["fma_gflops"]

    action()
    looks, steps = [look()], []
    for _ in range(args.runs):
        steps.append(seconds(action))
        looks.append(look())
    read, fma = ([(a + b) / 2 for a, b in pairwise(column)] for column in zip(*looks, strict=True))
    return Pairs(steps, read, fma)


def cpu_name() -> str:
    """The CPU as Linux names it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.lower().startswith(("model name", "cpu part")):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def measure(args: argparse.Namespace) -> dict[str, object]:
    """All figures, by name."""
    config = replace(QWEN_1_5B, layers=QWEN_1_5B.layers[: args.layers])
    cores = [int(core) for core in args.cores.split(",")] if args.cores else []
    formats = uniform_formats(config, WeightFormat(args.dtype))
    executor = _native.Executor(config, formats, args.dtype, 1024, 64, 64, CONTEXT, cores, args.threads)
    load(executor, config)
    executor.allocate_kv(32 * CONTEXT // BLOCK)

    shapes = matrices(config)
    weights = sum(rows * columns for name, (rows, columns) in shapes.items() if name != "embed")
    head = config.vocab_size * config.hidden
    gigabytes = weights * (4 if args.dtype == "float32" else 2) / 1e9
    figures: dict[str, object] = {"packed_gb": executor.packed_bytes / 1e9}
    for sequences in DECODED:
        barriers = executor.barriers
        pairs = measure_pairs(step(executor, sequences, args.context, 1), args, gigabytes)
        step_s = median(pairs.step_s)
        figures[f"decode_{sequences}"] = {
            "tokens_s": sequences / step_s,
            "weights_gb_s": gigabytes / step_s,
            "read_gb_s": median(pairs.read_gb_s),
            "share_of_read": pairs.share_of_read(gigabytes),
            "share_of_fma": pairs.share_of_fma(2e-9 * weights * sequences),
            "barriers_per_layer": (executor.barriers - barriers) / (args.runs + 1) / len(config.layers),
        }
    pairs = measure_pairs(step(executor, 1, 0, args.prompt), args, gigabytes)
    gflop = 2e-9 * ((weights - head) * args.prompt + head)
    figures[f"prefill_{args.prompt}"] = {
        "tokens_s": args.prompt / median(pairs.step_s),
        "gflops": gflop / median(pairs.step_s),
        "fma_gflops": median(pairs.fma_gflops),
        "share_of_fma": pairs.share_of_fma(gflop),
    }
    return figures


def circumstances(args: argparse.Namespace) -> dict[str, object]:
    """What the figures hold for."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "commit": commit.stdout.strip(),
        "cpu": cpu_name(),
        "tier": _native.tier(),
        "threads": args.threads,
        "weights": args.dtype,
        "layers": args.layers,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cores", default="", help="CPU ids, one a thread, separated by commas; default: not pinned")
    parser.add_argument("--dtype", default="bfloat16", help="of the packed weights and the KV cache")
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--context", type=int, default=256, help="position of the decoded token")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prefill")
    parser.add_argument("--runs", type=int, default=9, help="steps of each kind")
    parser.add_argument("--out", type=Path, help="also write the figures there, as JSON")
    args = parser.parse_args()

    figures = circumstances(args) | measure(args)

    text = json.dumps(figures, indent=2)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
