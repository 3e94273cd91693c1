"""A server in a container with little memory keeps to it, whatever clients send."""

from __future__ import annotations

import os
import random
import socket
import string
import struct
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.e2e.served import Served, free_port, serve, wait_until
from tests.e2e.test_hostile_wire import engine_socket

from forearm import wire

MIB = 1 << 20
LIMIT = 640 * MIB
ROOT = Path("/sys/fs/cgroup")
GRAMMARS = int(os.environ.get("FOREARM_TEST_GRAMMARS", "400"))


class Group:
    """A control group of memory, of version 1 or 2."""

    def __init__(self, limit: int) -> None:
        first = ROOT / "memory"
        self.old = first.is_dir()
        self.path = (first if self.old else ROOT) / f"forearm-{uuid.uuid4().hex[:8]}"
        self.path.mkdir()
        self._write("memory.limit_in_bytes" if self.old else "memory.max", limit)
        self._write("memory.memsw.limit_in_bytes" if self.old else "memory.swap.max", limit if self.old else 0)

    def _write(self, name: str, value: int) -> None:
        path = self.path / name
        if path.exists():
            path.write_text(str(value))

    def enter(self) -> None:
        """This process, and those that it starts."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def kills(self) -> int:
        """Processes that the kernel has killed for want of memory."""
        text = (self.path / ("memory.oom_control" if self.old else "memory.events")).read_text()
        return sum(int(line.split()[1]) for line in text.splitlines() if line.split()[0] == "oom_kill")


@pytest.fixture
def group(request: pytest.FixtureRequest) -> Iterator[Group]:
    try:
        made = Group(getattr(request, "param", LIMIT))
    except OSError as error:
        pytest.skip(f"needs a control group of its own: {error}")
    home = next(
        line.partition("::" if not made.old else ":memory:")[2]
        for line in Path("/proc/self/cgroup").read_text().splitlines()
        if ("::" if not made.old else ":memory:") in line
    )
    made.enter()  # serve() starts processes of this one
    yield made
    ((ROOT / "memory" if made.old else ROOT) / home.lstrip("/") / "cgroup.procs").write_text(str(os.getpid()))
    made.path.rmdir()


def word(dice: random.Random) -> str:
    return "".join(dice.choices(string.ascii_lowercase, k=12))


def body(number: int) -> dict[str, Any]:
    """Every grammar is new; every fortieth request is of megabytes."""
    dice = random.Random(number)
    content = word(dice) if number % 40 else "x " * (4 << 20)
    schema = {"type": "object", "properties": {word(dice): {"type": "integer"} for _ in range(dice.choice((1, 200)))}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 2, "response_format": form}


def ask(served: Served, number: int) -> int:
    """Ask until the server has room, as often and as late as it says; return the status of the last answer."""
    deadline = time.monotonic() + 400
    while True:
        try:
            answer = httpx.post(f"{served.url}/v1/chat/completions", json=body(number), timeout=60, verify=False)
        except httpx.TransportError:
            return 0
        if answer.status_code not in (429, 503) or time.monotonic() > deadline:
            return answer.status_code
        time.sleep(min(float(answer.headers["retry-after"]), 5))


def test_thousands_of_grammars_and_large_bodies_stay_below_the_limit(tmp_path: Path, group: Group) -> None:
    with serve(tmp_path, "--api-server-count", "1", "--max-num-seqs", "16") as served:
        before = {served.engine().pid, *(worker.pid for worker in served.workers())}
        with ThreadPoolExecutor(12) as pool:
            statuses = Counter(pool.map(lambda number: ask(served, number), range(GRAMMARS)))
        after = {served.engine().pid, *(worker.pid for worker in served.workers())}
        print(statuses, {one.name(): one.memory_info().rss // MIB for one in served._all()})

    assert set(statuses) == {200, 400}, statuses  # 400: the texts of megabytes
    assert statuses[400] == len(range(0, GRAMMARS, 40))
    assert (group.kills(), after) == (0, before)


def test_frames_of_the_longest_size_do_not_end_the_engine(tmp_path: Path, group: Group) -> None:
    """Frames of 256 MiB and of 5 MiB, each of token ids that take 12 times as much as objects."""
    with serve(tmp_path, "--api-server-count", "1", "--max-num-seqs", "16") as served:
        path, before = engine_socket(served), served.engine().pid
        for length in (wire.MAX_FRAME_BYTES, 5 * MIB):
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda _, length=length: send_ids(path, length), range(8)))
        assert served.chat("What is ice?", max_tokens=3, temperature=0).status_code == 200
        after = served.engine().pid

    assert (group.kills(), after) == (0, before)


def send_ids(path: Path, length: int) -> None:
    """Send a frame whose prompt's token ids fill it, until the engine closes the connection."""
    asked = wire.Submit(request_id="x", prompt_token_ids=[], params=wire.SamplingParams())
    head, ids, tail = wire.frame(asked)[4:].partition(b"prompt_token_ids")
    count = (length - len(head + ids + tail) - 4) // 3
    begun = struct.pack("<I", len(head + ids + tail) + 4 + 3 * count) + head + ids + b"\xdd" + struct.pack(">I", count)
    with socket.socket(socket.AF_UNIX) as connection, suppress(OSError):
        connection.settimeout(60)
        connection.connect(str(path))
        connection.sendall(begun)
        for left in range(count, 0, -MIB // 4):
            connection.sendall(b"\xcd\x03\xe8" * min(left, MIB // 4))
        connection.sendall(tail[1:])  # the empty list of ids was one byte
        connection.recv(1)


def test_an_engine_that_dies_while_memory_is_short_comes_back_once_it_is_free(tmp_path: Path, group: Group) -> None:
    with serve(tmp_path, "--api-server-count", "1", "--max-num-seqs", "16") as served:
        before = served.engine().pid
        with ballast(290 * MIB):
            served.engine().kill()
            wait_until(lambda: "engine died (exit status 78)" in served.log.read_text(), 60)
            refused = served.chat(max_tokens=1)
            assert (refused.status_code, int(refused.headers["retry-after"]) >= 1) == (503, True)
            assert served.http.get("/readyz").status_code == 503
        wait_until(lambda: served.http.get("/readyz").status_code == 200, 60, served.log.read_text)
        assert served.chat("What is ice?", max_tokens=3, temperature=0).status_code == 200
        assert served.engine().pid != before

    assert group.kills() == 0


@pytest.mark.parametrize("group", [512 * MIB], indirect=True)
def test_what_is_refused_in_half_a_gibibyte_starts_with_the_setting_that_is_named(tmp_path: Path, group: Group) -> None:
    argv = [sys.executable, "-m", "forearm", "serve", "--host", "127.0.0.1", "--port", str(free_port())]
    refused = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert refused.returncode == 78
    assert "(the container's limit)" in refused.stderr
    name, _, value = "FOREARM_MAX_BODY_BYTES=8388608".partition("=")
    assert f"{name}={value} or a lower --api-server-count needs less" in refused.stderr
    with serve(tmp_path, "--api-server-count", "1", env={name: value}) as served:
        assert served.chat("What is ice?", max_tokens=200).status_code == 200
    assert group.kills() == 0


@contextmanager
def ballast(size: int) -> Iterator[None]:
    """A process of this control group that holds so much memory."""
    program = f"import sys; held = bytearray({size}); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as held:
        assert held.stdout is not None
        held.stdout.readline()
        try:
            yield
        finally:
            held.communicate()
