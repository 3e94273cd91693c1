"""Rate curves: time to first token, and for each token after it, against throughput, of forearm and peers beside it.

    python bench/serving/rates.py --peers DIR --out bench/results/rates/<machine>.json
    python tools/performance_page.py        # draws docs/rates-<machine>.svg of it, and puts it on the page

Servers take turns, one at a time, and each answers every rate before the next starts: requests arrive as a Poisson
process of that rate, at the same moments for each server, with prompts of their own at each rate (a cache of prefixes
would answer repeated ones). Requests before the measured ones, at the lowest rate, touch the server's memory. The
machine must have nothing else to do. Where the rate is above what a server answers, the time to its first token grows
with --seconds: the last points of a curve say that, and no more. Throughput counts the tokens of prompts and answers.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.peers import contestants
from bench.peers.at_once import free_port, over_http, server, waited
from bench.peers.contestants import CONTESTANTS, Contestant, Missing
from bench.records import Figure, figure, line_of, record, run_of
from bench.shapes import SHAPES, Shape, prompt

from forearm import _native

WARM_UPS = 4
LEAST = 8  # requests of a rate
SEEDS = 100_000  # of the prompts of a rate: more than it has
PEERS = {"llama": "llama.cpp", "vllm": "vLLM"}


def curve(one: Contestant, shape: Shape, args: argparse.Namespace) -> Iterator[Figure]:
    """Yield the figures of each rate of one server.

    Raises: Missing with the reason if it cannot be had, or a request failed.
    """
    model = contestants.files_of(one, shape, args.work / args.shape, args.peers)
    port = free_port()
    command = contestants.server_of(one, model, args.peers, args.threads, port)
    with server(command, port, args.timeout, {"VLLM_CPU_KVCACHE_SPACE": "2"}) as address:
        for number, rate in enumerate([args.rates[0], *args.rates]):
            count = max(LEAST, round(rate * args.seconds)) if number else WARM_UPS
            prompts = [prompt(shape, args.prompt, number * SEEDS + i) for i in range(count)]
            found = waited(asyncio.run(over_http(address, prompts, args.tokens, rate, seed=number)))
            found["tokens_s"] *= (args.prompt + args.tokens) / args.tokens
            peer = "" if one.engine == "forearm" else f"{PEERS[one.engine]} {one.format}"
            for quantity, value in found.items() if number else ():
                yield figure(args.shape, args.format, f"rate_{rate:g}", quantity, value, peer)


def chosen(args: argparse.Namespace) -> list[Contestant]:
    """Return forearm in the format asked for, and each peer's nearest format of that width."""
    (ours,) = [one for one in CONTESTANTS if (one.engine, one.format) == ("forearm", args.format)]
    near = {one.engine: one for one in reversed(CONTESTANTS) if one.width == ours.width and one.engine in PEERS}
    return [ours if engine == "forearm" else near[engine] for engine in args.engines.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen2.5-0.5b", choices=SHAPES)
    parser.add_argument("--format", default="bfloat16", choices=("bfloat16", "int8", "int4"))
    parser.add_argument("--engines", default="forearm,llama,vllm", help="of forearm, llama, vllm; separated by commas")
    parser.add_argument("--rates", default="0.25,0.5,1,2,4,8", help="requests a second, the lowest first")
    parser.add_argument("--seconds", type=float, default=60, help="in which the requests of a rate arrive")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--peers", type=Path, default=Path("build/peers"), help="where compare.py --install put them")
    parser.add_argument("--work", type=Path, default=Path("build/compare"), help="for models with random weights")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--timeout", type=float, default=600, help="seconds for a start")
    parser.add_argument("--out", type=Path, help="bench/results/rates/<machine>.json: the figures are added to it")
    args = parser.parse_args()
    args.peers, args.work = args.peers.resolve(), args.work.resolve()
    args.rates = [float(rate) for rate in args.rates.split(",")]
    (args.work / args.shape).mkdir(parents=True, exist_ok=True)
    figures: list[Figure] = []
    notes = [f"prompts of {args.prompt}, answers of {args.tokens} tokens; each rate for {args.seconds:g} s"]
    for one in chosen(args):
        try:
            for found in curve(one, SHAPES[args.shape], args):
                figures.append(found)
                print(line_of(found), flush=True)
        except Missing as why:  # noqa: PERF203  (the others are measured all the same)
            notes.append(f"{one.name}: {why}")
            print(notes[-1], file=sys.stderr)
    if args.out and figures:
        record(args.out, run_of(figures, args.threads, _native.tier(), notes=notes))


if __name__ == "__main__":
    main()
