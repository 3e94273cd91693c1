"""A server for a test's own loop, none of whose connections outlives it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def listening(answer: Answer, path: Path | None = None) -> AsyncIterator[asyncio.Server]:
    """Answer each connection to a Unix socket, or to a loopback port; at the end, end those that are open.

    asyncio reports a transport that outlives its loop ("unclosed transport") when it is collected, in any later test.
    The end of a connection takes several rounds of the loop, which a sleep does not count on a busy machine.
    """
    answering: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        answering.add(task)
        task.add_done_callback(answering.discard)
        try:
            await answer(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    at_path = path is not None
    server = await (
        asyncio.start_unix_server(connected, path) if at_path else asyncio.start_server(connected, "127.0.0.1", 0)
    )
    try:
        yield server
    finally:
        server.close()
        for _ in range(5):  # rounds in which a connection that was accepted just now gets its task
            await asyncio.sleep(0)
        for task in set(answering):
            task.cancel()
        if answering:
            await asyncio.wait(set(answering))
        await asyncio.sleep(0)  # a transport that a cancelled task has closed ends in the next round
