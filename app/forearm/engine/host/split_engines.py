"""Several engines on one machine: each gets its own cores, if possible of one NUMA node, and a share of memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path

from forearm.config.engine_config import EngineConfig
from forearm.engine.host import numa_ranks, placement
from forearm.errors import ConfigError


@dataclass(frozen=True)
class EngineShare:
    """One engine's share. cores: one CPU id per thread, () if not pinned; nodes: a list, "" for any.

    ranks: threads of each rank, in the order of `cores`.
    memory_bytes: its limit, including weights; 0: a single engine without a limit of its own.
    """

    cores: tuple[int, ...]
    threads: int
    nodes: str
    memory_bytes: int
    ranks: tuple[int, ...]


def shares(plan: placement.Plan, config: EngineConfig, engines: int, root: str = "") -> tuple[EngineShare, ...]:
    """Divide the plan's cores and this machine's memory between engines.

    One engine for each NUMA node, or for each part of VLLM_CPU_OMP_THREADS_BIND=a|b, keeps to it. Otherwise cores are
    divided evenly, neighbours together, as a quota's threads are. With --tensor-parallel-size N the plan has N ranks
    for each engine, which are its cores.

    Raises: ConfigError if there are fewer threads than engines.
    """
    if engines == 1:
        return (EngineShare(plan.cores, plan.threads, config.visible_memory_nodes, 0, plan.ranks),)
    if engines > plan.threads:
        raise ConfigError(
            f"--data-parallel-size {engines}: there are {plan.threads} threads to compute, and each engine needs one; "
            f"choose at most {plan.threads}"
        )
    even_bytes = placement.memory(config, root).available_bytes // engines
    asked = config.tensor_parallel_size
    teams = [plan.ranks[first : first + asked] for first in range(0, engines * asked, asked)] if asked > 1 else []
    if not plan.cores:
        sizes = teams or [(end - start,) for start, end in numa_ranks.cut(plan.threads, engines)]
        return tuple(EngineShare((), sum(team), config.visible_memory_nodes, even_bytes, team) for team in sizes)
    nodes = placement.nodes(root)
    if teams:
        bounds = [0, *accumulate(map(sum, teams))]
        parts = [plan.cores[start:end] for start, end in pairwise(bounds)]
    else:
        parts = divided(plan.cores, nodes, config.omp_threads_bind, engines)
        teams = [tuple(map(len, numa_ranks.by_node(part, nodes))) for part in parts]
    return tuple(
        EngineShare(part, len(part), *_memory(part, nodes, config, even_bytes, engines, root), team)
        for part, team in zip(parts, teams, strict=True)
    )


def divided(cores: Sequence[int], nodes: Mapping[int, int], bind: str, engines: int) -> list[tuple[int, ...]]:
    """Return the cores of each engine; `nodes`: NUMA node by CPU id.

    Raises: ConfigError if VLLM_CPU_OMP_THREADS_BIND has parts, but not one for each engine.
    """
    if "|" in bind:
        named = [placement.ids("VLLM_CPU_OMP_THREADS_BIND", part) for part in bind.split("|")]
        if len(named) != engines:
            raise ConfigError(
                f"VLLM_CPU_OMP_THREADS_BIND={bind}: has {len(named)} parts for --data-parallel-size {engines}; "
                "name the CPUs of each engine"
            )
        parts = [tuple(core for core in part if core in cores) for part in named]
        if not all(parts):
            raise ConfigError(
                f"VLLM_CPU_OMP_THREADS_BIND={bind}: an engine would have no core to compute on; name some for each, "
                "and no CPU twice, and let OMP_NUM_THREADS be no less than all of them"
            )
        return parts
    by_node = numa_ranks.by_node(cores, nodes)
    if len(by_node) == engines:
        return [tuple(part) for part in by_node]
    together = [core for part in by_node for core in part]
    return [tuple(together[start:end]) for start, end in numa_ranks.cut(len(together), engines)]


def _memory(
    cores: Sequence[int], nodes: Mapping[int, int], config: EngineConfig, even_bytes: int, engines: int, root: str
) -> tuple[str, int]:
    """Return the NUMA nodes of an engine and the bytes it may use.

    With as many engines as nodes it has its node's memory to itself, but at most its share of all memory.
    """
    mine = {nodes[core] for core in cores}
    if len(mine) != 1 or len(set(nodes.values())) != engines:
        return config.visible_memory_nodes, even_bytes
    (node,) = mine
    own = placement.memory(replace(config, visible_memory_nodes=str(node)), root)
    return str(node), min(even_bytes, own.available_bytes)


def allowed(part: EngineShare, plan: placement.Plan, engines: int) -> tuple[int, ...]:
    """Return the CPUs that an engine's process may run on: its own, and those on which no engine computes.

    (): any CPU, for a single engine.
    """
    if engines == 1 or not part.cores:
        return ()
    return (*part.cores, *(cpu for cpu in plan.api_cores if cpu not in plan.cores))


def describe(parts: Sequence[EngineShare]) -> list[str]:
    """Return a line for each of several engines."""
    if len(parts) == 1:
        return []
    lines: list[str] = []
    for number, part in enumerate(parts):
        where = "not pinned"
        if part.cores:
            bounds = pairwise([0, *accumulate(part.ranks)])
            listed = [placement.as_list(part.cores[begin:end]) for begin, end in bounds]
            where = f"on CPUs {' | '.join(listed)}{f' in {len(listed)} ranks' if len(listed) > 1 else ''}"
        lines.append(
            f"engine {number}: {part.threads} thread{'s' if part.threads > 1 else ''} {where}, "
            f"{placement.in_gib(part.memory_bytes)} of memory at most"
        )
    return lines


def memory_of(config: EngineConfig, held_bytes: int = 0) -> placement.Memory:
    """Return the memory this engine may use now, with several engines at most its share.

    What serve and the API already use counts as free: the memory kept free for them (`others_bytes`) includes it.
    held_bytes: bytes of the share that it already holds.
    """
    used = min(server_bytes(os.getppid()) // config.engines, config.others_bytes) if config.others_bytes else 0
    found = placement.memory(config)
    found = replace(found, available_bytes=found.available_bytes + used)
    if not config.memory_share_bytes:
        return found
    share = placement.Memory(
        found.total_bytes // config.engines,
        max(0, config.memory_share_bytes - held_bytes),
        f"the share of one of {config.engines} engines",
    )
    return min(found, share, key=lambda limit: limit.available_bytes)


def server_bytes(pid: int) -> int:
    """Return the bytes of private memory of process `pid` and those it has started, without engines; 0 if unknown."""
    with contextlib.suppress(OSError):  # a process has ended meanwhile
        if b"forearm.engine.process" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return 0
        rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        own = sum(int(row.split()[1]) << 10 for row in rows if row.startswith("Pss_Anon:"))  # in kB, proc(5)
        return own + sum(map(server_bytes, map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())))
    return 0
