"""Graviton instance types as plain data, and a /sys and /proc tree of one for engine/host/placement.py to read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from forearm.errors import ConfigError

GIB = 1 << 30
KIB = 1024


@dataclass(frozen=True)
class GravitonGeneration:
    """One Graviton processor: its socket, and a core's operations per cycle (two per multiply-add).

    Sockets, clocks, memory channels: AWS' public figures (aws-graviton-getting-started, README, its table of
    processors). Operations a cycle: pipes of the core times the width of the instruction that the tier multiplies with
    (LLVM's models of Neoverse N1, V1, V2). issue: the share of them that real cores started, by insn_bench_aarch64 on
    Graviton2 (fmla, sdot 2.00 of 2) and Graviton3 (fmla 3.19, sdot 3.67 of 4); Graviton4 and 5 are taken to be like 3.
    """

    name: str
    core: str
    part: int  # MIDR_EL1's part number, Arm Ltd. being the implementer
    tier: str
    clock_ghz: float
    cores: int  # of a socket
    memory_gb_s: float  # of a socket: channels * 8 bytes * transfers
    float_ops: int
    bf16_ops: int
    int8_ops: int
    float_issue: float
    matrix_issue: float


# 8 x DDR4-3200. bf16 is multiplied as f16, 1.4 times float32's rate: bench/results/arm-loops.txt.
_G2 = ("Neoverse N1", 0xD0C, "neon_fp16", 2.5, 64, 204.8, 16, 22, 64, 1.0, 1.0)
_G3 = ("Neoverse V1", 0xD40, "sve256", 2.6, 64, 307.2, 32, 128, 256, 0.80, 0.92)  # 8 x DDR5-4800
_G4 = ("Neoverse V2", 0xD4F, "neon_mm", 2.8, 96, 537.6, 32, 128, 256, 0.80, 0.92)  # 12 x DDR5-5600
# 12 x DDR5-8800, 4.4 GB/s a core where Graviton4 has 5.6. No SME and no FP8: Graviton4's instructions multiply.
_G5 = ("Neoverse V3", 0xD84, "neon_mm", 3.3, 192, 844.8, 32, 128, 256, 0.80, 0.92)
GRAVITON2 = GravitonGeneration("Graviton2", *_G2)
GRAVITON3 = GravitonGeneration("Graviton3", *_G3)
GRAVITON3E = GravitonGeneration("Graviton3E", *_G3)
GRAVITON4 = GravitonGeneration("Graviton4", *_G4)
GRAVITON5 = GravitonGeneration("Graviton5", *_G5)
GENERATIONS = (GRAVITON2, GRAVITON3, GRAVITON4, GRAVITON5)  # a 3E reports itself as 3

_SIZES = {"medium": 1, "large": 2, "xlarge": 4, "2xlarge": 8, "4xlarge": 16, "8xlarge": 32, "12xlarge": 48}
_TO_64 = _SIZES | {"16xlarge": 64, "metal": 64}
_TO_192 = _SIZES | {"16xlarge": 64, "24xlarge": 96, "48xlarge": 192, "metal-24xl": 96, "metal-48xl": 192}
_TO_192_OF_ONE = {size: cpus for size, cpus in _TO_192.items() if size != "metal-24xl"}
_TO_96 = {size: cpus for size, cpus in _TO_192.items() if cpus <= 96}
_HPC = {"4xlarge": 16, "8xlarge": 32, "16xlarge": 64}
_BURSTABLE = {
    "small": 2,
    "medium": 2,
    "large": 2,
    "xlarge": 4,
    "2xlarge": 8,
}  # smaller ones have too little memory for a model

# Family: processor, GiB a vCPU (0: see SIZES_GIB), vCPUs of each size. Source: EC2's instance type pages.
FAMILIES: dict[str, tuple[GravitonGeneration, int, dict[str, int]]] = {
    "c6g": (GRAVITON2, 2, _TO_64),
    "m6g": (GRAVITON2, 4, _TO_64),
    "r6g": (GRAVITON2, 8, _TO_64),
    "c6gn": (GRAVITON2, 2, {size: cpus for size, cpus in _TO_64.items() if size != "metal"}),
    "x2gd": (GRAVITON2, 16, _TO_64),
    "t4g": (GRAVITON2, 0, _BURSTABLE),
    "c7g": (GRAVITON3, 2, _TO_64),
    "m7g": (GRAVITON3, 4, _TO_64),
    "r7g": (GRAVITON3, 8, _TO_64),
    "c7gn": (GRAVITON3E, 2, {size: cpus for size, cpus in _TO_64.items() if size != "metal"}),
    "hpc7g": (GRAVITON3E, 0, _HPC),  # smaller sizes have fewer cores in use, and all of the socket's memory
    "c8g": (GRAVITON4, 2, _TO_192),
    "m8g": (GRAVITON4, 4, _TO_192),
    "r8g": (GRAVITON4, 8, _TO_192),
    "x8g": (GRAVITON4, 16, _TO_192),
    "c8gn": (GRAVITON4, 2, _TO_192),
    "m8gn": (GRAVITON4, 4, _TO_192),
    "c8gb": (GRAVITON4, 2, _TO_96),
    "i8g": (GRAVITON4, 8, {size: cpus for size, cpus in _TO_192.items() if size not in ("medium", "metal-48xl")}),
    "c9g": (GRAVITON5, 2, _TO_192_OF_ONE),
    "m9g": (GRAVITON5, 4, _TO_192_OF_ONE),
}
# Memory sizes that are not proportional to vCPUs.
SIZES_GIB: dict[str, dict[str, int]] = {
    "hpc7g": dict.fromkeys(_HPC, 128),
    "t4g": {"small": 2, "medium": 4, "large": 8, "xlarge": 16, "2xlarge": 32},
}
# Graviton5 has one socket; these sizes show it as two NUMA nodes (aws-graviton-getting-started, 2026-07).
_TWO_NODES = {"16xlarge", "48xlarge", "metal-48xl"}
# The share of nominal memory bandwidth that all cores together read. 69 % is the best figure of an inference engine
# (llama.cpp Q8_0 7B on a c7g.16xlarge, 213 GB/s, llama.cpp #8002); STREAM on servers reaches 75 to 80 %.
READ_SHARE = 0.75
# Real cores reach 0.55 to 0.9 of the rate in LLVM's models (llama.cpp's loops as priced there against its
# measured prefill on Graviton2, 3 and 4, llama.cpp #27086, #21916: 46 of 56 %, 25 of 28, 21 of 32, 20 of 35).
MULTIPLY_SHARE = 0.73
# The most that one core reads: an estimate, which matters for few threads.
CORE_GB_S = 20.0
# The kernel keeps 64 bytes for each page of 4 KiB; services of a fresh server take about half a GiB.
_PAGE_SHARE, _SERVICES_BYTES = 1 / 64, GIB // 2


@dataclass(frozen=True)
class Machine:
    """An instance type. vCPUs are whole cores: Graviton has no hyper-threads."""

    name: str
    generation: GravitonGeneration
    cores: int
    memory_bytes: int
    nodes: int
    memory_gb_s: float  # nominal: the cores' part of the socket's; idle neighbours may leave more


def machine(name: str) -> Machine:
    """Return the instance type of that name; a `d` for local disks (c7gd) is ignored.

    Raises: ConfigError that lists families, or the sizes of the family.
    """
    family, _, size = name.partition(".")
    family = family if family in FAMILIES else re.sub(r"(?<=\dg)d$", "", family)
    if family not in FAMILIES:
        raise ConfigError(f"--machine {name}: unknown; write this, or a size of {', '.join(FAMILIES)} (c8g.12xlarge)")
    generation, a_core, sizes = FAMILIES[family]
    if size not in sizes:
        raise ConfigError(f"--machine {name}: {family} has the sizes {', '.join(sizes)}")
    cores = sizes[size]
    part = 1.0 if family == "hpc7g" else cores / generation.cores
    nodes = 2 if generation is GRAVITON5 and size in _TWO_NODES else -(-cores // generation.cores)
    return Machine(
        name=name,
        generation=generation,
        cores=cores,
        memory_bytes=(cores * a_core or SIZES_GIB[family][size]) * GIB,
        nodes=nodes,
        memory_gb_s=generation.memory_gb_s * part,
    )


def machines() -> list[str]:
    """Return the names of all known instance types."""
    return [f"{family}.{size}" for family, (_, _, sizes) in FAMILIES.items() for size in sizes]


def write_tree(machine: Machine, root: Path) -> None:
    """Write the files by which the kernel of a freshly started host describes cores, nodes and memory."""

    def write(path: str, text: str) -> None:
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    cores, nodes = machine.cores, machine.nodes
    write("sys/devices/system/cpu/online", _up_to(cores))
    for core in range(cores):
        write(f"sys/devices/system/cpu/cpu{core}/topology/core_cpus_list", str(core))
    total = int(machine.memory_bytes * (1 - _PAGE_SHARE))
    free = total - _SERVICES_BYTES
    write("sys/devices/system/node/online", _up_to(nodes))
    for node in range(nodes):
        at, each = f"sys/devices/system/node/node{node}", cores // nodes
        write(f"{at}/cpulist", f"{node * each}-{(node + 1) * each - 1}")
        sizes = (total // nodes // KIB, free // nodes // KIB)
        write(f"{at}/meminfo", f"Node {node} MemTotal: {sizes[0]} kB\nNode {node} MemFree: {sizes[1]} kB")
    write("proc/meminfo", f"MemTotal: {total // KIB} kB\nMemFree: {free // KIB} kB\nMemAvailable: {free // KIB} kB")
    allowed = f"Cpus_allowed_list:\t{_up_to(cores)}\nMems_allowed_list:\t{_up_to(nodes)}"
    write("proc/self/status", f"Name:\tforearm\n{allowed}")
    write("proc/self/cgroup", "0::/")
    write("sys/fs/cgroup/cgroup.controllers", "cpu memory")


def _up_to(count: int) -> str:
    return f"0-{count - 1}" if count > 1 else "0"
