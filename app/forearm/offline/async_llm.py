"""AsyncLLMEngine: the engine within an asyncio program, with vLLM's names.

A thread steps the engine while requests are open; its messages go to the event loop that waits for them.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forearm import wire
from forearm.errors import EngineFailed, EngineUnavailable, ForearmError, InvalidRequest
from forearm.offline.arguments import EngineArgs
from forearm.offline.llm import LLM
from forearm.offline.outputs import Answers, RequestOutput
from forearm.offline.prompts import Prompt
from forearm.offline.run import take
from forearm.offline.sampling_params import SamplingParams
from forearm.wire import SamplingParams as EngineParams

if TYPE_CHECKING:
    from transformers.tokenization_utils_tokenizers import TokenizersBackend

log = logging.getLogger(__name__)


@dataclass
class _Open:
    """One open request and its answers. `woken` is set in the request's event loop whenever there is more."""

    answers: Answers
    loop: asyncio.AbstractEventLoop
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    error: ForearmError | None = None

    def wake(self) -> None:
        """Wake the waiting coroutine; any thread may call it."""
        with suppress(RuntimeError):  # its event loop is closed
            self.loop.call_soon_threadsafe(self.woken.set)


class AsyncLLMEngine:
    """A model in this process, for many coroutines at once.

    >>> engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model="path/to/model"))
    >>> async for output in engine.generate("A glacier is", SamplingParams(max_tokens=32), "request-1"):
    ...     print(output.outputs[0].text)
    """

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._open: dict[str, _Open] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._error: ForearmError | None = None
        self._leaving = ExitStack()
        self._connection = self._leaving.enter_context(llm.connection())
        atexit.register(self.shutdown)  # a thread within the native step as Python ends would end it by SIGABRT
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._thread.start()

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, **_: Any) -> AsyncLLMEngine:
        """Load the model. Raises: ConfigError, TypeError."""
        return cls(LLM.from_engine_args(engine_args))

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: EngineParams | None = None,
        request_id: str | None = None,
        *,
        lora_request: None = None,
        priority: int = 0,
    ) -> AsyncIterator[RequestOutput]:
        """Continue a prompt; yields outputs as `output_kind` says: by default the whole output so far, as it grows.

        A consumer that leaves ends the request. request_id: a text that no open request has; absent: a number.
        Raises: InvalidRequest for what cannot be served; EngineUnavailable after shutdown.
        """
        self._llm.refuse_lora(lora_request)
        asked = (await asyncio.to_thread(self._llm.asked, [prompt], sampling_params, priority))[0]
        name = self._llm.new_id() if request_id is None else request_id
        one = _Open(asked.answers(name, self._llm.tokenizer), asyncio.get_running_loop())
        view = asked.view(one.answers)
        with self._changed:
            self._check_open(name)
            self._open[name] = one
            self._connection.submit(asked.submit(name))
            self._changed.notify()
        finished = False
        try:
            while not finished:
                await one.woken.wait()
                with self._changed:  # the thread that steps writes into the output
                    one.woken.clear()
                    shown, finished = view.take(), one.answers.output.finished
                if one.error is not None:
                    raise one.error
                if shown is not None:
                    yield shown
        finally:
            with self._changed:
                if self._open.pop(name, None) is not None and not one.answers.output.finished and one.error is None:
                    with suppress(EngineUnavailable):
                        self._connection.abort(name)

    async def abort(self, request_id: str | list[str]) -> None:
        """Abort requests; their last output has finish_reason abort. Unknown ids are ignored."""
        for name in [request_id] if isinstance(request_id, str) else request_id:
            with self._changed:
                if (one := self._open.get(name)) is not None:
                    self._connection.abort(name)
                    one.answers.fail(None, time.monotonic(), "abort")
                    one.wake()

    def shutdown(self) -> None:
        """End open requests, and free the model."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
        atexit.unregister(self.shutdown)
        self._llm.close()

    @property
    def is_running(self) -> bool:
        return not self._closed and self._error is None

    @property
    def is_stopped(self) -> bool:
        return not self.is_running

    @property
    def errored(self) -> bool:
        return self._error is not None

    async def check_health(self) -> None:
        """Raise the reason why the engine takes no requests, if there is one."""
        self._check_open("")

    def get_tokenizer(self) -> TokenizersBackend:
        """The tokenizer, as transformers has it."""
        return self._llm.get_tokenizer()

    async def get_default_sampling_params(self) -> SamplingParams:
        """Return the model's default sampling parameters."""
        return self._llm.get_default_sampling_params()

    async def start_profile(self) -> None:
        """Record what steps take from now on, as `profiler_config` says. Raises: EngineFailed."""
        await asyncio.to_thread(self._llm.start_profile)

    async def stop_profile(self) -> None:
        """End the file. Raises: EngineFailed if it could not be written."""
        await asyncio.to_thread(self._llm.stop_profile)

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Empty the prefix cache; see LLM.reset_prefix_cache."""
        return self._llm.reset_prefix_cache(reset_running_requests)

    def _check_open(self, name: str) -> None:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise EngineUnavailable("the engine is shut down; make another one")
        if name in self._open:
            raise InvalidRequest(f"request_id {name!r} is in use; give each request one of its own", "request_id")

    # --- the thread

    def _work(self) -> None:
        try:
            with self._leaving:
                while True:
                    with self._changed:  # sleep until a request is open
                        while not self._open and not self._closed:
                            self._changed.wait()
                        if self._closed:
                            break
                    self._hand_out(self._connection.messages())
        except Exception as error:
            log.exception("the engine's thread ends")
            self._error = (
                error if isinstance(error, ForearmError) else EngineFailed(f"the engine's thread ended: {error}")
            )
        with self._changed:
            for one in self._open.values():
                one.error = self._error or EngineUnavailable("the engine was shut down")
                one.wake()

    def _hand_out(self, messages: list[wire.FromEngine]) -> None:
        """Add the engine's messages to the open requests."""
        now_s = time.monotonic()
        with self._changed:
            for message in messages:
                if not isinstance(message, wire.Tokens | wire.Refused):
                    continue
                if (one := self._open.get(message.request_id)) is None:
                    continue  # its client has left
                try:
                    take(one.answers, message, self._connection, now_s)
                except InvalidRequest as error:
                    one.error = error
                one.wake()
