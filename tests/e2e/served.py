"""`forearm serve` with the demo model, as a user starts it: real processes on a loopback port."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil

READY_TIMEOUT_S = 90.0  # the machines that run this have other things to do
# The demo model's own generation config ends answers after 128 tokens: 16 answers are half a second on a fast machine.
UNLIMITED = ("--generation-config", "vllm")
# As long as it gets: the demo model's context is 2048 tokens. Beside it the server needs UNLIMITED.
ENDLESS: dict[str, Any] = {
    "messages": [{"role": "user", "content": "What is a glacier?"}],
    "ignore_eos": True,
    "max_tokens": 1900,
}


@dataclass
class Served:
    """A running server."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path
    http: httpx.Client
    openai: openai.OpenAI

    def engine(self) -> psutil.Process:
        """Return the engine's process, the first if there are several."""
        return self.engines()[0]

    def engines(self) -> list[psutil.Process]:
        """Return the processes of all engines."""
        found = []
        for one in self._all():
            with contextlib.suppress(psutil.NoSuchProcess):  # short processes come and go beside them
                found += [one] if "forearm.engine.process" in one.cmdline() else []
        return found

    def workers(self) -> list[psutil.Process]:
        """Return gunicorn's workers."""
        master = next(p for p in psutil.Process(self.process.pid).children() if "gunicorn" in p.cmdline())
        return master.children()

    def connections(self) -> int:
        """Return the number of workers that are connected to all engines."""
        named = [[c for c in engine.net_connections("unix") if c.laddr] for engine in self.engines()]
        return min(map(len, named), default=1) - 1  # one socket listens

    def running(self) -> float:
        """Return the requests that run or wait in the engine."""
        return sum(
            value
            for name, value in series(self.http.get("/metrics").text).items()
            if name.startswith(("vllm:num_requests_running{", "vllm:num_requests_waiting{"))
        )

    def chat(self, content: str = "What is a glacier?", **fields: Any) -> httpx.Response:
        return self.http.post(
            "/v1/chat/completions", json={"messages": [{"role": "user", "content": content}], **fields}
        )

    @contextlib.contextmanager
    def endless(self, **fields: Any) -> Iterator[Iterator[str]]:
        """Open a stream on a connection of its own. Yields: its lines, once the first token has come."""
        with (
            httpx.Client(base_url=self.url, headers=self.http.headers, timeout=60, verify=False) as client,
            client.stream("POST", "/v1/chat/completions", json={**ENDLESS, "stream": True, **fields}) as reply,
        ):
            assert reply.status_code == 200
            lines = (line for line in reply.iter_lines() if line)
            next(lines)
            yield lines

    @contextlib.contextmanager
    def busy(self, **fields: Any) -> Iterator[None]:
        """Endless streams one after the other: one by itself is at the end of the context within a second."""
        left = threading.Event()

        def ask() -> None:
            while not left.is_set():
                with self.endless(**fields) as lines:
                    any(left.is_set() for _ in lines)

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            yield
        finally:
            left.set()
            asking.join()

    def _all(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


@contextlib.contextmanager
def serve(
    folder: Path,
    *flags: str,
    env: Mapping[str, str] | None = None,
    key: str = "none",
    scheme: str = "http",
    transport: httpx.HTTPTransport | None = None,
    within: Sequence[str] = (),
) -> Iterator[Served]:
    """Start a server, wait until it is ready, and stop it at the end, by pid. `within`: a command that runs others."""
    port = free_port()
    log = folder / "serve.log"
    argv = [*within, sys.executable, "-m", "forearm", "serve", "--host", "127.0.0.1", "--port", str(port), *flags]
    with log.open("wb") as output, contextlib.ExitStack() as stack:
        process = subprocess.Popen(argv, stdout=output, stderr=output, env={**os.environ, **(env or {})})
        stack.callback(stop, process)
        url = f"{scheme}://127.0.0.1:{port}"
        # A connection each: requests reach every worker. By a header and not by a pool that keeps none: beside other
        # threads httpcore 1.0.9 gives an idle connection to a request and closes it.
        headers = {"Authorization": f"Bearer {key}", "Connection": "close"}
        # verify: to read the certificates of authorities takes each client 20 ms.
        http = stack.enter_context(
            httpx.Client(base_url=url, timeout=60, headers=headers, transport=transport, verify=False)
        )
        plain = openai.DefaultHttpxClient(verify=False)
        sdk = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=60, http_client=plain)
        stack.callback(sdk.close)
        served = Served(url, process, log, http, sdk)
        workers = int(flags[flags.index("--api-server-count") + 1]) if "--api-server-count" in flags else 1
        # One worker makes the server ready; the others refuse requests until they, too, are connected.
        wait_until(
            lambda: is_ready(served) and served.connections() >= workers,
            READY_TIMEOUT_S,
            lambda: log.read_text(),
        )
        yield served


def is_ready(served: Served) -> bool:
    """Return whether it is ready; one that has ended is not."""
    assert served.process.poll() is None, served.log.read_text()
    # The supervisor gives up where the API ends before this line, and starts it again later. Nothing is asked before,
    # because httpcore 1.0.9 leaves a socket open where no program listens at a --uds.
    if "ready after" not in served.log.read_text():
        return False
    try:
        return served.http.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the server, and kill it if it does not end."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise


def free_port() -> int:
    """Return a port that no program listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(holds: Callable[[], bool], timeout_s: float = 60.0, say: Callable[[], str] = str) -> None:
    """Wait until `holds` is true. Raises: AssertionError after `timeout_s`."""
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end, f"not so after {timeout_s} s\n{say()}"
        time.sleep(0.01)


def series(text: str) -> dict[str, float]:
    """Return the values of a text of Prometheus by name and labels."""
    lines = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}
