"""The CPU's vector and matrix instructions, by which a tier of kernels is chosen, for the log at start."""

from __future__ import annotations

from pathlib import Path

# By the names that Linux gives them in /proc/cpuinfo.
_ARM = ("bf16", "i8mm", "asimddp", "sve", "sve2")
_X86 = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")


def instructions(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return those that the kernel reports for the first CPU, e.g. "bf16,i8mm,dotprod,sve"; "none" if there is none.

    Arm's dot product is called by its architecture's name, dotprod, and not by Linux' (asimddp).
    """
    lines = [line for line in cpuinfo.read_text().splitlines() if line.startswith(("Features", "flags"))]
    found = set(lines[0].partition(":")[2].split()) if lines else set()
    return ",".join("dotprod" if name == "asimddp" else name for name in _ARM + _X86 if name in found) or "none"
