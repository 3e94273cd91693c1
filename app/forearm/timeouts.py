"""Waiting for something for a limited time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

Result = TypeVar("Result")


async def within(work: Awaitable[Result], limit_s: float) -> Result:
    """Return the result of `work`; cancel it after `limit_s`.

    As asyncio.wait_for, but a cancellation that comes while the work ends is never lost. Before Python 3.12 wait_for
    returns the work's result then (CPython issue 86296), so that a cancelled task goes on: the watchdog of an engine
    that has ended, or a request whose client has left.

    Raises: asyncio.TimeoutError, and what the work raises.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=limit_s)
        if not task.done():
            raise asyncio.TimeoutError
        return task.result()
    finally:
        if not task.cancel() and not task.cancelled():
            task.exception()  # asyncio logs an error that is never retrieved
