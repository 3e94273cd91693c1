"""The engine behind its Unix socket: a real loop on its thread, real connections, the tiny executor."""

from __future__ import annotations

import asyncio
import contextlib
import stat
import struct
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.history_executor import HistoryExecutor
from tests.unit.engine.client import expected

from forearm import wire
from forearm.engine.admission import Terms
from forearm.engine.batch import Batch
from forearm.engine.inbox import MAX_UNTAKEN
from forearm.engine.loop import EngineLoop
from forearm.engine.metrics.engine_metrics import Meter
from forearm.engine.metrics.step_trace import StepTrace
from forearm.engine.scheduler import StepLimits
from forearm.engine.server import EngineServer
from forearm.engine.step import Stepper
from forearm.errors import EngineFailed

WAIT_S = 60.0  # deadline of a failing test; generous, since the machine may be slow


class HeldExecutor(HistoryExecutor):
    """An executor whose steps begin only while `gate` is open."""

    def __init__(self) -> None:
        super().__init__(blocks=128, max_model_len=4096)
        self.gate = threading.Event()
        self.gate.set()
        self.began = threading.Event()

    def forward(self, batch: Batch) -> None:
        self.began.set()
        self.gate.wait(WAIT_S)
        super().forward(batch)


@dataclass
class Running:
    """A running server and its socket."""

    path: Path
    executor: HeldExecutor
    server: EngineServer
    task: asyncio.Task[None]
    workers: list[Worker] = field(default_factory=list)

    async def connect(self) -> Worker:
        """Open a connection, which is closed when the test ends."""
        worker = Worker(*await asyncio.open_unix_connection(self.path))
        self.workers.append(worker)
        assert isinstance(await worker.receive(), wire.State)
        return worker


class Worker:
    """One connection, as an API worker has."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.loads: list[wire.Load] = []
        self.accepted = 0  # since the last load, as a worker counts

    def send(self, message: wire.ToEngine) -> None:
        self.writer.write(wire.frame(message))

    def submit(self, request_id: str, prompt: list[int], **params: Any) -> None:
        chosen = wire.SamplingParams(**{"temperature": 0.0, **params})
        self.send(wire.Submit(request_id=request_id, prompt_token_ids=prompt, params=chosen))

    async def receive(self) -> wire.FromEngine:
        async def frame() -> bytes:
            return await self.reader.readexactly(wire.body_length(await self.reader.readexactly(4)))

        message: wire.FromEngine = wire.from_engine.decode(await asyncio.wait_for(frame(), WAIT_S))
        self.accepted += isinstance(message, wire.Accepted)
        if not isinstance(message, wire.Load):
            return message
        self.loads.append(message)
        self.accepted = 0
        return await self.receive()

    async def answer(self, request_id: str) -> list[int]:
        """Return all tokens of a request that is or will be accepted."""
        tokens: list[int] = []
        while True:
            message = await self.receive()
            if isinstance(message, wire.Tokens) and message.request_id == request_id:
                tokens += message.token_ids
                if message.finish_reason is not None:
                    return tokens

    async def state(self) -> wire.State:
        self.send(wire.AskState())
        while not isinstance(message := await self.receive(), wire.State):
            pass
        return message


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    executor = HeldExecutor()
    loop = EngineLoop(
        Stepper(executor, StepTrace()),
        StepLimits(64, 8, 8),
        Terms(executor.vocab_size, executor.max_model_len, queued=2),
        Meter("m", "0", "float32", executor.blocks, prefix_caching=True),
    )
    server = EngineServer(loop, unread_bytes=100_000)
    path = tmp_path / "engine.sock"
    running = Running(path, executor, server, asyncio.create_task(server.run(path)))
    await asyncio.sleep(0)
    yield running
    executor.gate.set()
    if not running.task.done():
        server.drain(0.0)
    with contextlib.suppress(EngineFailed):
        await asyncio.wait_for(running.task, WAIT_S)
    for worker in running.workers:
        worker.writer.close()
        with contextlib.suppress(ConnectionError):
            await worker.writer.wait_closed()


async def idle(worker: Worker) -> wire.State:
    """Return the state once nothing runs."""
    deadline = time.monotonic() + WAIT_S
    while (state := await worker.state()).running or state.waiting:
        assert time.monotonic() < deadline, "something still runs"
        await asyncio.sleep(0.005)
    return state


async def test_a_request_over_the_socket_is_accepted_and_answered(running: Running) -> None:
    worker = await running.connect()

    worker.submit("a", [1, 2, 3], max_tokens=5)

    assert await worker.receive() == wire.Accepted(request_id="a")
    assert await worker.answer("a") == expected([1, 2, 3], 5)


async def test_the_socket_is_its_users_alone(running: Running) -> None:
    mode = running.path.stat().st_mode

    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


async def test_a_load_follows_accepted_requests_that_left_the_room_as_it_was(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forearm.engine.server._TELL_S", 0.3)  # time for a whole request between two loads
    worker = await running.connect()
    for name in "abc":
        worker.submit(name, [1], max_tokens=1)
        await worker.answer(name)
        deadline = time.monotonic() + WAIT_S
        while worker.accepted:
            assert time.monotonic() < deadline, "no load after the request"
            worker.send(wire.AskMetrics())  # a message to receive: loads alone are none
            await worker.receive()
            await asyncio.sleep(0.01)


async def test_a_load_follows_an_abort_that_sends_nothing_else(running: Running) -> None:
    """Workers that knew of no room would refuse every request from then on, and the engine would hear of none."""
    worker = await running.connect()
    running.executor.gate.clear()
    worker.submit("a", [1] * 200, max_tokens=1)  # a prompt of four steps, of which the first is held
    await worker.receive()
    await asyncio.to_thread(running.executor.began.wait, WAIT_S)
    worker.send(wire.Abort(request_id="a"))
    await asyncio.sleep(0.1)  # the load with this request has been sent, and nothing is on the way

    running.executor.gate.set()
    await idle(worker)
    deadline = time.monotonic() + WAIT_S
    while worker.loads[-1].room != 2 + 8:
        assert time.monotonic() < deadline, "no load after the abort"
        await worker.state()
        await asyncio.sleep(0.01)


async def test_requests_of_two_workers_with_one_name_are_two_requests(running: Running) -> None:
    one, two = await running.connect(), await running.connect()

    one.submit("a", [1], max_tokens=5)
    two.submit("a", [2], max_tokens=5)

    assert await one.answer("a") == expected([1], 5)
    assert await two.answer("a") == expected([2], 5)


async def test_metrics_and_state_are_answered_while_a_step_runs(running: Running) -> None:
    worker = await running.connect()
    running.executor.gate.clear()
    worker.submit("a", [1], max_tokens=5)
    await worker.receive()
    await asyncio.to_thread(running.executor.began.wait, WAIT_S)
    await asyncio.sleep(0.05)

    worker.send(wire.AskMetrics())
    metrics = await worker.receive()
    state = await worker.state()

    assert isinstance(metrics, wire.Metrics)
    assert "vllm:num_requests_running" in metrics.text
    assert state.last_step_age_s >= 0.04


async def test_requests_do_not_pile_up_without_end_while_a_step_runs(running: Running) -> None:
    worker = await running.connect()
    running.executor.gate.clear()
    worker.submit("running", [1], max_tokens=1)
    await worker.receive()
    await asyncio.to_thread(running.executor.began.wait, WAIT_S)

    for i in range(MAX_UNTAKEN + 1):
        worker.submit(str(i), [1], max_tokens=1)

    refused = await worker.receive()
    assert isinstance(refused, wire.Refused)
    assert (refused.request_id, refused.error) == (str(MAX_UNTAKEN), "Overloaded")


async def test_figures_are_logged_while_there_is_something_to_tell(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    worker = await running.connect()
    with caplog.at_level("INFO"):
        task = asyncio.create_task(running.server.log_figures(0.05))
        await asyncio.sleep(0.15)
        quiet = len(caplog.records)
        worker.submit("a", [1, 2], max_tokens=50)
        await worker.answer("a")
        deadline = time.monotonic() + WAIT_S
        while not any("generation" in one.message and "running" in one.message for one in caplog.records):
            assert time.monotonic() < deadline, "no figures after the request"
            await asyncio.sleep(0.01)
        task.cancel()

    assert quiet == 0


async def test_a_closed_connection_aborts_what_was_its(running: Running) -> None:
    leaver, stayer = await running.connect(), await running.connect()
    for i in range(4):
        leaver.submit(str(i), [i], max_tokens=4000)
    stayer.submit("a", [9], max_tokens=200)
    await stayer.receive()

    leaver.writer.close()

    assert await stayer.answer("a") == expected([9], 200)
    assert (await idle(stayer)).kv_usage == 0


async def test_a_worker_that_does_not_read_is_cut_off_and_its_requests_end(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    sleeper, watcher = await running.connect(), await running.connect()

    for i in range(8):
        sleeper.submit(str(i), [i], max_tokens=4000, logprobs=20)
    deadline = time.monotonic() + WAIT_S
    while "its connection is closed" not in caplog.text:
        assert time.monotonic() < deadline, "it is not cut off"
        await asyncio.sleep(0.005)

    assert (await idle(watcher)).kv_usage == 0
    assert await asyncio.wait_for(drained(sleeper), WAIT_S) < 8 * 4000 * 100  # far fewer than its tokens


async def drained(worker: Worker) -> int:
    """Return the bytes that can still be read until the connection ends."""
    count = 0
    with contextlib.suppress(ConnectionError):
        while piece := await worker.reader.read(1 << 16):
            count += len(piece)
    return count


async def test_a_request_for_which_the_inbox_has_no_room_is_not_read(running: Running) -> None:
    stranger, worker = await running.connect(), await running.connect()
    most = (await worker.state()).max_request_bytes
    assert most == (64 << 20) // 12

    stranger.writer.write(struct.pack("<I", most + 1))

    assert await drained(stranger) == 0
    worker.writer.write(struct.pack("<I", most))  # the engine waits for the rest of the frame


@pytest.mark.parametrize("frame", [b"\xff\xff\xff\xff", b"\x03\x00\x00\x00abc"])
async def test_a_connection_with_another_protocol_is_closed_and_no_other(running: Running, frame: bytes) -> None:
    stranger, worker = await running.connect(), await running.connect()

    stranger.writer.write(frame)

    assert await drained(stranger) == 0
    worker.submit("a", [1], max_tokens=3)
    assert await worker.answer("a") == expected([1], 3)


async def test_an_idle_engine_uses_no_time(running: Running) -> None:
    worker = await running.connect()
    worker.submit("a", [1], max_tokens=3)
    await worker.answer("a")
    # The end of the request may still take some of the first second, and other threads of this process of any.
    for _ in range(20):
        before = time.process_time()
        await asyncio.sleep(1.0)
        if (took_s := time.process_time() - before) < 0.01:
            break
    assert took_s < 0.01
    assert (await worker.state()).last_step_age_s == 0


async def test_draining_finishes_what_is_open_refuses_the_rest_and_ends(running: Running) -> None:
    worker = await running.connect()
    running.executor.gate.clear()
    worker.submit("open", [1], max_tokens=20)
    await worker.receive()

    running.server.drain(WAIT_S)
    worker.submit("late", [1])
    state = await worker.state()
    running.executor.gate.set()
    refused = await worker.receive()
    while not isinstance(refused, wire.Refused):
        refused = await worker.receive()

    assert state.draining
    assert refused.error == "EngineUnavailable"
    await asyncio.wait_for(running.task, WAIT_S)
    assert not running.path.exists()


async def test_what_does_not_end_in_time_is_aborted(running: Running) -> None:
    worker = await running.connect()
    running.executor.gate.clear()
    worker.submit("long", [1], max_tokens=4000)
    await worker.receive()

    running.server.drain(0.05)
    await asyncio.sleep(0.1)  # this loop ends the time of 0.05 s before it comes back here
    running.executor.gate.set()

    messages = []
    with contextlib.suppress(EOFError):
        while True:
            messages.append(await worker.receive())
    last = messages[-1]
    assert isinstance(last, wire.Tokens)
    assert last.finish_reason == "abort"
    await asyncio.wait_for(running.task, WAIT_S)


async def test_an_engine_whose_steps_keep_failing_ends_with_the_error(running: Running) -> None:
    worker = await running.connect()
    running.executor.failures = [RuntimeError("broken")] * 3

    for i in range(3):
        worker.submit(str(i), [1])
        await worker.receive()
        if i < 2:
            refused = await worker.receive()
            assert isinstance(refused, wire.Refused)
            assert "the engine failed to compute it: broken" in refused.message

    with pytest.raises(EngineFailed, match="3 steps in a row failed"):
        await asyncio.wait_for(running.task, WAIT_S)
