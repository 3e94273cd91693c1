"""`forearm run-batch`: answers a file of requests with a server of its own on a private Unix socket.

The server is `forearm serve`: requests take the same path as over HTTP, an engine that dies is started again, and the
requests lost with it are sent again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import sys
import threading
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NoReturn

import httpx
from tqdm import tqdm

from forearm import log as logs
from forearm.cli.run_batch_files import BatchOutput, check_apart, local_input, shown, surveyed
from forearm.cli.run_batch_lines import BatchRequest, NoRequest, answered, failed, lines, parsed, reason, refused
from forearm.config.configs import Configs
from forearm.errors import ConfigError, EngineUnavailable, ForearmError, Overloaded
from forearm.offline.arguments import for_throughput
from forearm.supervisor.first_process import started_early
from forearm.supervisor.serve import server

MOST_TRIES = 5  # attempts for a request whose engine dies
MOST_PAUSE_S = 60.0
WINDOW = 10_000  # answers that may wait for one before them
POLL_S = 0.1
INTERRUPTED = 130
SOME_FAILED = 1

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BatchJob:
    """The arguments of a batch. max_inflight: None is twice --max-num-seqs. metrics_host: None is no /metrics."""

    input_file: str
    output_file: str
    output_tmp_dir: str | None
    max_inflight: int | None
    metrics_host: str | None


def run_batch(configs: Configs, batch: BatchJob, notes: list[str]) -> int:
    """Answer every line of the input. Returns: the exit status; SOME_FAILED if some lines are errors.

    Raises: ConfigError before anything is loaded; ForearmError if the output cannot be written or uploaded.
    """
    logs.set_up(configs.serve, "run-batch")
    for note in notes:
        log.info("%s", note)
    check_apart(batch.input_file, batch.output_file)
    most_bytes = configs.api.max_body_bytes
    with local_input(batch.input_file, batch.output_tmp_dir) as path:
        settings = f"{configs.engine} {configs.api}"
        total, digest = surveyed(path, most_bytes, settings)
        output = BatchOutput(batch.output_file, digest, batch.output_tmp_dir)
        if output.written:
            log.info("resuming after %d of %d lines, which an earlier run has answered", output.written, total)
        status = 0
        if output.written < total:
            inflight = batch.max_inflight or 2 * configs.engine.max_num_seqs
            status = serve_for(BatchRequests(path, output, total, inflight, most_bytes), configs, batch.metrics_host)
    if status:
        output.close()
        log.error("stopped after %d of %d lines; the same command resumes there", output.written, total)
        return status
    if output.written != total:
        raise ForearmError(f"--input-file {shown(batch.input_file)} has changed meanwhile; no output is written")
    output.publish()
    if output.failed:
        place = shown(batch.output_file)
        log.error("%d of %d lines are errors in %s, the first %s", output.failed, total, place, reason(output.first))
        return SOME_FAILED
    log.info("%d lines are answered in %s", total, shown(batch.output_file))
    return 0


def serve_for(work: BatchRequests, configs: Configs, metrics_host: str | None) -> int:
    """Run a server until the work is done. Returns: 0, or the exit status of what ended it early."""
    with started_early() as first:
        uds = str(first.runtime.path / "api.sock")
        # The socket is private: no keys, no TLS. A stop does not drain: open requests are sent again by the next run.
        api = replace(configs.api, uds=uds, api_key=(), api_keys_file="", ssl_keyfile="", ssl_certfile="", root_path="")
        api, serve = replace(api, shutdown_timeout_s=0), replace(configs.serve, shutdown_timeout_s=0)
        own = replace(configs, api=api, serve=serve, engine=for_throughput(configs.engine))
        with metrics_on(metrics_host, configs.api.port, uds) if metrics_host is not None else contextlib.nullcontext():
            return asyncio.run(_both(server(own, first), work.done(uds)))


async def _both(watching: Coroutine[Any, Any, int], working: Coroutine[Any, Any, None]) -> int:
    """Run the server and the work until one ends, and end the other. Returns: the exit status."""
    serving, work = asyncio.create_task(watching), asyncio.create_task(working)
    await asyncio.wait([serving, work], return_when=asyncio.FIRST_COMPLETED)
    finished = work.done()
    for task in (serving, work):
        task.cancel()
    results = await asyncio.gather(serving, work, return_exceptions=True)
    if finished:
        work.result()  # raises the work's exception, if any
        return 0
    if isinstance(results[0], ForearmError):
        raise results[0]
    return results[0] if isinstance(results[0], int) and results[0] else INTERRUPTED


class BatchRequests:
    """The requests of one input while they are sent and answered."""

    def __init__(self, path: Path, output: BatchOutput, total: int, inflight: int, most_bytes: int) -> None:
        self._path, self._output, self._total, self._most_bytes = path, output, total, most_bytes
        self._inflight = min(inflight, total)
        self._moved = asyncio.Event()

    async def done(self, uds: str) -> None:
        """Send all requests that are not answered yet to the server at the socket, once it is ready."""
        headers = {"Content-Type": "application/json"}
        limits = httpx.Limits(max_connections=None)
        transport = httpx.AsyncHTTPTransport(uds=uds, limits=limits, verify=False)  # a socket of this user speaks HTTP
        first = self._output.written
        async with httpx.AsyncClient(
            transport=transport, base_url="http://forearm", headers=headers, timeout=None
        ) as client:
            await until_ready(client)
            # Not at a terminal the bar is a line now and then.
            pace: dict[str, Any] = {} if sys.stderr.isatty() else {"mininterval": 10.0, "ascii": True}
            with tqdm(total=self._total, initial=first, desc="Running batch", unit="req", **pace) as bar:
                waiting = itertools.islice(enumerate(lines(self._path, self._most_bytes)), first, None)
                asking = [asyncio.create_task(self._ask_some(client, waiting, bar)) for _ in range(self._inflight)]
                try:
                    await asyncio.gather(*asking)
                finally:
                    for task in asking:
                        task.cancel()

    async def _ask_some(
        self, client: httpx.AsyncClient, waiting: Iterator[tuple[int, tuple[int, bytes]]], bar: tqdm[NoReturn]
    ) -> None:
        """Take the next waiting line whenever the last one is answered."""
        for number, (line_number, line) in waiting:
            while number - self._output.written >= WINDOW:
                self._moved.clear()
                await self._moved.wait()
            try:
                answer = await ask(client, parsed(line, line_number, self._most_bytes))
            except NoRequest as error:
                answer = refused(error)
            self._output.put(number, answer)
            self._moved.set()
            bar.update()


async def ask(client: httpx.AsyncClient, request: BatchRequest) -> bytes:
    """Send one request and return its line of the output.

    A full queue is waited out. After the death of an engine the request is sent again, at most MOST_TRIES times.
    """
    tries = 0
    while True:
        pause_s = 1.0
        try:
            reply = await client.post(request.url, content=request.body)
            if reply.status_code not in (Overloaded.status, EngineUnavailable.status):
                return answered(
                    request.custom_id, reply.status_code, reply.headers.get("x-request-id", ""), reply.content
                )
            pause_s = min(float(reply.headers.get("retry-after", pause_s)), MOST_PAUSE_S)
            tries += reply.status_code != Overloaded.status
            why = reply.text
        except httpx.TransportError as error:
            tries += 1
            why = str(error) or type(error).__name__
        if tries == MOST_TRIES:
            message = f"the server failed {tries} times while it had this request: {why}"
            return failed(request.custom_id, EngineUnavailable.status, EngineUnavailable.kind, message)
        await asyncio.sleep(pause_s)
        await until_ready(client)


async def until_ready(client: httpx.AsyncClient) -> None:
    """Wait until the server is ready. There is no time limit: the supervisor ends a server that never becomes ready."""
    while True:
        with contextlib.suppress(httpx.TransportError):
            if (await client.get("/readyz")).status_code == 200:
                return
        await asyncio.sleep(POLL_S)


@contextlib.contextmanager
def metrics_on(host: str, port: int, uds: str) -> Iterator[None]:
    """Publish the server's /metrics alone at an address of this machine.

    Raises: ConfigError if the address is in use.
    """

    class MetricsProxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, content = 404, b""
            if self.path == "/metrics":
                try:
                    with httpx.Client(transport=httpx.HTTPTransport(uds=uds, verify=False), timeout=10) as client:
                        reply = client.get("http://forearm/metrics")
                        status, content = reply.status_code, reply.content
                except httpx.TransportError:
                    status = EngineUnavailable.status
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    try:
        listening = ThreadingHTTPServer((host, port), MetricsProxy)
    except OSError as error:
        raise ConfigError(f"--host {host} --port {port}: {error.strerror}; choose another address") from None
    listening.daemon_threads = True
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        listening.shutdown()
        listening.server_close()
