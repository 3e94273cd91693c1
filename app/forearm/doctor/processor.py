"""Checks of the kernel, the CPU generation and its features, the tier in use, and the clock governor."""

from __future__ import annotations

import re
from collections.abc import Iterator

from forearm.doctor.finding import CheckedHost, Finding
from forearm.engine.host import placement
from forearm.errors import ConfigError
from forearm.plan.machines import GENERATIONS, GRAVITON2, GRAVITON3, GRAVITON4, GRAVITON5, GravitonGeneration

LEAST_KERNEL = (5, 10)  # AWS' guide requires it for bf16 and MMLA
# Features of each generation by their names in /proc/cpuinfo (Linux' arch/arm64/kernel/cpuinfo.c).
PROMISED: dict[str, tuple[str, ...]] = {
    GRAVITON2.name: ("asimd", "asimddp", "asimdhp", "atomics"),
    GRAVITON3.name: ("asimd", "asimddp", "asimdhp", "atomics", "bf16", "i8mm", "sve"),
    GRAVITON4.name: ("asimd", "asimddp", "asimdhp", "atomics", "bf16", "i8mm", "sve", "sve2"),
    GRAVITON5.name: ("asimd", "asimddp", "asimdhp", "atomics", "bf16", "i8mm", "sve", "sve2"),
}
# Cores by MIDR_EL1's implementer and part (as Linux and util-linux' lscpu list them), and the processors that have
# them.
ARM, NVIDIA, MICROSOFT, AMPERE = 0x41, 0x4E, 0x6D, 0xC0
CORES = {
    (ARM, 0xD0C): "Neoverse N1 (Graviton2, Altra)",
    (ARM, 0xD40): "Neoverse V1 (Graviton3)",
    (ARM, 0xD4F): "Neoverse V2 (Graviton4, Google Axion C4A, NVIDIA Grace)",
    (ARM, 0xD49): "Neoverse N2",
    (ARM, 0xD8E): "Neoverse N3 (Google Axion N4A)",
    (ARM, 0xD84): "Neoverse V3 (Graviton5)",
    (ARM, 0xD83): "Neoverse V3AE",
    (MICROSOFT, 0xD49): "Azure Cobalt 100 (Neoverse N2)",
    (MICROSOFT, 0xD84): "Azure Cobalt 200 (Neoverse V3)",
    (NVIDIA, 0x010): "NVIDIA Vera (Olympus)",
    (AMPERE, 0xAC3): "AmpereOne",
    (AMPERE, 0xAC4): "AmpereOne",
}
# Processors that share a core type are told apart by the machine's maker (DMI).
BY_MAKER = {
    ("Google", 0xD4F): "Google Axion C4A (Neoverse V2)",
    ("Google", 0xD8E): "Google Axion N4A (Neoverse N3)",
    ("Google", 0xD0C): "Ampere Altra (Neoverse N1)",
    ("NVIDIA", 0xD4F): "NVIDIA Grace (Neoverse V2)",
    ("Microsoft", 0xD0C): "Ampere Altra (Neoverse N1)",
    ("Ampere", 0xD0C): "Ampere Altra (Neoverse N1)",
}
AMAZON = "Amazon EC2"
SYS_VENDOR = "/sys/class/dmi/id/sys_vendor"
CPUINFO = "/proc/cpuinfo"


def kernel(host: CheckedHost) -> Iterator[Finding]:
    """Check the kernel's version."""
    how = "/proc/sys/kernel/osrelease"
    release = host.text(how) or ""
    found = re.match(r"(\d+)\.(\d+)", release)
    if found is None:
        yield Finding("kernel", "warning", f"version {release or 'unknown'}", how, "is this Linux?")
        return
    old = (int(found[1]), int(found[2])) < LEAST_KERNEL
    wants = ".".join(map(str, LEAST_KERNEL))
    if old and is_arm(host):
        remedy = f"boot an image with Linux {wants} or newer (Ubuntu 22.04, Debian 12, Amazon Linux 2023)"
        yield Finding("kernel", "error", f"{release} is older than {wants}: bf16 and MMLA may be hidden", how, remedy)
    else:
        yield Finding("kernel", "note" if old else "ok", release, how)


def processor(host: CheckedHost) -> Iterator[Finding]:
    """Identify the CPU, and check that it has the features of its generation."""
    info = host.fields(CPUINFO)
    if not is_arm(host):
        what = info.get("model name", "unknown CPU")
        yield Finding("cpu", "note", f"{what}: no Arm server CPU; the same code runs, figures are its own", CPUINFO)
        return
    generation = generation_of(host)
    if generation is None:
        what = f"{_core_name(host)}: no Graviton that is known; the tier follows its features"
        yield Finding("cpu", "note", what, _part_file(host))
        return
    yield Finding("cpu", "ok", f"{generation.name} ({generation.core})", _part_file(host))
    has = set(info.get("Features", "").split())
    missing = [feature for feature in PROMISED[generation.name] if feature not in has]
    if missing:
        what = f"{', '.join(missing)} missing, which {generation.name} has: slower kernels are taken"
        remedy = (
            "a newer kernel (5.10 or later), and no arm64.no* on its command line; under a hypervisor, its CPU model"
        )
        yield Finding("features", "error", what, CPUINFO, remedy)
    else:
        yield Finding("features", "ok", " ".join(PROMISED[generation.name]), CPUINFO)


def tier(host: CheckedHost) -> Iterator[Finding]:
    """Check the kernel tier in use."""
    if not host.is_this:
        return
    forced = host.environ.get("FOREARM_TIER", "")
    try:
        chosen = placement.tier()
    except ConfigError as problem:
        yield Finding("tier", "error", str(problem), "FOREARM_TIER", "unset FOREARM_TIER, or name one that runs here")
        return
    generation = generation_of(host)
    wanted = chosen if generation is None else generation.tier
    if forced:
        yield Finding("tier", "warning", f"{chosen}, forced", "FOREARM_TIER", "unset FOREARM_TIER: the best is chosen")
    elif chosen != wanted:
        what = f"{chosen}, where {wanted} is expected"
        remedy = "see `features`; /proc/sys/abi/sve_default_vector_length below 32 rules sve256 out"
        yield Finding("tier", "warning", what, "the native library", remedy)
    else:
        yield Finding("tier", "ok", chosen, "the native library")


def governor(host: CheckedHost) -> Iterator[Finding]:
    """Check for a governor that lowers clocks between steps."""
    files = sorted(host.path("sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor"))
    how = "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
    found = {file.read_text().strip() for file in files}
    slow = sorted(found - {"performance"})
    if slow:
        remedy = "cpupower frequency-set -g performance"
        yield Finding("governor", "warning", f"{', '.join(slow)}: clocks rise only after work begins", how, remedy)
    else:
        yield Finding("governor", "ok", "performance" if found else "none: clocks are fixed (as on Graviton)", how)


def is_arm(host: CheckedHost) -> bool:
    """True if /proc/cpuinfo shows an Arm CPU."""
    return "CPU implementer" in host.fields(CPUINFO)


def generation_of(host: CheckedHost) -> GravitonGeneration | None:
    """Return the Graviton with this part number, unless DMI names another maker than Amazon; 3E has the number of 3."""
    maker = host.text(SYS_VENDOR)
    if not is_arm(host) or (maker is not None and maker.strip() != AMAZON):
        return None
    implementer, part = _midr(host)
    return next((one for one in GENERATIONS if (ARM, one.part) == (implementer, part)), None)


def _core_name(host: CheckedHost) -> str:
    """Return the processor's name, or its numbers where they are not known."""
    implementer, part = _midr(host)
    maker = (host.text(SYS_VENDOR) or "").strip()
    named = (name for (its, of), name in BY_MAKER.items() if of == part and maker.startswith(its))
    return next(named, CORES.get((implementer, part), f"implementer {implementer:#x}, part {part:#x}"))


def _part_file(host: CheckedHost) -> str:
    file = "/sys/devices/system/cpu/cpu0/regs/identification/midr_el1"
    return file if host.number(file) is not None else CPUINFO


def _midr(host: CheckedHost) -> tuple[int, int]:
    """Return the core's implementer and part number."""
    midr = host.number("sys/devices/system/cpu/cpu0/regs/identification/midr_el1")
    if midr is not None:
        return midr >> 24 & 0xFF, midr >> 4 & 0xFFF
    info = host.fields(CPUINFO)
    return int(info.get("CPU implementer", "0"), 0), int(info.get("CPU part", "0"), 0)


def cores(host: CheckedHost) -> Iterator[Finding]:
    """Show the cores that serve would plan."""
    how = "/proc/self/status, /sys/fs/cgroup, /sys/devices/system/cpu"
    try:
        plan = placement.plan(host.configs.engine, host.root)
    except ConfigError as problem:
        yield Finding("cores", "error", str(problem), how, "see the message")
        return
    for line in plan.lines:
        yield Finding("cores", "ok", line, how)
    allowed = host.fields("proc/self/status").get("Cpus_allowed_list", "")
    online = host.text("sys/devices/system/cpu/online") or allowed
    if allowed and allowed != online:
        what = f"CPUs {allowed} of {online} may be used: an affinity or a cpuset was inherited"
        yield Finding("affinity", "note", what, "/proc/self/status", "taskset, --cpuset-cpus or AllowedCPUs set it")
    if plan.threads == 1:
        yield Finding("cores", "note", "one thread computes", how, "give the server more cores")
