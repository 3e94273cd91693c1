"""Checks of limits: CPU quotas, hyper-threads, NUMA, huge pages, memory, swap, open files."""

from __future__ import annotations

import re
from collections.abc import Iterator

from forearm.doctor.finding import CheckedHost, Finding
from forearm.engine.host import placement
from forearm.engine.host.placement import in_gib

LEAST_FILES = 4096  # every worker needs a descriptor for each connection
LEAST_TASKS = 512
GIB = 1 << 30


def quota(host: CheckedHost) -> Iterator[Finding]:
    """Check for a CPU quota and for throttling."""
    found = host.cgroup("cpu.max")
    if found is not None and not found[1].startswith("max"):
        limit, _, period = found[1].partition(" ")
        cpus = int(limit) / int(period or 100000)
        what = f"{cpus:g} CPUs of time: the engine has as many threads, not pinned"
        remedy = "give whole cores instead: docker run --cpuset-cpus 0-15 (Kubernetes: the static CPU manager)"
        yield Finding("quota", "note", what, found[0], remedy)
    stat = host.cgroup("cpu.stat")
    if stat is None:
        return
    counts = dict(line.split(" ", 1) for line in stat[1].splitlines() if " " in line)
    stopped, periods = int(counts.get("nr_throttled", 0)), int(counts.get("nr_periods", 0))
    if stopped:
        what = f"throttled in {stopped} of {periods} periods: all threads are stopped meanwhile"
        yield Finding("throttling", "warning", what, stat[0], "raise --cpus, or give whole cores with --cpuset-cpus")
    else:
        yield Finding("throttling", "ok", "never throttled by a CPU quota", stat[0])


def hyper_threads(host: CheckedHost) -> Iterator[Finding]:
    """Check for two CPUs on a core (SMT)."""
    how = "/sys/devices/system/cpu/smt/active"
    if host.text(how) == "1":
        what = "on: one compute thread runs on each core, its sibling CPU stays free for HTTP"
        yield Finding("smt", "note", what, how)
    else:
        yield Finding("smt", "ok", "off, or none", how)


def numa(host: CheckedHost) -> Iterator[Finding]:
    """Check the NUMA nodes, the inherited memory policy, and NUMA balancing."""
    nodes = len(list(host.path("sys/devices/system/node").glob("node[0-9]*")))
    if nodes > 1:
        remedy = "CPU_VISIBLE_MEMORY_NODES=0 (and =1, ...): a server for each node, where the model fits one"
        yield Finding("numa", "note", f"{nodes} nodes; one engine uses them all", "/sys/devices/system/node", remedy)
    else:
        yield Finding("numa", "ok", "one node", "/sys/devices/system/node")
    policy = (host.text("proc/self/numa_maps") or "").split()[1:2]
    if policy and policy[0] != "default":
        what = f"memory policy {policy[0]}: pages are not local to the threads that use them"
        yield Finding("memory policy", "warning", what, "/proc/self/numa_maps", "start without numactl")
    how = "/proc/sys/kernel/numa_balancing"
    if nodes > 1 and host.text(how) not in (None, "0"):
        what = "on: the kernel unmaps pages to find out which node uses them"
        yield Finding("numa balancing", "warning", what, how, "sysctl -w kernel.numa_balancing=0")


def huge_pages(host: CheckedHost) -> Iterator[Finding]:
    """Check transparent huge pages, which the engine asks for (madvise)."""
    how = "/sys/kernel/mm/transparent_hugepage/enabled"
    chosen = re.search(r"\[(\w+)\]", host.text(how) or "")
    if chosen is None:
        yield Finding("huge pages", "note", "this kernel has none", how)
    elif chosen[1] == "never":
        what = "never: weights are on 4 KiB pages, with more TLB misses"
        yield Finding("huge pages", "warning", what, how, f"echo madvise > {how}")
    else:
        yield Finding("huge pages", "ok", chosen[1], how)


def memory(host: CheckedHost) -> Iterator[Finding]:
    """Check the available memory, its limits, and earlier kills by the kernel."""
    found = placement.memory(host.configs.engine, host.root)
    what = f"{in_gib(found.available_bytes)} free of {in_gib(found.total_bytes)} ({found.limited_by})"
    remedy = "free some, or raise the limit" if found.available_bytes < GIB else ""
    yield Finding("memory", "warning" if remedy else "ok", what, "/proc/meminfo, memory.max", remedy)
    high = host.cgroup("memory.high")
    if high is not None and high[1].isdecimal() and int(high[1]) < found.total_bytes:
        what = f"memory.high = {in_gib(int(high[1]))}: the kernel slows the server down above it"
        yield Finding("memory", "warning", what, high[0], "leave memory.high at max; the engine respects memory.max")
    events = host.cgroup("memory.events")
    killed = re.search(r"^oom_kill (\d+)", events[1], re.MULTILINE) if events else None
    if events and killed and int(killed[1]):
        what = f"processes were killed {killed[1]} times as memory was short"
        yield Finding("memory", "warning", what, events[0], "raise the limit, or lower --gpu-memory-utilization")


def swap(host: CheckedHost) -> Iterator[Finding]:
    """Check for used swap: with swapped weights a step takes seconds."""
    sizes = host.fields("proc/meminfo")
    total, free = (int(sizes.get(name, "0 kB").split()[0]) << 10 for name in ("SwapTotal", "SwapFree"))
    if total - free > GIB // 16:
        what = f"{in_gib(total - free)} of {in_gib(total)} in use"
        yield Finding("swap", "warning", what, "/proc/meminfo", "swapoff -a, once memory suffices; or vm.swappiness=0")
    else:
        yield Finding("swap", "ok", f"{in_gib(total)}, unused" if total else "none", "/proc/meminfo")


def processes(host: CheckedHost) -> Iterator[Finding]:
    """Check the ulimits, and the open files of the whole host."""
    how = "/proc/self/limits"
    limits = {
        match[1]: match[2] for match in re.finditer(r"^(Max [a-z ]+?) {2,}(\S+)", host.text(how) or "", re.MULTILINE)
    }
    files = limits.get("Max open files", "unlimited")
    if files.isdecimal() and int(files) < LEAST_FILES:
        yield Finding(
            "open files", "warning", f"at most {files} a process, which limits connections", how, "ulimit -n 65536"
        )
    else:
        yield Finding("open files", "ok", f"at most {files} a process", how)
    for name, text in (("Max address space", "mappings"), ("Max data size", "memory")):
        if limits.get(name, "unlimited") != "unlimited":
            what = f"{name[4:]} is limited to {limits[name]} bytes: {text} of weights and KV cache count"
            yield Finding("limits", "warning", what, how, f"ulimit -{'v' if 'address' in name else 'd'} unlimited")
    tasks = limits.get("Max processes", "unlimited")
    if tasks.isdecimal() and int(tasks) < LEAST_TASKS:
        yield Finding("limits", "warning", f"at most {tasks} processes and threads of this user", how, "ulimit -u 4096")
    used = (host.text("proc/sys/fs/file-nr") or "").split()
    if len(used) == 3 and int(used[0]) > 0.9 * int(used[2]):
        what = f"{used[0]} of {used[2]} files of the host are open"
        yield Finding("open files", "warning", what, "/proc/sys/fs/file-nr", "sysctl -w fs.file-max=2097152")
