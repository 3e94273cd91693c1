"""LLMEngine: an engine whose caller adds requests and takes each step itself, with vLLM's names."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forearm import wire
from forearm.errors import InvalidRequest
from forearm.offline.arguments import EngineArgs
from forearm.offline.llm import LLM
from forearm.offline.metric_values import MetricValue
from forearm.offline.outputs import Answers, RequestOutput, View
from forearm.offline.prompts import Prompt
from forearm.offline.run import take
from forearm.offline.sampling_params import SamplingParams
from forearm.wire import SamplingParams as EngineParams

if TYPE_CHECKING:
    from transformers.tokenization_utils_tokenizers import TokenizersBackend


@dataclass(frozen=True)
class _Added:
    answers: Answers
    view: View


class LLMEngine:
    """A model in this process, stepped by its caller. Threads may not share it.

    >>> engine = LLMEngine.from_engine_args(EngineArgs(model="path/to/model"))
    >>> engine.add_request("1", "A glacier is", SamplingParams(max_tokens=32))
    >>> while engine.has_unfinished_requests():
    ...     outputs = engine.step()
    """

    def __init__(self, llm: LLM) -> None:
        """Take over a loaded model. Raises: InvalidRequest if it generates no text."""
        self._llm = llm
        self._added: dict[str, _Added] = {}
        self._leaving = ExitStack()
        self._connection = self._leaving.enter_context(llm.connection())

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, **_: Any) -> LLMEngine:
        """Load the model. Raises: ConfigError, TypeError."""
        return cls(LLM.from_engine_args(engine_args))

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: EngineParams,
        arrival_time: float | None = None,
        lora_request: None = None,
        priority: int = 0,
    ) -> str:
        """Add a request; the next steps compute it. arrival_time: seconds of time.monotonic(); None: now.

        Raises: InvalidRequest for what cannot be served.
        """
        self._llm.refuse_lora(lora_request)
        if request_id in self._added:
            raise InvalidRequest(f"request_id {request_id!r} is in use; give each request one of its own", "request_id")
        [asked] = self._llm.asked([prompt], params, priority)
        answers = asked.answers(request_id, self._llm.tokenizer)
        if arrival_time is not None:
            answers.output.metrics.arrival_time = arrival_time
        self._added[request_id] = _Added(answers, asked.view(answers))
        self._connection.submit(asked.submit(request_id))
        return request_id

    def step(self) -> list[RequestOutput]:
        """Compute one step, and return the outputs that it made grow, each as its `output_kind` says.

        Raises: InvalidRequest for a request that the engine does not take; it is over then, and the others go on.
        """
        if not self._added:
            return []
        now_s, grown, refused = time.monotonic(), dict[str, RequestOutput](), list[InvalidRequest]()
        for message in self._connection.messages():
            if not isinstance(message, wire.Tokens | wire.Refused) or message.request_id not in self._added:
                continue
            one = self._added[message.request_id]
            try:
                take(one.answers, message, self._connection, now_s)
            except InvalidRequest as error:  # the engine tells refusals before a step, so without others' tokens
                del self._added[message.request_id]
                refused.append(error)
            else:
                grown[message.request_id] = one.answers.output
        if refused:
            raise refused[0]
        shown = [self._added[name].view.take() for name in grown]
        for name, output in grown.items():
            if output.finished:
                del self._added[name]
        return [output for output in shown if output is not None]

    def abort_request(self, request_ids: str | list[str], internal: bool = False) -> None:
        """End requests, which have no further output. Unknown ids are ignored."""
        for name in [request_ids] if isinstance(request_ids, str) else request_ids:
            if self._added.pop(name, None) is not None:
                self._connection.abort(name)

    def has_unfinished_requests(self) -> bool:
        return bool(self._added)

    def get_num_unfinished_requests(self) -> int:
        """Return how many requests are not over."""
        return len(self._added)

    def get_tokenizer(self) -> TokenizersBackend:
        """The tokenizer, as transformers has it."""
        return self._llm.get_tokenizer()

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the model's default sampling parameters."""
        return self._llm.get_default_sampling_params()

    def get_metrics(self) -> list[MetricValue]:
        """Return the engine's metrics so far."""
        return self._llm.get_metrics()

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Empty the prefix cache; see LLM.reset_prefix_cache."""
        return self._llm.reset_prefix_cache(reset_running_requests)

    def start_profile(self) -> None:
        """Record what steps take from now on, as `profiler_config` says. Raises: EngineFailed."""
        self._llm.start_profile()

    def stop_profile(self) -> None:
        """End the file. Raises: EngineFailed if it could not be written."""
        self._llm.stop_profile()
