"""Detection of an engine that hangs, by its answers to new connections."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from pathlib import Path

import pytest
from tests.listening import listening

from forearm import wire
from forearm.supervisor.watchdog import engine_hangs, is_stopped


@pytest.mark.parametrize(
    ("ages", "said"),
    [
        ([0.0, 50.0, 50.0, 0.0, None, None, 1.0], ""),
        ([0.0, 50.0, 50.0, 50.0], "its step takes longer than 10 s"),
        ([0.0, None, None, None], "it has not answered for 0.3 s"),
    ],
)
async def test_an_engine_hangs_when_three_looks_in_a_row_say_so(
    tmp_path: Path, ages: list[float | None], said: str
) -> None:
    left = iter(ages)

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        age = next(left, 0.0)
        if age is not None:
            figures = {"max_model_len": 1, "vocab_size": 1, "running": 1, "waiting": 0, "kv_usage": 0.0}
            writer.write(wire.frame(wire.State(**figures, last_step_age_s=age)))
        await reader.read()

    found = ""
    async with listening(greet, tmp_path / "engine"):
        with contextlib.suppress(asyncio.TimeoutError):
            found = await asyncio.wait_for(engine_hangs(str(tmp_path / "engine"), 0.3, 10), 3)

    assert found.startswith(said)
    assert bool(found) == bool(said)


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "Too many open files"), MemoryError()])
async def test_an_engine_that_serve_has_nothing_to_ask_with_does_not_hang(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    looks: list[str] = []

    async def fail(path: str) -> None:
        looks.append(path)
        raise error

    monkeypatch.setattr(asyncio, "open_unix_connection", fail)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(engine_hangs("engine", 0.03, 10), 0.3)

    assert len(looks) > 3, "it goes on looking"


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), MemoryError()])
async def test_a_process_whose_state_cannot_be_read_is_not_stopped(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    looks: list[Path] = []

    def fail(path: Path) -> str:
        looks.append(path)
        raise error

    monkeypatch.setattr(Path, "read_text", fail)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(is_stopped(1, 0.03), 0.3)

    assert len(looks) > 3, "it goes on looking"
