"""Measure a server under mixed load for minutes: what grows, and whether a fixed request gets slower.

    python bench/serving/soak.py --minutes 20 --out bench/results/soak/<machine>.json

Clients ask everything that tests/e2e/asking.py has, with new prompts and new schemas, and one in five leaves in the
middle of its answer. A line a process: memory, descriptors and threads at the end, and their slopes per hour over the
second half (least squares). The bystander asks the same thing every two seconds: its answer must stay the same.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.records import Figure, figure, figures_of, line_of, record, run_of
from tests.e2e.asking import ASKS, ask
from tests.e2e.served import Served, serve

SAMPLE_S = 5.0
BYSTANDER_S = 2.0
# Caches reach their bounds long before the second half: what still grows then is unbounded.
SMALL_CACHES = {"VLLM_XGRAMMAR_CACHE_MB": "16", "FOREARM_RESPONSES_STORE_BYTES": str(2 << 20)}
WORDS = ("glacier", "river", "lake", "hill", "stone", "tree", "house", "bird", "fish", "cloud", "rain", "wind", "snow")


@dataclass
class Soak:
    """Observations. `samples`: by process and figure, (seconds, value); `bystander`: (seconds, seconds of answer)."""

    began_s: float = field(default_factory=time.monotonic)
    ends: Counter[str] = field(default_factory=Counter)
    samples: defaultdict[tuple[str, str], list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    bystander: list[tuple[float, float]] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)

    @property
    def age_s(self) -> float:
        """Return the seconds since the beginning."""
        return time.monotonic() - self.began_s


def load(served: Served, soak: Soak, seed: int, until_s: float) -> None:
    """Send one request after the other until this time."""
    random_ = random.Random(seed)
    while soak.age_s < until_s:
        kind = random_.random()
        if kind < 0.2:
            soak.ends[leave(served, random_)] += 1
        elif kind < 0.5:
            soak.ends[new(served, random_)] += 1
        else:
            soak.ends[ask(served.url, random_.choice(list(ASKS)), "demo").end] += 1


def prompt(random_: random.Random) -> str:
    """Return a text that no request has had before."""
    return " ".join(random_.choices(WORDS, k=random_.randrange(5, 300)))


def new(served: Served, random_: random.Random) -> str:
    """Send a request with a new prompt, and in half of the cases with a new schema. Returns: how it ended."""
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": prompt(random_)}],
        "max_tokens": random_.randrange(1, 64),
        "temperature": random_.choice([0, 1]),
    }
    if random_.random() < 0.5:
        names = random_.sample(WORDS, 3)
        schema = {"type": "object", "properties": {name: {"type": "boolean"} for name in names}, "required": names}
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return f"status {served.http.post('/v1/chat/completions', json=body).status_code}"


def leave(served: Served, random_: random.Random) -> str:
    """Begin a long answer and disconnect."""
    body = {
        "messages": [{"role": "user", "content": prompt(random_)}],
        "max_tokens": 1000,
        "ignore_eos": True,
        "stream": True,
        "n": 2,
    }
    with (
        httpx.Client(base_url=served.url, timeout=60) as client,
        client.stream("POST", "/v1/chat/completions", json=body) as reply,
    ):
        for _, _ in zip(range(random_.randrange(1, 40)), reply.iter_lines(), strict=False):
            pass
    return "left"


def stand_by(served: Served, soak: Soak, until_s: float) -> None:
    """Send the same request every two seconds."""
    while soak.age_s < until_s:
        begun = soak.age_s
        soak.answers[ask(served.url, "chat", "demo").text] += 1
        soak.bystander.append((begun, soak.age_s - begun))
        time.sleep(BYSTANDER_S)


def sample(served: Served, soak: Soak, until_s: float) -> None:
    """Measure every process and the run folder every five seconds."""
    serving = psutil.Process(served.process.pid)
    while soak.age_s < until_s:
        for process in (serving, *serving.children(recursive=True)):
            try:
                name = name_of(served, process)
                memory = process.memory_full_info()
                figures = {"MiB": memory.uss / (1 << 20), "files": process.num_fds(), "threads": process.num_threads()}
            except psutil.NoSuchProcess:
                continue
            for what, value in figures.items():
                soak.samples[name, what].append((soak.age_s, value))
        files = [path.stat().st_size for path in run_folder(served).rglob("*") if path.is_file()]
        soak.samples["run folder", "MiB"].append((soak.age_s, sum(files) / (1 << 20)))
        time.sleep(SAMPLE_S)


def name_of(served: Served, process: psutil.Process) -> str:
    """Return a name of the process; each worker has its own."""
    argv = process.cmdline()
    if process.pid == served.process.pid:
        return "serve"
    if "forearm.engine.process" in argv:
        return "engine"
    if "gunicorn" in argv:
        parent = process.parent()
        is_master = parent is not None and parent.pid == served.process.pid
        return "API master" if is_master else f"API worker {process.pid}"
    return "helpers"


def run_folder(served: Served) -> Path:
    """Return the folder of the server's sockets, metrics and stored responses."""
    return next(Path(served.log.parent, "tmp").glob("forearm-*"))


def slope(points: list[tuple[float, float]]) -> float:
    """Return the growth per hour over the second half."""
    half = points[len(points) // 2 :]
    if len(half) < 3:
        return 0.0
    seconds, values = np.array(half).T
    return float(np.polyfit(seconds, values, 1)[0] * 3600)


def figures(soak: Soak) -> list[Figure]:
    """Return the outcomes of requests, the bystander's times, and the final sizes and growth of each process."""
    half = len(soak.bystander) // 2
    found = [figure("demo model", "", f"ended with: {end}", "requests", count) for end, count in soak.ends.items()]
    found.append(figure("demo model", "", "bystander: different answers", "requests", len(soak.answers)))
    for name, part in (("first", soak.bystander[:half]), ("second", soak.bystander[half:])):
        seconds = [answer_s for _, answer_s in part]
        times = {"median_s": median(seconds), "longest_s": max(seconds)}
        found += figures_of("demo model", "", f"bystander, {name} half", times)
    names = sorted({process for process, _ in soak.samples if process.startswith("API worker")})
    workers = {name: f"API worker {number}" for number, name in enumerate(names, 1)}
    for (process, what), points in sorted(soak.samples.items()):
        sizes = {"at_end": points[-1][1], "most": max(value for _, value in points), "growth_per_hour": slope(points)}
        found += figures_of("demo model", "", f"{workers.get(process, process)}, {what}", sizes)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    until_s = args.minutes * 60
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "tmp").mkdir()
        flags = ("--api-server-count", "2", "--served-model-name", "demo", "--kv-cache-memory-bytes", str(96 << 20))
        with serve(Path(folder), *flags, env={"TMPDIR": f"{folder}/tmp", **SMALL_CACHES}) as served:
            soak = Soak()
            with ThreadPoolExecutor(args.clients + 2) as threads:
                works = [threads.submit(load, served, soak, seed, until_s) for seed in range(args.clients)]
                works += [threads.submit(watch, served, soak, until_s) for watch in (stand_by, sample)]
                for work in works:
                    work.result()
    found = figures(soak)
    print(*map(line_of, found), sep="\n")
    if args.out:
        record(args.out, run_of(found, notes=[f"{args.clients} clients for {args.minutes:g} minutes."]))


if __name__ == "__main__":
    main()
