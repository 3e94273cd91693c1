"""Measure the cost of structured output: decode steps in which every sequence has a mask against steps without masks.

Random weights of a shape of bench/shapes.py, its tokenizer of as many tokens: nothing is downloaded. Two batches run at
a time, with and without a format, and take turns step by step, so that both see the same machine; a cost is the median
of the ratios of such pairs. No answer ends before it is cut, and nothing is drafted but what a grammar forces. Where
that makes a step compute more tokens than it has lines, it is also taken beside a batch without a format that computes
as many, and once more with an engine that forces nothing, so that only the masks differ.

    python bench/structured.py --shape qwen2.5-0.5b --quantization int4 --out bench/results/structured/<machine>.json

- strings: a list of strings. Most of the vocabulary is allowed.
- numbers: a list of integers. Few tokens are.
- objects: a list of objects. Their keys are forced: a step computes several tokens of a line, and a token costs less.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.records import Figure, figures_of, line_of, record, run_of
from bench.shapes import SHAPES, prompt, write_model

from forearm import LLM, SamplingParams, StructuredOutputsParams, _native
from forearm.engine.constraints.output_constraint import Constraint
from forearm.engine.executor import NativeExecutor
from forearm.engine.sequence import Slice

_ENDLESS = 100_000
_PERSON = {
    "type": "object",
    "properties": {"first_name": {"type": "string"}, "kind": {"enum": ["cat", "dog"]}, "height_cm": {"type": "number"}},
    "required": ["first_name", "kind", "height_cm"],
    "additionalProperties": False,
}
FORMATS: dict[str, StructuredOutputsParams] = {
    "strings": StructuredOutputsParams(json={"type": "array", "items": {"type": "string"}, "minItems": _ENDLESS}),
    "numbers": StructuredOutputsParams(json={"type": "array", "items": {"type": "integer"}, "minItems": _ENDLESS}),
    "objects": StructuredOutputsParams(json={"type": "array", "items": _PERSON, "minItems": _ENDLESS}),
}


@dataclass(frozen=True)
class Pair:
    """Seconds of a step without a format and of the next one with a format; the tokens per line of the second."""

    without_s: float
    with_s: float
    tokens: float


def run(
    llm: LLM, plain: list[list[int]], formed: list[list[int]], params: tuple[SamplingParams, SamplingParams]
) -> list[Pair]:
    """Run both batches by turns; steps with prompts do not count."""
    prompts, sizes = plain + formed, {True: len(plain), False: len(formed)}
    loop, steps = llm._loop, list[tuple[bool, float, float]]()
    schedule, step, turn = loop.scheduler.schedule, loop.step, False

    def one_batch() -> list[Slice]:
        slices = schedule()
        chosen = [piece for piece in slices if (piece.sequence.request.params.grammar is None) == turn]
        return chosen or slices

    def timed() -> None:
        nonlocal turn
        turn = not turn
        lines = [s for request in loop._requests.values() for s in request.sequences if s.output_length]
        before = sum(len(sequence.tokens) for sequence in lines)
        begin = time.perf_counter()
        step()
        took = time.perf_counter() - begin
        if len(lines) == len(prompts) and len(loop._requests) == len(prompts):
            grown = sum(len(sequence.tokens) for sequence in lines) - before
            steps.append((turn, took, grown / sizes[turn]))

    loop.scheduler.schedule, loop.step = one_batch, timed  # type: ignore[method-assign]
    try:
        llm.generate(prompts, [params[0]] * len(plain) + [params[1]] * len(formed), use_tqdm=False)
    finally:
        loop.scheduler.schedule, loop.step = schedule, step  # type: ignore[method-assign]
    first = next(i for i, (plain, _, _) in enumerate(steps) if plain)
    return [Pair(a[1], b[1], b[2]) for a, b in zip(steps[first::2], steps[first + 1 :: 2], strict=False)]


def measure(llm: LLM, prompts: list[list[int]], args: argparse.Namespace) -> list[Figure]:
    """Return the figures of every format."""
    every: dict[str, Any] = {"temperature": args.temperature, "max_tokens": args.steps, "ignore_eos": True, "seed": 1}
    found: list[Figure] = []

    def add(name: str, pairs: list[Pair], alike: list[Pair], lines: int) -> None:
        found.extend(figures(args, name, pairs, alike, lines))
        print(*map(line_of, found[-6:]), sep="\n", flush=True)

    for name, asked in FORMATS.items():
        params = SamplingParams(**every), SamplingParams(**every, structured_outputs=asked)
        pairs = run(llm, prompts, prompts, params)
        lines = round(len(prompts) * tokens_a_line(pairs))
        if lines == len(prompts):
            add(name, pairs, pairs, lines)
            continue
        more = [prompts[i % len(prompts)] for i in range(lines)]
        add(name, pairs, run(llm, more, prompts, params), lines)
        with patch.object(Constraint, "forced", lambda _: []):
            pairs = run(llm, prompts, prompts, params)
        add(f"{name}, nothing forced", pairs, pairs, len(prompts))
    return found


def tokens_a_line(pairs: list[Pair]) -> float:
    """Return the tokens per line that a step with a format generates."""
    return sum(pair.tokens for pair in pairs) / len(pairs)


def figures(args: argparse.Namespace, name: str, pairs: list[Pair], alike: list[Pair], lines: int) -> list[Figure]:
    """Return one format's figures. alike: pairs whose step without a format computes as many tokens."""
    without_ms, with_ms = (1e3 * median(getattr(pair, f"{kind}_s") for pair in pairs) for kind in ("without", "with"))
    tokens = tokens_a_line(pairs)
    found = {"without_ms": without_ms, "with_ms": with_ms, "step_cost": ratio(pairs) - 1, "tokens_a_step": tokens}
    found |= {"step_cost_alike": ratio(alike) - 1, "token_cost": ratio(pairs) / tokens - 1}
    return figures_of(args.shape, args.quantization, f"{name}, batch {args.batch} (beside {lines})", found)


def ratio(pairs: list[Pair]) -> float:
    """Return the ratio of a step with a format to one without."""
    return median(pair.with_s / pair.without_s for pair in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen2.5-0.5b", choices=SHAPES)
    parser.add_argument("--layers", type=int, default=0, help="so many layers of it; 0: all")
    parser.add_argument("--quantization", default="int4")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=0, help="that compute; 0: one a core. Masks take another core")
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--steps", type=int, default=80, help="tokens of each line")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--models", default=str(Path(tempfile.gettempdir()) / "forearm-shapes"))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    shape = SHAPES[args.shape].cut(args.layers)
    folder = Path(args.models) / f"{args.shape}-{shape.layers}"
    write_model(shape, folder)
    llm = LLM(folder, quantization=args.quantization, max_model_len=1024, max_num_seqs=4 * args.batch,
              kv_cache_memory_bytes=1 << 29, omp_num_threads=args.threads or None)  # fmt: skip
    prompts = [prompt(shape, args.context, seed) for seed in range(args.batch)]
    executor = llm._loop._stepper.executor
    assert isinstance(executor, NativeExecutor)
    args.threads = executor.native.threads
    found = measure(llm, prompts, args)
    if args.out:
        record(args.out, run_of(found, args.threads, _native.tier()))


if __name__ == "__main__":
    main()
