"""The host: processor, kernel, its settings, the service."""

from __future__ import annotations

import re
from typing import Any

import pytest


def features(host: Any) -> set[str]:
    """Return the processor's features as the kernel reports them."""
    found = re.search(r"^(?:Features|flags)\s*:(.*)$", host.check_output("cat /proc/cpuinfo"), re.MULTILINE)
    return set(found[1].split()) if found else set()


def test_the_processor_has_what_its_generation_promises(host: Any, deployed: dict[str, Any]) -> None:
    assert set(deployed["generation"]["features"]) <= features(host), deployed["generation"]["name"]


def test_the_kernel_is_new_enough(host: Any) -> None:
    release = host.check_output("uname -r")
    assert tuple(int(part) for part in re.findall(r"\d+", release)[:2]) >= (5, 10), release


@pytest.mark.parametrize(
    ("file", "wanted"),
    [
        ("/sys/kernel/mm/transparent_hugepage/enabled", "madvise"),
        ("/proc/sys/kernel/numa_balancing", "0"),
        ("/proc/sys/vm/swappiness", "1"),
    ],
)
def test_the_kernels_settings_are_as_written_down(host: Any, deployed: dict[str, Any], file: str, wanted: str) -> None:
    if not deployed["host_settings"]:
        pytest.skip("forearm_host_settings is off")
    if not host.file(file).exists:
        pytest.skip(f"this kernel has no {file}")
    text = host.check_output(f"cat {file}")
    chosen = re.search(r"\[(\w+)\]", text)
    assert (chosen[1] if chosen else text) == wanted


def test_the_services_run_and_start_with_the_host(host: Any, deployed: dict[str, Any]) -> None:
    for name in ("forearm", *(["forearm-host"] if deployed["host_settings"] else [])):
        assert host.service(name).is_running, name
        assert host.service(name).is_enabled, name


def test_something_listens_on_the_port(host: Any, deployed: dict[str, Any]) -> None:
    assert host.check_output(f"ss -Hltn 'sport = :{deployed['port']}'")


def test_secrets_are_for_root_alone(host: Any) -> None:
    file = host.file("/etc/forearm/forearm.env")
    assert (file.user, file.mode) == ("root", 0o600)
