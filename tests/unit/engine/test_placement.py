"""The plan of threads and memory against machines written into a folder as /sys and /proc show them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forearm import _native
from forearm.config.engine_config import EngineConfig
from forearm.engine.host.kv_memory import kv_blocks, longest
from forearm.engine.host.placement import GIB, Memory, Plan, memory, plan
from forearm.errors import ConfigError

KIB = 1024


class Machine:
    """A /sys and /proc tree below `root`; `cores` lists the CPUs of each physical core."""

    def __init__(self, root: Path, cores: list[list[int]], nodes: list[str] | None = None, gib: int = 64) -> None:
        self.root = root
        cpus = sorted(cpu for core in cores for cpu in core)
        self.write("sys/devices/system/cpu/online", ",".join(map(str, cpus)))
        for core in cores:
            for cpu in core:
                self.cpu(cpu, "topology/core_cpus_list", ",".join(map(str, core)))
        nodes = nodes or [f"0-{cpus[-1]}"]
        self.write("sys/devices/system/node/online", f"0-{len(nodes) - 1}")
        for node, cpulist in enumerate(nodes):
            self.write(f"sys/devices/system/node/node{node}/cpulist", cpulist)
            kib = gib * GIB // KIB // len(nodes)
            self.write(
                f"sys/devices/system/node/node{node}/meminfo",
                f"Node {node} MemTotal: {kib} kB\nNode {node} MemFree: {kib // 2} kB\n"
                f"Node {node} Active(file): {kib // 8} kB\nNode {node} Inactive(file): {kib // 8} kB\n",
            )
        kib = gib * GIB // KIB
        self.write("proc/meminfo", f"MemTotal: {kib} kB\nMemFree: 1 kB\nMemAvailable: {kib // 4 * 3} kB\n")
        self.status(f"0-{cpus[-1]}", f"0-{len(nodes) - 1}")
        self.write("proc/self/cgroup", "0::/\n")
        self.write("sys/fs/cgroup/cgroup.controllers", "cpu memory")

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    def cpu(self, cpu: int, path: str, text: str) -> None:
        self.write(f"sys/devices/system/cpu/cpu{cpu}/{path}", text)

    def status(self, cpus: str, mems: str = "0") -> None:
        self.write("proc/self/status", f"Name:\tforearm\nCpus_allowed_list:\t{cpus}\nMems_allowed_list:\t{mems}")

    def plan(self, **settings: Any) -> Plan:
        return plan(EngineConfig(**settings), str(self.root))

    def memory(self, **settings: Any) -> Memory:
        return memory(EngineConfig(**settings), str(self.root))


def cpus(text: str) -> tuple[int, ...]:
    return tuple(_native.parse_id_list(text))


@pytest.fixture
def xeon(tmp_path: Path) -> Machine:
    """The `lscpu -e` table of vLLM's CPU page: 16 logical CPUs, 8 physical cores, CPU i and i + 8 on core i."""
    return Machine(tmp_path, [[core, core + 8] for core in range(8)])


@pytest.fixture
def graviton(tmp_path: Path) -> Machine:
    """c7g.16xlarge: 64 cores without SMT, one node."""
    return Machine(tmp_path, [[core] for core in range(64)], gib=128)


@pytest.fixture
def two_nodes(tmp_path: Path) -> Machine:
    """c8g.48xlarge: 192 cores, two nodes of 96."""
    return Machine(tmp_path, [[core] for core in range(192)], nodes=["0-95", "96-191"], gib=384)


def small(root: Path, cores: int) -> Machine:
    return Machine(root, [[core] for core in range(cores)], gib=8)


def test_one_thread_goes_to_each_physical_core_and_the_last_core_is_the_apis(xeon: Machine) -> None:
    chosen = xeon.plan()

    assert chosen.cores == cpus("0-6")
    assert chosen.threads == 7
    assert chosen.api_cores == (7, 15)
    assert chosen.api_workers == 1


def test_nothing_reserved_gives_every_physical_core_to_the_engine(xeon: Machine) -> None:
    chosen = xeon.plan(num_of_reserved_cpu=0)

    assert chosen.cores == cpus("0-7")
    assert chosen.api_cores == cpus("0-15")


def test_the_binding_of_vllms_page_is_taken_as_it_stands(xeon: Machine) -> None:
    assert xeon.plan(omp_threads_bind="0-7").cores == cpus("0-7")
    assert xeon.plan(omp_threads_bind="0-5").api_cores == (6, 7, 14, 15)


def test_siblings_of_older_kernels_are_found_under_their_older_name(tmp_path: Path) -> None:
    machine = small(tmp_path, 4)
    for cpu in range(4):
        (tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list").unlink()
        machine.cpu(cpu, "topology/thread_siblings_list", f"{cpu % 2},{cpu % 2 + 2}")

    assert machine.plan().cores == (0, 1)


def test_a_graviton_keeps_two_cores_of_64_for_the_api(graviton: Machine) -> None:
    chosen = graviton.plan()

    assert chosen.cores == cpus("0-61")
    assert chosen.api_cores == (62, 63)
    assert chosen.api_workers == 2
    assert chosen.lines == (
        "machine: CPUs 0-63 (64 physical cores, 1 NUMA node)",
        "engine: 62 threads on CPUs 0-61",
        "API: CPUs 62-63",
    )


def test_two_nodes_are_used_both_and_in_order(two_nodes: Machine) -> None:
    chosen = two_nodes.plan()

    assert chosen.cores == cpus("0-189")
    assert "2 NUMA nodes" in chosen.lines[0]


def test_interleaved_cpu_numbers_are_ordered_by_node(tmp_path: Path) -> None:
    machine = Machine(tmp_path, [[core] for core in range(8)], nodes=["0,2,4,6", "1,3,5,7"])

    assert machine.plan(num_of_reserved_cpu=0).cores == (0, 2, 4, 6, 1, 3, 5, 7)


def test_visible_memory_nodes_limit_cores_and_memory(two_nodes: Machine) -> None:
    chosen = two_nodes.plan(visible_memory_nodes="1")

    assert chosen.cores == cpus("96-189")
    assert two_nodes.memory(visible_memory_nodes="1").total_bytes == 192 * GIB
    assert two_nodes.memory(visible_memory_nodes="1").available_bytes == 144 * GIB


def test_a_node_that_is_not_there_is_named(two_nodes: Machine) -> None:
    with pytest.raises(ConfigError, match=r"CPU_VISIBLE_MEMORY_NODES=7: no CPU there; this process may use 0-1"):
        two_nodes.plan(visible_memory_nodes="7")


def test_parts_of_a_binding_for_several_ranks_belong_to_the_one_engine(two_nodes: Machine) -> None:
    assert two_nodes.plan(omp_threads_bind="0-31|96-127").cores == cpus("0-31,96-127")


def test_affinity_and_cpuset_are_respected(graviton: Machine) -> None:
    graviton.status("8-23")
    graviton.write("proc/self/cgroup", "0::/pod/box")
    graviton.write("sys/fs/cgroup/pod/box/cpuset.cpus.effective", "8-15")

    chosen = graviton.plan()

    assert chosen.cores == cpus("8-14")
    assert chosen.api_cores == (15,)


def test_a_version_1_cpuset_is_respected(graviton: Machine) -> None:
    graviton.write("proc/self/cgroup", "4:cpuset:/docker/abc\n3:cpu,cpuacct:/docker/abc")
    graviton.write("sys/fs/cgroup/cpuset/docker/abc/cpuset.cpus", "4-7")

    assert graviton.plan().cores == (4, 5, 6)


def test_a_cpu_outside_the_cpuset_is_refused_by_name(graviton: Machine) -> None:
    graviton.status("0-3")

    with pytest.raises(ConfigError, match=r"VLLM_CPU_OMP_THREADS_BIND=2-5: CPU 4-5 is not available; .* may use 0-3"):
        graviton.plan(omp_threads_bind="2-5")


@pytest.mark.parametrize("bind", ["0-", "a", "3-1", "0 1"])
def test_a_binding_that_is_no_list_is_refused_with_an_example(graviton: Machine, bind: str) -> None:
    with pytest.raises(ConfigError, match=rf"VLLM_CPU_OMP_THREADS_BIND={bind}: write ids and ranges such as 0-29,32"):
        graviton.plan(omp_threads_bind=bind)


def test_a_quota_of_one_and_a_half_cpus_gives_one_thread_and_pins_nothing(graviton: Machine) -> None:
    graviton.write("proc/self/cgroup", "0::/pod")
    graviton.write("sys/fs/cgroup/pod/cpu.max", "150000 100000")

    chosen = graviton.plan()

    assert chosen.threads == 1
    assert chosen.cores == ()
    assert chosen.lines[1] == "engine: 1 thread not pinned (limited by the quota of 1.5 CPUs)"


@pytest.mark.parametrize(("quota", "threads"), [("50000", 1), ("200000", 2), ("400000", 3), ("3200000", 30)])
def test_a_quota_counts_as_so_many_cores(graviton: Machine, quota: str, threads: int) -> None:
    graviton.write("sys/fs/cgroup/cpu.max", f"{quota} 100000")

    assert graviton.plan().threads == threads


def test_the_tightest_quota_above_us_counts_and_version_1_too(graviton: Machine) -> None:
    graviton.write("proc/self/cgroup", "0::/outer/inner\n3:cpu,cpuacct:/box")
    graviton.write("sys/fs/cgroup/outer/cpu.max", "1000000 100000")
    graviton.write("sys/fs/cgroup/outer/inner/cpu.max", "max 100000")
    assert graviton.plan().threads == 9

    graviton.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "200000")
    graviton.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000")
    assert graviton.plan().threads == 2


def test_omp_num_threads_is_an_upper_bound(graviton: Machine) -> None:
    assert graviton.plan(omp_num_threads=8).cores == cpus("0-7")
    assert graviton.plan(omp_num_threads=80).cores == cpus("0-61")


def test_nobind_counts_the_same_threads_and_pins_none(graviton: Machine) -> None:
    chosen = graviton.plan(omp_threads_bind="nobind")

    assert chosen.threads == 62
    assert chosen.cores == ()


def test_two_cores_are_shared_with_the_api(tmp_path: Path) -> None:
    chosen = small(tmp_path, 2).plan()

    assert chosen.cores == (0, 1)
    assert chosen.api_cores == (0, 1)
    assert chosen.lines[2] == "API: CPUs 0-1, shared with the engine"


def test_as_many_cores_reserved_as_there_are_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"VLLM_CPU_NUM_OF_RESERVED_CPU=4: leaves no core of 4 .* at most 3"):
        small(tmp_path, 4).plan(num_of_reserved_cpu=4)


def test_slow_cores_serve_http_and_fast_ones_compute(tmp_path: Path) -> None:
    machine = small(tmp_path, 8)
    for cpu in range(8):
        machine.cpu(cpu, "cpu_capacity", "1024" if cpu >= 4 else "380")

    chosen = machine.plan()

    assert chosen.cores == cpus("4-7")
    assert chosen.api_cores == cpus("0-3")


def test_kinds_of_cores_are_told_by_midr_and_frequency_where_there_is_no_capacity(tmp_path: Path) -> None:
    machine = small(tmp_path, 4)
    for cpu in range(4):
        machine.cpu(cpu, "regs/identification/midr_el1", "0x410fd490" if cpu < 2 else "0x410fd050")
        machine.cpu(cpu, "cpufreq/cpuinfo_max_freq", "3000000" if cpu < 2 else "1800000")

    assert machine.plan().cores == (0, 1)


def test_equal_cores_with_unequal_boost_frequencies_all_compute(tmp_path: Path) -> None:
    machine = small(tmp_path, 2)
    machine.cpu(0, "cpufreq/cpuinfo_max_freq", "5000000")
    machine.cpu(1, "cpufreq/cpuinfo_max_freq", "3000000")

    assert machine.plan().cores == (0, 1)


def test_memory_is_the_machines_where_nothing_limits_it(graviton: Machine) -> None:
    assert graviton.memory() == Memory(128 * GIB, 96 * GIB, "this machine")


def test_a_containers_memory_limit_counts_and_its_file_cache_is_free(graviton: Machine) -> None:
    graviton.write("proc/self/cgroup", "0::/pod")
    graviton.write("sys/fs/cgroup/pod/memory.max", str(8 * GIB))
    graviton.write("sys/fs/cgroup/pod/memory.current", str(5 * GIB))
    graviton.write("sys/fs/cgroup/pod/memory.stat", f"anon 1\nactive_file {GIB}\ninactive_file {2 * GIB}")

    assert graviton.memory() == Memory(8 * GIB, 6 * GIB, "the container's limit")


def test_a_version_1_memory_limit_counts_and_none_is_none(graviton: Machine) -> None:
    graviton.write("proc/self/cgroup", "4:memory:/box")
    graviton.write("sys/fs/cgroup/memory/memory.limit_in_bytes", str(2**63 - 4096))
    assert graviton.memory().limited_by == "this machine"

    graviton.write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", str(4 * GIB))
    graviton.write("sys/fs/cgroup/memory/box/memory.usage_in_bytes", str(GIB))
    assert graviton.memory() == Memory(4 * GIB, 3 * GIB, "the container's limit")


ROOMY = Memory(100 * GIB, 90 * GIB, "this machine")


def test_kv_blocks_take_what_memory_leaves() -> None:
    config = EngineConfig(max_num_seqs=4096, memory_utilization=0.9)

    # 90 GiB free, 10 kept free, 20 still needed: 60 GiB in blocks of 1 MiB
    assert kv_blocks(config, 4096, 1 << 20, 20 * GIB, ROOMY) == 60 * 1024


def test_a_small_container_keeps_room_for_the_http_processes() -> None:
    small = Memory(GIB, GIB, "the container's limit")
    config = EngineConfig(others_bytes=GIB // 4)

    assert kv_blocks(config, 256, 1 << 20, GIB // 2, small) == 256


def test_default_kv_blocks_do_not_exceed_what_all_sequences_fill() -> None:
    assert kv_blocks(EngineConfig(max_num_seqs=2), 100, 1 << 20, 0, ROOMY) == 8


def test_kv_blocks_follow_the_bytes_asked_for() -> None:
    assert kv_blocks(EngineConfig(kv_cache_memory_bytes=GIB), 4096, 1 << 20, 0, ROOMY) == 1024
    few = EngineConfig(kv_cache_memory_bytes=GIB, max_num_seqs=2)
    assert kv_blocks(few, 100, 1 << 20, 0, ROOMY) == 1024  # more than the sequences fill; the rest is for prefixes


def test_bytes_asked_for_are_of_each_rank() -> None:
    two = EngineConfig(kv_cache_memory_bytes=GIB, tensor_parallel_size=2)
    assert kv_blocks(two, 4096, 1 << 20, 0, ROOMY) == 2048
    assert longest(two, 131072, 1 << 20, 0, ROOMY) == 65536
    with pytest.raises(
        ConfigError, match=r"KV cache of 96\.00 GiB \(2 ranks of 48\.00 GiB\) does not fit: 90\.00 GiB are"
    ):
        kv_blocks(EngineConfig(kv_cache_memory_bytes=48 * GIB, tensor_parallel_size=2), 4096, 1 << 20, 0, ROOMY)


def test_more_kv_than_fits_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(ConfigError, match=r"KV cache of 95\.00 GiB does not fit: 90\.00 GiB are free of 100\.00 GiB"):
        kv_blocks(EngineConfig(kv_cache_memory_bytes=95 * GIB), 4096, 1 << 20, 0, ROOMY)


def test_a_sequence_that_does_not_fit_is_refused_with_a_length_that_does() -> None:
    with pytest.raises(ConfigError, match=r"one sequence of 131072 tokens needs 4\.00 GiB .* --max-model-len 32768"):
        kv_blocks(EngineConfig(kv_cache_memory_bytes=GIB), 131072, 1 << 20, 0, ROOMY)


def test_where_nothing_is_left_for_kv_no_shorter_sequence_is_advised() -> None:
    with pytest.raises(ConfigError, match=r"FOREARM_MAX_BODY_BYTES=8388608 .* Use a smaller model or more memory$"):
        kv_blocks(EngineConfig(others_bytes=20 * GIB), 4096, 1 << 20, 70 * GIB, ROOMY)


def test_the_longest_sequence_is_what_memory_allows_and_no_more_than_the_models() -> None:
    assert longest(EngineConfig(kv_cache_memory_bytes=GIB), 131072, 1 << 20, 0, ROOMY) == 32768
    assert longest(EngineConfig(kv_cache_memory_bytes=GIB), 4096, 1 << 20, 0, ROOMY) == 4096


def test_an_engine_that_starts_again_takes_as_many_kv_blocks_as_at_first_or_what_is_left() -> None:
    again = EngineConfig(max_num_seqs=2, kv_cache_memory_bytes=40 * GIB, first_kv_blocks=40 * 1024)
    assert kv_blocks(again, 4096, 1 << 20, 20 * GIB, ROOMY) == 40 * 1024

    short = Memory(ROOMY.total_bytes, 20 * GIB + (ROOMY.total_bytes - int(0.92 * ROOMY.total_bytes)) + GIB, "x")
    assert 256 <= kv_blocks(again, 4096, 1 << 20, 20 * GIB, short) <= 1024
    with pytest.raises(ConfigError, match="one sequence of 4096 tokens"):
        kv_blocks(again, 4096, 1 << 20, 21 * GIB, short)
