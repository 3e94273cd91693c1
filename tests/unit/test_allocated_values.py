"""Files of metrics on a disk, or in a memory, that is full."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from prometheus_client.mmap_dict import MmapedDict

from forearm.api.worker.metric_files import AllocatedDict


def read_by_others(path: Path) -> dict[str, float]:
    return {key: value for key, value, *_ in MmapedDict.read_all_values_from_file(str(path))}


def test_every_page_is_there_before_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "counter_1.db"
    values = AllocatedDict(str(path))
    for number in range(500):
        values.write_value(f"key {number}", float(number), 0.0)
        assert path.stat().st_blocks * 512 >= path.stat().st_size

    assert read_by_others(path) == {f"key {number}": float(number) for number in range(500)}
    values.close()
    again = AllocatedDict(str(path))  # another process that reuses the process id
    assert again.read_value("key 7")[0] == 7
    again.close()


def test_without_room_a_process_counts_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun = AllocatedDict(str(tmp_path / "counter_1.db"))
    begun.write_value("before", 1.0, 0.0)

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    later = AllocatedDict(str(tmp_path / "counter_2.db"))
    for number in range(1000):
        begun.write_value(f"key {number}", 1.0, 0.0)
        later.write_value(f"key {number}", 2.0, 0.0)

    assert (begun.read_value("before")[0], begun.read_value("key 999")[0]) == (1, 1)
    assert later.read_value("key 0")[0] == 2
    assert "in its own memory" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["counter_1.db"], "nothing that others could not read"
    assert read_by_others(tmp_path / "counter_1.db")["before"] == 1
