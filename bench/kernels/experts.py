"""Time layers with experts beside dense layers of as many active parameters.

    python -m bench.kernels.experts [--shape gpt-oss-20b] [--layers 3] [--threads 2] [--format int4]... [--out FILE]

The sizes are Qwen3-30B-A3B's (hidden 2048, 128 experts of 768, 8 a token) or gpt-oss-20b's (hidden 2880, 32 experts of
2880, 4 a token), cut to some layers; weights are random, all in the format. The feed-forward of a dense layer is as
wide as the experts of a token. For each number of rows it gives the milliseconds of a step with experts, its speed as
a share of the dense model's, the bytes that it reads as a share of the threads' read bandwidth, and its speed as a
multiple of one thread's: once with random tokens, once with one token in all rows, which chooses the same experts for
all. Passes of the models alternate, and each figure is the best of its passes: other work on the machine only ever
takes away.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from bench.executors import load_piece
from bench.records import Figure, figures_of, line_of, record, run_of

from forearm import _native
from forearm.config.number_formats import WeightFormat
from forearm.model.checkpoint.formats import spec_bytes
from forearm.model.families.config import Attention, Experts, FeedForward, Layer, ModelConfig, Rope
from forearm.model.families.matrices import matrices, uniform_formats

FORMATS = {
    "bf16": WeightFormat("bfloat16"),
    "int8": WeightFormat("int8"),
    "int4": WeightFormat("int4", 32, "float16"),
    "mxfp4": WeightFormat("fp4_e2m1", 32, "e8m0"),
    "fp8": WeightFormat("fp8_e4m3"),
}
ROWS = (1, 8, 32, 512)
BLOCK = 32
VOCABULARY = 1024  # small, because the head is not measured


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model with experts."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: Experts


SIZES = {
    "qwen3-30b-a3b": Sizes(2048, 32, 4, 128, Experts(768, count=128, active=8, renormalized=True)),
    "gpt-oss-20b": Sizes(2880, 64, 8, 64, Experts(2880, count=32, active=4, renormalized=True)),
}


def config(sizes: Sizes, layers: int, feed_forward: FeedForward | Experts) -> ModelConfig:
    """Return layers of Qwen3-MoE's kind."""
    rope = Rope((1e6 ** (-np.arange(0, sizes.head_dim, 2) / sizes.head_dim)).astype(np.float32))
    return ModelConfig(
        model_type="qwen3_moe", dtype="bfloat16", vocab_size=VOCABULARY, hidden=sizes.hidden, heads=sizes.heads,
        kv_heads=sizes.kv_heads, head_dim=sizes.head_dim, max_positions=4096,
        layers=(Layer(Attention(0), feed_forward),) * layers, ropes=(rope,), tied_head=True, qk_norm="head",
        attention_scale=sizes.head_dim**-0.5,
    )  # fmt: skip


def load(model: ModelConfig, format: WeightFormat, threads: int) -> _native.Executor:
    """Return an executor with random weights; experts of a layer are equal, each with memory of its own."""
    formats = uniform_formats(model, format)
    executor = _native.Executor(model, matrices(model), formats, "bfloat16", 512, 32, 32, 1024, [], threads)
    rng = np.random.default_rng(1)
    made: dict[tuple[int, int], np.ndarray] = {}
    for spec in matrices(model):
        for part in spec.parts:
            if (part.rows, spec.k) not in made:
                made[part.rows, spec.k] = rng.normal(0, 1, (part.rows, spec.k)).astype(np.float32)
            for expert in range(spec.experts):
                load_piece(executor, part.name, expert * part.rows, made[part.rows, spec.k], formats[spec.name])
    executor.load_vector("final_norm", np.ones(model.hidden, np.float32))
    for i in range(len(model.layers)):
        for name in ("input_norm", "pre_mlp_norm", "q_norm", "k_norm"):
            size = model.head_dim if name.startswith(("q", "k")) else model.hidden
            executor.load_vector(f"layers.{i}.{name}", np.ones(size, np.float32))
    executor.finish_loading()
    executor.allocate_kv(64)
    return executor


def read_bytes(model: ModelConfig, experts: Experts, formats: dict[str, WeightFormat], rows: int) -> float:
    """Return the bytes of weights that a step reads, with the expected number of experts for an even choice.

    rows: those that choose on their own; 1 if all rows choose alike.
    """
    chosen = 1 - (1 - experts.active / experts.count) ** rows
    specs = matrices(model)
    return sum(spec_bytes(s, formats[s.name]) * (chosen if s.experts > 1 else 1) for s in specs)


def step_ms(executor: _native.Executor, rows: int, alike: bool) -> float:
    """Return the milliseconds of one step: up to 32 rows are first tokens of as many sequences, more are one prompt.

    alike: all rows are of one token.
    """
    tokens = np.random.default_rng(rows).integers(0, VOCABULARY, rows).astype(np.int32)
    if alike:
        tokens[:] = tokens[0]
    sequences = rows if rows <= 32 else 1
    starts = np.linspace(0, rows, sequences + 1).astype(np.int32)
    blocks = sequences if rows <= 32 else rows // BLOCK
    positions = np.zeros(rows, np.int32) if rows <= 32 else np.arange(rows, dtype=np.int32)
    ends = np.linspace(0, blocks, sequences + 1).astype(np.int32)
    begun = time.perf_counter()
    executor.forward(tokens, positions, starts, ends, np.arange(blocks, dtype=np.int32), starts[1:] - 1)
    return (time.perf_counter() - begun) * 1000


def measure(asked: argparse.Namespace, name: str) -> list[Figure]:
    """Return the figures of one format."""
    sizes = SIZES[asked.shape]
    experts = sizes.experts
    with_experts = config(sizes, asked.layers, experts)
    dense = config(sizes, asked.layers, FeedForward(experts.active * experts.width))
    formats = uniform_formats(with_experts, FORMATS[name])
    ours, alone = (load(with_experts, FORMATS[name], threads) for threads in (asked.threads, 1))
    plain = load(dense, FORMATS[name], asked.threads)
    figures = []
    for rows, alike in [(rows, False) for rows in ROWS] + [(rows, True) for rows in ROWS[1:]]:
        bandwidth = _native.limits([], asked.threads, 256, 0.2)["read_gb_s"]
        passes = [[step_ms(one, rows, alike) for one in (ours, alone, plain)] for _ in range(asked.passes)]
        mine, one_thread, other = (min(times) for times in zip(*passes, strict=True))
        read = read_bytes(with_experts, experts, formats, 1 if alike else rows) / 1e9
        found = {"step_ms": mine, "share_of_dense": other / mine, "gain_of_threads": one_thread / mine}
        if rows <= 32:
            found |= {"gb_read": read, "read_gb_s": bandwidth, "share_of_read": read / mine * 1000 / bandwidth}
        row = f"{'decode' if rows <= 32 else 'prefill'} {rows}{', all rows choose alike' if alike else ''}"
        figures += figures_of(f"{asked.shape}@{asked.layers}", name, row, found)
        print(*map(line_of, figures[-len(found) :]), sep="\n", flush=True)
    return figures


def main() -> None:
    """Measure each format."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=SIZES, default="qwen3-30b-a3b")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--passes", type=int, default=15)
    parser.add_argument("--format", action="append", choices=FORMATS)
    parser.add_argument("--out", type=Path, help="machine's file of bench/results/engine that the figures are added to")
    asked = parser.parse_args()
    figures = [one for name in asked.format or FORMATS for one in measure(asked, name)]
    if asked.out:
        notes = ["Every matrix has the format; the vocabulary has 1,024 tokens."]
        record(asked.out, run_of(figures, asked.threads, _native.tier(), notes=notes))


if __name__ == "__main__":
    main()
