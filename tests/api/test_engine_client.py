from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
import uvloop
from tests.api.echo_engine import EchoEngine, echo_engine
from tests.api.server import wait_until
from tests.listening import listening

from forearm import wire
from forearm.api.engine_client.engine_client import EngineClient, Generation
from forearm.api.pooling.vectors import embed
from forearm.errors import EngineUnavailable, InvalidRequest


def submit(name: str, n: int = 1, max_tokens: int = 3) -> wire.Submit:
    params = wire.SamplingParams(n=n, max_tokens=max_tokens)
    return wire.Submit(request_id=name, prompt_token_ids=[1, 2], params=params)


async def started(client: EngineClient) -> None:
    """Start a client, and wait until all of its engines have told their state."""
    await client.start()
    while any(connection.state is None for connection in client.connections):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def connected(*engines: EchoEngine) -> AsyncIterator[EngineClient]:
    client = EngineClient([str(engine.path) for engine in engines])
    await started(client)
    yield client
    await client.close()


async def until(engine: EchoEngine, running: int) -> None:
    await asyncio.to_thread(wait_until, lambda: len(engine.running) == running)


async def test_tokens_come_by_prompt_and_output_until_all_have_ended(tmp_path: Path) -> None:
    with echo_engine(tmp_path / "a") as engine:
        async with connected(engine) as client:
            generation = await client.submit([submit("x", n=2), submit("y")])
            found: dict[tuple[int, int], list[int]] = {}
            async for number, message in generation:
                found.setdefault((number, message.index), []).extend(message.token_ids)

            assert found == {(0, 0): [1, 2, 1], (0, 1): [2, 1, 2], (1, 0): [1, 2, 1]}
            assert client.connections[0].open == {}


async def test_a_request_is_reported_as_submitted_in_the_moment_in_which_it_is_counted_as_accepted(
    tmp_path: Path,
) -> None:
    class Watcher:
        submits: ClassVar[list[int]] = []

        def submitted(self, prompts: Sequence[Sequence[int]], params: wire.SamplingParams | None) -> None:
            assert client.load is not None
            self.submits.append(client.load.room)

        def tokens(self, message: wire.Tokens) -> None: ...

        def over(self) -> None: ...

    with echo_engine(tmp_path / "a") as engine:
        engine.load, engine.silent = wire.Load(room=5, retry_after_s=1), True
        async with connected(engine) as client:
            while client.load is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            connection = client.connections[0]
            generation = Generation(connection, [submit("x"), submit("y")], [Watcher()])
            connection.open |= {"x": generation, "y": generation}

            connection._take(wire.Accepted(request_id="x"))
            assert Watcher.submits == []
            connection._take(wire.Accepted(request_id="y"))
            assert Watcher.submits == [3]


async def test_one_output_can_be_stopped_and_the_others_go_on(tmp_path: Path) -> None:
    with echo_engine(tmp_path / "a") as engine:
        engine.pause_s = 0.01
        async with connected(engine) as client:
            generation = await client.submit([submit("x", n=2, max_tokens=20)])
            seen: list[int] = []
            async for _, message in generation:
                seen.append(message.index)
                generation.stop(0, 0)

    assert seen.count(1) == 20
    assert seen.count(0) <= 1


async def test_the_least_loaded_engine_gets_the_next_request(tmp_path: Path) -> None:
    with echo_engine(tmp_path / "a") as a, echo_engine(tmp_path / "b") as b:
        a.silent = b.silent = True
        async with connected(a, b) as client:
            for name in "wxyz":
                await client.submit([submit(name)])

            assert (len(a.running), len(b.running)) == (2, 2)


async def test_a_request_just_after_an_engines_start_does_not_wait_for_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forearm.api.engine_client.connection._RETRY_GROWTH", 1e6)
    monkeypatch.setattr("forearm.api.engine_client.connection._LAST_RETRY_S", 600.0)
    client = EngineClient([str(tmp_path / "a")])
    await client.start()
    await client.reach()  # in vain; the next attempt is ten minutes away
    with pytest.raises(EngineUnavailable):
        client.least_loaded()

    with echo_engine(tmp_path / "a"):
        await client.reach()

        assert client.least_loaded().state is not None
        await client.close()


async def test_an_engine_that_listens_and_says_nothing_delays_a_refusal_by_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forearm.api.engine_client.engine_client._REACH_S", 0.1)

    async def listens(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with listening(listens, tmp_path / "a"):
        client = EngineClient([str(tmp_path / "a")])
        client.connections[0].start()

        await asyncio.wait_for(client.reach(), 10)

        with pytest.raises(EngineUnavailable):
            client.least_loaded()
        await client.close()


async def test_while_one_engine_is_away_the_other_gets_all(tmp_path: Path) -> None:
    with echo_engine(tmp_path / "a") as a, echo_engine(tmp_path / "b") as b:
        async with connected(a, b) as client:
            await asyncio.to_thread(a.stop)
            while client.connections[0].state is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

            for name in "xy":
                assert [message.token_ids async for _, message in await client.submit([submit(name)])]
            assert len(b.submits) == 2

            await asyncio.to_thread(b.stop)
            with pytest.raises(EngineUnavailable):
                await client.submit([submit("z")])


async def test_a_request_goes_to_another_engine_if_its_engine_dies_before_accepting_it(tmp_path: Path) -> None:
    died = 0

    async def dies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal died
        writer.write(wire.frame(state(0)))
        await reader.readexactly(wire.body_length(await reader.readexactly(4)))
        died += 1
        server.close()
        (tmp_path / "a").unlink()

    async with listening(dies, tmp_path / "a") as server:
        with echo_engine(tmp_path / "b") as b:
            client = EngineClient([str(tmp_path / "a"), str(b.path)])
            await started(client)

            tokens = [message.token_ids async for _, message in await client.submit([submit("x")])]
            await client.close()

    assert died == 1, "the request went there first"
    assert [token for ids in tokens for token in ids] == [1, 2, 1]


async def test_an_accepted_text_that_kills_its_engine_is_not_sent_to_the_next_one(tmp_path: Path) -> None:
    taken, ended = [], asyncio.Semaphore(0)

    async def dies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(wire.frame(state(0)))
        with contextlib.suppress(EOFError):
            message = wire.to_engine.decode(await reader.readexactly(wire.body_length(await reader.readexactly(4))))
            assert isinstance(message, wire.Embed)
            taken.append(message.request_id)
            writer.write(wire.frame(wire.Accepted(request_id=message.request_id)))
            await writer.drain()
        writer.close()
        await writer.wait_closed()
        ended.release()

    paths = [tmp_path / "a", tmp_path / "b"]
    servers = [await asyncio.start_unix_server(dies, path) for path in paths]
    client = EngineClient(list(map(str, paths)))
    await started(client)

    opened = await embed(client, wire.Embed(request_id="x", prompts=[wire.PoolingPrompt([1])], task="embed"), [])
    with pytest.raises(EngineUnavailable):
        await opened.found

    for server in servers:
        server.close()
    await client.close()
    for _ in paths:
        await ended.acquire()
    assert taken == ["x"]


async def test_a_request_on_a_connection_that_has_just_broken_is_refused(
    tmp_path: Path,
) -> None:
    async def closed_before_the_reader_knows() -> None:
        async with connected(engine) as client:
            connection = client.connections[0]
            generation = await client.submit([submit("x")])
            assert connection._writer is not None
            connection._writer.transport.abort()
            await asyncio.sleep(0)  # closed now; the reader's task runs next

            generation.close()
            with pytest.raises(EngineUnavailable, match="the engine stopped"):
                await client.submit([submit("y")])

    with echo_engine(tmp_path / "a") as engine:
        engine.silent = True
        # uvloop is the workers' loop; its closed transports refuse a write.
        await asyncio.to_thread(uvloop.run, closed_before_the_reader_knows())


async def test_a_request_that_the_engine_has_no_memory_for_is_not_sent(tmp_path: Path) -> None:
    with echo_engine(tmp_path / "a") as engine:
        engine.max_request_bytes = 2 * len(wire.frame(submit("x")))
        async with connected(engine) as client:
            with pytest.raises(InvalidRequest, match=r"the engine has memory for \d+ of one request"):
                await client.submit([submit("x"), submit("y"), submit("z")])
            assert not engine.submits
            assert client.connections[0].open == {}

            generation = await client.submit([submit("x"), submit("y")])

            assert len([event async for event in generation]) == 6


async def test_a_submit_that_is_given_up_leaves_nothing_behind(tmp_path: Path) -> None:
    with echo_engine(tmp_path / "a") as engine:
        engine.silent = True
        async with connected(engine) as client:
            generation = await client.submit([submit("x"), submit("y")])
            await until(engine, 2)

            generation.close()
            generation.close()

            await until(engine, 0)
            assert client.connections[0].open == {}
            assert [event async for event in generation] == []


async def test_an_answer_that_comes_late_is_not_the_next_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forearm.api.engine_client.connection._ANSWER_TIMEOUT_S", 0.2)
    release = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(wire.frame(state(0)))
        for running in (1, 2):
            await reader.readexactly(wire.body_length(await reader.readexactly(4)))
            if running == 1:
                await release.wait()
            writer.write(wire.frame(state(running)))
        await writer.drain()

    async with listening(slow, tmp_path / "slow"):
        client = EngineClient([str(tmp_path / "slow")])
        await started(client)
        connection = client.connections[0]

        with pytest.raises(EngineUnavailable, match="not answered"):
            await connection.ask_state()
        monkeypatch.setattr("forearm.api.engine_client.connection._ANSWER_TIMEOUT_S", 60.0)
        release.set()

        assert (await connection.ask_state()).running == 2
        await client.close()


@pytest.mark.parametrize(("greets_after_s", "known"), [(0.2, True), (None, False)])
async def test_the_start_ends_once_an_engine_has_told_its_state_or_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, greets_after_s: float | None, known: bool
) -> None:
    monkeypatch.setattr("forearm.api.engine_client.engine_client._FIRST_STATE_S", 60.0 if known else 0.3)

    left = asyncio.Event()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if greets_after_s is not None:
            await asyncio.sleep(greets_after_s)
            writer.write(wire.frame(state(0)))
        await reader.read()
        writer.close()
        left.set()

    server = await asyncio.start_unix_server(late, tmp_path / "late")
    client = EngineClient([str(tmp_path / "late")])

    await client.start()

    assert (client.connections[0].state is not None) == known
    await client.close()
    server.close()
    await asyncio.wait_for(left.wait(), 60)


async def test_the_start_does_not_wait_for_an_engine_that_does_not_listen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forearm.api.engine_client.engine_client._FIRST_STATE_S", 600.0)
    client = EngineClient([str(tmp_path / "absent")])

    await asyncio.wait_for(client.start(), 60)

    await client.close()


async def test_an_engine_that_takes_nothing_in_is_not_waited_for_without_end(tmp_path: Path) -> None:
    left = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(wire.frame(state(0)))
        await reader.read()
        writer.close()
        left.set()

    server = await asyncio.start_unix_server(silent, tmp_path / "silent")
    client = EngineClient([str(tmp_path / "silent")], accept_s=0.1)
    await started(client)
    connection = client.connections[0]

    with pytest.raises(EngineUnavailable, match=r"has not accepted the request within 0\.1 s"):
        await client.submit([submit("x")])

    assert connection.open == {}
    await client.close()
    server.close()
    await asyncio.wait_for(left.wait(), 60)


def state(running: int) -> wire.State:
    return wire.State(max_model_len=1, vocab_size=1, running=running, waiting=0, kv_usage=0.0, last_step_age_s=0.0)


@pytest.mark.parametrize(
    "modules", [("forearm.api.app",), ("forearm.api.app", "forearm.cli.main", "forearm.supervisor.supervisor")]
)
def test_serving_imports_no_torch(modules: Sequence[str]) -> None:
    code = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
