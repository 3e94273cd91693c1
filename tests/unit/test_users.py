"""The connections by which `forearm run` uses a server; tests/e2e/test_run.py has the processes."""

from __future__ import annotations

import asyncio
import signal
import socket
from contextlib import closing
from pathlib import Path

import pytest

from forearm.errors import ConfigError
from forearm.supervisor.users import ServerUsers, leave, used


async def test_the_server_ends_with_its_last_user_who_waits_for_that(tmp_path: Path) -> None:
    first, end = socket.socketpair()
    loop, signalled, may_leave = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    joined: asyncio.Future[bool] = loop.create_future()
    loop.add_signal_handler(signal.SIGTERM, signalled.set)

    async def serve() -> int:
        await signalled.wait()
        return 3

    def use() -> None:
        with used(tmp_path, keep=False) as here:
            loop.call_soon_threadsafe(joined.set_result, here)
            asyncio.run_coroutine_threadsafe(may_leave.wait(), loop).result(10)

    with closing(ServerUsers(end.detach())) as users:
        server = asyncio.create_task(users.during(serve(), tmp_path))
        await asyncio.sleep(0)
        second = asyncio.create_task(asyncio.to_thread(use))
        assert await joined
        await asyncio.to_thread(leave, first)
        assert not signalled.is_set()

        may_leave.set()
        assert await server == 3
        assert not second.done()
        with used(tmp_path, keep=False) as here:
            assert not here, "it is ending"
    await second


async def test_a_server_that_one_user_keeps_stays_without_users(tmp_path: Path) -> None:
    first, end = socket.socketpair()
    stopped: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def serve() -> int:
        return await stopped

    def use() -> None:
        with used(tmp_path, keep=True) as joined:
            assert joined

    with closing(ServerUsers(end.detach())) as users:
        server = asyncio.create_task(users.during(serve(), tmp_path))
        await asyncio.sleep(0)
        await asyncio.to_thread(use)
        await asyncio.to_thread(leave, first)
        await asyncio.to_thread(use)
        assert not server.done()
        stopped.set_result(0)
        assert await server == 0


def test_a_server_without_a_socket_for_users_stays(tmp_path: Path) -> None:
    with used(tmp_path, keep=False) as joined:
        assert joined
    with used(tmp_path / "gone", keep=False) as joined:
        assert not joined


async def test_a_wrong_descriptor_and_a_long_path_are_configuration_errors(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file, pytest.raises(ConfigError, match="--user-fd"):
        ServerUsers(file.fileno())

    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    user, end = socket.socketpair()
    long = pytest.raises(ConfigError, match=r"TMPDIR: .* choose a shorter one")
    with user, closing(ServerUsers(end.detach())) as users, long:
        await users.during(asyncio.sleep(0, 0), deep)
