"""Watchdog: detects a running process that hangs, as it does not answer, its step does not end, or it was stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

from forearm.descriptors import SHORT
from forearm.timeouts import within

if TYPE_CHECKING:
    from forearm import wire

# One failed look is no proof: the whole machine or container may have been paused.
LOOKS = 3
_HEAD_BYTES = 4

log = logging.getLogger(__name__)


async def engine_hangs(socket: str, answer_s: float, step_s: float) -> str:
    """Watch the engine at this socket until it has not answered for `answer_s`, or one step takes longer than `step_s`.

    Returns: a description of how it hangs.
    """
    import msgspec  # here and below: the engines start before the supervisor reads this

    silent = slow = 0
    while silent < LOOKS and slow < LOOKS:
        next_look = time.monotonic() + answer_s / LOOKS
        try:
            state = await within(_state(socket), answer_s / LOOKS)
        except MemoryError:
            pass  # serve itself had nothing to ask with, as with an errno that is in SHORT
        except (OSError, EOFError, ValueError, msgspec.MsgspecError, asyncio.TimeoutError) as error:
            if getattr(error, "errno", None) not in SHORT:
                silent += 1
        else:
            silent = 0
            slow = slow + 1 if state.last_step_age_s > step_s else 0
        await asyncio.sleep(next_look - time.monotonic())
    if silent == LOOKS:
        return f"it has not answered for {answer_s:g} s (FOREARM_ANSWER_TIMEOUT)"
    return f"its step takes longer than {step_s:g} s (VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS)"


async def _state(socket: str) -> wire.State:
    """Read the state that an engine sends to every new connection."""
    from forearm import wire

    reader, writer = await asyncio.open_unix_connection(socket)
    try:
        length = wire.body_length(await reader.readexactly(_HEAD_BYTES))
        message = wire.from_engine.decode(await reader.readexactly(length))
        if not isinstance(message, wire.State):
            raise ValueError(f"an engine that begins with {type(message).__name__}")
        return message
    finally:
        writer.close()


async def is_stopped(pid: int, stopped_s: float) -> str:
    """Watch a process until it has been stopped (SIGSTOP) for `stopped_s`. Returns: a description of that."""
    stopped = 0
    while stopped < LOOKS:
        await asyncio.sleep(stopped_s / LOOKS)
        state = ""
        with contextlib.suppress(OSError, MemoryError):  # it has ended, or no descriptor or memory is free
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]  # noqa: ASYNC240  (proc(5), not a disk)
        stopped = stopped + 1 if state == "T" else 0
    return f"it has been stopped for {stopped_s:g} s (FOREARM_ANSWER_TIMEOUT)"
