"""`forearm run-batch`: a file of requests answered by a server of its own, on a Unix socket that nobody else reaches.

The server is `forearm serve`: requests take the path that they take over HTTP, an engine that dies is started again,
and what was lost with it is asked again.
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
from forearm.cli.run_batch_files import Output, check_apart, local_input, shown, surveyed
from forearm.cli.run_batch_lines import NoRequest, Request, answered, failed, lines, parsed, refused
from forearm.config.configs import Configs
from forearm.errors import ConfigError, EngineUnavailable, ForearmError, Overloaded
from forearm.supervisor.run_folder import run_folder
from forearm.supervisor.supervisor import server

MOST_TRIES = 5  # of a request whose engine dies
MOST_PAUSE_S = 60.0
WINDOW = 10_000  # answers that may wait for one before them
POLL_S = 0.1
INTERRUPTED = 130
SOME_FAILED = 1

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Batch:
    """What was asked for. max_inflight: requests at a time, None: twice --max-num-seqs. metrics_host: None for none."""

    input_file: str
    output_file: str
    output_tmp_dir: str | None
    max_inflight: int | None
    metrics_host: str | None


def run_batch(configs: Configs, batch: Batch, notes: list[str]) -> int:
    """Answer every line of the input. Returns: the exit status, SOME_FAILED where lines have become errors.

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
        output = Output(batch.output_file, digest, batch.output_tmp_dir)
        if output.written:
            log.info("going on after %d of %d lines, which an earlier run has answered", output.written, total)
        status = 0
        if output.written < total:
            inflight = batch.max_inflight or 2 * configs.engine.max_num_seqs
            status = serve_for(Work(path, output, total, inflight, most_bytes), configs, batch.metrics_host)
    if status:
        output.close()
        log.error("stopped after %d of %d lines; the same command goes on from there", output.written, total)
        return status
    if output.written != total:
        raise ForearmError(f"--input-file {shown(batch.input_file)} has changed meanwhile; nothing is put out")
    output.publish()
    if output.failed:
        log.error(
            "%d of %d lines are errors, the others are answered in %s", output.failed, total, shown(batch.output_file)
        )
        return SOME_FAILED
    log.info("%d lines are answered in %s", total, shown(batch.output_file))
    return 0


def serve_for(work: Work, configs: Configs, metrics_host: str | None) -> int:
    """Run a server until the work is done. Returns: 0, or the exit status of what ended it early."""
    with run_folder() as runtime:
        uds = str(runtime.path / "api.sock")
        # Nobody else can reach it: no keys, no TLS. And a stop is a stop: what is open then is asked again next time.
        api = replace(configs.api, uds=uds, api_key=(), api_keys_file="", ssl_keyfile="", ssl_certfile="", root_path="")
        own = replace(
            configs, api=replace(api, shutdown_timeout_s=0), serve=replace(configs.serve, shutdown_timeout_s=0)
        )
        with metrics_on(metrics_host, configs.api.port, uds) if metrics_host is not None else contextlib.nullcontext():
            return asyncio.run(_both(server(own, runtime), work.done(uds)))


async def _both(watching: Coroutine[Any, Any, int], working: Coroutine[Any, Any, None]) -> int:
    """The server and the work; whichever ends first ends the other."""
    serving, work = asyncio.create_task(watching), asyncio.create_task(working)
    await asyncio.wait([serving, work], return_when=asyncio.FIRST_COMPLETED)
    finished = work.done()
    for task in (serving, work):
        task.cancel()
    results = await asyncio.gather(serving, work, return_exceptions=True)
    if finished:
        work.result()  # raises what the work has raised
        return 0
    return results[0] if isinstance(results[0], int) and results[0] else INTERRUPTED


class Work:
    """The requests of one input on their way."""

    def __init__(self, path: Path, output: Output, total: int, inflight: int, most_bytes: int) -> None:
        self._path, self._output, self._total, self._most_bytes = path, output, total, most_bytes
        self._inflight = min(inflight, total)
        self._moved = asyncio.Event()

    async def done(self, uds: str) -> None:
        """Ask the server at the socket all that is not answered yet, once it is ready."""
        headers = {"Content-Type": "application/json"}
        transport = httpx.AsyncHTTPTransport(uds=uds, limits=httpx.Limits(max_connections=None))
        first = self._output.written
        async with httpx.AsyncClient(
            transport=transport, base_url="http://forearm", headers=headers, timeout=None
        ) as client:
            await until_ready(client)
            with tqdm(total=self._total, initial=first, desc="Running batch", unit="req", **_pace()) as bar:
                await self._ask_all(client, first, bar)

    async def _ask_all(self, client: httpx.AsyncClient, first: int, bar: tqdm[NoReturn]) -> None:
        """So many at a time, each taking the next line when it has its answer."""
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


async def ask(client: httpx.AsyncClient, request: Request) -> bytes:
    """The line for one request. Refusals for lack of room are waited out, and deaths of the engine a few times, each
    however long the next one takes to load.
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
            message = f"the server went away {tries} times while it had this request: {why}"
            return failed(request.custom_id, EngineUnavailable.status, EngineUnavailable.kind, message)
        await asyncio.sleep(pause_s)
        await until_ready(client)


async def until_ready(client: httpx.AsyncClient) -> None:
    """Wait; whoever watches the server knows when it never will be."""
    while True:
        with contextlib.suppress(httpx.TransportError):
            if (await client.get("/readyz")).status_code == 200:
                return
        await asyncio.sleep(POLL_S)


def _pace() -> dict[str, Any]:
    """Of the progress bar: a line now and then where nobody sees it move."""
    return {} if sys.stderr.isatty() else {"mininterval": 10.0, "ascii": True}


@contextlib.contextmanager
def metrics_on(host: str, port: int, uds: str) -> Iterator[None]:
    """The server's /metrics, and nothing else of it, at an address of this machine.

    Raises: ConfigError if it can't be listened on.
    """

    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, content = 404, b""
            if self.path == "/metrics":
                try:
                    with httpx.Client(transport=httpx.HTTPTransport(uds=uds), timeout=10) as client:
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
        listening = ThreadingHTTPServer((host, port), Metrics)
    except OSError as error:
        raise ConfigError(f"--host {host} --port {port}: {error.strerror}; choose another address") from None
    listening.daemon_threads = True
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        listening.shutdown()
        listening.server_close()
