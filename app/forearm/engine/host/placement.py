"""Placement: the cores that compute, the cores that serve HTTP, and the memory, decided and printed once, at start."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from forearm import _native
from forearm.config.engine_config import EngineConfig
from forearm.engine.host import numa_ranks
from forearm.errors import ConfigError

GIB = 1 << 30
MOST_WORKERS = 4  # unless --api-server-count is higher: memory is reserved for each (supervisor.py)
RESERVE_FROM = ((32, 2), (4, 1))  # physical cores -> cores for the API; fewer than four are shared
SLOW = 0.75  # cores below this share of the fastest cores' capacity are efficiency cores


@dataclass(frozen=True)
class Plan:
    """Cores of engine and API. `cores`: one CPU id per thread, () if not pinned; `api_cores`: CPU ids for HTTP.

    ranks: threads of each rank, in the order of `cores`.
    """

    threads: int
    cores: tuple[int, ...]
    api_cores: tuple[int, ...]
    api_workers: int
    lines: tuple[str, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Memory:
    """The bytes that this process may use, how many of them are free, and the source of the limit."""

    total_bytes: int
    available_bytes: int
    limited_by: str


def plan(config: EngineConfig, root: str = "", engines: int = 1) -> Plan:
    """Return the cores of the engines and the API, by the configured binding, affinity, cpuset and CPU quota.

    Each physical core gets one thread: two on one core share its multipliers and only add barriers. With four cores
    or more the API gets one of its own (two from 32 on), else it shares. It gets the last cores, so that the engine's
    stay together. Under a quota, which limits time and not cores, threads are pinned only to cores that are named: else
    every container on the host would choose the same ones. Each engine has --tensor-parallel-size ranks; if that is 1,
    one on each NUMA node of its cores.

    Raises: ConfigError naming the variable, its value and the remedy.
    """
    topology = _native.topology(root)
    cpus = usable(topology, config.visible_memory_nodes)
    nodes = {cpu.id: cpu.node for cpu in cpus}
    bind, asked = config.omp_threads_bind.strip(), config.tensor_parallel_size
    count = asked * engines if asked > 1 else 1
    if bind in ("auto", "nobind"):
        sets = divide(fast(cpus), cpus, config.num_of_reserved_cpu, count)
    else:
        sets = bound(bind, cpus, count)
    busy = {cpu.core for cpu in cpus if any(cpu.id in part for part in sets)}
    api = [cpu.id for cpu in cpus if cpu.core not in busy]
    sets, reason = limited(sets, config, topology.quota_cpus)
    threads = sum(map(len, sets))
    by_quota = topology.quota_cpus is not None and topology.quota_cpus < len(cpus)
    is_pinned = not (bind == "nobind" or (bind == "auto" and by_quota))
    if asked == 1 and is_pinned:
        sets = numa_ranks.by_node(sets[0], nodes)
    pinned = tuple(core for part in sets for core in part) if is_pinned else ()
    api_cores = tuple(api) if api else tuple(cpu.id for cpu in cpus)
    workers = min(MOST_WORKERS, max(1, len({cpu.core for cpu in cpus if cpu.id in api})))
    cores, node_count = len({cpu.core for cpu in cpus}), len(set(nodes.values()))
    quota = "" if topology.quota_cpus is None else f", quota {topology.quota_cpus:g} CPUs"
    machine_line = (
        f"machine: CPUs {as_list(nodes)} ({cores} physical cores, {node_count} NUMA "
        f"node{'s' if node_count > 1 else ''}{quota})"
    )
    where = f"on CPUs {as_list(pinned)}" if pinned else "not pinned"
    limit = f" (limited by {reason})" if reason else ""
    engine_line = f"engine: {threads} thread{'s' if threads > 1 else ''} {where}{limit}"
    api_line = f"API: CPUs {as_list(api_cores)}{'' if api else ', shared with the engine'}"
    listed = [as_list(part) if is_pinned else "" for part in sets]
    rank_lines = numa_ranks.describe(sets, nodes, listed) if engines == 1 else []
    lines = (machine_line, engine_line, *rank_lines, api_line)
    return Plan(threads, pinned, api_cores, workers, lines, tuple(map(len, sets)))


def usable(topology: _native.Topology, visible_nodes: str) -> list[_native.Cpu]:
    """Return the allowed CPUs of the NUMA nodes in CPU_VISIBLE_MEMORY_NODES, ordered by node."""
    cpus = topology.cpus
    if visible_nodes:
        nodes = ids("CPU_VISIBLE_MEMORY_NODES", visible_nodes)
        cpus = [cpu for cpu in cpus if cpu.node in nodes]
        if not cpus:
            here = as_list({cpu.node for cpu in topology.cpus})
            raise ConfigError(f"CPU_VISIBLE_MEMORY_NODES={visible_nodes}: no CPU there; this process may use {here}")
    return sorted(cpus, key=lambda cpu: (cpu.node, cpu.id))


def fast(cpus: Sequence[_native.Cpu]) -> list[_native.Cpu]:
    """Return the performance cores, because every barrier waits for the slowest core.

    Kinds of cores differ in cpu_capacity (up to 1024), else in MIDR; frequencies are not compared.
    """
    capacities = all(0 < cpu.speed <= 1024 for cpu in cpus)
    if not capacities and len({cpu.kind for cpu in cpus}) == 1:
        return list(cpus)
    best = max(cpu.speed for cpu in cpus)
    return [cpu for cpu in cpus if cpu.speed >= SLOW * best]


def reserved_of(cores: int) -> int:
    """Return how many of `cores` physical cores the API gets."""
    return next((count for from_, count in RESERVE_FROM if cores >= from_), 0)


def divide(
    candidates: Sequence[_native.Cpu], cpus: Sequence[_native.Cpu], reserved: int | None, count: int
) -> list[list[int]]:
    """Return one CPU per physical core for each of `count` ranks, without the API's cores.

    If there are efficiency cores, the API gets these and no other core is reserved.

    Raises: ConfigError if no core would be left to compute.
    """
    first_of_core = {cpu.core: cpu.id for cpu in reversed(candidates)}
    cores = list(dict.fromkeys(cpu.core for cpu in candidates))
    if reserved is None:
        reserved = reserved_of(len(cores)) if len(candidates) == len(cpus) else 0
    if reserved >= len(cores):
        raise ConfigError(
            f"VLLM_CPU_NUM_OF_RESERVED_CPU={reserved}: leaves no core of {len(cores)} to compute; "
            f"choose at most {len(cores) - 1}"
        )
    ids_of_cores = [first_of_core[core] for core in cores]
    if count > 1:
        return numa_ranks.spread(ids_of_cores, {cpu.id: cpu.node for cpu in cpus}, count, reserved)
    return [ids_of_cores[: len(cores) - reserved]]


def bound(bind: str, cpus: Sequence[_native.Cpu], count: int) -> list[list[int]]:
    """Return the CPUs of an explicit list, `a|b` for several ranks; with a single rank all parts are joined.

    Raises: ConfigError if a CPU is not allowed here, or there are more or fewer sets than ranks.
    """
    sets = [ids("VLLM_CPU_OMP_THREADS_BIND", part) for part in bind.split("|")]
    chosen = [cpu for part in sets for cpu in part]
    allowed = {cpu.id for cpu in cpus}
    wrong = [cpu for cpu in chosen if cpu not in allowed]
    if wrong or not chosen:
        raise ConfigError(
            f"VLLM_CPU_OMP_THREADS_BIND={bind}: CPU {as_list(wrong) or '(none)'} is not available; "
            f"this process may use {as_list(allowed)}. Name some of these, or auto"
        )
    if count == 1:
        return [chosen]
    if len(sets) != count or len(set(chosen)) != len(chosen) or not all(sets):
        raise ConfigError(
            f"VLLM_CPU_OMP_THREADS_BIND={bind}: has {len(sets)} set{'s' if len(sets) > 1 else ''} of CPUs for {count} "
            "ranks (--tensor-parallel-size, of each engine); name the CPUs of each rank, none twice, as 0-31|32-63"
        )
    return sets


def limited(sets: list[list[int]], config: EngineConfig, quota_cpus: float | None) -> tuple[list[list[int]], str]:
    """Return the first cores of each set that get a thread, and why not all of them ("" when nothing limits them).

    A quota is rounded down: threads meet at barriers, so with 1.5 CPUs two of them would use up the time of a period
    after three quarters of it and then both stand still, the API with them. One leaves half a CPU for the API. From
    four CPUs of quota the API's share is kept free as cores are.

    Raises: ConfigError if a rank would have no thread.
    """
    threads, reason = sum(map(len, sets)), ""
    if quota_cpus is not None:
        whole = math.floor(quota_cpus)
        kept = reserved_of(whole) if config.num_of_reserved_cpu is None else config.num_of_reserved_cpu
        if whole - kept < threads:
            threads, reason = max(1, whole - kept), f"the quota of {quota_cpus:g} CPUs"
    if config.omp_num_threads is not None and config.omp_num_threads < threads:
        threads, reason = config.omp_num_threads, f"OMP_NUM_THREADS={config.omp_num_threads}"
    if not reason:
        return sets, reason
    parts = numa_ranks.cut(threads, len(sets))
    short = [cores[: end - begin] for cores, (begin, end) in zip(sets, parts, strict=True)]
    if not all(short):
        raise ConfigError(
            f"--tensor-parallel-size: {len(sets)} ranks need a thread each, and {reason} allows {threads}; "
            f"choose at most {threads} ranks"
        )
    return short, reason


def memory(config: EngineConfig, root: str = "") -> Memory:
    """Return the memory this process may use: the least of the machine, its NUMA nodes and the cgroups above it."""
    topology = _native.topology(root)
    machine = topology.machine
    limits = [Memory(machine.total_bytes, machine.available_bytes, "this machine")]
    if topology.cgroup is not None:
        limits.append(Memory(topology.cgroup.total_bytes, topology.cgroup.available_bytes, "the container's limit"))
    nodes = set(topology.memory_nodes)
    if config.visible_memory_nodes:
        nodes &= set(ids("CPU_VISIBLE_MEMORY_NODES", config.visible_memory_nodes))
    if nodes < set(topology.node_memory):
        parts = [topology.node_memory[node] for node in nodes]
        total, free = sum(part.total_bytes for part in parts), sum(part.available_bytes for part in parts)
        limits.append(Memory(total, free, f"NUMA nodes {as_list(nodes)}"))
    return min(limits, key=lambda limit: limit.available_bytes)


def tier() -> str:
    """Return the tier of kernels in use.

    Raises: ConfigError if FOREARM_TIER names a tier that this CPU cannot run.
    """
    try:
        return _native.tier()
    except RuntimeError as problem:
        raise ConfigError(str(problem)) from None


def quarantined() -> list[tuple[str, str]]:
    """Return the tiers that failed the self-test at start, each with the operation."""
    return _native.quarantined()


def measured_limits(plan: Plan, megabytes: int, seconds: float) -> dict[str, float]:
    """Measure bandwidth and multiply peaks of the planned threads (_native.limits) in about 4 * `seconds`."""
    return _native.limits(plan.cores, plan.threads, megabytes=megabytes, seconds=seconds)


def ids(variable: str, value: str) -> list[int]:
    """Parse a list of ids such as 0-29,32.

    Raises: ConfigError naming the variable and the value.
    """
    try:
        return _native.parse_id_list(value)
    except ValueError:
        raise ConfigError(f"{variable}={value}: write ids and ranges such as 0-29,32") from None


def nodes(root: str = "") -> dict[int, int]:
    """Return the NUMA node of each allowed CPU."""
    return {cpu.id: cpu.node for cpu in _native.topology(root).cpus}


def as_list(ids: Iterable[int]) -> str:
    """Return ids as a list of ranges: 0-3,8."""
    parts: list[list[int]] = []
    for one in sorted(ids):
        if parts and one == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], one]
        else:
            parts.append([one])
    return ",".join("-".join(map(str, part)) for part in parts)


def in_gib(size: int) -> str:
    """Return bytes as text, in GiB."""
    return f"{size / GIB:.2f} GiB"
