"""Add the counters of count_instructions.sh to bench/results/instructions: millions of instructions for each token.

python report.py FOLDER PROMPT_TOKENS OUT_FOLDER SHAPE...
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from bench.records import Figure, figure, line_of, record, run_of
from bench.shapes import SHAPES

CPUS = ("graviton2", "graviton3", "graviton4")
PAIRS = {"int4": "Q4_0", "int4-wide": "Q4_0", "int6": "Q6_K", "bfloat16": "BF16"}  # forearm's format: llama.cpp's
WORDS = {"int4-wide": "int4, float activations", "int6": "Q6_K"}  # of forearm's formats, where they are others
NOTES = (
    "Executed instructions counted by a plugin of qemu 7.2, one thread; both compiled by the same g++, llama.cpp "
    "(llama-cpp-python 0.3.36) for the very CPU. All layers are computed from 1 and 2. A count is not a time.",
    "Weights are random, so that tokens choose experts about evenly. forearm's embedding and head are int8 in groups "
    "of 64, llama.cpp's Q8_0. Float activations are rounded to 16 bits, llama.cpp's to 8.",
)


def between_marks(path: Path) -> dict[str, tuple[int, int]]:
    """Return the instructions, and the vector multiplications among them, of the prompt and of the token after it."""
    marks = [tuple(int(number) for number in line.split()) for line in path.read_text().splitlines()]
    (_, a, x), (_, b, y), (_, c, z) = marks
    return {"prefill": (b - a, y - x), "decode": (c - b, z - y)}


def whole(folder: Path, name: str, prompt: int, layers: int) -> dict[str, float]:
    """Return millions of instructions per token with all layers: those with one, plus what a second adds for each."""
    one, two = (between_marks(folder / f"{name}-{count}.count") for count in (1, 2))
    found = {}
    for phase, tokens in (("prefill", prompt), ("decode", 1)):
        for what, index in (("instructions", 0), ("multiplications", 1)):
            first, second = one[phase][index], two[phase][index]
            found[f"{phase} {what}"] = (first + (layers - 1) * (second - first)) / tokens / 1e6
    return found


def whole_there(folder: Path, name: str) -> bool:
    """Return whether the runs with one and with two layers reached their last mark."""
    paths = [folder / f"{name}-{layers}.count" for layers in (1, 2)]
    return all(path.exists() and len(path.read_text().splitlines()) == 3 for path in paths)


def figures_of(shape: str, rows: dict[str, dict[str, float]]) -> list[Figure]:
    """Return one CPU's figures of a shape; a peer's ratio says how many times fewer instructions forearm executes."""
    found = []
    for ours, theirs in PAIRS.items():
        own, peer = rows.get(f"forearm-{ours}"), rows.get(f"llama-{theirs}")
        for name, value in (own or {}).items():
            phase, what = name.split()
            format = WORDS.get(ours, ours)
            found.append(figure(shape, format, phase, f"{what}_per_token", value))
            if peer:
                ratio = peer[name] / value if what == "instructions" else None
                found.append(
                    figure(shape, format, phase, f"{what}_per_token", peer[name], f"llama.cpp {theirs}", ratio)
                )
    return found


def main() -> None:
    folder, prompt, out = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    names = {
        f"{engine}-{name}" for pair in PAIRS.items() for engine, name in zip(("forearm", "llama"), pair, strict=True)
    }
    for cpu in CPUS:
        found: list[Figure] = []
        for shape in sys.argv[4:]:
            paths = {name: f"{cpu}-{shape}-{name}" for name in names if whole_there(folder, f"{cpu}-{shape}-{name}")}
            layers = SHAPES[shape].layers
            found += figures_of(shape, {name: whole(folder, at, prompt, layers) for name, at in paths.items()})
        if found:
            print(f"{cpu}-like", *map(line_of, found), sep="\n")
            notes = [*NOTES, f"A prompt of {prompt} tokens, then one token."]
            record(out / f"{cpu}-like.json", run_of(found, threads=1, notes=notes), f"Graviton{cpu[-1]}-like, emulated")


if __name__ == "__main__":
    main()
