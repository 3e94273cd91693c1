"""`forearm doctor` on hosts written into a folder as /sys and /proc show them, and on this one."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from forearm.config.api_config import ApiConfig
from forearm.config.configs import Configs
from forearm.config.engine_config import EngineConfig
from forearm.config.serve_config import ServeConfig
from forearm.doctor import command, server_checks
from forearm.doctor.command import examine, run
from forearm.doctor.finding import CheckedHost, Finding
from forearm.errors import ConfigError
from forearm.model.checkpoint.hub import DEMO_MODEL
from forearm.plan.machines import machine, write_tree

FEATURES = {
    "c6g.16xlarge": ("0xd0c", "fp asimd atomics asimdhp asimddp"),
    "c7g.16xlarge": ("0xd40", "fp asimd atomics asimdhp asimddp sve bf16 i8mm"),
    "c8g.48xlarge": ("0xd4f", "fp asimd atomics asimdhp asimddp sve sve2 bf16 i8mm"),
    "m9g.48xlarge": ("0xd84", "fp asimd atomics asimdhp asimddp sve sve2 bf16 i8mm"),
}
CONFIGS = Configs(EngineConfig(), ApiConfig(port=0), ServeConfig())


class Fixture:
    """A Graviton host, freshly started and well set up."""

    def __init__(self, root: Path, name: str) -> None:
        self.root = root
        write_tree(machine(name), root)
        part, features = FEATURES[name]
        self.write("proc/cpuinfo", f"processor : 0\nFeatures : {features}\nCPU implementer : 0x41\nCPU part : {part}")
        self.write("proc/sys/kernel/osrelease", "6.8.0-1021-aws")
        self.write("proc/sys/kernel/numa_balancing", "0")
        self.write("proc/self/numa_maps", "aaaae0000000 default file=/usr/bin/python3")
        self.write("proc/self/limits", "Limit  Soft Limit  Hard Limit  Units\nMax open files   65536  65536  files\n")
        self.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never")
        self.write("sys/devices/system/cpu/smt/active", "0")
        self.write("sys/fs/cgroup/cpu.stat", "usage_usec 1\nnr_periods 0\nnr_throttled 0")

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    def examine(self, configs: Configs = CONFIGS, **environ: str) -> list[Finding]:
        return list(examine(CheckedHost(configs, environ, str(self.root))))

    def amiss(self, configs: Configs = CONFIGS, **environ: str) -> list[Finding]:
        return [found for found in self.examine(configs, **environ) if found.status in ("error", "warning")]


@pytest.fixture
def graviton3(tmp_path: Path) -> Fixture:
    return Fixture(tmp_path, "c7g.16xlarge")


@pytest.fixture
def two_nodes(tmp_path: Path) -> Fixture:
    return Fixture(tmp_path, "c8g.48xlarge")


def named(found: list[Finding], check: str) -> Finding:
    (one,) = (finding for finding in found if finding.check == check)
    return one


@pytest.mark.parametrize(
    ("name", "generation"),
    [("c6g.16xlarge", "Graviton2"), ("c7g.16xlarge", "Graviton3"), ("c8g.48xlarge", "Graviton4")],
)
def test_a_well_kept_host_has_nothing_amiss(name: str, generation: str, tmp_path: Path) -> None:
    host = Fixture(tmp_path, name)

    assert host.amiss() == []
    assert generation in named(host.examine(), "cpu").what


def test_midr_is_believed_before_cpuinfo(graviton3: Fixture) -> None:
    graviton3.write("sys/devices/system/cpu/cpu0/regs/identification/midr_el1", "0x00000000410fd4f1")

    assert "Graviton4" in named(graviton3.examine(), "cpu").what
    assert "sve2 missing" in named(graviton3.amiss(), "features").what


@pytest.mark.parametrize(
    ("path", "text", "check", "status", "what", "remedy"),
    [
        ("proc/sys/kernel/osrelease", "4.14.355", "kernel", "error", "older than 5.10", "boot an image"),
        (
            "proc/cpuinfo",
            "Features : fp asimd atomics asimdhp asimddp sve\nCPU implementer : 0x41\nCPU part : 0xd40",
            *("features", "error", "bf16, i8mm missing, which Graviton3 has", "a newer kernel"),
        ),
        (
            "sys/devices/system/cpu/cpu3/cpufreq/scaling_governor", "powersave",
            *("governor", "warning", "powersave", "cpupower frequency-set -g performance"),
        ),
        (
            "sys/fs/cgroup/cpu.stat", "nr_periods 100\nnr_throttled 40",
            *("throttling", "warning", "throttled in 40 of 100 periods", "--cpuset-cpus"),
        ),
        (
            "proc/self/numa_maps", "aaaa interleave:0-1 file=/usr/bin/python3",
            *("memory policy", "warning", "interleave:0-1", "without numactl"),
        ),
        (
            "sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]",
            *("huge pages", "warning", "4 KiB pages", "echo madvise >"),
        ),
        (
            "proc/self/limits", "Max open files            1024                 4096                 files",
            *("open files", "warning", "at most 1024", "ulimit -n"),
        ),
        (
            "proc/self/limits", "Max address space         8589934592           unlimited            bytes",
            *("limits", "warning", "address space is limited to 8589934592", "ulimit -v unlimited"),
        ),
        ("proc/sys/fs/file-nr", "99000 0 100000", "open files", "warning", "99000 of 100000 files", "fs.file-max"),
        (
            "sys/fs/cgroup/memory.events", "low 0\noom 3\noom_kill 2",
            *("memory", "warning", "killed 2 times", "raise the limit"),
        ),
        ("sys/fs/cgroup/memory.high", "1073741824", "memory", "warning", "memory.high = 1.00 GiB", "at max"),
    ],
)  # fmt: skip
def test_what_is_amiss_is_found_with_its_remedy(
    path: str, text: str, check: str, status: str, what: str, remedy: str, graviton3: Fixture
) -> None:
    graviton3.write(path, text)

    found = named(graviton3.amiss(), check)

    assert (found.status, found.how != "") == (status, True)
    assert what in found.what
    assert remedy in found.remedy


def test_swapped_pages_are_found(graviton3: Fixture) -> None:
    with (graviton3.root / "proc/meminfo").open("a") as file:
        file.write("SwapTotal: 8388608 kB\nSwapFree: 4194304 kB\n")

    assert "4.00 GiB of 8.00 GiB in use" in named(graviton3.amiss(), "swap").what


def test_two_nodes_with_balancing_on_are_told_how_to_be_used(two_nodes: Fixture) -> None:
    two_nodes.write("proc/sys/kernel/numa_balancing", "1")

    assert "kernel.numa_balancing=0" in named(two_nodes.amiss(), "numa balancing").remedy
    assert "CPU_VISIBLE_MEMORY_NODES=0" in named(two_nodes.examine(), "numa").remedy


def test_a_quota_is_told_with_the_file_it_stands_in(graviton3: Fixture) -> None:
    graviton3.write("proc/self/cgroup", "0::/pod/box")
    graviton3.write("sys/fs/cgroup/pod/cpu.max", "400000 100000")

    found = named(graviton3.examine(), "quota")

    assert "4 CPUs of time" in found.what
    assert found.how == "/sys/fs/cgroup/pod/cpu.max"


def test_a_version_1_cgroup_tells_throttling_too(graviton3: Fixture) -> None:
    (graviton3.root / "sys/fs/cgroup/cpu.stat").unlink()
    graviton3.write("proc/self/cgroup", "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/")
    graviton3.write("sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.stat", "nr_periods 10\nnr_throttled 5")

    assert "throttled in 5 of 10 periods" in named(graviton3.amiss(), "throttling").what


def test_a_cpu_that_is_no_graviton_is_only_noted(graviton3: Fixture) -> None:
    graviton3.write("proc/cpuinfo", "processor : 0\nmodel name : AMD EPYC 9R14\nflags : avx2 avx512f")
    assert named(graviton3.examine(), "cpu").status == "note"

    graviton3.write("proc/cpuinfo", "Features : fp asimd\nCPU implementer : 0x41\nCPU part : 0xd49")
    assert "Neoverse N2" in named(graviton3.examine(), "cpu").what


@pytest.mark.parametrize(
    ("maker", "implementer", "part", "name"),
    [
        ("Google", "0x41", "0xd4f", "Google Axion C4A (Neoverse V2)"),
        ("Google", "0x41", "0xd8e", "Google Axion N4A (Neoverse N3)"),
        ("NVIDIA", "0x41", "0xd4f", "NVIDIA Grace (Neoverse V2)"),
        ("Quanta Cloud Technology Inc.", "0x41", "0xd4f", "Neoverse V2 (Graviton4, Google Axion C4A, NVIDIA Grace)"),
        ("Microsoft Corporation", "0x6d", "0xd49", "Azure Cobalt 100 (Neoverse N2)"),
        ("Microsoft Corporation", "0x6d", "0xd84", "Azure Cobalt 200 (Neoverse V3)"),
        ("NVIDIA", "0x4e", "0x010", "NVIDIA Vera (Olympus)"),
        ("Ampere(R)", "0x41", "0xd0c", "Ampere Altra (Neoverse N1)"),
        ("Microsoft Corporation", "0x41", "0xd49", "Azure Cobalt 100 (Neoverse N2)"),
        ("Supermicro", "0xc0", "0xac3", "AmpereOne"),
        ("Someone", "0x48", "0xd01", "implementer 0x48, part 0xd01"),
    ],
)
def test_an_arm_server_is_called_by_its_name(
    maker: str, implementer: str, part: str, name: str, graviton3: Fixture
) -> None:
    graviton3.write("proc/cpuinfo", f"Features : fp asimd\nCPU implementer : {implementer}\nCPU part : {part}")
    graviton3.write("sys/class/dmi/id/sys_vendor", maker)

    found = named(graviton3.examine(), "cpu")

    assert (found.status, found.what) == ("note", f"{name}: no Graviton that is known; the tier follows its features")


def test_a_graviton5_that_hides_features_is_told(tmp_path: Path) -> None:
    host = Fixture(tmp_path, "m9g.48xlarge")
    host.write("sys/class/dmi/id/sys_vendor", "Amazon EC2")
    assert named(host.examine(), "cpu").what == "Graviton5 (Neoverse V3)"
    assert named(host.examine(), "features").status == "ok"

    host.write(
        "proc/cpuinfo", "Features : fp asimd atomics asimdhp asimddp sve\nCPU implementer : 0x41\nCPU part : 0xd84"
    )

    assert "bf16, i8mm, sve2 missing, which Graviton5 has" in named(host.amiss(), "features").what


def test_a_processor_of_others_that_hides_features_is_told(graviton3: Fixture) -> None:
    graviton3.write("sys/class/dmi/id/sys_vendor", "Google")
    graviton3.write(
        "proc/cpuinfo", "Features : asimd atomics asimdhp asimddp\nCPU implementer : 0x41\nCPU part : 0xd4f"
    )

    assert "bf16, i8mm, sve, sve2 missing, which Google Axion C4A has" in named(graviton3.amiss(), "features").what


def test_a_binding_outside_the_cpuset_is_an_error(graviton3: Fixture) -> None:
    configs = replace(CONFIGS, engine=EngineConfig(omp_threads_bind="0-99"))

    assert "is not available" in named(graviton3.amiss(configs), "cores").what


def test_an_allocator_that_is_preloaded_must_be_there_and_in_use(graviton3: Fixture) -> None:
    library = "usr/lib/aarch64-linux-gnu/libtcmalloc_minimal.so.4"
    assert f"LD_PRELOAD=/{library}" not in named(graviton3.examine(), "allocator").remedy

    graviton3.write(library, "")
    assert named(graviton3.examine(), "allocator").remedy == f"LD_PRELOAD=/{library}"
    assert "not mapped" in named(graviton3.amiss(LD_PRELOAD=f"/{library}"), "allocator").what
    graviton3.write("proc/self/maps", f"ffff r-xp 0 0:0 1 /{library}")
    assert named(graviton3.examine(LD_PRELOAD=f"/{library}"), "allocator").status == "ok"
    assert "is preloaded and missing" in named(graviton3.amiss(LD_PRELOAD="/no/such.so"), "allocator").what


def test_variables_without_effect_are_listed_and_wrong_ones_are_errors(graviton3: Fixture) -> None:
    lines = [found.what for found in graviton3.examine(VLLM_USE_V1="1", VLLM_NONSENSE="1") if found.check == "settings"]

    assert lines == ["VLLM_USE_V1 has no effect: it was removed from vLLM", "unknown variables, ignored: VLLM_NONSENSE"]
    assert named(graviton3.amiss(VLLM_TARGET_DEVICE="cuda"), "settings").status == "error"


def test_a_model_that_is_named_is_opened_and_fitted(graviton3: Fixture) -> None:
    def found(**settings: object) -> list[Finding]:
        engine = replace(EngineConfig(model=str(DEMO_MODEL)), **settings)  # type: ignore[arg-type]
        return [one for one in graviton3.examine(replace(CONFIGS, engine=engine)) if one.check == "model"]

    assert "fits: weights 0.01 GiB" in found()[0].what
    assert "% of its weights are in the page cache" in found()[1].what
    assert "does not fit" in found(kv_cache_memory_bytes=1 << 40)[0].what
    assert found(model="/no/such/folder")[0].status == "error"


# --- this host ---


def this(api: ApiConfig) -> CheckedHost:
    return CheckedHost(replace(CONFIGS, api=api), {})


def test_a_port_that_somebody_else_has_is_an_error_with_a_remedy() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()

        (found,) = server_checks.address(this(ApiConfig(host="127.0.0.1", port=taken.getsockname()[1])))

    assert (found.check, found.status) == ("port", "error")
    assert "choose another --port" in found.remedy


class Answers(BaseHTTPRequestHandler):
    """/version and /readyz as the API has them; the server's `ready` says which."""

    def do_GET(self) -> None:
        ready = getattr(self.server, "ready", True)
        body = {"version": "9.9"} if self.path == "/version" else {} if ready else {"error": {"message": "it loads"}}
        content = json.dumps(body).encode()
        self.send_response(200 if self.path == "/version" or ready else 503)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        """Nothing on stderr."""


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    made = HTTPServer(("127.0.0.1", 0), Answers)
    thread = Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.mark.parametrize(
    ("ready", "status", "words"), [(True, "ok", "is ready, version 9.9"), (False, "warning", "it loads")]
)
def test_a_server_that_runs_is_asked_how_it_is(ready: bool, status: str, words: str, server: HTTPServer) -> None:
    server.ready = ready  # type: ignore[attr-defined]

    port, state = server_checks.address(this(ApiConfig(host="127.0.0.1", port=server.server_port)))

    assert "is used by a running server" in port.what
    assert (state.check, state.status) == ("server", status)
    assert words in state.what


def test_this_host_is_examined_whatever_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_USE_V1", "1")

    assert run(["--json", "--port", "0"]) == 0

    found = json.loads(capsys.readouterr().out)
    checks = {finding["check"] for finding in found["findings"]}
    assert {"kernel", "cpu", "tier", "cores", "memory", "swap", "settings", "port", "disk", "hub"} <= checks
    assert "VLLM_USE_V1 has no effect" in str(found)
    assert sum(found["counts"].values()) == len(found["findings"])


def test_strict_fails_where_something_is_amiss_and_json_is_the_same(
    graviton3: Fixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = str(graviton3.root)
    for name in ("LD_PRELOAD", "FOREARM_TIER"):
        monkeypatch.delenv(name, raising=False)
    assert run(["--strict"], root) == 0

    graviton3.write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]")
    assert run([], root) == 0
    capsys.readouterr()
    assert run(["--strict"], root) == 1
    first = capsys.readouterr().out.splitlines()[1]
    assert first.startswith("warning")
    assert "huge pages" in first


def test_a_wrong_variable_is_a_finding_and_a_wrong_flag_is_refused(
    graviton3: Fixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "plenty")
    assert run(["--strict"], str(graviton3.root)) == 1
    assert "VLLM_CPU_KVCACHE_SPACE plenty: write a number" in capsys.readouterr().out

    with pytest.raises(ConfigError, match="unknown flag --no-such"):
        run(["--no-such"])


def test_a_check_that_breaks_leaves_the_others(graviton3: Fixture) -> None:
    graviton3.write("sys/fs/cgroup/cpu.max", "a lot")

    found = graviton3.examine()

    assert "cannot be checked here" in named(found, "quota").what
    assert len(found) > len(command.CHECKS) / 2
