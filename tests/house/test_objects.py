"""The tiers' object files. The linker could take a weak symbol of one of them as the only copy of a function, with
instructions that not every CPU has.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OBJECTS = sorted((ROOT / "build" / "native").rglob("kernels/tiers/*.o"))
NEEDED = {"memcpy", "memmove", "memset", "fmaf", "_GLOBAL_OFFSET_TABLE_"}  # what a kernel may call from outside
# The tiers whose operations a tier borrows: all CPUs of the one have the instructions of the other (tiers.cpp, runs_*).
LENDERS = {
    "avx512_vnni": ["avx512"],
    "avx512_bf16": ["avx512"],
    "avx512_amx": ["avx512", "avx512_vnni", "avx512_bf16"],
}


def table(tier: str) -> str:
    """Return the symbol of a tier's table."""
    return f"_ZN7forearm{len(tier) + len('_tier')}{tier}_tierE"


def symbols(path: Path) -> list[tuple[str, str]]:
    """(kind, name) of each symbol, as nm has them."""
    lines = subprocess.run(["nm", "--format=posix", path], capture_output=True, text=True, check=True).stdout
    return [(line.split()[1], line.split()[0]) for line in lines.splitlines()]


def test_the_tiers_are_built() -> None:
    assert "scalar.cpp.o" in [path.name for path in OBJECTS], "run: make native"


@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: path.name)
def test_a_tier_has_no_weak_symbol(path: Path) -> None:
    assert [name for kind, name in symbols(path) if kind in "wWvVu"] == []


@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: path.name)
def test_a_tier_gives_one_thing_and_needs_next_to_nothing(path: Path) -> None:
    given = [name for kind, name in symbols(path) if kind.isupper() and kind not in "UWV"]
    needed = {name for kind, name in symbols(path) if kind == "U"}
    lent = {table(lender) for lender in LENDERS.get(path.name.removesuffix(".cpp.o"), [])}

    assert len(given) == 1, given
    assert needed <= NEEDED | lent
