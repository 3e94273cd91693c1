"""Decode and prefill of the executor against what the machine can do: memory bandwidth and multiply-add peak.

Random weights of the DeepSeek-R1-Distill-Qwen-1.5B shape (or of --layers fewer), so nothing is downloaded:

    python bench/engine.py --threads 2 --out bench/results/engine-<machine>.json

Decode is stated as GB/s of the packed weights that a step reads (all but the embedding table, of which it reads one
row), prefill as GFLOP/s of the multiplications with weights (two for each weight and token; attention's own, below
2 % at 512 tokens, are left out).
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
from dataclasses import replace
from pathlib import Path

import numpy as np

from forearm import _native
from forearm.engine.batch import Int32Array
from forearm.model.config import Layer, ModelConfig, Rope

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


def seconds(action: Callable[[], None], runs: int) -> float:
    """Least time of one call, after one that does not count: the limits are best passes too."""
    action()
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        action()
        times.append(time.perf_counter() - begin)
    return min(times)


def cpu_name() -> str:
    """The CPU as Linux names it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.lower().startswith(("model name", "cpu part")):
            return line.split(":", 1)[1].strip()
    return platform.processor()


class Limits:
    """The best that the machine has shown so far: others may be busy on it at any one moment."""

    def __init__(self, cores: list[int], threads: int) -> None:
        self.cores, self.threads = cores, threads
        self.read_gb_s = self.fma_gflops = 0.0

    def look(self) -> None:
        """Measure again."""
        now = _native.limits(self.cores, self.threads, seconds=0.5)
        self.read_gb_s = max(self.read_gb_s, now["read_gb_s"])
        self.fma_gflops = max(self.fma_gflops, now["fma_gflops"])


def measure(args: argparse.Namespace) -> dict[str, object]:
    """All figures, by name."""
    config = replace(QWEN_1_5B, layers=QWEN_1_5B.layers[: args.layers])
    cores = [int(core) for core in args.cores.split(",")] if args.cores else []
    executor = _native.Executor(config, args.dtype, args.dtype, 1024, 64, 64, CONTEXT, cores, args.threads)
    load(executor, config)
    executor.allocate_kv(32 * CONTEXT // BLOCK)
    limits = Limits(cores, args.threads)

    shapes = matrices(config)
    weights = sum(rows * columns for name, (rows, columns) in shapes.items() if name != "embed")
    head = config.vocab_size * config.hidden
    gigabytes = weights * (4 if args.dtype == "float32" else 2) / 1e9
    seconds_of: dict[int, float] = {}
    barriers_of: dict[int, float] = {}
    for sequences in DECODED:
        limits.look()
        barriers = executor.barriers
        seconds_of[sequences] = seconds(step(executor, sequences, args.context, 1), args.runs)
        barriers_of[sequences] = (executor.barriers - barriers) / (args.runs + 1) / len(config.layers)
    limits.look()
    prefill_s = seconds(step(executor, 1, 0, args.prompt), max(3, args.runs // 6))
    limits.look()

    decode = {
        f"decode_{sequences}": {
            "tokens_s": sequences / step_s,
            "weights_gb_s": gigabytes / step_s,
            "share_of_read": gigabytes / step_s / limits.read_gb_s,
            "share_of_fma": 2e-9 * weights * sequences / step_s / limits.fma_gflops,
            "barriers_per_layer": barriers_of[sequences],
        }
        for sequences, step_s in seconds_of.items()
    }
    gflops = 2e-9 * ((weights - head) * args.prompt + head) / prefill_s
    prefill = {"tokens_s": args.prompt / prefill_s, "gflops": gflops, "share_of_fma": gflops / limits.fma_gflops}
    return {
        "read_gb_s": limits.read_gb_s,
        "fma_gflops": limits.fma_gflops,
        "packed_gb": executor.packed_bytes / 1e9,
        **decode,
        f"prefill_{args.prompt}": prefill,
    }


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
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--out", type=Path, help="also write the figures there, as JSON")
    args = parser.parse_args()

    figures = circumstances(args) | measure(args)

    text = json.dumps(figures, indent=2)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
