"""Run one engine in a process of its own, controlled over pipes, in the engine's own virtual environment.

    python run.py ENGINE '{"model": …, "format": …, "threads": …, "context": …, "sequences": …}'

Each line on stdin is {"prompts": [[ids]], "tokens": n}: generate n tokens for each prompt, greedily, together. Each
line on stdout answers with {"steps": [[seconds, [prompt numbers]]], "peak_bytes": n}: when each step's tokens were
there, counted from the request, and for which prompts. The first line is sent when the model is loaded.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import time
from pathlib import Path


def peak_bytes() -> int:
    """Return the largest resident set of this process and its children so far."""
    mine = os.getpid()
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "status").read_text()
        except OSError:
            continue  # it has ended
        parent = re.search(r"^PPid:\s*(\d+)", status, re.M)
        high = re.search(r"^VmHWM:\s*(\d+) kB", status, re.M)
        if high and (folder.name == str(mine) or (parent and int(parent[1]) == mine)):
            total += int(high[1]) * 1024
    return total


def main() -> None:
    name, settings = sys.argv[1], json.loads(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    engine = importlib.import_module(f"engine_{name}").Engine(**settings)
    answers.write(json.dumps({"version": engine.version, "peak_bytes": peak_bytes()}) + "\n")
    for line in sys.stdin:
        request = json.loads(line)
        begin = time.perf_counter()
        steps = [[now - begin, numbers] for now, numbers in engine.generate(request["prompts"], request["tokens"])]
        answers.write(json.dumps({"steps": steps, "peak_bytes": peak_bytes()}) + "\n")


if __name__ == "__main__":
    main()
