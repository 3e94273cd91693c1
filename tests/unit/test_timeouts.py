"""Waiting for a limited time: results, errors, the limit, and cancellations that come as the work ends."""

from __future__ import annotations

import asyncio

import pytest

from forearm.timeouts import within


async def result(after_s: float = 0.0) -> int:
    await asyncio.sleep(after_s)
    return 7


async def test_the_result_and_the_error_are_those_of_the_work() -> None:
    async def fail() -> None:
        raise ValueError("wrong")

    assert await within(result(), 5) == 7
    with pytest.raises(ValueError, match="wrong"):
        await within(fail(), 5)


async def test_the_work_is_cancelled_at_the_limit() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cancelled")

    with pytest.raises(asyncio.TimeoutError):
        await within(work(), 0.01)
    await asyncio.sleep(0)

    assert ended == ["cancelled"]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_cancellation_is_not_lost_as_the_work_ends(fails: bool) -> None:
    work: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(within(work, 60))
    await asyncio.sleep(0)

    work.set_exception(OSError("gone")) if fails else work.set_result(7)
    waiting.cancel()  # in the same turn of the loop

    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_the_work_is_cancelled_with_the_task_that_waits() -> None:
    work: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(within(work, 60))
    await asyncio.sleep(0)

    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    assert work.cancelled()
