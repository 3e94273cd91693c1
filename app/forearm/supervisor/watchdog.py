"""Tells when a process that runs hangs: it does not answer, its step does not end, or somebody has stopped it."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import msgspec

from forearm import wire

# A look that failed is no proof: all of a machine or container may have stood still meanwhile.
LOOKS = 3
_HEAD_BYTES = 4

log = logging.getLogger(__name__)


async def engine_hangs(socket: str, answer_s: float, step_s: float) -> str:
    """Watch the engine at this socket. Returns: how it hangs, once it has not answered for `answer_s`, or once one step
    takes longer than `step_s`.
    """
    silent = slow = 0
    while silent < LOOKS and slow < LOOKS:
        next_look = time.monotonic() + answer_s / LOOKS
        try:
            state = await asyncio.wait_for(_state(socket), answer_s / LOOKS)
        except (OSError, EOFError, ValueError, msgspec.MsgspecError, asyncio.TimeoutError):
            silent += 1
        else:
            silent = 0
            slow = slow + 1 if state.last_step_age_s > step_s else 0
        await asyncio.sleep(next_look - time.monotonic())
    if silent == LOOKS:
        return f"it has not answered for {answer_s:g} s (FOREARM_ANSWER_TIMEOUT)"
    return f"its step takes longer than {step_s:g} s (VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS)"


async def _state(socket: str) -> wire.State:
    """What the engine says to everybody who connects."""
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
    """Watch a process. Returns: that it is stopped, once it was found so for `stopped_s`."""
    stopped = 0
    while stopped < LOOKS:
        await asyncio.sleep(stopped_s / LOOKS)
        stopped = stopped + 1 if _process_state(pid) == "T" else 0
    return f"it has been stopped for {stopped_s:g} s (FOREARM_ANSWER_TIMEOUT)"


def _process_state(pid: int) -> str:
    """As proc(5) names it: R, S, T and so on; "" where it cannot be read now, or has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
