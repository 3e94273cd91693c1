"""One matrix multiplication beside the machine's limits, by kernel_bench (kernels.cpp), kept in bench/results.

    cmake --build build/native --target kernel_bench
    python bench/kernels/kernels.py -d bf16 -d int8 -d int4 avx512_bf16 --out bench/results/kernels/<machine>.json

Arguments that are not named below are kernel_bench's own.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.records import Figure, figures_of, record, run_of

FORMATS = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
LINE = re.compile(
    r"(\S+)\s+m=(\d+)\s+n=(\d+)\s+k=(\d+)\s+([\d.]+) GB/s\s+([\d.]+) GFLOP/s\s+=\s+([\d.]+) % of the limit"
)


def figures(lines: Iterable[str]) -> list[Figure]:
    """Return the figures of kernel_bench's lines; other lines have none."""
    found = []
    for match in filter(None, map(LINE.search, lines)):
        dtype, m, n, k, gb_s, gflops, share = match.groups()
        row = "1 row" if m == "1" else f"{m} rows"
        values = {"weights_gb_s": float(gb_s), "gflops": float(gflops), "share_of_limit": float(share) / 100}
        found += figures_of(f"{n} x {k}", FORMATS.get(dtype, dtype), row, values)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", type=Path, default=Path("build/native/kernel_bench"))
    parser.add_argument("--out", type=Path, help="machine's file that the figures are added to")
    args, own = parser.parse_known_args()
    done = subprocess.run([args.bench, *own], stdout=subprocess.PIPE, text=True, check=True)
    print(done.stdout)
    if args.out:
        heading = re.search(r"^(\S+), (\d+) threads", done.stdout, re.MULTILINE)
        tier, threads = heading.groups() if heading else ("", "0")
        record(args.out, run_of(figures(done.stdout.splitlines()), int(threads), tier))


if __name__ == "__main__":
    main()
