"""Kernel, CPU generation, its features, the tier in use, clock governor."""

from __future__ import annotations

import re
from collections.abc import Iterator

from forearm.doctor.finding import Finding, Host
from forearm.engine.host import placement
from forearm.errors import ConfigError
from forearm.plan.machines import GRAVITON2, GRAVITON3, GRAVITON4, Generation

LEAST_KERNEL = (5, 10)  # what AWS' guide asks for where bf16 and MMLA are to be used
ARM = 0x41  # implementer
# Names in /proc/cpuinfo of what each generation promises (Linux' arch/arm64/kernel/cpuinfo.c).
PROMISED: dict[str, tuple[str, ...]] = {
    GRAVITON2.name: ("asimd", "asimddp", "asimdhp", "atomics"),
    GRAVITON3.name: ("asimd", "asimddp", "asimdhp", "atomics", "bf16", "i8mm", "sve"),
    GRAVITON4.name: ("asimd", "asimddp", "asimdhp", "atomics", "bf16", "i8mm", "sve", "sve2"),
}
OTHERS = {0xD49: "Neoverse N2", 0xD8E: "Neoverse N3", 0xD84: "Neoverse V3", 0xD83: "Neoverse V3"}
CPUINFO = "/proc/cpuinfo"


def kernel(host: Host) -> Iterator[Finding]:
    """Its version."""
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


def processor(host: Host) -> Iterator[Finding]:
    """Which CPU it is, and whether it shows what its generation promises."""
    info = host.fields(CPUINFO)
    if not is_arm(host):
        what = info.get("model name", "unknown CPU")
        yield Finding("cpu", "note", f"{what}: no Arm server CPU; the same code runs, figures are its own", CPUINFO)
        return
    part, generation = _part(host), generation_of(host)
    if generation is None:
        name = OTHERS.get(part, f"part {part:#x}")
        yield Finding("cpu", "note", f"{name}: no Graviton that is known; the tier follows its features", CPUINFO)
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


def tier(host: Host) -> Iterator[Finding]:
    """The kernels in use here."""
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


def governor(host: Host) -> Iterator[Finding]:
    """Whether clocks are held down between steps."""
    files = sorted(host.path("sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor"))
    how = "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
    found = {file.read_text().strip() for file in files}
    slow = sorted(found - {"performance"})
    if slow:
        remedy = "cpupower frequency-set -g performance"
        yield Finding("governor", "warning", f"{', '.join(slow)}: clocks rise only after work has begun", how, remedy)
    else:
        yield Finding("governor", "ok", "performance" if found else "none: clocks are fixed (as on Graviton)", how)


def is_arm(host: Host) -> bool:
    """Whether /proc/cpuinfo is an Arm CPU's."""
    return "CPU implementer" in host.fields(CPUINFO)


def generation_of(host: Host) -> Generation | None:
    """The Graviton of that part number; 3E calls itself 3."""
    if not is_arm(host) or int(host.fields(CPUINFO)["CPU implementer"], 0) != ARM:
        return None
    part = _part(host)
    return next((one for one in (GRAVITON2, GRAVITON3, GRAVITON4) if one.part == part), None)


def _part_file(host: Host) -> str:
    file = "/sys/devices/system/cpu/cpu0/regs/identification/midr_el1"
    return file if host.number(file) is not None else CPUINFO


def _part(host: Host) -> int:
    midr = host.number("sys/devices/system/cpu/cpu0/regs/identification/midr_el1")
    return int(host.fields(CPUINFO).get("CPU part", "0"), 0) if midr is None else midr >> 4 & 0xFFF


def cores(host: Host) -> Iterator[Finding]:
    """Where serve would run, as it plans it."""
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
