"""Reads thousands of broken copies of a model's files, and tells what came of them:
`python -m tests.unit.model.mutations --runs 5000 --seed 7`. Exit status 1 if one ended the process, raised anything but
the error for users, took too much time or memory, or was served as another model without a word.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter

from tests.unit.model.broken_files import FILES

GOOD = ("same", "warned", "refused", "settings")
_BATCH = 100  # cases of one process


def run(file: str, count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Return the outcomes of `count` cases of one file, and a line for each that is not allowed."""
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for first in range(0, count, _BATCH):
        part = seed + first // _BATCH
        argv = [sys.executable, "-m", "tests.unit.model.broken_files", file, str(min(_BATCH, count - first)), str(part)]
        ended = subprocess.run(argv, capture_output=True, text=True)
        lines = [json.loads(line) for line in ended.stdout.splitlines()]
        if ended.returncode:
            counts["ended"] += 1
            wrong.append(f"{file} seed {part} case {lines[-1:]}: {ended.stderr[-1000:]}")
        for number, (kind, text) in zip(lines[::2], lines[1::2], strict=False):
            counts[kind if kind in GOOD else "wrong"] += 1
            if kind not in GOOD:
                wrong.append(f"{file} seed {part} case {number}: {kind}: {text}")
    return counts, wrong


def main() -> int:
    """Print a line a file. Returns: the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--file", choices=FILES, nargs="*", default=list(FILES))
    asked = parser.parse_args()
    columns = (*GOOD, "wrong", "ended")
    print("| file | " + " | ".join(columns) + " |\n|---|" + "---|" * len(columns))
    bad: list[str] = []
    for file in asked.file:
        counts, wrong = run(file, -(-asked.runs // len(asked.file)), asked.seed)
        print(f"| {file} | " + " | ".join(str(counts[kind]) for kind in columns) + " |", flush=True)
        bad += wrong
    print("\n".join(bad), file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
