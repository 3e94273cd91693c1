"""Measure gaps between tokens of running streams while long prompts arrive, and the tokens per second that this costs.

    python bench/itl.py --shape smollm2-135m --work build/compare --targets 0,0.15

Streams run all the time; beside them there is always one prompt, whose answer is one token. Rounds of the targets
(--target-inter-token-latency; 0: whole budgets) alternate, so that other load on the machine affects all alike.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.engine import touch_blocks
from bench.records import Figure, figures_of, line_of, record, run_of
from bench.shapes import SHAPES, prompt, write_model

from forearm import LLM, SamplingParams, _native, wire
from forearm.engine.executor import NativeExecutor
from forearm.engine.inbox import Received
from forearm.engine.loop import EngineLoop


def submit(loop: EngineLoop, name: str, token_ids: list[int], max_tokens: int) -> None:
    params = SamplingParams(temperature=0.7, seed=1, max_tokens=max_tokens, ignore_eos=True)
    loop.take(Received(0, wire.Submit(request_id=name, prompt_token_ids=token_ids, params=params)))


def measure(loop: EngineLoop, args: argparse.Namespace, seeds: count[int]) -> dict[str, list[float]]:
    """Return seconds of steps with prompts and without, and tokens per second with prompts."""
    shape = SHAPES[args.shape]
    for number in range(args.streams):
        submit(loop, f"stream {number}", prompt(shape, 32, next(seeds)), 1_000)
    plain = [stepped(loop)[0] for _ in range(12)][4:]
    gaps: list[float] = []
    begun_s, tokens = time.perf_counter(), 0
    for number in range(args.prompts):
        submit(loop, f"prompt {number}", prompt(shape, args.tokens, next(seeds)), 1)
        done = False
        while not done:
            gap_s, told = stepped(loop)
            gaps.append(gap_s)
            tokens += len(told)
            done = f"prompt {number}" in told
        tokens += args.tokens
    speed = tokens / (time.perf_counter() - begun_s)
    for number in range(args.streams):
        loop.take(Received(0, wire.Abort(request_id=f"stream {number}")))
    return {"plain_s": plain, "gaps_s": gaps, "tokens_s": [speed]}


def stepped(loop: EngineLoop) -> tuple[float, list[str]]:
    """Return the seconds of one step, and the requests that got a token."""
    begun_s = time.perf_counter()
    loop.step()
    told = [message.request_id for _, message in loop.outbox if isinstance(message, wire.Tokens)]
    loop.outbox = []
    return time.perf_counter() - begun_s, told


def figures(found: list[dict[str, list[float]]], row: str, args: argparse.Namespace) -> list[Figure]:
    """Return the figures of all rounds with one target."""
    gaps = [1000 * gap_s for one in found for gap_s in one["gaps_s"]]
    times = {
        "step_ms": 1000 * median(s for one in found for s in one["plain_s"]),
        **{f"p{share}_ms": float(np.percentile(gaps, share)) for share in (50, 99)},
        "longest_ms": max(gaps),
        "tokens_s": median(one["tokens_s"][0] for one in found),
    }
    return figures_of(args.shape, args.quantization, row, times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="smollm2-135m", choices=SHAPES)
    parser.add_argument("--quantization", default="none")
    parser.add_argument("--work", type=Path, default=Path("build/compare"))
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=2048, help="of a prompt")
    parser.add_argument("--prompts", type=int, default=4, help="of one round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--targets", default="0,0.15", help="seconds")
    parser.add_argument("--out", type=Path, help="bench/results/itl/<machine>.json: the figures are added to it")
    args = parser.parse_args()
    folder = args.work / args.shape / "hf"
    write_model(SHAPES[args.shape], folder)
    llm = LLM(
        str(folder), max_model_len=4096, max_num_seqs=16, kv_cache_memory_bytes=3 << 30, quantization=args.quantization
    )
    loop, seeds = llm._loop, count()
    assert isinstance(loop, EngineLoop)
    executor = loop._stepper.executor
    assert isinstance(executor, NativeExecutor)
    # The first use of 2 MiB of memory takes up to 4 ms on virtual machines: 64 of them, in turn, for llama-2-7b.
    touch_blocks(executor.native, executor.blocks, 16)
    targets = [float(target) for target in args.targets.split(",")]
    found: dict[float, list[dict[str, list[float]]]] = {target: [] for target in targets}
    for _ in range(args.rounds):
        for target in targets:
            loop.scheduler.limits = replace(loop.scheduler.limits, target_itl_s=target)
            found[target].append(measure(loop, args, seeds))
    recorded = [one for target, rounds in found.items() for one in figures(rounds, f"target {target:g} s", args)]
    print(*map(line_of, recorded), sep="\n")
    if args.out:
        record(args.out, run_of(recorded, tier=_native.tier()))


if __name__ == "__main__":
    main()
