"""Refused connections in the log: the first with its reason, the others counted by address."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from forearm.api.http.refusals import RefusalLog


class Connection(asyncio.Transport):
    """A transport of which only the client's address is asked."""

    def __init__(self, peername: tuple[str, int] | str | None) -> None:
        super().__init__({"peername": peername})


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


async def test_others_are_told_together_and_silence_is_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    refusals, loop = RefusalLog(repeat_s=0.05), asyncio.get_running_loop()

    def add(address: Any) -> None:
        refusals.add(Connection(address), 400, "Invalid HTTP request received.", loop)

    add(("192.0.2.1", 5))
    for address in (("192.0.2.1", 6), ("2001:db8::1", 7), ("2001:db8::1", 8), "", None):
        add(address)
    assert told(caplog) == ["refused a connection of 192.0.2.1: 400 Invalid HTTP request received."]

    await asyncio.sleep(0.2)
    assert told(caplog)[1:] == ["refused 5 more connections in 0.05 s, of 2001:db8::1 (2), - (2), 192.0.2.1 (1)"]

    add("")
    assert told(caplog)[2:] == ["refused a connection of -: 400 Invalid HTTP request received."]


async def test_the_addresses_of_many_senders_take_little_memory(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    refusals, loop = RefusalLog(repeat_s=0.05), asyncio.get_running_loop()

    for number in range(5000):
        refusals.add(Connection((f"10.0.{number // 250}.{number % 250}", 1)), 408, "late", loop)
    await asyncio.sleep(0.2)

    assert told(caplog)[1].startswith("refused 4999 more connections in 0.05 s, of others (3999), 10.0.")
