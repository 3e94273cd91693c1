"""Checks of the kernel, the CPU generation and its features, the tier in use, and the clock governor."""

from __future__ import annotations

import re
from collections.abc import Iterator

from forearm.doctor.finding import CheckedHost, Finding
from forearm.engine.host import placement
from forearm.errors import ConfigError
from forearm.plan.arm_cores import CORES, graviton, of_midr, processor_name

LEAST_KERNEL = (5, 10)  # AWS' guide requires it for bf16 and MMLA
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
    midr, maker = _midr(host), _maker(host)
    name = processor_name(*midr, maker)
    if graviton(*midr, maker) is None:
        what = f"{name}: no Graviton that is known; the tier follows its features"
        yield Finding("cpu", "note", what, _part_file(host))
    else:
        yield Finding("cpu", "ok", name, _part_file(host))
    if midr not in CORES:
        return
    promised, has = CORES[midr].features, set(info.get("Features", "").split())
    missing = [feature for feature in promised if feature not in has]
    if missing:
        what = f"{', '.join(missing)} missing, which {name.partition(' (')[0]} has: slower kernels are taken"
        remedy = (
            "a newer kernel (5.10 or later), and no arm64.no* on its command line; under a hypervisor, its CPU model"
        )
        yield Finding("features", "error", what, CPUINFO, remedy)
    else:
        yield Finding("features", "ok", " ".join(promised), CPUINFO)


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
    generation = graviton(*_midr(host), _maker(host)) if is_arm(host) else None
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
    """Return whether /proc/cpuinfo shows an Arm CPU."""
    return "CPU implementer" in host.fields(CPUINFO)


def _maker(host: CheckedHost) -> str:
    return (host.text(SYS_VENDOR) or "").strip()


def _part_file(host: CheckedHost) -> str:
    file = "/sys/devices/system/cpu/cpu0/regs/identification/midr_el1"
    return file if host.number(file) is not None else CPUINFO


def _midr(host: CheckedHost) -> tuple[int, int]:
    """Return the core's implementer and part number."""
    midr = host.number("sys/devices/system/cpu/cpu0/regs/identification/midr_el1")
    if midr is not None:
        return of_midr(midr)
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
