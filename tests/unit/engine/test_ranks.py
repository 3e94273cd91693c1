"""Ranks: which cores each one has, on machines written into a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.engine.test_placement import Machine, cpus, small

from forearm.config.engine_config import EngineConfig
from forearm.engine.host.placement import plan
from forearm.errors import ConfigError


@pytest.fixture
def two_nodes(tmp_path: Path) -> Machine:
    """c8g.48xlarge: 192 cores, two nodes of 96."""
    return Machine(tmp_path, [[core] for core in range(192)], nodes=["0-95", "96-191"], gib=384)


@pytest.fixture
def page(tmp_path: Path) -> Machine:
    """64 cores of two nodes, as the command of vLLM's page names them."""
    return Machine(tmp_path, [[core] for core in range(64)], nodes=["0-31", "32-63"], gib=128)


def test_each_rank_has_a_node_and_the_reserved_cores_come_from_all(two_nodes: Machine) -> None:
    chosen = two_nodes.plan(tensor_parallel_size=2)

    assert chosen.cores == cpus("0-94,96-190")
    assert chosen.ranks == (95, 95)
    assert chosen.api_cores == (95, 191)
    assert chosen.lines[1:] == (
        "engine: 190 threads on CPUs 0-94,96-190",
        "rank 0: 95 threads on CPUs 0-94, NUMA node 0",
        "rank 1: 95 threads on CPUs 96-190, NUMA node 1",
        "API: CPUs 95,191",
    )


def test_one_engine_that_asks_for_no_ranks_has_one_on_each_node(two_nodes: Machine) -> None:
    chosen = two_nodes.plan()

    assert chosen.cores == cpus("0-189")
    assert chosen.ranks == (96, 94)
    assert chosen.lines[2] == "rank 0: 96 threads on CPUs 0-95, NUMA node 0"
    assert two_nodes.plan(visible_memory_nodes="1").ranks == (94,)
    assert two_nodes.plan(omp_threads_bind="nobind").ranks == (190,)


def test_cores_of_one_node_come_together_where_numbers_alternate(tmp_path: Path) -> None:
    machine = Machine(tmp_path, [[core] for core in range(8)], nodes=["0,2,4,6", "1,3,5,7"])

    chosen = machine.plan(omp_threads_bind="0-3")

    assert (chosen.cores, chosen.ranks) == ((0, 2, 1, 3), (2, 2))


def test_the_sets_of_vllms_page_are_the_ranks(page: Machine) -> None:
    chosen = page.plan(tensor_parallel_size=2, omp_threads_bind="0-31|32-63")

    assert chosen.cores == cpus("0-63")
    assert chosen.ranks == (32, 32)
    assert chosen.lines[-1] == "API: CPUs 0-63, shared with the engine"
    assert page.plan(tensor_parallel_size=2, omp_threads_bind="32-39|0-3").cores == (*range(32, 40), *range(4))


@pytest.mark.parametrize(("bind", "sets"), [("0-3", "1 set"), ("0-3|4-7|8-9", "3 sets"), ("0-3|3-7", "2 sets")])
def test_another_number_of_sets_than_ranks_is_refused(page: Machine, bind: str, sets: str) -> None:
    with pytest.raises(ConfigError, match=rf"has {sets} of CPUs for 2 ranks .* as 0-31\|32-63"):
        page.plan(tensor_parallel_size=2, omp_threads_bind=bind)


def test_fewer_nodes_than_ranks_are_cut_evenly_and_that_is_said(tmp_path: Path) -> None:
    chosen = small(tmp_path, 8).plan(tensor_parallel_size=2)

    assert chosen.cores == (0, 1, 2, 3, 4, 5, 6)
    assert chosen.ranks == (4, 3)
    assert chosen.lines[2:4] == (
        "rank 0: 4 threads on CPUs 0-3, part of NUMA node 0",
        "rank 1: 3 threads on CPUs 4-6, part of NUMA node 0",
    )


def test_more_nodes_than_ranks_leave_the_others_to_the_api(tmp_path: Path) -> None:
    machine = Machine(tmp_path, [[core] for core in range(12)], nodes=["0-3", "4-7", "8-11"])

    chosen = machine.plan(tensor_parallel_size=2)

    assert chosen.cores == cpus("0-7")
    assert chosen.api_cores == (8, 9, 10, 11)


def test_a_rank_without_a_core_is_refused_with_the_remedy(tmp_path: Path) -> None:
    machine = small(tmp_path, 2)

    assert machine.plan(tensor_parallel_size=2).ranks == (1, 1)
    with pytest.raises(ConfigError, match=r"3 ranks need a core each; there are 2, 0 of them kept .* at most 2 ranks"):
        machine.plan(tensor_parallel_size=3)
    with pytest.raises(ConfigError, match=r"2 ranks need a core each; there are 2, 1 of them kept"):
        machine.plan(tensor_parallel_size=2, num_of_reserved_cpu=1)


def test_fewer_threads_than_cores_are_taken_from_all_ranks(two_nodes: Machine) -> None:
    chosen = two_nodes.plan(tensor_parallel_size=2, omp_num_threads=8)

    assert chosen.cores == cpus("0-3,96-99")
    assert chosen.threads == 8
    with pytest.raises(ConfigError, match=r"2 ranks need a thread each, and OMP_NUM_THREADS=1 allows 1"):
        two_nodes.plan(tensor_parallel_size=2, omp_num_threads=1)


def test_under_a_quota_ranks_have_threads_but_no_cores(two_nodes: Machine) -> None:
    two_nodes.write("sys/fs/cgroup/cpu.max", "800000 100000")

    chosen = two_nodes.plan(tensor_parallel_size=2)

    assert (chosen.cores, chosen.ranks) == ((), (3, 4))
    assert chosen.lines[2] == "rank 0: 3 threads not pinned"


def test_engines_of_several_ranks_share_the_nodes(tmp_path: Path) -> None:
    nodes = ["0-3", "4-7", "8-11", "12-15"]
    machine = Machine(tmp_path, [[core] for core in range(16)], nodes=nodes)

    chosen = plan(EngineConfig(tensor_parallel_size=2), str(machine.root), engines=2)

    assert chosen.ranks == (4, 4, 4, 3)
