"""The engine as supervisor.py starts it: a separate process on the demo model, with a file of settings and signals."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forearm import wire
from forearm.config.configs import engine_config
from forearm.config.engine_config import EngineConfig
from forearm.config.settings import from_json, to_json
from forearm.errors import ConfigError

START_S, WAIT_S = 120.0, 60.0


class Process:
    """One engine process; `lines` is what it has logged once it has ended."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "engine.sock"
        self._config = folder / "engine.json"
        self.process: asyncio.subprocess.Process
        self.writers: list[asyncio.StreamWriter] = []

    async def start(self, **settings: Any) -> None:
        given = {"threads": 1, **settings}
        config = replace(engine_config(), **{"socket": str(self.socket), **given})
        self._config.write_text(to_json(config))
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "forearm.engine.process", str(self._config), stderr=asyncio.subprocess.PIPE
        )

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the engine as soon as it listens."""
        end = time.monotonic() + START_S
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(self.socket)
            except OSError:
                assert time.monotonic() < end
                assert self.process.returncode is None, "the engine has ended"
                await asyncio.sleep(0.05)
                continue
            self.writers.append(writer)
            assert isinstance(await receive(reader), wire.State)
            return reader, writer

    async def ended(self) -> tuple[int, str]:
        """Wait for the end; return the exit status and the log."""
        assert self.process.stderr is not None
        log = await asyncio.wait_for(self.process.stderr.read(), START_S)
        return await self.process.wait(), log.decode()

    def cores_of_threads(self) -> list[set[int]]:
        """Return the cores on which each thread may run."""
        found = []
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                found.append(os.sched_getaffinity(int(task.name)))
        return found

    def cpu_s(self) -> float:
        """Return the CPU time of all its threads so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime, stime: proc(5)


async def receive(reader: asyncio.StreamReader) -> wire.FromEngine:
    head = await asyncio.wait_for(reader.readexactly(4), WAIT_S)
    message: wire.FromEngine = wire.from_engine.decode(await reader.readexactly(wire.body_length(head)))
    return await receive(reader) if isinstance(message, wire.Load) else message


async def draining(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Return whether the engine reports that it is draining."""
    writer.write(wire.frame(wire.AskState()))
    while not isinstance(message := await receive(reader), wire.State):
        pass
    return message.draining


def submit(request_id: str, **params: Any) -> bytes:
    chosen = wire.SamplingParams(**{"temperature": 0.0, "ignore_eos": True, **params})
    return wire.frame(wire.Submit(request_id=request_id, prompt_token_ids=[5, 6, 7], params=chosen))


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Process]:
    engine = Process(tmp_path)
    yield engine
    if engine.process.returncode is None:
        engine.process.kill()
    await engine.ended()
    for writer in engine.writers:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_it_answers_on_its_private_socket_and_ends_by_sigterm_when_all_is_answered(engine: Process) -> None:
    await engine.start()
    reader, writer = await engine.connect()
    writer.write(submit("a", max_tokens=200))
    assert isinstance(await receive(reader), wire.Accepted)
    mode = stat.S_IMODE(engine.socket.stat().st_mode)

    engine.process.send_signal(signal.SIGTERM)

    tokens = []
    while not isinstance(message := await receive(reader), wire.Tokens) or message.finish_reason is None:
        tokens.append(message)
    status, log = await engine.ended()
    assert mode == 0o600
    assert message.finish_reason == "length"
    assert len(tokens) == 199
    assert (status, "Traceback" in log) == (0, False)
    assert not engine.socket.exists()


async def test_a_second_signal_ends_it_at_once(engine: Process) -> None:
    await engine.start()
    reader, writer = await engine.connect()
    writer.write(
        submit("a", max_tokens=None, n=100, temperature=1.0)
    )  # several seconds of work, more on a slow machine
    assert isinstance(await receive(reader), wire.Accepted)

    engine.process.send_signal(signal.SIGTERM)
    while not await draining(reader, writer):
        pass
    engine.process.send_signal(signal.SIGTERM)

    while not isinstance(message := await receive(reader), wire.Tokens) or message.finish_reason is None:
        pass
    assert message.finish_reason == "abort"
    assert (await engine.ended())[0] == 0


async def test_an_idle_engine_uses_less_than_one_percent_of_a_core(engine: Process) -> None:
    await engine.start()
    reader, writer = await engine.connect()
    writer.write(submit("a", max_tokens=20))
    while not isinstance(message := await receive(reader), wire.Tokens) or message.finish_reason is None:
        pass
    # The threads spin a little before they sleep, which may be within the first period.
    for _ in range(3):
        before, begun_s = engine.cpu_s(), time.monotonic()
        await asyncio.sleep(4.0)
        if (share := (engine.cpu_s() - before) / (time.monotonic() - begun_s)) <= 0.01:
            break
    assert share <= 0.01


async def test_its_loop_keeps_to_the_first_core_and_connections_are_served_on_others(engine: Process) -> None:
    first, *others = sorted(os.sched_getaffinity(0))
    await engine.start(cores=(first,))

    await engine.connect()

    end = time.monotonic() + WAIT_S
    while {first} not in engine.cores_of_threads():
        assert time.monotonic() < end, "the loop's thread has not moved to its core"
        await asyncio.sleep(0.05)
    if others:
        assert os.sched_getaffinity(engine.process.pid) == set(others)


async def test_a_kv_cache_that_cannot_fit_is_refused_with_the_arithmetic(engine: Process) -> None:
    await engine.start(kv_cache_memory_bytes=1 << 50)

    status, log = await engine.ended()

    assert status == ConfigError.exit_status
    assert "KV cache of 1048576.00 GiB does not fit" in log
    assert "for weights, scratch and grammars" in log
    assert "Traceback" not in log


async def test_a_context_too_long_for_the_kv_memory_is_refused_with_the_length_that_fits(engine: Process) -> None:
    await engine.start(kv_cache_memory_bytes=1 << 20)

    status, log = await engine.ended()

    assert status == ConfigError.exit_status
    assert "one sequence of 2048 tokens needs" in log
    assert "Use --max-model-len" in log


async def test_auto_shortens_the_context_to_what_the_kv_memory_holds(engine: Process) -> None:
    await engine.start(kv_cache_memory_bytes=1 << 20, max_model_len="auto", max_num_seqs=4)
    reader, writer = await engine.connect()

    writer.write(wire.frame(wire.AskState()))

    state = await receive(reader)
    assert isinstance(state, wire.State)
    assert 32 <= state.max_model_len < 2048


async def test_a_context_of_one_token_is_refused(engine: Process) -> None:
    await engine.start(max_model_len=1)

    status, log = await engine.ended()

    assert status == ConfigError.exit_status
    assert "--max-model-len 1: a prompt and its answer need at least 2 tokens" in log
    assert "Traceback" not in log


async def test_a_start_after_a_crash_plans_as_the_first_one(tmp_path: Path) -> None:
    process = Process(tmp_path)
    await process.start(max_model_len="auto", kv_cache_memory_bytes=64 << 20)
    await process.connect()
    process.process.kill()
    await process.ended()
    await left(process)

    planned = from_json(EngineConfig, (tmp_path / "engine.json").read_text())

    assert isinstance(planned.max_model_len, int)
    assert planned.first_kv_blocks > 0
    process = Process(tmp_path)
    await process.start(**vars(planned))
    await process.connect()
    process.process.send_signal(signal.SIGTERM)
    status, said = await process.ended()
    await left(process)

    assert status == 0
    assert f"in {planned.first_kv_blocks} blocks" in said
    assert from_json(EngineConfig, (tmp_path / "engine.json").read_text()) == planned


async def left(process: Process) -> None:
    """Close the connections to it."""
    for writer in process.writers:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
