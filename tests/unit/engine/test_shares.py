"""The division of a machine among several engines."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from forearm.config.engine_config import EngineConfig
from forearm.engine.host import placement, split_engines
from forearm.engine.host.split_engines import EngineShare, allowed, divided, memory_of, server_bytes
from forearm.errors import ConfigError

MIB = 1 << 20
NODES = {cpu: cpu // 4 for cpu in range(8)}
PLAN = placement.Plan(6, (0, 1, 2, 3, 4, 5), (6, 7), 1, (), (4, 2))


def test_each_engine_has_a_node_of_its_own_where_there_are_as_many() -> None:
    assert divided(range(6), NODES, "auto", 2) == [(0, 1, 2, 3), (4, 5)]


def test_otherwise_neighbours_stay_together() -> None:
    assert divided(range(6), NODES, "auto", 3) == [(0, 1), (2, 3), (4, 5)]
    assert divided(range(5), dict.fromkeys(range(5), 0), "auto", 2) == [(0, 1), (2, 3, 4)]


def test_parts_of_the_binding_are_the_engines() -> None:
    assert divided((0, 1, 4, 5), NODES, "0-1|4-5", 2) == [(0, 1), (4, 5)]
    with pytest.raises(ConfigError, match="2 parts for --data-parallel-size 3"):
        divided((0, 1, 4, 5), NODES, "0-1|4-5", 3)
    with pytest.raises(ConfigError, match="no core to compute"):
        divided((0, 1), NODES, "0-1|4-5", 2)


def test_an_engines_process_keeps_off_the_others_cores() -> None:
    share = EngineShare((0, 1), 2, "", 1, (2,))
    assert allowed(share, PLAN, 3) == (0, 1, 6, 7)
    assert allowed(share, replace(PLAN, api_cores=(0, 1, 2, 3, 4, 5)), 3) == (0, 1)
    assert allowed(share, PLAN, 1) == ()


def test_engines_of_several_ranks_have_neighbouring_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "memory", lambda config, root="": placement.Memory(1000, 900, "this machine"))
    monkeypatch.setattr(placement, "nodes", lambda root="": NODES)
    config = EngineConfig(tensor_parallel_size=2)

    found = split_engines.shares(replace(PLAN, ranks=(1, 2, 1, 2)), config, 2)

    assert [(part.cores, part.ranks) for part in found] == [((0, 1, 2), (1, 2)), ((3, 4, 5), (1, 2))]
    assert split_engines.describe(found)[0].startswith("engine 0: 3 threads on CPUs 0 | 1-2 in 2 ranks, ")
    loose = split_engines.shares(replace(PLAN, cores=(), ranks=(1, 2, 1, 2)), config, 2)
    assert [(part.threads, part.ranks) for part in loose] == [(3, (1, 2)), (3, (1, 2))]


def test_an_engine_has_a_rank_on_each_node_of_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "memory", lambda config, root="": placement.Memory(1000, 900, "this machine"))
    monkeypatch.setattr(placement, "nodes", lambda root="": NODES)

    assert [part.ranks for part in split_engines.shares(PLAN, EngineConfig(), 1)] == [(4, 2)]
    assert [part.ranks for part in split_engines.shares(PLAN, EngineConfig(), 3)] == [(2,), (2,), (2,)]
    bound = EngineConfig(omp_threads_bind="0,4|1,5")
    assert [part.ranks for part in split_engines.shares(PLAN, bound, 2)] == [(1, 1), (1, 1)]


def test_memory_and_threads_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "memory", lambda config, root="": placement.Memory(1000, 900, "this machine"))
    found = split_engines.shares(replace(PLAN, cores=(), threads=3), EngineConfig(), 2)
    assert [(part.threads, part.memory_bytes) for part in found] == [(1, 450), (2, 450)]
    with pytest.raises(ConfigError, match="choose at most 6"):
        split_engines.shares(PLAN, EngineConfig(), 7)

    config = EngineConfig(engines=2, memory_share_bytes=450)
    assert memory_of(config, 100) == placement.Memory(500, 350, "the share of one of 2 engines")
    assert memory_of(EngineConfig()) == placement.Memory(1000, 900, "this machine")


def test_memory_that_the_server_already_uses_is_not_kept_free_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "memory", lambda config, root="": placement.Memory(1000 * MIB, 400 * MIB, "x"))
    monkeypatch.setattr(os, "getppid", os.getpid)
    before = server_bytes(os.getpid())
    held = bytearray(40 * MIB)
    program = "import sys; held = bytearray(30 << 20); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        used = server_bytes(os.getpid())
        most = memory_of(EngineConfig(others_bytes=50 * MIB))
        one_of_two = memory_of(EngineConfig(others_bytes=50 * MIB, engines=2))
        child.communicate()

    assert 70 * MIB <= used - before < 90 * MIB
    assert len(held) == 40 * MIB
    assert most.available_bytes == 450 * MIB, "at most what is kept free for them"
    assert 400 * MIB < one_of_two.available_bytes <= 450 * MIB
    assert server_bytes(1 << 30) == 0
