"""The counters of count_instructions.sh as a table: millions of instructions for each token of the whole shape.

python report.py FOLDER PROMPT_TOKENS OUT
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from pathlib import Path

LAYERS = 24
CPUS = {"graviton2": "Graviton2-like", "graviton3": "Graviton3-like", "graviton4": "Graviton4-like"}
PAIRS = {"int4": "Q4_0", "bfloat16": "BF16"}  # ours: llama.cpp's
AIMS = {"prefill": 0.5, "decode": 0.8}


def between_marks(path: Path) -> dict[str, tuple[int, int]]:
    """(instructions, multiplications of vectors) of the prompt and of the token after it."""
    marks = [tuple(int(number) for number in line.split()) for line in path.read_text().splitlines()]
    (_, a, x), (_, b, y), (_, c, z) = marks
    return {"prefill": (b - a, y - x), "decode": (c - b, z - y)}


def whole(folder: Path, name: str, prompt: int) -> dict[str, float]:
    """Millions of instructions a token, of 24 layers: one layer's model and 23 times what a second layer adds."""
    one, two = (between_marks(folder / f"{name}-{layers}.count") for layers in (1, 2))
    found = {}
    for phase, tokens in (("prefill", prompt), ("decode", 1)):
        for what, index in (("instructions", 0), ("multiplications", 1)):
            first, second = one[phase][index], two[phase][index]
            found[f"{phase}_{what}"] = (first + (LAYERS - 1) * (second - first)) / tokens / 1e6
    return found


def whole_there(folder: Path, name: str) -> bool:
    """Whether both runs came to their last mark."""
    paths = [folder / f"{name}-{layers}.count" for layers in (1, 2)]
    return all(path.exists() and len(path.read_text().splitlines()) == 3 for path in paths)


def table(found: dict[str, dict[str, dict[str, float]]], prompt: int) -> list[str]:
    lines = ["| CPU | weights | phase | forearm | llama.cpp | ratio | aim |", "|---|---|---|---|---|---|---|"]
    for cpu, rows in found.items():
        for ours, theirs in PAIRS.items():
            if f"forearm-{ours}" not in rows or f"llama-{theirs}" not in rows:
                continue
            for phase, aim in AIMS.items():
                a, b = (rows[name][f"{phase}_instructions"] for name in (f"forearm-{ours}", f"llama-{theirs}"))
                cells = [CPUS[cpu], f"{ours} / {theirs}", phase, f"{a:.2f}", f"{b:.2f}", f"{a / b:.2f}", f"≤ {aim}"]
                lines.append("| " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    folder, prompt, out = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    names = [
        f"{engine}-{name}" for pair in PAIRS.items() for engine, name in zip(("forearm", "llama"), pair, strict=True)
    ]
    found = {
        cpu: {n: whole(folder, f"{cpu}-{n}", prompt) for n in names if whole_there(folder, f"{cpu}-{n}")}
        for cpu in CPUS
    }
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    text = [
        "# Instructions on Arm, beside llama.cpp",
        "",
        f"{date}, commit {commit.stdout.strip()}; `tools/arm/count_instructions.sh`. Millions of executed instructions "
        f"for each token of the Qwen2.5-0.5B shape (24 layers, reckoned from 1 and 2): a prompt of {prompt} tokens and "
        "then one. Counted exactly by a plugin of qemu 7.2, one thread; both compiled by the same g++, llama.cpp "
        "(llama-cpp-python 0.3.36) for the very CPU. A count is no time: nothing here says how fast a Graviton is.",
        "",
        *table(found, prompt),
    ]
    print("\n".join(text))
    out.with_suffix(".md").write_text("\n".join(text) + "\n")
    out.with_suffix(".json").write_text(json.dumps({"date": date, "prompt": prompt, "cpus": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
