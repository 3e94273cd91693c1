"""The engine's Unix socket: frames from API workers to the loop's queue, and the loop's messages to their connections.

The server runs on asyncio's thread, the loop on its own. Queries of metrics and state are answered here, even while a
long step runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec

from forearm import wire
from forearm.engine.inbox import Disconnected, Drain, Inbox, Outward, Profiling, Received, Stop
from forearm.engine.loop import EngineLoop
from forearm.timeouts import within

# The most unread bytes before a worker is disconnected: minutes of tokens for hundreds of streams.
MAX_UNREAD_BYTES = 64 << 20
_FLUSH_TIMEOUT_S = 5.0
_TELL_S = 0.02  # the least time between two messages on the engine's load
_HEAD_BYTES = 4

log = logging.getLogger(__name__)


class EngineServer:
    """One loop and its connections.

    cores: CPU ids of the engine's threads, one each; () if they are not pinned. The loop, which is the first of them
    during a step, stays on its core between steps as well; connections are served on other cores if there are any.
    """

    def __init__(
        self,
        loop: EngineLoop,
        cores: Sequence[int] = (),
        unread_bytes: int = MAX_UNREAD_BYTES,
        inbox_bytes: int = 64 << 20,
    ) -> None:
        self._loop = loop
        self._cores = cores
        self._unread_bytes = unread_bytes
        self._inbox = Inbox(inbox_bytes)
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._numbers = itertools.count()
        self._draining = False
        self._told: wire.Load | None = None
        self._telling: asyncio.TimerHandle | None = None  # no load is sent until it fires

    async def run(self, path: Path) -> None:
        """Serve at `path` until drained or stopped.

        Raises: the error that ended the loop, if one did.
        """
        _remove(path)
        listening = socket.socket(socket.AF_UNIX)
        mask = os.umask(0o177)  # only this user can open it, from its creation on
        try:
            listening.bind(str(path))
        finally:
            os.umask(mask)
        done = self._start_loop()
        others = os.sched_getaffinity(0) - set(self._cores)
        if others:
            os.sched_setaffinity(0, others)
        server = await asyncio.start_unix_server(self._connected, sock=listening)
        try:
            await done
        finally:
            server.close()
            _remove(path)
            writers = list(self._writers.values())
            for writer in writers:
                writer.close()
            with contextlib.suppress(asyncio.TimeoutError):  # workers have a moment to read the last messages
                closed = asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)
                await within(closed, _FLUSH_TIMEOUT_S)

    def drain(self, timeout_s: float) -> None:
        """Finish open requests within `timeout_s`; on the second call, end at once."""
        if self._draining:
            self._inbox.put(Stop())
            return
        self._draining = True
        log.info("draining: %d running, %d waiting", self._loop.snapshot.running, self._loop.snapshot.waiting)
        self._inbox.put(Drain())
        asyncio.get_running_loop().call_later(timeout_s, self._inbox.put, Stop())

    def state(self) -> wire.State:
        """Return the state that the engine sends to workers."""
        seen = self._loop.snapshot
        return wire.State(
            max_model_len=self._loop.terms.max_model_len,
            vocab_size=self._loop.terms.vocab_size,
            max_request_bytes=self._inbox.most_frame_bytes,
            eos_token_ids=self._loop.terms.eos_token_ids,
            running=seen.running,
            waiting=seen.waiting,
            kv_usage=seen.kv_usage,
            last_step_age_s=0.0 if seen.step_s is None else time.monotonic() - seen.step_s,
            draining=self._draining,
            keeps_states=self._loop.scheduler.blocks.keeps_states,
            model=self._loop.terms.model,
        )

    async def log_figures(self, interval_s: float) -> None:
        """Log throughput and load every `interval_s` while there are requests."""
        meter, before = self._loop.meter, (0, 0, 0, 0)
        while True:
            await asyncio.sleep(interval_s)
            now = (meter.prefilled_tokens, meter.generated_tokens, meter.prompt_tokens, meter.prompt_tokens_cached)
            seen = self._loop.snapshot
            if now != before or seen.running:
                prefilled, generated, prompt, cached = (a - b for a, b in zip(now, before, strict=True))
                figures = {
                    "prompt_tokens_per_s": prefilled / interval_s,
                    "generation_tokens_per_s": generated / interval_s,
                    "running": seen.running,
                    "waiting": seen.waiting,
                    "kv_cache_percent": 100 * seen.kv_usage,
                    "prefix_cache_hit_percent": 100 * cached / max(prompt, 1),
                }
                log.info(
                    "prompt %(prompt_tokens_per_s).1f tokens/s, generation %(generation_tokens_per_s).1f tokens/s, "
                    "%(running)d running, %(waiting)d waiting, KV cache %(kv_cache_percent).1f %% used, "
                    "prefix cache %(prefix_cache_hit_percent).1f %% hits",
                    figures,
                    extra={"fields": {name: round(value, 2) for name, value in figures.items()}},
                )
            before = now

    # --- the loop

    def _start_loop(self) -> asyncio.Future[None]:
        """Run the loop on its own thread; the future gets its result or error."""
        here = asyncio.get_running_loop()
        done: asyncio.Future[None] = here.create_future()

        def publish(messages: list[Outward]) -> None:
            here.call_soon_threadsafe(self._deliver, messages)

        def run() -> None:
            try:
                if self._cores:
                    os.sched_setaffinity(0, self._cores[:1])
                self._loop.run(self._inbox, publish)
                here.call_soon_threadsafe(done.set_result, None)
            except BaseException as error:
                here.call_soon_threadsafe(done.set_exception, error)

        # A daemon thread, so that a step that hangs does not keep the process alive.
        threading.Thread(target=run, name="engine-loop", daemon=True).start()
        return done

    def _deliver(self, messages: list[Outward]) -> None:
        """Write all messages of a step to each connection in one write."""
        frames: defaultdict[int, list[bytes]] = defaultdict(list)
        for connection, message in messages:
            frames[connection].append(wire.frame(message))
            if isinstance(message, wire.Accepted):
                # A worker subtracts it from the last load, so it needs the next one even where the room is the same:
                # after short requests that filled a small queue, workers would otherwise refuse all others for good.
                self._told = None
        for connection, parts in frames.items():
            writer = self._writers.get(connection)
            if writer is not None:
                self._write(writer, b"".join(parts))
        if self._telling is None and self._loop.snapshot.load != self._told:
            self._tell_load()

    def _tell_load(self) -> None:
        """Send the engine's load to every worker, so that workers themselves refuse requests that it would refuse.

        It is sent at most every _TELL_S, and once more after the last change.
        """
        self._telling = None
        if (load := self._loop.snapshot.load) != self._told:
            self._told = load
            for writer in self._writers.values():
                self._write(writer, wire.frame(load))
            self._telling = asyncio.get_running_loop().call_later(_TELL_S, self._tell_load)

    def _write(self, writer: asyncio.StreamWriter, frames: bytes) -> None:
        writer.write(frames)
        unread = writer.transport.get_write_buffer_size()
        if unread > self._unread_bytes:
            log.error("a worker left %d bytes unread; its connection is closed, its requests are aborted", unread)
            writer.transport.abort()

    # --- the connections

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = next(self._numbers)
        self._writers[connection] = writer
        try:
            self._write(writer, wire.frame(self.state()))
            self._told = None  # the new worker has no load yet
            while True:
                length = wire.body_length(await reader.readexactly(_HEAD_BYTES), self._inbox.most_frame_bytes)
                self._take(connection, writer, wire.to_engine.decode(await reader.readexactly(length)), length)
        except (OSError, EOFError):
            pass  # the worker has gone, so its unfinished message is dropped
        except (ValueError, msgspec.MsgspecError) as error:
            log.error("a connection does not speak this engine's protocol: %s", error)
        finally:
            self._inbox.put(Disconnected(connection))
            del self._writers[connection]
            writer.close()

    def _take(self, connection: int, writer: asyncio.StreamWriter, message: wire.ToEngine, length: int) -> None:
        if isinstance(message, wire.AskMetrics):
            self._write(writer, wire.frame(wire.Metrics(self._loop.meter.text())))
        elif isinstance(message, wire.AskState):
            self._write(writer, wire.frame(self.state()))
        elif isinstance(message, wire.Submit | wire.Embed) and (text := self._inbox.too_much(length)):
            self._write(
                writer, wire.frame(wire.Refused(request_id=message.request_id, error="Overloaded", message=text))
            )
        elif isinstance(message, wire.Profile):
            self._inbox.put(Profiling(connection, message))
        else:
            self._inbox.put(Received(connection, message), length)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
