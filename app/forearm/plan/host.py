"""Hosts to plan for, as an engine would find them at its start: this machine, or an instance type in a folder."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from forearm.config.configs import Configs
from forearm.config.engine_config import EngineConfig
from forearm.engine.host import placement
from forearm.plan.arm_cores import of_midr, processor_name
from forearm.plan.cost import Rates, rates_of
from forearm.plan.machines import Machine, write_tree
from forearm.supervisor.supervisor import bounded, others_bytes

THIS = "this"
READ_BYTES = 1 << 30  # larger than any cache; at most a quarter of free memory
CALIBRATION_S = 0.3  # measuring time of each of the four limits


# The vector unit computes attention's softmax: on a Xeon prompts of 2048 tokens reach 700 GFLOP/s with AMX, whose peak
# is 7400; FMA's peak is 480 (bench/kernels/attention.cpp), and cost.ATTENTION is 0.55.
MOST_OF_ATTENTION = 3.0


@dataclass(frozen=True)
class EngineHost:
    """A host for an engine, or one of its NUMA nodes. config: includes memory that serve reserves for other processes.

    nodes: number of NUMA nodes of the machine. node: the same machine's first node alone.
    """

    name: str
    what: str
    config: EngineConfig
    placed: placement.Plan
    memory: placement.Memory
    rates: Rates
    tier: str
    nodes: int
    node: EngineHost | None = None

    def with_config(self, **changes: Any) -> EngineHost:
        """Return the host with other settings of the engine, on its first node too."""
        node = None if self.node is None else self.node.with_config(**changes)
        return replace(self, config=replace(self.config, **changes), node=node)


def this_host(configs: Configs) -> EngineHost:
    """Return this machine, with its free memory and its measured limits."""
    placed, memory, config = _placed(configs, configs.engine, "")
    megabytes = max(64, min(READ_BYTES, memory.available_bytes // 4) // 1_000_000)
    found = placement.measured_limits(placed, megabytes, CALIBRATION_S)
    bf16_gflops = min(found["bf16_gflops"], found["fma_gflops"] * MOST_OF_ATTENTION)
    rates = Rates(found["read_gb_s"], found["fma_gflops"], bf16_gflops, found["int8_gops"], measured=True)
    what = "; ".join(filter(None, [arm_processor(Path("/")), placed.lines[0]]))
    return EngineHost(THIS, what, config, placed, memory, rates, placement.tier(), 1)


def arm_processor(root: Path) -> str:
    """Return the name of the Arm processor of the host with this file tree; "" for x86-64."""

    def text(path: str) -> str:
        try:
            return (root / path).read_text().strip()
        except OSError:
            return ""

    midr = text("sys/devices/system/cpu/cpu0/regs/identification/midr_el1")
    return processor_name(*of_midr(int(midr, 0)), text("sys/class/dmi/id/sys_vendor")) if midr else ""


def type_host(machine: Machine, configs: Configs) -> EngineHost:
    """Return a freshly started host of an instance type."""
    generation = machine.generation
    with tempfile.TemporaryDirectory() as root:
        write_tree(machine, Path(root))

        def on(engine: EngineConfig, nodes: int) -> EngineHost:
            placed, memory, config = _placed(configs, engine, root)
            part = replace(machine, memory_gb_s=machine.memory_gb_s * nodes / machine.nodes)
            rates = rates_of(part, placed.threads)
            what = (
                f"{generation.name} ({generation.core}), {machine.cores} cores, "
                f"{placement.in_gib(machine.memory_bytes)}, {machine.nodes} NUMA node{'s' if machine.nodes > 1 else ''}"
            )
            return EngineHost(machine.name, what, config, placed, memory, rates, generation.tier, machine.nodes)

        whole = on(configs.engine, machine.nodes)
        if machine.nodes == 1 or configs.engine.tensor_parallel_size > 1:
            return whole
        return replace(whole, node=on(replace(configs.engine, visible_memory_nodes="0"), 1))


def _placed(configs: Configs, engine: EngineConfig, root: str) -> tuple[placement.Plan, placement.Memory, EngineConfig]:
    placed = placement.plan(engine, root)
    workers = configs.api.workers or placed.api_workers
    api = bounded(configs.api, placement.memory(engine, root))
    config = replace(
        engine, others_bytes=others_bytes(api, workers), cores=placed.cores, threads=placed.threads, ranks=placed.ranks
    )
    return placed, placement.memory(config, root), config
