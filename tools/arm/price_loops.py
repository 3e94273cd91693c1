#!/usr/bin/env python3
"""Price the hot loops of Arm's tiers with llvm-mca, and fail where one is slower than loop_limits.txt says.

    tools/arm/price_loops.py            build the tiers with gcc and clang, print the table, hold the limits
    tools/arm/price_loops.py --write    and keep the table in bench/results/arm-loops.txt

The loop of a tile is taken from the compiled object and priced in cycles of LLVM 22's model of a core. Rates are
multiply instructions per cycle, as a share of what the core's pipes can start. The model has no caches: it shows
spills, missing unrolling and too many loads, not tokens per second. Vectors that a hot loop moves to or from the stack
fail too, beyond the number that a limit has.

Corrections: LLVM 22 sets the width of N1 and V2 by measurements of whole programs (3 and 6 micro-ops), so the width is
given: 4, 8 and 8, from Arm's optimization guides of N1, V1 and V2; V3, N3 and Olympus have their models' (10, 5, 10). A
fixed-point SCVTF is priced as the plain one, with two micro-ops, as in these guides (LLVM 22 has one on N1). Loads
count as hits in the first-level cache.
"""

from __future__ import annotations

import argparse
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMITS = Path(__file__).with_name("loop_limits.txt")
COMPILERS = {"gcc": "g++", "clang": "clang++-19"}
RESULT = ROOT / "bench/results/arm-loops.txt"
HEAD = """Hot loops of Arm's tiers in LLVM 22's models of Neoverse N1, V1, V2, V3 and N3 and of NVIDIA Olympus: cycles
of one turn (of one group), and what share of the multiply instructions that the core can start they are. Made by
tools/arm/price_loops.py --write."""
ATTRIBUTES = "+sve,+bf16,+i8mm,+dotprod,+fullfp16"
CPU = {core: f"neoverse-{core}" for core in ("n1", "v1", "v2", "v3", "n3")} | {"olympus": "olympus"}
DISPATCH = {"n1": 4, "v1": 8, "v2": 8, "v3": 10, "n3": 5, "olympus": 10}
# Multiply instructions that start each cycle, on q and on z registers (which V1 has two pipes for, 256 bits wide).
RATE = {"n1": {"v": 2, "z": 0}, "v1": {"v": 4, "z": 2}, "v2": {"v": 4, "z": 4}, "v3": {"v": 4, "z": 4}}
RATE |= {"n3": {"v": 2, "z": 2}, "olympus": {"v": 6, "z": 6}}
# The part of a limit that holds for a core: loops whose multiplies fill four pipes wait for loads and dispatch on six.
OF_LIMIT = {"olympus": 0.75}
BRANCH = re.compile(r"^(b|b\.\w+|cbn?z|tbn?z)\s+.*?0x([0-9a-f]+)")
CALL = re.compile(r"^blr?\s")
STACK_MOVE = re.compile(r"^(ldr|str|ldur|stur|ldp|stp)\s+[qz]\d+.*\[sp")


@dataclass(frozen=True)
class Limit:
    """A line of loop_limits.txt: a tile's function, its multiply instruction, and the least share for each compiler.

    function: a part of its C++ name, or several ("a or b") where compilers inline differently; the longest is priced.
    moves: the most vectors that a turn may move to or from the stack.
    """

    tier: str
    tile: str
    function: str
    mac: str
    cores: list[str]
    floors: dict[str, float]
    group: int
    macs_per_k: float
    bytes_per_mac: float
    moves: int = 0


def limits() -> list[Limit]:
    lines = [line for line in LIMITS.read_text().splitlines() if line and not line.startswith("#")]
    found = []
    for line in lines:
        columns = [part.strip() for part in line.split("|")]
        tier, tile, function, mac, cores, gcc, clang, group, per_k, weights, *moves = columns
        floors = {"gcc": float(gcc or 0) / 100, "clang": float(clang or 0) / 100}
        rest = (int(group or 0), float(per_k or 0), float(weights or 0))
        found.append(Limit(tier, tile, function, mac, cores.split(), floors, *rest, *map(int, moves)))
    return found


@dataclass(frozen=True)
class Instruction:
    address: int
    text: str


@dataclass(frozen=True)
class Loop:
    """The instructions of a loop, and of the inner loop that multiplies (the same, if the loop has none inside)."""

    body: list[str]
    inner: list[str]
    before: list[str]
    after: list[str]


def run(*command: str, stdin: str = "") -> str:
    """Return a command's output.

    Raises: SystemExit with the output if it fails.
    """
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"price_loops: {' '.join(command[:6])} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def build(compiler: str, tiers: list[str]) -> dict[str, Path]:
    """Build the tiers with the flags of native/CMakeLists.txt. Returns: the object file of each."""
    folder = ROOT / "build/arm" / f"loops-{compiler}"
    setup = [f"-DCMAKE_CXX_COMPILER={COMPILERS[compiler]}"]
    if platform.machine() != "aarch64":
        setup += ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64"]
        if compiler == "clang":
            setup.append("-DCMAKE_CXX_COMPILER_TARGET=aarch64-linux-gnu")
        else:
            setup[0] = "-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++"
    run("cmake", "-S", "native", "-B", str(folder), "-G", "Ninja", *setup)
    objects = {tier: f"CMakeFiles/forearm_kernels.dir/kernels/tiers/{tier}.cpp.o" for tier in tiers}
    run("ninja", "-C", str(folder), *objects.values())
    return {tier: folder / path for tier, path in objects.items()}


def disassemble(path: Path) -> dict[str, list[Instruction]]:
    """Return the instructions of each function, by its C++ name without namespaces."""
    text = run("llvm-objdump-22", "-d", "-C", "--no-show-raw-insn", f"--mattr={ATTRIBUTES}", str(path))
    functions: dict[str, list[Instruction]] = {}
    current: list[Instruction] = []
    for line in text.splitlines():
        if start := re.match(r"^[0-9a-f]+ <(.+)>:$", line):
            name = re.sub(r"forearm::|\(anonymous namespace\)::", "", start.group(1))
            current = functions.setdefault(name, [])
        elif one := re.match(r"^\s*([0-9a-f]+):\s+(.*)$", line):
            current.append(Instruction(int(one.group(1), 16), one.group(2).split("//")[0].split("<")[0].strip()))
    return functions


def priced_as(text: str) -> str:
    """Return the instruction that the model gets in place of this one: a branch without target, a plain SCVTF."""
    if re.match(r"^(b\.\w+|cbn?z|tbn?z|b)\s", text):
        return "b.gt ."
    if fixed := re.match(r"^([su]cvtf)\s+(v\d+\.4s), (v\d+\.4s), #", text):
        return f"{fixed.group(1)} {fixed.group(2)}, {fixed.group(3)}"
    return text


def between(function: list[Instruction], first: int, last: int) -> list[str]:
    return [priced_as(one.text) for one in function if first <= one.address <= last]


def multiplies(body: list[str], mac: str) -> int:
    return sum(line.split()[0] == mac for line in body)


def hot_loop(function: list[Instruction], mac: str, nested: bool) -> Loop | None:
    """Return the innermost loop with the most `mac` instructions, of several the shortest; None if there is none.

    Loops with calls do not count: they treat the columns after the last whole vector. nested: return the smallest loop
    around it instead.
    """
    spans = set()
    for one in function:
        branch = BRANCH.match(one.text)
        if branch and function[0].address <= int(branch.group(2), 16) <= one.address:
            spans.add((int(branch.group(2), 16), one.address))
    innermost = [s for s in spans if not any(o != s and s[0] <= o[0] and o[1] <= s[1] for o in spans)]
    bodies = {span: between(function, *span) for span in innermost}
    counts = {span: multiplies(body, mac) for span, body in bodies.items() if not any(map(CALL.match, body))}
    if not counts or not max(counts.values()):
        return None
    hot = max(counts, key=lambda span: (counts[span], span[0] - span[1]))
    inner = between(function, *hot)
    if not nested:
        return Loop(inner, inner, [], [])
    around = sorted((s for s in spans if s[0] <= hot[0] and hot[1] <= s[1] and s != hot), key=lambda s: s[1] - s[0])
    if not around:
        return None
    outer = around[0]
    before, after = between(function, outer[0], hot[0] - 4), between(function, hot[1] + 4, outer[1])
    return Loop(before + inner + after, inner, before, after)


def cycles(body: list[str], core: str, dispatch: int) -> float:
    """Return the cycles of one iteration, the mean of a hundred."""
    said = run(
        "llvm-mca-22",
        "-mtriple=aarch64-linux-gnu",
        f"-mcpu={CPU[core]}",
        f"-mattr={ATTRIBUTES}",
        "-iterations=100",
        f"-dispatch={dispatch}",
        stdin="\n".join(body) + "\n",
    )
    total = re.search(r"Total Cycles:\s+(\d+)", said)
    if total is None:
        raise SystemExit(f"price_loops: llvm-mca-22 gave no cycles:\n{said[:2000]}")
    return int(total.group(1)) / 100


def price(limit: Limit, loop: Loop, core: str, dispatch: int) -> tuple[float, float, int]:
    """Return the share of the core's multiply rate, the cycles and the multiplies of an iteration.

    If the limit has a group, all three are of a whole group.
    """
    body = loop.body
    if limit.group:
        turns = round(limit.group * limit.macs_per_k / multiplies(loop.inner, limit.mac))
        body = loop.before + loop.inner * turns + loop.after
    took = cycles(body, core, dispatch)
    count = multiplies(body, limit.mac)
    wide = any(re.match(rf"{limit.mac}\s+z", line) for line in body)
    return count / (took * RATE[core]["z" if wide else "v"]), took, count


def hot_loop_of(functions: dict[str, list[Instruction]], limit: Limit) -> Loop | None:
    fitting = [code for name, code in functions.items() if any(one in name for one in limit.function.split(" or "))]
    return hot_loop(max(fitting, key=len), limit.mac, nested=bool(limit.group)) if fitting else None


def row_of(limit: Limit, compiler: str, functions: dict[str, list[Instruction]]) -> tuple[str, list[str]]:
    """Return the table's line for a limit, and a text for each failure."""
    group = f" group {limit.group}" if limit.group else ""
    where = f"{compiler:5s} {limit.tier:8s} {limit.tile}{group}"
    loop = hot_loop_of(functions, limit)
    if loop is None:
        return where, [f"{where}: no loop with {limit.mac} in a function {limit.function}"]
    wrong = []
    if (spills := sum(bool(STACK_MOVE.match(line)) for line in loop.body)) > limit.moves:
        wrong.append(f"{where}: {spills} moves of vectors to or from the stack in the loop")
    floor, columns = limit.floors[compiler], []
    for core in limit.cores:
        share, took, count = price(limit, loop, core, DISPATCH[core])
        columns.append(f"{core} {took:6.1f} cycles {100 * share:5.1f} %")
        if limit.bytes_per_mac:
            columns[-1] += f" {count * limit.bytes_per_mac / took:5.1f} bytes of W a cycle"
        least = floor * OF_LIMIT.get(core, 1)
        if share < least:
            wrong.append(f"{where}: {100 * share:.1f} % of {core}'s {limit.mac} rate, under {100 * least:.0f} %")
    if "v2" in limit.cores:
        columns.append(f"v2 if 6 wide {100 * price(limit, loop, 'v2', 6)[0]:5.1f} %")
    return f"{where:44s} {f'>= {100 * floor:.0f} %' if floor else '':8s} {' | '.join(columns)}", wrong


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--write", action="store_true", help=f"keep the table in {RESULT.relative_to(ROOT)}")
    arguments.add_argument("--compiler", choices=COMPILERS, action="append", help="only this one (default: both)")
    asked = arguments.parse_args()
    if shutil.which("llvm-mca-22") is None:
        raise SystemExit("price_loops: there is no llvm-mca-22; tools/system_packages.sh python3 loops installs it")
    wanted = limits()
    tiers = sorted({limit.tier for limit in wanted})
    lines, wrong = [], []
    for compiler in asked.compiler or COMPILERS:
        functions = {tier: disassemble(path) for tier, path in build(compiler, tiers).items()}
        for limit in wanted:
            line, failures = row_of(limit, compiler, functions[limit.tier])
            lines.append(line)
            wrong += failures
    print("\n".join(lines))
    if asked.write:
        RESULT.write_text("\n".join([HEAD, "", *lines, ""]))
    for failure in wrong:
        print(f"FAIL {failure}")
    print(f"price_loops: {len(lines)} loops priced, {len(wrong)} under their limits")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
