"""The engine's tokens as pieces of the choices of one answer: text, stop strings, finish reasons, usage."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from forearm import wire
from forearm.api.engine_client.engine_client import Generation
from forearm.api.generation.beam_search import BeamGeneration, check_beams
from forearm.api.generation.request_bodies import GenerationBody
from forearm.api.generation.serving_context import Served
from forearm.api.http.caller import Caller
from forearm.text.tokenizer.detokenizer import OutputText, TextOptions

Outputs = Generation | BeamGeneration

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Piece:
    """What one message of the engine adds to one choice. `texts`: what each token gave, and what the end gave after."""

    choice: int
    texts: list[str]
    token_ids: list[int]
    logprobs: list[wire.PositionLogprobs] | None
    finish_reason: str | None
    stop_reason: int | str | None

    @property
    def text(self) -> str:
        """Of all its tokens together."""
        return "".join(self.texts)

    def after(self, before: Piece) -> Piece:
        """Both as one."""
        return Piece(
            self.choice,
            [*before.texts, *self.texts],
            [*before.token_ids, *self.token_ids],
            None if self.logprobs is None else [*(before.logprobs or ()), *self.logprobs],
            self.finish_reason,
            self.stop_reason,
        )


@dataclass
class Choice:
    """One choice with all its pieces."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[wire.PositionLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def add(self, piece: Piece) -> None:
        """The next piece."""
        self.text += piece.text
        self.token_ids += piece.token_ids
        self.logprobs += piece.logprobs or ()
        self.finish_reason, self.stop_reason = piece.finish_reason, piece.stop_reason


@dataclass
class Tally:
    """What is counted while an answer grows; `prompt_logprobs` by number of the prompt."""

    prompt_tokens: int
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    queue_s: float = 0.0  # the longest wait of a prompt in the engine's queue
    begun_s: float = field(default_factory=time.monotonic)
    first_s: float | None = None  # first and last token, on the same clock
    last_s: float | None = None
    prompt_logprobs: dict[int, list[wire.PositionLogprobs | None]] = field(default_factory=dict)
    drafts: list[tuple[int, int]] = field(default_factory=list)  # tokens drafted and accepted, a pair a draft


class Answer:
    """One request's prompts in the engine, and its choices as they come: prompt-major, then n."""

    def __init__(
        self, served: Served, generation: Outputs, prompts: Sequence[list[int]], n: int, options: TextOptions
    ) -> None:
        self.served = served
        self.generation = generation
        self.tally = Tally(sum(len(prompt) for prompt in prompts))
        self._silent_end = not options.include_stop_str_in_output
        self._n = n
        self._texts = [OutputText(served.tokenizer, prompt, options) for prompt in prompts for _ in range(n)]

    async def pieces(self) -> AsyncIterator[Piece]:
        """Until every choice has ended.

        Raises: EngineFailed, EngineUnavailable.
        """
        async for number, message in self.generation:
            self.tally.last_s = time.monotonic()
            if self.tally.first_s is None:
                self.tally.first_s = self.tally.last_s
            if message.cached_tokens is not None:
                self.tally.cached_tokens += message.cached_tokens
            if message.queue_s is not None:
                self.tally.queue_s = max(self.tally.queue_s, message.queue_s)
            if message.drafted:
                self.tally.drafts.append((message.drafted, message.accepted))
            if message.prompt_logprobs is not None:
                self.tally.prompt_logprobs[number] = message.prompt_logprobs
            yield self._piece(number, message)

    async def choices(self) -> list[Choice]:
        """Every choice, once all have ended.

        Raises: EngineFailed, EngineUnavailable.
        """
        found = [Choice() for _ in self._texts]
        async for piece in self.pieces():
            found[piece.choice].add(piece)
        return found

    def _piece(self, number: int, message: wire.Tokens) -> Piece:
        choice = number * self._n + message.index
        output = self._texts[choice]
        texts = self._read(output, message)
        used = len(texts)
        finish_reason: str | None = message.finish_reason
        stop_reason: int | str | None = message.stop_reason
        if finish_reason is not None:
            texts.append(output.finish())
        if output.matched is not None:
            finish_reason, stop_reason = "stop", output.matched
            self.generation.stop(number, message.index)
        self.tally.completion_tokens += used
        return Piece(
            choice,
            texts,
            message.token_ids[:used],
            None if message.logprobs is None else message.logprobs[:used],
            finish_reason,
            stop_reason,
        )

    def _read(self, output: OutputText, message: wire.Tokens) -> list[str]:
        """The text of each token, up to the one with which a stop string has ended the output."""
        last = len(message.token_ids) - 1
        texts = []
        for position, token_id in enumerate(message.token_ids):
            # The engine says stop for the end of sequence and for stop tokens: they are no text.
            silent = position == last and message.finish_reason == "stop" and self._silent_end
            texts.append(output.add(token_id, silent))
            if output.matched is not None:
                break
        return texts


class Joinable(Protocol):
    """A piece of a choice that can be joined to the one before it."""

    @property
    def choice(self) -> int: ...
    @property
    def token_ids(self) -> list[int]: ...
    @property
    def finish_reason(self) -> str | None: ...
    def after(self, before: Any) -> Any: ...


AnyPiece = TypeVar("AnyPiece", bound=Joinable)


async def spaced(pieces: AsyncIterator[AnyPiece], interval: int) -> AsyncIterator[AnyPiece]:
    """The pieces of each choice, joined to `interval` tokens at least; its first and its last do not wait."""
    waiting: dict[int, AnyPiece] = {}
    begun: set[int] = set()
    async for piece in pieces:
        before = waiting.pop(piece.choice, None)
        whole = piece if before is None else piece.after(before)
        if piece.choice not in begun or whole.finish_reason or len(whole.token_ids) >= interval:
            begun.add(piece.choice)
            yield whole
        else:
            waiting[piece.choice] = whole


async def submit(
    served: Served,
    body: GenerationBody,
    prompts: Sequence[list[int]],
    params: Sequence[wire.SamplingParams],
    caller: Caller,
) -> Outputs:
    """Hand all prompts of a request to the engine.

    Raises: InvalidRequest, Overloaded, EngineUnavailable: all before the first byte of an answer.
    """
    name = f"{caller.request_id[:64]}-{uuid.uuid4().hex[:12]}"  # the client's own id need not be unique
    if served.config.log_requests:
        for number, prompt in enumerate(prompts):
            text = served.tokenizer.decode(prompt, skip_special_tokens=False)[: served.config.max_log_len]
            extra = {"request_id": caller.request_id}
            log.info("request %s-%d: %d tokens, %r, %s", name, number, len(prompt), text, params[number], extra=extra)
    requests = [
        wire.Submit(
            request_id=f"{name}-{number}",
            prompt_token_ids=prompt,
            params=params[number],
            priority=caller.priority_of(body.priority),
            client=caller.client,
            cache_salt=body.cache_salt,
        )
        for number, prompt in enumerate(prompts)
    ]
    if not body.use_beam_search:
        return await served.engine.submit(requests, caller.observers)
    check_beams(body, params[0], served.config.max_logprobs)
    beams = BeamGeneration(served.engine, requests, body.length_penalty, caller.observers)
    await beams.begin()
    return beams
