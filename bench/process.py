"""Measure an engine's process: start to first token, memory, Python's share of a step, processor time when idle.

    python bench/process.py --shape qwen2.5-0.5b --quantization int4 --work build/compare

Python's share is the part of a decode step outside its two calls into C++: scheduling, packing of arrays, finish
reasons, metrics, messages. Idle: processor time of all threads in a second without requests. Context switches are
those of all threads while they decode, in a second, for each core. A thread of the pool with a core of its own stays
awake while Python is at work between the two calls; nearly all switches are other work that takes the cores.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.records import Figure, figures_of, line_of, record, run_of
from bench.shapes import SHAPES, prompt, write_model

from forearm import LLM, SamplingParams, _native, wire
from forearm.array_types import Int32Array
from forearm.engine.batch import Batch, Sampled, Sampling, ScoredTokens
from forearm.engine.executor import Executor, NativeExecutor
from forearm.engine.inbox import Received
from forearm.engine.step import Stepper

MIB = 1 << 20
SETTLE_S = 0.5  # until spinning threads sleep


class Timed:
    """An executor that sums up the seconds of its calls in `taken`, which may be set to 0."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.vocab_size, self.max_model_len = executor.vocab_size, executor.max_model_len
        self.blocks, self.states, self.folder = executor.blocks, executor.states, executor.folder
        self.kept_states, self.copy_state = executor.kept_states, executor.copy_state
        self.taken = 0.0

    def forward(self, batch: Batch) -> None:
        begin = time.perf_counter()
        self._executor.forward(batch)
        self.taken += time.perf_counter() - begin

    def merge_page(self) -> bool:
        return self._executor.merge_page()

    def sample(self, sampling: Sampling) -> Sampled:
        begin = time.perf_counter()
        sampled = self._executor.sample(sampling)
        self.taken += time.perf_counter() - begin
        return sampled

    def score(self, rows: Int32Array, tokens: Int32Array, alternatives: int) -> ScoredTokens:
        return self._executor.score(rows, tokens, alternatives)


def python_share(llm: LLM, args: argparse.Namespace) -> dict[str, float]:
    """Return medians over decode steps of `args.sequences` sequences."""
    loop = llm._loop
    assert isinstance(loop._stepper, Stepper)
    timed = loop._stepper.executor = Timed(loop._stepper.executor)
    shape = SHAPES[args.shape]
    params = SamplingParams(temperature=0.7, top_p=0.9, seed=1, max_tokens=args.steps + 8, ignore_eos=True)
    for number in range(args.sequences):
        submit = wire.Submit(request_id=str(number), prompt_token_ids=prompt(shape, 32, number), params=params)
        loop.take(Received(0, submit))
    steps: list[tuple[float, float]] = []
    switched, started = switches(), time.perf_counter()
    while loop.busy:
        timed.taken, begin = 0.0, time.perf_counter()
        loop.step()
        loop.outbox = []
        steps.append((time.perf_counter() - begin, timed.taken))
    switched_s = (switches() - switched) / (time.perf_counter() - started) / len(os.sched_getaffinity(0))
    steps = steps[4:-4]  # prompts, and the last tokens
    python_s = median(whole - native for whole, native in steps)
    share = median((whole - native) / whole for whole, native in steps)
    step_ms = 1000 * median(whole for whole, _ in steps)
    return {"step_ms": step_ms, "python_ms": 1000 * python_s, "python_share": share, "switches_s": switched_s}


def switches() -> int:
    """Return how often threads of this process have left their cores, by themselves or not."""
    found = (status.read_text() for status in Path("/proc/self/task").glob("*/status"))
    return sum(int(number) for text in found for number in re.findall(r"ctxt_switches:\s+(\d+)", text))


def idle_cpu_s() -> float:
    """Return the processor seconds that this process' threads use in an idle second."""
    time.sleep(SETTLE_S)
    before = time.process_time()
    time.sleep(1.0)
    return time.process_time() - before


def memory_mib(llm: LLM) -> dict[str, float]:
    """Return the largest resident set, and the sizes of weights, KV cache and scratch, in MiB."""
    executor = llm._loop._stepper.executor
    assert isinstance(executor, NativeExecutor)
    native = executor.native
    kv = executor.blocks * native.kv_bytes_per_block
    status = Path("/proc/self/status").read_text()
    # VmHWM is of this program alone; getrusage's ru_maxrss includes the process before exec, its parent's copy.
    sizes = {name: int(kb) * 1024 for name, kb in re.findall(r"^(VmHWM|RssFile):\s*(\d+) kB", status, re.M)}
    peak = sizes["VmHWM"]
    found = {"peak": peak, "packed": native.packed_bytes, "kv": kv, "scratch": native.scratch_bytes}
    found["mapped_files_now"] = sizes["RssFile"]
    found["peak_beside_weights_and_kv"] = peak - native.packed_bytes - kv
    return {name: value / MIB for name, value in found.items()}


def measure(args: argparse.Namespace) -> list[Figure]:
    """Return the figures of this process, from its start on."""
    folder = args.work / args.shape / "hf"
    more = {"quantization": args.quantization} if args.quantization else {}
    more["weight_cache"] = str(args.weight_cache or "none")
    llm = LLM(
        str(folder), max_model_len=4096, max_num_seqs=max(args.sequences, 8), kv_cache_memory_bytes=1 << 29, **more
    )
    [output] = llm.generate(
        [prompt(SHAPES[args.shape], 8, 0)], SamplingParams(temperature=0.0, max_tokens=1), use_tqdm=False
    )
    assert output.outputs[0].token_ids
    named = args.shape, args.quantization or "bfloat16"
    start = "start, mapped from --weight-cache" if args.weight_cache else "start"
    found = figures_of(*named, start, {"start_s": time.time() - args.begin})
    for name, mib in memory_mib(llm).items():
        found += figures_of(*named, name.replace("_", " "), {"memory_mib": mib})
    found += figures_of(*named, f"decode of {args.sequences} streams", python_share(llm, args))
    return found + figures_of(*named, "idle", {"idle_cpu_share": idle_cpu_s()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen2.5-0.5b", choices=SHAPES)
    parser.add_argument("--quantization", default="int4", help="empty: bfloat16")
    parser.add_argument("--weight-cache", type=Path, help="folder of packed weights; the second start maps them")
    parser.add_argument("--work", type=Path, default=Path("build/compare"))
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path, help="bench/results/process/<machine>.json: the figures are added to it")
    parser.add_argument("--begin", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.begin is None:  # measured from outside, so that the interpreter's own start counts
        write_model(SHAPES[args.shape], args.work / args.shape / "hf")
        for path in (args.work / args.shape / "hf").iterdir():
            path.read_bytes()  # into the page cache
        subprocess.run([sys.executable, *sys.argv, "--begin", str(time.time())], check=True)
        return
    found = measure(args)
    print(*map(line_of, found), sep="\n")
    if args.out:
        record(args.out, run_of(found, tier=_native.tier()))


if __name__ == "__main__":
    main()
