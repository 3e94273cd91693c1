"""The trace of an engine's steps: what is in the file, when it ends, and what a full disk does to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.engine.client import Client, expected
from tests.unit.engine.test_pooling_loop import Engine

from forearm import wire
from forearm.engine.inbox import Profiling
from forearm.engine.metrics.step_trace import Recording, StepTrace, recording_of
from forearm.errors import ConfigError


def ask(client: Client, *, start: bool) -> str:
    """Returns: the error, or ""."""
    client.loop.take(Profiling(0, wire.Profile(start)))
    [(connection, answer)] = client.loop.outbox
    client.loop.outbox = []
    assert connection == 0
    assert isinstance(answer, wire.Profiled)
    return answer.error


def generate(client: Client, name: str, tokens: int) -> None:
    client.submit(name, [1, 2, 3], max_tokens=tokens, temperature=0.0)
    client.finish()
    assert client.tokens(name) == expected([1, 2, 3], tokens)


def events(folder: Path) -> list[dict[str, Any]]:
    [file] = folder.iterdir()
    found: list[dict[str, Any]] = json.loads(file.read_text())
    return found


def steps(folder: Path) -> list[dict[str, Any]]:
    return [event for event in events(folder) if event["name"] == "step"]


def test_a_step_has_its_counts_and_its_parts_fill_it(tmp_path: Path) -> None:
    client = Client(trace=StepTrace(Recording(tmp_path), engine=3))
    generate(client, "before", 2)
    assert ask(client, start=True) == ""
    assert ask(client, start=True) == "", "it goes on"
    generate(client, "recorded", 4)
    assert ask(client, start=False) == ""
    generate(client, "after", 2)

    first, *others = steps(tmp_path)
    assert first["args"] == {"step": 1, "tokens": 3, "prompt_tokens": 3, "sequences": 1, "waiting": 0}
    assert [step["args"]["tokens"] for step in others] == [1, 1, 1]
    assert [step["args"]["prompt_tokens"] for step in others] == [0, 0, 0]
    within = first["ts"], first["ts"] + first["dur"]
    parts = [one for one in events(tmp_path) if one["ph"] == "X" and one["name"] != "step"]
    parts = [one for one in parts if within[0] <= one["ts"] < within[1]]
    assert [one["name"] for one in parts] == ["schedule", "draft", "pack", "forward", "sample", "advance"]
    assert sum(one["dur"] for one in parts) == pytest.approx(first["dur"], abs=0.1)
    assert {one["pid"] for one in events(tmp_path)} == {3}


def test_steps_may_be_left_out_first_and_have_a_most(tmp_path: Path) -> None:
    client = Client(trace=StepTrace(Recording(tmp_path, delay_steps=1, max_steps=2)))
    ask(client, start=True)
    generate(client, "a", 6)

    assert [step["args"]["tokens"] for step in steps(tmp_path)] == [1, 1]
    assert ask(client, start=False) == ""


def test_a_file_has_a_most_of_events_and_ends_whole(tmp_path: Path) -> None:
    client = Client(trace=StepTrace(Recording(tmp_path, max_events=20)))
    ask(client, start=True)
    generate(client, "a", 12)

    assert 20 <= len(events(tmp_path)) < 20 + 8
    assert not client.loop.trace.on


def test_a_full_disk_ends_the_recording_and_not_the_requests(tmp_path: Path) -> None:
    client = Client(trace=StepTrace(Recording(tmp_path)))
    ask(client, start=True)
    trace = client.loop.trace
    assert trace._file is not None
    trace._file.close()
    trace._file = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115  (the trace closes it)
    generate(client, "a", 3)

    assert "/dev/full: No space left on device" in ask(client, start=False)
    assert ask(client, start=False) == "", "it is told once"


def test_a_folder_that_goes_away_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    client = Client(trace=StepTrace(Recording(folder)))
    folder.rmdir()

    assert "No such file or directory" in ask(client, start=True)
    assert "--profiler-config" in ask(Client(), start=True)


def test_a_pooling_model_records_its_steps_too(tmp_path: Path) -> None:
    engine = Engine(trace=StepTrace(Recording(tmp_path)))
    engine.loop.take(Profiling(0, wire.Profile(start=True)))
    engine.ask("a", [1, 2], [3])
    engine.run()
    engine.loop.take(Profiling(0, wire.Profile(start=False)))

    [step] = steps(tmp_path)
    assert step["args"] == {"step": 1, "tokens": 3, "prompt_tokens": 3, "texts": 2, "waiting": 0}
    assert {"schedule", "forward", "advance"} <= {one["name"] for one in events(tmp_path)}


def test_what_cannot_be_recorded_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"torch_profiler_dir .*file/traces"):
        StepTrace(Recording(tmp_path / "file" / "traces"))
    with pytest.raises(ConfigError, match="torch_profiler_dir is ''"):
        recording_of({"profiler": "torch"})
    asked = {"profiler": "torch", "torch_profiler_dir": str(tmp_path), "max_iterations": 4}
    assert recording_of(asked) == Recording(tmp_path, max_steps=4)
    assert recording_of(None) is recording_of({}) is None
