"""Requests of one call, from the prompt to the last token."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tqdm.auto import tqdm

from forearm import wire
from forearm.errors import InvalidRequest
from forearm.offline.outputs import (
    Answers,
    CompletionOutput,
    RequestMetrics,
    RequestOutput,
    RequestOutputKind,
    View,
)
from forearm.offline.sampling_params import SamplingParams
from forearm.offline.shared_loop import LoopConnection, SharedLoop
from forearm.text.tokenizer.tokenizer import Tokenizer

# Whether there are bars; vLLM also takes what makes them, as tqdm does.
Bars = bool | Callable[..., Any]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OfflineRequest:
    """One prompt and how to go on from it. `text` is None where token ids were given; system_tokens: wire.Submit."""

    text: str | None
    token_ids: list[int]
    params: wire.SamplingParams
    priority: int = 0
    system_tokens: int = 0

    def submit(self, request_id: str) -> wire.Submit:
        """The message to the engine."""
        return wire.Submit(
            request_id=request_id,
            prompt_token_ids=self.token_ids,
            params=self.params,
            priority=self.priority,
            system_tokens=self.system_tokens,
        )

    def answers(self, request_id: str, tokenizer: Tokenizer) -> Answers:
        """Return the request's outputs, still empty."""
        outputs = [CompletionOutput(index) for index in range(self.params.n)]
        output = RequestOutput(request_id, self.text, self.token_ids, outputs, RequestMetrics(time.monotonic()))
        return Answers(output, self.params, tokenizer)

    def view(self, answers: Answers) -> View:
        """Return what a stream yields of the request's answers."""
        kind = self.params.output_kind if isinstance(self.params, SamplingParams) else RequestOutputKind.CUMULATIVE
        return View(answers.output, kind)


class Run:
    """The requests of one call."""

    def __init__(
        self, shared: SharedLoop, asked: Sequence[OfflineRequest], tokenizer: Tokenizer, numbers: itertools.count[int]
    ) -> None:
        self._shared = shared
        self._requests = {str(next(numbers)): one for one in asked}
        self._answers = {name: one.answers(name, tokenizer) for name, one in self._requests.items()}

    def grow(self, bars: Bars = False) -> Iterator[RequestOutput]:
        """Submit all, and yield an output whenever it has grown, until all have ended. Whatever interrupts this ends
        what is left of them.

        Raises: InvalidRequest for what the engine does not take.
        """
        with self._shared.connection() as connection:
            names = list(self._requests)
            for name in bar(bars, names, total=len(names), desc="Adding requests"):
                connection.submit(self._requests[name].submit(name))
            left = set(names)
            while left:
                now_s, grown = time.monotonic(), dict[str, None]()
                for message in connection.messages():
                    if isinstance(message, wire.Tokens | wire.Refused):
                        take(self._answers[message.request_id], message, connection, now_s)
                        grown[message.request_id] = None
                for name in grown:
                    output = self._answers[name].output
                    if output.finished:
                        left.discard(name)
                    yield output

    def finish(self, bars: Bars) -> list[RequestOutput]:
        """Return the outputs in the order of the prompts once all have ended, with a bar of progress."""
        with Progress(len(self._requests), bars) as progress:
            for output in self.grow(bars):
                progress.grown(output)
        return [answer.output for answer in self._answers.values()]

    def stream(self) -> Iterator[RequestOutput]:
        """Yield outputs as they grow, as each request's `output_kind` says."""
        views = {name: one.view(self._answers[name]) for name, one in self._requests.items()}
        for output in self.grow():
            if (shown := views[output.request_id].take()) is not None:
                yield shown


def take(answers: Answers, message: wire.Tokens | wire.Refused, connection: LoopConnection, now_s: float) -> None:
    """Add a message of the engine to a request's answers.

    Raises: InvalidRequest for a request that the engine does not take.
    """
    if isinstance(message, wire.Refused):
        if message.error == "InvalidRequest":
            raise InvalidRequest(message.message, message.param)
        answers.fail(message.message, now_s)
        log.error("%s", message.message)
    elif answers.add(message, now_s):
        connection.abort(message.request_id, message.index)


def bar(bars: Bars, *args: Any, **look: Any) -> Any:
    """Make a progress bar with tqdm, or with the caller's own class."""
    make: Callable[..., Any] = tqdm if isinstance(bars, bool) else bars
    return make(*args, disable=bars is False, **look)


class Progress:
    """The bar "Processed prompts", with tokens per second of input and output."""

    def __init__(self, prompts: int, bars: Bars) -> None:
        look: dict[str, Any] = {"dynamic_ncols": True, "postfix": _speed(0, 0)}
        self._bar = bar(bars, total=prompts, desc="Processed prompts", **look)
        self._start_s = time.monotonic()
        self._input = self._output = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def grown(self, output: RequestOutput) -> None:
        """Move on if this prompt's answers have all ended."""
        if not output.finished:
            return
        self._input += len(output.prompt_token_ids) * len(output.outputs)
        self._output += sum(len(one.token_ids) for one in output.outputs)
        took_s = max(time.monotonic() - self._start_s, 1e-9)
        self._bar.postfix = _speed(self._input / took_s, self._output / took_s)
        self._bar.update()


def _speed(prompt: float, generated: float) -> str:
    return f"est. speed input: {prompt:.2f} toks/s, output: {generated:.2f} toks/s"
