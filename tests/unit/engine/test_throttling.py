from __future__ import annotations

from pathlib import Path

import pytest

from forearm.engine.host.throttling import Throttling


def told(throttling: Throttling) -> list[float]:
    return [metric.samples[0].value for metric in throttling.collect()]


@pytest.mark.parametrize(
    ("membership", "folder", "stat"),
    [
        ("0::/system.slice/forearm", "system.slice/forearm", "usage_usec 5\nnr_throttled 3\nthrottled_usec 2500000\n"),
        ("0::/", "", "nr_throttled 3\nthrottled_usec 2500000\n"),
        ("4:cpu,cpuacct:/docker/1\n3:memory:/x", "cpu,cpuacct/docker/1", "nr_throttled 3\nthrottled_time 2500000000\n"),
        ("4:cpu:/docker/1", "cpu", "nr_throttled 3\nthrottled_time 2500000000\n"),
    ],
)
def test_the_quotas_stops_are_read_from_either_version(tmp_path: Path, membership: str, folder: str, stat: str) -> None:
    root = tmp_path / "cgroup"
    (root / folder).mkdir(parents=True, exist_ok=True)
    (root / folder / "cpu.stat").write_text(stat)
    (tmp_path / "membership").write_text(membership)

    assert told(Throttling(root, tmp_path / "membership")) == [3, 2.5]


def test_without_a_cgroup_nothing_was_stopped(tmp_path: Path) -> None:
    assert told(Throttling(tmp_path, tmp_path / "none")) == [0, 0]


def test_this_machines_own_are_numbers() -> None:
    assert all(value >= 0 for value in told(Throttling()))
