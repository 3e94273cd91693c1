"""The engine of a running server continues and leaks nothing, whatever arrives on its socket."""

from __future__ import annotations

import math
import random
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.e2e.served import Served, serve, wait_until

from forearm import wire

CASES = 1500
FIELDS = sorted(wire.SamplingParams.__struct_fields__)
ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 2, 300, (1 << 31) - 1, 1 << 31, 1 << 40, (1 << 63) - 1, -(1 << 63), 0.5, -2.0),
    *(math.nan, math.inf, -math.inf, 1e308, "", "start: /a*/", "x" * 3000, "\x00"),
    *([], [0], [-1], [1 << 40], [[0]], [[]], [[-5]], [1] * 500, ["a"], {}, {0: 1.0}, {-1: 1.0}, {5: math.nan}),
    *({"max_pattern_size": 0}, {"max_pattern_size": 1 << 40, "min_pattern_size": -3, "min_count": 0}),
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("wire")) as running:
        yield running


def engine_socket(served: Served) -> Path:
    """Return the path of the engine's socket."""
    found = [one.laddr for one in served.engine().net_connections("unix") if one.laddr]
    return Path(next(path for path in found if path.endswith(".sock")))


def frame(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


def submit(dice: random.Random, number: int) -> dict[str, Any]:
    """A request with some of its fields gone wrong, as msgpack has it."""
    params: dict[str, Any] = {"temperature": 0.0, "max_tokens": 3}
    params.update((name, dice.choice(ODD)) for name in dice.sample(FIELDS, dice.randint(0, 3)))
    if params.get("n", 1) not in (None, True, 0, -1, 1, 2):
        del params["n"]  # thousands of outputs are allowed, and take their time
    made: dict[str, Any] = {"type": "Submit", "request_id": str(number), "prompt_token_ids": [5, 6], "params": params}
    if dice.random() < 0.4:
        name = dice.choice(("request_id", "prompt_token_ids", "priority", "cache_salt", "type", "params"))
        made[name] = dice.choice(ODD)
    return made


def garbled(dice: random.Random, body: bytes) -> bytes:
    """Bytes changed, taken away, or put in."""
    changed = bytearray(body)
    for _ in range(dice.randint(1, 4)):
        changed[dice.randrange(len(changed))] = dice.randrange(256)
    return bytes(changed[: dice.randint(1, len(changed))] if dice.random() < 0.3 else changed)


def send(path: Path, frames: bytes) -> None:
    """Send bytes on a new connection, read a little, and close it."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(path))
        with suppress(OSError):
            connection.sendall(frames)
            connection.settimeout(0.01)
            connection.recv(1 << 16)
            connection.recv(1 << 16)


def check_alive(served: Served, pid: int) -> None:
    assert served.engine().pid == pid
    wait_until(lambda: served.running() == 0, 30)
    reply = served.chat("What is ice?", max_tokens=3, temperature=0)
    assert reply.status_code == 200, reply.text
    assert "Traceback" not in served.log.read_text()


def test_requests_with_fields_gone_wrong(served: Served) -> None:
    path, pid, dice = engine_socket(served), served.engine().pid, random.Random(1)
    begun = time.monotonic()
    check_alive(served, pid)
    before = served.engine().memory_info().rss
    for number in range(CASES):
        send(path, frame(msgspec.msgpack.encode(submit(dice, number))))
        assert time.monotonic() - begun < 150

    check_alive(served, pid)
    assert served.engine().memory_info().rss - before < 300 << 20


def test_bytes_at_random(served: Served) -> None:
    path, pid, dice = engine_socket(served), served.engine().pid, random.Random(2)
    whole = msgspec.msgpack.encode({"type": "Abort", "request_id": "1"})
    for number in range(CASES // 3):
        send(path, frame(garbled(dice, msgspec.msgpack.encode(submit(dice, number)))))
        send(path, frame(dice.randbytes(dice.randint(0, 64))))
        send(path, dice.randbytes(dice.randint(1, 32)))
        send(path, frame(whole)[: dice.randint(1, len(whole))])
    for depth in (100, 100_000):  # nested
        send(path, frame(b"\x91" * depth))
    send(path, struct.pack("<I", (256 << 20) + 1))
    send(path, struct.pack("<I", 256 << 20))

    check_alive(served, pid)
