"""The choices of an answer as the engine generates them, and the counters kept meanwhile."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from forearm import wire
from forearm.api.engine_client.engine_client import EngineClient, Generation
from forearm.api.generation.beam_search import BeamGeneration, check_beams
from forearm.api.generation.request_bodies import GenerationBody
from forearm.api.http.caller import Caller
from forearm.config.api_config import ApiConfig
from forearm.text.outputs import Choice, OutputReader, Piece
from forearm.text.tokenizer.tokenizer import Tokenizer

Outputs = Generation | BeamGeneration

log = logging.getLogger(__name__)


@dataclass
class Tally:
    """Counters and times of an answer that is being generated; `prompt_logprobs` by number of the prompt."""

    prompt_tokens: int
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    queue_s: float = 0.0  # the longest wait of a prompt in the engine's queue
    begun_s: float = field(default_factory=time.monotonic)
    first_s: float | None = None  # first and last token, on the same clock
    last_s: float | None = None
    prompt_logprobs: dict[int, list[wire.PositionLogprobs | None]] = field(default_factory=dict)
    drafts: list[tuple[int, int]] = field(default_factory=list)  # (drafted, accepted) tokens of each draft


class OutputStream:
    """The choices of one answer as they come, each read by its own reader: prompt-major, then n."""

    def __init__(self, generation: Outputs, prompt_tokens: int, readers: Sequence[OutputReader], n: int) -> None:
        self.tally = Tally(prompt_tokens)
        self._generation = generation
        self._readers = readers
        self._n = n

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yield pieces until every choice has ended.

        Raises: EngineFailed, EngineUnavailable.
        """
        tally = self.tally
        async for number, message in self._generation:
            tally.last_s = time.monotonic()
            if tally.first_s is None:
                tally.first_s = tally.last_s
            if message.cached_tokens is not None:
                tally.cached_tokens += message.cached_tokens
            if message.queue_s is not None:
                tally.queue_s = max(tally.queue_s, message.queue_s)
            if message.drafted:
                tally.drafts.append((message.drafted, message.accepted))
            if message.prompt_logprobs is not None:
                tally.prompt_logprobs[number] = message.prompt_logprobs
            choice = number * self._n + message.index
            reader = self._readers[choice]
            thought = reader.reasoning_tokens
            piece = reader.read(choice, message)
            if reader.is_stopped:
                self._generation.stop(number, message.index)
            tally.completion_tokens += len(piece.token_ids)
            tally.reasoning_tokens += reader.reasoning_tokens - thought
            yield piece

    async def choices(self, pieces: AsyncIterator[Piece] | None = None) -> list[Choice]:
        """Return every choice, once all have ended. `pieces`: this stream's pieces, where the caller has wrapped them.

        Raises: EngineFailed, EngineUnavailable.
        """
        found = [Choice() for _ in self._readers]
        async for piece in self.pieces() if pieces is None else pieces:
            found[piece.choice].add(piece)
        return found

    def close(self) -> None:
        """End what is still computed. May be called at any time, and again."""
        self._generation.close()


async def spaced(pieces: AsyncIterator[Piece], interval: int) -> AsyncIterator[Piece]:
    """Yield the pieces of each choice, joined to at least `interval` tokens; the first and the last are not delayed."""
    waiting: dict[int, Piece] = {}
    begun: set[int] = set()
    async for piece in pieces:
        before = waiting.pop(piece.choice, None)
        whole = piece if before is None else piece.after(before)
        if piece.choice not in begun or whole.finish_reason or len(whole.token_ids) >= interval:
            begun.add(piece.choice)
            yield whole
        else:
            waiting[piece.choice] = whole


class OutputStreams:
    """Submits requests to the engines and opens the streams of their answers."""

    def __init__(self, engine: EngineClient, tokenizer: Tokenizer, config: ApiConfig) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._config = config

    async def open(
        self,
        body: GenerationBody,
        prompts: Sequence[list[int]],
        params: Sequence[wire.SamplingParams],
        readers: Sequence[OutputReader],
        caller: Caller,
        system_tokens: int = 0,
    ) -> OutputStream:
        """Submit all prompts of a request to an engine. `params`: one per prompt; `readers`: one per choice.
        `system_tokens`: of each prompt, as in wire.Submit.

        Raises: InvalidRequest, Overloaded, EngineUnavailable: all before the first byte of an answer.
        """
        name = f"{caller.request_id[:64]}-{uuid.uuid4().hex[:12]}"  # the client's own id need not be unique
        if self._config.log_requests:
            for number, prompt in enumerate(prompts):
                text = self._tokenizer.decode(prompt, skip_special_tokens=False)[: self._config.max_log_len]
                extra = {"request_id": caller.request_id}
                log.info(
                    "request %s-%d: %d tokens, %r, %s", name, number, len(prompt), text, params[number], extra=extra
                )
        requests = [
            wire.Submit(
                request_id=f"{name}-{number}",
                prompt_token_ids=prompt,
                params=params[number],
                priority=caller.priority_of(body.priority),
                client=caller.client,
                cache_salt=body.cache_salt,
                system_tokens=system_tokens,
            )
            for number, prompt in enumerate(prompts)
        ]
        generation: Outputs
        if body.use_beam_search:
            check_beams(body, params[0], self._config.max_logprobs)
            generation = BeamGeneration(self._engine, requests, body.length_penalty, caller.observers)
            await generation.begin()
        else:
            generation = await self._engine.submit(requests, caller.observers)
        return OutputStream(generation, sum(map(len, prompts)), readers, params[0].n)
