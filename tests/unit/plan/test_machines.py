"""Instance types as data, and as the /sys and /proc that placement reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from forearm.config.engine_config import EngineConfig
from forearm.engine.host.placement import memory, plan
from forearm.errors import ConfigError
from forearm.plan.cost import rates_of
from forearm.plan.host import arm_processor
from forearm.plan.machines import GIB, machine, machines, write_tree


@pytest.mark.parametrize(
    ("name", "cores", "gib", "nodes", "generation", "tier"),
    [
        ("c6g.16xlarge", 64, 128, 1, "Graviton2", "neon_fp16"),
        ("r7g.4xlarge", 16, 128, 1, "Graviton3", "sve256"),
        ("hpc7g.16xlarge", 64, 128, 1, "Graviton3E", "sve256"),
        ("hpc7g.4xlarge", 16, 128, 1, "Graviton3E", "sve256"),
        ("c8g.12xlarge", 48, 96, 1, "Graviton4", "neon_mm"),
        ("c8g.48xlarge", 192, 384, 2, "Graviton4", "neon_mm"),
        ("c8g.metal-48xl", 192, 384, 2, "Graviton4", "neon_mm"),
        ("c8gd.metal-24xl", 96, 192, 1, "Graviton4", "neon_mm"),
        ("t4g.2xlarge", 8, 32, 1, "Graviton2", "neon_fp16"),
        ("x2gd.metal", 64, 1024, 1, "Graviton2", "neon_fp16"),
        ("m9g.12xlarge", 48, 192, 1, "Graviton5", "neon_mm"),
        ("m9gd.16xlarge", 64, 256, 2, "Graviton5", "neon_mm"),
        ("c9g.48xlarge", 192, 384, 2, "Graviton5", "neon_mm"),
    ],
)
def test_a_type_is_what_aws_says_it_is(name: str, cores: int, gib: int, nodes: int, generation: str, tier: str) -> None:
    found = machine(name)

    assert (found.cores, found.memory_bytes, found.nodes) == (cores, gib * GIB, nodes)
    assert (found.generation.name, found.generation.tier) == (generation, tier)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("p5.48xlarge", "write this, or a size of c6g"),
        ("c7g.24xlarge", "c7g has the sizes medium"),
        ("c8g", "sizes"),
        ("m9g.metal-24xl", "m9g has the sizes medium"),
    ],
)
def test_a_type_that_is_not_known_is_refused_with_what_is(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"--machine {name}: .*{words}"):
        machine(name)


@pytest.mark.parametrize("name", machines())
def test_placement_reads_every_type_as_a_host(name: str, tmp_path: Path) -> None:
    one = machine(name)
    write_tree(one, tmp_path)

    placed = plan(EngineConfig(), str(tmp_path))
    found = memory(EngineConfig(), str(tmp_path))

    kept = 0 if one.cores < 4 else 1 if one.cores < 32 else 2
    assert placed.threads == one.cores - kept
    assert f"({one.cores} physical cores, {one.nodes} NUMA node" in placed.lines[0]
    assert 0.5 * one.memory_bytes < found.available_bytes < found.total_bytes < one.memory_bytes


def test_memory_bandwidth_is_the_cores_part_of_the_sockets() -> None:
    whole, quarter = machine("c8g.24xlarge"), machine("c8g.metal-48xl")

    assert whole.memory_gb_s == 537.6
    assert quarter.memory_gb_s == 2 * 537.6
    assert machine("m9g.48xlarge").memory_gb_s == 844.8
    assert machine("hpc7g.4xlarge").memory_gb_s == machine("hpc7g.16xlarge").memory_gb_s == 307.2
    assert rates_of(machine("c7g.medium"), 1).read_gb_s < rates_of(machine("hpc7g.4xlarge"), 15).read_gb_s < 307.2


def test_bf16_is_multiplied_as_float16_where_there_are_no_bf16_products() -> None:
    second, third = rates_of(machine("c6g.16xlarge"), 62), rates_of(machine("c7g.16xlarge"), 62)

    assert 1.3 < second.bf16_gflops / second.float_gflops < 1.4  # the loop's rate in bench/results/arm-loops.txt
    assert third.bf16_gflops > 4 * third.float_gflops


@pytest.mark.parametrize(
    ("midr", "maker", "name"),
    [
        ("0x00000000410fd840", "Amazon EC2", "Graviton5 (Neoverse V3)"),
        ("0x00000000410fd8e0", "Google", "Google Axion N4A (Neoverse N3)"),
        ("0x00000000410fd4f0", "NVIDIA", "NVIDIA Grace (Neoverse V2)"),
        ("0x000000004e0f0100", "", "NVIDIA Vera (Olympus)"),
        ("0x000000006d0fd490", "Microsoft Corporation", "Azure Cobalt 100 (Neoverse N2)"),
        ("0x00000000c00fac30", "", "AmpereOne"),
    ],
)
def test_the_plan_for_this_machine_names_its_arm_processor(midr: str, maker: str, name: str, tmp_path: Path) -> None:
    for path, text in (
        ("sys/devices/system/cpu/cpu0/regs/identification/midr_el1", midr),
        ("sys/class/dmi/id/sys_vendor", maker),
    ):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text + "\n")

    assert arm_processor(tmp_path) == name


def test_an_x86_machine_has_no_arm_processor(tmp_path: Path) -> None:
    assert arm_processor(tmp_path) == ""
