"""A tiny real engine: speaks wire.py over a Unix socket and repeats the tokens of a prompt as its answer."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from forearm import wire

EOS = 256  # as letters.py's tokenizer has it
VOCABULARY = 260


@dataclass
class EchoEngine:
    """Output i of a prompt is the prompt from its token i on, repeated; the token EOS ends it.

    Every token has the log-probability -0.5, its alternatives -1, -2 and so on. All fields may be changed at any time.
    """

    path: Path
    max_model_len: int = 1000
    max_request_bytes: int = wire.MAX_FRAME_BYTES
    places: int = 1000  # most requests at a time; more are refused as Overloaded
    pause_s: float = 0.0  # before each token
    silent: bool = False  # accepts requests and sends no tokens
    holds_at: int = sys.maxsize  # answers wait before this token
    draining: bool = False
    keeps_states: bool = False
    step_age_s: float = 0.0
    load: wire.Load | None = None  # sent to each new connection, and by `tell`
    disk_full: bool = False  # recordings fail
    profiled: list[bool] = field(default_factory=list)  # True for each /start_profile, False for each /stop_profile
    submits: list[wire.Submit] = field(default_factory=list)
    running: set[tuple[str, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._started = threading.Event()
        self._thread: threading.Thread | None = None

    # --- from the test's thread

    def start(self) -> None:
        self._started.clear()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="echo-engine")
        self._thread.start()
        assert self._started.wait(60)

    def stop(self) -> None:
        """Close every connection, as an engine does that dies."""
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._ending.set)
            self._thread.join()
            self._thread = None

    def tell(self, load: wire.Load) -> None:
        """Send a load to every connection, as an engine does whose load changes."""
        self.load = load
        for writer in list(self._writers):
            self._loop.call_soon_threadsafe(writer.write, wire.frame(load))

    # --- in the engine's thread

    async def _serve(self) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        self.path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._connected, self.path)
        self._started.set()
        await self._ending.wait()
        server.close()
        # All others are connections, some of them accepted a moment ago, and answers; no transport outlives the loop.
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for writer in self._writers:
                writer.transport.abort()
            for task in self._tasks.values():
                task.cancel()
            await asyncio.wait(others, timeout=0.05)
        self.running.clear()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        mine: set[tuple[str, int]] = set()
        writer.write(wire.frame(self._state()))
        if self.load is not None:
            writer.write(wire.frame(self.load))
        with contextlib.suppress(OSError, EOFError):
            while True:
                length = wire.body_length(await reader.readexactly(4))
                self._take(wire.to_engine.decode(await reader.readexactly(length)), writer, mine)
        for output in mine:
            self._end(output)
        self._writers.discard(writer)
        writer.close()

    def _take(self, message: wire.ToEngine, writer: asyncio.StreamWriter, mine: set[tuple[str, int]]) -> None:
        if isinstance(message, wire.AskState):
            writer.write(wire.frame(self._state()))
        elif isinstance(message, wire.AskMetrics):
            writer.write(wire.frame(wire.Metrics(f"vllm:num_requests_running {len(self.running)}.0\n")))
        elif isinstance(message, wire.Profile):
            self.profiled.append(message.start)
            writer.write(wire.frame(wire.Profiled("the disk is full" if self.disk_full else "")))
        elif isinstance(message, wire.Abort):
            for output in [one for one in self.running if one[0] == message.request_id]:
                if message.index in (None, output[1]):
                    self._end(output)
        elif isinstance(message, wire.Submit):
            self._submit(message, writer, mine)

    def _submit(self, submit: wire.Submit, writer: asyncio.StreamWriter, mine: set[tuple[str, int]]) -> None:
        self.submits.append(submit)
        refused = self._refusal(submit)
        if refused is not None:
            writer.write(wire.frame(refused))
            return
        outputs = [(submit.request_id, index) for index in range(submit.params.n)]
        self.running.update(outputs)  # before the worker is told
        mine.update(outputs)
        writer.write(wire.frame(wire.Accepted(request_id=submit.request_id)))
        for index, output in enumerate(outputs):
            self._tasks[output] = asyncio.get_running_loop().create_task(self._answer(submit, index, writer))

    def _refusal(self, submit: wire.Submit) -> wire.Refused | None:
        """Return the engine's refusal of this message, if it is refused."""
        if not submit.prompt_token_ids:
            return wire.Refused(
                request_id=submit.request_id, error="InvalidRequest", message="the prompt is empty", param="prompt"
            )
        if len({request_id for request_id, _ in self.running}) >= self.places:
            return wire.Refused(
                request_id=submit.request_id, error="Overloaded", message="the queue is full", retry_after_s=3
            )
        return None

    async def _answer(self, submit: wire.Submit, index: int, writer: asyncio.StreamWriter) -> None:
        params, prompt = submit.params, submit.prompt_token_ids
        limit = params.max_tokens or self.max_model_len - len(prompt)
        for position in range(limit):
            while self.silent or position >= self.holds_at:  # noqa: ASYNC110  (the test's thread sets it)
                await asyncio.sleep(0.01)
            await asyncio.sleep(self.pause_s)
            token = prompt[(position + index) % len(prompt)]
            ended = token == EOS and not params.ignore_eos
            first = position == 0 and index == 0
            message = wire.Tokens(
                request_id=submit.request_id,
                index=index,
                token_ids=[token],
                logprobs=None if params.logprobs is None else [_ranked(token, params.logprobs)],
                finish_reason="stop" if ended else "length" if position + 1 == limit else None,
                cached_tokens=len(prompt) // 2 if first else None,
                queue_s=2**-20 if first else None,
                prompt_logprobs=_scored(submit) if first else None,
            )
            writer.write(wire.frame(message))
            if message.finish_reason:
                break
        self.running.discard((submit.request_id, index))

    def _end(self, output: tuple[str, int]) -> None:
        self.running.discard(output)
        if output in self._tasks:
            self._tasks[output].cancel()

    def _state(self) -> wire.State:
        return wire.State(
            max_model_len=self.max_model_len,
            vocab_size=VOCABULARY,
            max_request_bytes=self.max_request_bytes,
            running=len(self.running),
            waiting=0,
            kv_usage=0.0,
            last_step_age_s=self.step_age_s,
            draining=self.draining,
            keeps_states=self.keeps_states,
            model=wire.ModelFacts(family="echo", parameters=7, format="int8"),
        )


@contextlib.contextmanager
def echo_engine(path: Path) -> Iterator[EchoEngine]:
    engine = EchoEngine(path)
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


def _ranked(token: int, alternatives: int) -> wire.PositionLogprobs:
    others = [wire.TokenLogprob((token + 1 + i) % 256, -1.0 - i, i + 2) for i in range(alternatives - 1)]
    chosen = wire.TokenLogprob(token, -0.5, 1)
    return [chosen, chosen, *others] if alternatives else [chosen]


def _scored(submit: wire.Submit) -> list[wire.PositionLogprobs | None] | None:
    count = submit.params.prompt_logprobs
    if count is None:
        return None
    return [None, *(_ranked(token, count) for token in submit.prompt_token_ids[1:])]
