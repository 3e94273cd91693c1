"""The container: image, allocator, environment, cores, memory."""

from __future__ import annotations

import json
from typing import Any

import pytest
from processes import API, ENGINE, allowed, numbers, of_kind, pages_of_nodes, variables

LEAST_LOCAL = 0.95  # share of the engine's pages; libraries and Python hold the rest


def inspect(host: Any, what: str, name: str) -> dict[str, Any]:
    """Return the container engine's description of the container."""
    found: dict[str, Any] = json.loads(host.check_output(f"docker {what} inspect {name}"))[0]
    return found


def online(host: Any, what: str) -> set[int]:
    """CPUs or nodes of the host."""
    return numbers(host.check_output(f"cat /sys/devices/system/{what}/online"))


def test_the_image_is_for_this_processor(host: Any, deployed: dict[str, Any]) -> None:
    wanted = {"aarch64": "arm64", "x86_64": "amd64"}[host.check_output("uname -m")]
    assert inspect(host, "image", deployed["image"])["Architecture"] == wanted


def test_the_image_chosen_is_the_one_that_runs(host: Any, deployed: dict[str, Any]) -> None:
    chosen = host.check_output("cat /etc/forearm/image").removeprefix("FOREARM_IMAGE=")
    assert inspect(host, "container", "forearm")["Image"] == inspect(host, "image", chosen)["Id"]


def test_it_has_no_privilege_and_writes_nowhere_else(host: Any) -> None:
    settings = inspect(host, "container", "forearm")["HostConfig"]
    assert not settings["Privileged"]
    assert settings["ReadonlyRootfs"]
    assert settings["CapDrop"] == ["ALL"]


def test_tcmalloc_is_mapped_into_the_api(host: Any) -> None:
    for process in of_kind(host, API):
        assert "tcmalloc" in variables(host, process).get("LD_PRELOAD", ""), process.line
        assert "libtcmalloc" in host.check_output(f"cat /proc/{process.pid}/maps"), process.line


def test_the_environment_is_as_configured(host: Any, deployed: dict[str, Any]) -> None:
    lines = host.file("/etc/forearm/forearm.env").content_string.splitlines()
    wanted = dict(line.split("=", 1) for line in lines if line)
    assert set(deployed["environment"]) <= set(wanted)
    # The engine does not need the API's secrets; serve may withhold them.
    found = variables(host, of_kind(host, API)[0])
    assert {name: found.get(name) for name in wanted} == wanted


def test_engine_and_api_have_cores_of_their_own(host: Any, deployed: dict[str, Any]) -> None:
    usable = numbers(deployed["cpuset_cpus"]) or online(host, "cpu")
    engines = {process.pid: allowed(host, process) for process in of_kind(host, ENGINE)}
    answering = [cpus for process in of_kind(host, API) for cpus in allowed(host, process).values()]
    assert set().union(*answering, *(cpus for threads in engines.values() for cpus in threads.values())) <= usable
    if len(usable) >= 4:  # fewer are shared
        # Its first thread, which has the socket, computes nothing and stays on the API's cores: that may be one.
        others = [cpus for pid, threads in engines.items() for thread, cpus in threads.items() if thread != pid]
        pinned = [cpus for cpus in others if len(cpus) == 1]
        assert pinned, "no thread of the engine is pinned"
        assert set().union(*pinned).isdisjoint(set().union(*answering))


def test_memory_is_on_the_nodes_allowed(host: Any, deployed: dict[str, Any]) -> None:
    nodes = numbers(deployed["cpuset_mems"]) or online(host, "node")
    for process in of_kind(host, ENGINE):
        found = pages_of_nodes(host, process)
        assert found, "the kernel tells of no page"
        assert sum(found.get(node, 0) for node in nodes) >= LEAST_LOCAL * sum(found.values()), found


def test_a_limit_of_memory_holds(host: Any, deployed: dict[str, Any]) -> None:
    limit = inspect(host, "container", "forearm")["HostConfig"]["Memory"]
    if not limit:
        pytest.skip("forearm_memory is empty")
    total = sum(sum(pages_of_nodes(host, process).values()) for process in of_kind(host, ENGINE))
    assert total * 1024 <= limit
