"""Ranks: groups of an engine's cores, each with its part of the weights and of the KV cache on its own NUMA node.

These functions work on CPU ids alone, for placement.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from forearm.errors import ConfigError


def cut(count: int, parts: int) -> list[tuple[int, int]]:
    """Return begin and end of each part; sizes differ by at most one."""
    bounds = [count * number // parts for number in range(parts + 1)]
    return list(pairwise(bounds))


def by_node(cores: Sequence[int], nodes: Mapping[int, int]) -> list[list[int]]:
    """Return the cores of each node, in the given order; `nodes`: NUMA node by CPU id."""
    found: dict[int, list[int]] = {}
    for core in cores:
        found.setdefault(nodes[core], []).append(core)
    return list(found.values())


def spread(cores: Sequence[int], nodes: Mapping[int, int], count: int, reserved: int) -> list[list[int]]:
    """Return cores for `count` ranks: one node each, or even groups of neighbours if there are fewer nodes.

    `reserved` cores are left out: first cores of other nodes, then the last core of each rank in turn, so that ranks
    stay equal.

    Raises: ConfigError if a rank would have no core.
    """
    apart = by_node(cores, nodes)
    together = [core for part in apart for core in part]
    groups = apart[:count] if len(apart) >= count else [together[begin:end] for begin, end in cut(len(cores), count)]
    kept = max(0, reserved - (len(cores) - sum(map(len, groups))))
    shares = [end - begin for begin, end in cut(kept, count)]
    sets = [group[: max(0, len(group) - share)] for group, share in zip(groups, shares, strict=True)]
    if not all(sets):
        raise ConfigError(
            f"--tensor-parallel-size: {count} ranks need a core each; there are {len(cores)}, {reserved} of them kept "
            f"for the API. Choose at most {max(1, len(cores) - reserved)} ranks, or lower VLLM_CPU_NUM_OF_RESERVED_CPU"
        )
    return sets


def describe(sets: Sequence[Sequence[int]], nodes: Mapping[int, int], listed: Sequence[str]) -> list[str]:
    """Return a line for each of several ranks; `listed`: its CPUs as ranges, "" if not pinned."""
    if len(sets) == 1:
        return []
    lines = []
    for number, (cores, cpus) in enumerate(zip(sets, listed, strict=True)):
        own = sorted({nodes[core] for core in cores}) if cpus else []
        shared = any(nodes[core] in own for other in sets if other is not cores for core in other)
        where = (
            f"on CPUs {cpus}, {'part of ' if shared else ''}NUMA node {'+'.join(map(str, own))}"
            if own
            else "not pinned"
        )
        lines.append(f"rank {number}: {len(cores)} thread{'s' if len(cores) > 1 else ''} {where}")
    return lines
