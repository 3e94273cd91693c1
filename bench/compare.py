"""Measure forearm and its peers side by side: one run, the same prompts, the same number of threads, by turns.

    python bench/compare.py --install DIR                  virtual environments with the peers, once
    python bench/compare.py --peers DIR --work DIR         measure; the work folder gets models with random weights

Every contestant is a process of its own in its own virtual environment. Contestants of one weight width are loaded
together and measured by turns, round after round, so that load on the machine affects all of them alike; idle ones
sleep. One prompt before the rounds, which is not counted, touches their memory for the first time (7B int4: 49
tokens/s, then 69). The machine's limits are measured before and after each answer. If it multiplied at less than --calm
of the best rate seen, other guests of its host were active (two virtual cores on one physical core: half the rate), and
the measurement is repeated. A figure is the median of its rounds; a ratio is the median of the rounds' ratios.

prefill N: tokens per second of one prompt of N tokens, up to its first token. decode B: tokens per second of B
sequences together, from their median step. start: from the start of the process to the first token, with files in the
page cache; the median of as many starts as rounds. Weights are packed beforehand (--weight-cache), as the peers' are
quantized; the time of a start that packs them stands below the table. peak: largest resident set (mapped files count).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import table
from bench.engine import limits
from bench.peers import contestants
from bench.peers.at_once import free_port, in_process, over_http, server, waited
from bench.peers.contestants import CONTESTANTS, Contestant, Missing
from bench.peers.driven import Driven, prefill_s, step_s
from bench.records import record, run_of
from bench.shapes import SHAPES, Shape, prompt, shape_of

from forearm import _native

SETTLE_S = 0.3  # until the threads of the last contestant stop spinning
DECODED = {1: 16, 8: 10, 32: 6, 128: 12}  # steps by sequences; 128 prompts are 10 steps of 512 tokens
DECODE_PROMPT = 32
HTTP_REQUESTS, HTTP_PROMPT, HTTP_TOKENS = 16, 128, 64
CALM_TRIES, CALM_LOOKS = 4, 30  # tries for one answer; measurements that wait for a calm machine before each
FIRST_LOOKS = 8  # measurements of the limits at the start
LONG_START_S = 20.0  # longer starts are measured once: vLLM compiles for 80 to 205 s
SEEDS = 100_000  # more seeds than all rounds use
PEER_BYTES = 3 << 30  # memory of a contestant beside its weights: KV cache, scratch, libraries

Row = dict[str, Any]
Answer = TypeVar("Answer")


class Machine:
    """The machine's limits, measured repeatedly."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._looks = [limits(args) for _ in range(FIRST_LOOKS)]
        self.disturbed = 0  # answers for which the machine was calm in no try

    @property
    def limits(self) -> dict[str, float]:
        """Return the medians of the measurements while the machine was calm."""
        best = max(look["fma_gflops"] for look in self._looks)
        return medians([look for look in self._looks if look["fma_gflops"] >= self._args.calm * best])

    def is_calm(self) -> bool:
        """Return whether the machine reaches its usual limits now."""
        look = limits(self._args)
        self._looks.append(look)
        return bool(look["fma_gflops"] >= self._args.calm * max(one["fma_gflops"] for one in self._looks))

    def wait(self) -> bool:
        """Wait until the machine is calm, for at most CALM_LOOKS measurements. Returns: whether it is."""
        for _ in range(CALM_LOOKS):
            if self.is_calm():
                return True
            time.sleep(1)
        return False

    def asked(self, ask: Callable[[int], Answer], seed: int) -> Answer:
        """Return an answer with a calm machine before and after it; after CALM_TRIES tries, the last answer."""
        for attempt in range(CALM_TRIES):
            before = self.wait()
            answer = ask(seed + SEEDS * attempt)
            if before and self.is_calm():
                return answer
        self.disturbed += 1
        return answer


def measure_prefill(engine: Driven, shape: Shape, tokens: int, seed: int) -> float:
    return tokens / prefill_s(engine.generate([prompt(shape, tokens, seed)], 1))


def measure_decode(engine: Driven, shape: Shape, sequences: int, seed: int) -> float:
    prompts = [prompt(shape, DECODE_PROMPT, seed + i) for i in range(sequences)]
    return sequences / step_s(engine.generate(prompts, DECODED[sequences] + 1), sequences)


def measures(args: argparse.Namespace) -> dict[str, Callable[[Driven, Shape, int], float]]:
    """Return the measurements that a round makes of every contestant, by name."""

    def prefill(tokens: int) -> Callable[[Driven, Shape, int], float]:
        return lambda engine, shape, seed: measure_prefill(engine, shape, tokens, seed)

    def decode(sequences: int) -> Callable[[Driven, Shape, int], float]:
        return lambda engine, shape, seed: measure_decode(engine, shape, sequences, seed)

    return {f"prefill_{n}": prefill(n) for n in args.prefill} | {f"decode_{n}": decode(n) for n in args.decode}


def start_one(one: Contestant, model: Path, args: argparse.Namespace, cached: bool = True) -> Driven:
    """Start a contestant, after reading its files. cached: forearm maps packed weights if they are kept already."""
    cache = args.work / "cache"
    packed = cache.glob(f"{model.name}-*.weights") if one.engine == "forearm" and cached else ()
    for path in [*([model] if model.is_file() else model.iterdir()), *packed]:
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass
    sequences = max([*args.decode, HTTP_REQUESTS])
    settings = {"model": str(model), "format": one.format, "threads": args.threads}
    settings |= {"context": max([*args.prefill, 512]) + 256, "sequences": sequences}
    if one.engine == "forearm" and cached:
        settings["weight_cache"] = str(cache)
    if one.engine in contestants.BUILDS:
        settings["steps"] = str(contestants.steps_of(one.engine, args.peers))
    driver = "llama" if one.engine == "ik" else one.engine
    return Driven(contestants.python_of(one.engine, args.peers), driver, settings, args.timeout)


def started(one: Contestant, model: Path, args: argparse.Namespace, cached: bool = True) -> tuple[Driven, float]:
    """Start a contestant once a round (only once if that takes long). Returns: the last one, the median time."""
    found: list[float] = []
    while True:
        engine = start_one(one, model, args, cached)
        found.append(engine.start_s)
        if len(found) >= args.rounds or engine.start_s > LONG_START_S:
            return engine, median(found)
        engine.close()


def touch_memory(engine: Driven, row: Row, shape: Shape, args: argparse.Namespace) -> bool:
    """Compute the longest prompt, which is not counted. Returns: False, with the reason in the row, if that fails."""
    try:
        measure_prefill(engine, shape, max(args.prefill, default=DECODE_PROMPT), SEEDS - 1)
    except Missing as why:
        row["failed"] = f"the first prompt: {why}"
        return False
    return True


def measure_group(
    group: list[Contestant], shape: Shape, work: Path, machine: Machine, args: argparse.Namespace
) -> dict[str, Row]:
    """Measure the rounds of contestants that fit into memory together."""
    rows: dict[str, Row] = {}
    asked = measures(args)
    with ExitStack() as stack:
        engines: dict[str, Driven] = {}
        for one in group:
            try:
                model, packing_s = contestants.files_of(one, shape, work, args.peers), None
                if one.engine == "forearm":
                    packing, packing_s = started(one, model, args, cached=False)
                    packing.close()
                    start_one(one, model, args).close()  # packed, and kept
                engine, start_s = started(one, model, args)
            except Missing as why:
                rows[one.name] = {"failed": str(why)}
                continue
            stack.enter_context(closing(engine))
            engines[one.name] = engine
            rows[one.name] = {"version": engine.version, "start_s": start_s, "rounds": {m: [] for m in asked}}
            rows[one.name] |= {} if packing_s is None else {"packing_start_s": packing_s}
        engines = {who: engine for who, engine in engines.items() if touch_memory(engine, rows[who], shape, args)}
        for round in range(args.rounds):
            for name, ask in asked.items():
                for who in list(engines):
                    time.sleep(SETTLE_S)
                    try:
                        answer = machine.asked(partial(ask, engines[who], shape), 1000 * round)
                        rows[who]["rounds"][name].append(answer)
                        rows[who]["peak_mb"] = engines[who].peak_bytes / 1e6
                    except Missing as why:
                        rows[who]["failed"] = f"{name}: {why}"
                        del engines[who]
                    print(f"round {round + 1} {who} {name}: {rows[who]['rounds'][name][-1:]}", file=sys.stderr)
    return rows


def groups(chosen: list[Contestant], shape: Shape) -> list[list[Contestant]]:
    """Group contestants by weight width, or one by one if memory does not hold all of a width."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    found = []
    for width in sorted({one.width for one in chosen}):
        group = [one for one in chosen if one.width == width]
        fits = sum(one.bytes_read(shape) + PEER_BYTES for one in group) <= free
        found += [group] if fits else [[one] for one in group]
    return found


def measure_http(one: Contestant, shape: Shape, work: Path, machine: Machine, args: argparse.Namespace) -> Row:
    """Measure requests at once: over HTTP if the engine has a server, else in its process.

    The first round is a warm-up. Each round has prompts of its own, because prefix caches would hold repeated ones.
    """

    def prompts(seed: int) -> list[list[int]]:
        return [prompt(shape, HTTP_PROMPT, seed + i) for i in range(HTTP_REQUESTS)]

    def rounds(ask: Callable[[int], dict[str, float]]) -> Row:
        ask(0)
        return medians([machine.asked(ask, 1000 * (1 + round)) for round in range(args.rounds)])

    try:
        model = contestants.files_of(one, shape, work, args.peers)
        if one.engine == "openvino":
            with closing(start_one(one, model, args)) as engine:
                found = rounds(lambda seed: waited(in_process(engine, prompts(seed), HTTP_TOKENS)))
            return {"in_process": True} | found
        port = free_port()
        command = contestants.server_of(one, model, args.peers, args.threads, port)
        environment = {"VLLM_CPU_KVCACHE_SPACE": "2"}
        with server(command, port, args.timeout, environment) as address:
            return rounds(lambda seed: waited(asyncio.run(over_http(address, prompts(seed), HTTP_TOKENS))))
    except Missing as why:
        return {"failed": str(why)}


def medians(found: list[dict[str, float]]) -> dict[str, float]:
    return {name: median(one[name] for one in found) for name in found[0]}


def measure_shape(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Measure all rows of one shape."""
    shape, work = shape_of(name), args.work / name
    work.mkdir(parents=True, exist_ok=True)
    chosen = [one for one in CONTESTANTS if one.engine in args.engines and one.width in args.widths]
    chosen = [one for one in chosen if not args.formats or one.format in args.formats.split(",")]
    rows: dict[str, Row] = {}
    machine = Machine(args)
    for group in groups(chosen, shape):
        rows |= measure_group(group, shape, work, machine, args)
    for one in chosen:
        if one.engine in args.http.split(",") and "rounds" in rows[one.name]:
            rows[one.name]["http"] = measure_http(one, shape, work, machine, args)
        rows[one.name]["gb_read"] = one.bytes_read(shape) / 1e9
        rows[one.name]["width"] = one.width
    return {"machine": machine.limits, "disturbed": machine.disturbed, "rows": rows}


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", type=Path, metavar="DIR", help="install the peers there and end")
    parser.add_argument("--peers", type=Path, default=Path("build/peers"), help="where they were installed")
    parser.add_argument("--work", type=Path, default=Path("build/compare"), help="for models; 10 bytes a weight")
    parser.add_argument("--shapes", default="qwen2.5-0.5b", help=f"of {', '.join(SHAPES)} (as cut by shape_of: x@4)")
    parser.add_argument("--engines", default="forearm,llama,ik,openvino,vllm,torch")
    parser.add_argument("--widths", type=numbers, default=[16, 8, 4], help="bits of a weight")
    parser.add_argument("--formats", default="", help="their own names of formats; default: all of the widths")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--cores", default="", help="CPU ids of the machine's limits; default: not pinned")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calm", type=float, default=0.9, help="share of the machine's best look; 0: all is measured")
    parser.add_argument("--prefill", type=numbers, default=[512, 2048])
    parser.add_argument("--decode", type=numbers, default=[1, 8, 32], help="sequences; 128 where memory allows")
    parser.add_argument("--http", default="forearm,llama,openvino,vllm", help="engines that get requests at once")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for a start or an answer")
    parser.add_argument(
        "--out", type=Path, help="machine's file of bench/results/compare that the figures are added to"
    )
    args = parser.parse_args()
    if args.install:
        contestants.install(args.install)
        return
    args.engines = args.engines.split(",")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("compare: terminated"))  # so that servers are stopped
    args.peers, args.work = args.peers.resolve(), args.work.resolve()

    found: dict[str, Any] = {}
    for name in args.shapes.split(","):
        found[name] = measure_shape(name, args)
        if args.out:
            rows = [row for shape in found.values() for row in shape["rows"].items()]
            notes = [note for name, row in rows for note in table.notes(name, row)]
            versions = {table.PEERS[name.split()[0]]: row["version"] for name, row in rows if table.is_peer(name, row)}
            record(args.out, run_of(table.figures_of(found), args.threads, _native.tier(), versions, notes))
    print(table.markdown(found))


if __name__ == "__main__":
    main()
