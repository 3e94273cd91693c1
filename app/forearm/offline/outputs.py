"""Outputs of LLM.generate and LLM.chat, with vLLM's names and fields, and their growth by the engine's messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from forearm import wire
from forearm.text.outputs import OutputReader
from forearm.text.tokenizer.detokenizer import TextOptions
from forearm.text.tokenizer.tokenizer import Tokenizer
from forearm.wire import PositionLogprobs, SamplingParams


@dataclass(frozen=True)
class Logprob:
    """One candidate at one position. `rank` counts from 1, the most likely."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


class RequestOutputKind(Enum):
    """The outputs that a stream yields: the whole output so far, its new part, or the final one. vLLM's names."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


# By token id: the token that stands there, and the alternatives asked for.
Candidates = dict[int, Logprob]


@dataclass
class CompletionOutput:
    """One answer to a prompt.

    finish_reason: stop, length, repetition, abort, or error. stop_reason: the stop string or stop token id that ended
    it, None for the model's own end; after an error, what went wrong.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[Candidates] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass
class RequestMetrics:
    """Times of a request in seconds of time.monotonic(): submitted, first token, last token."""

    arrival_time: float
    first_token_time: float | None = None
    finished_time: float | None = None


@dataclass
class RequestOutput:
    """A prompt and its answers. `prompt` is None where token ids were given."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    metrics: RequestMetrics
    prompt_logprobs: list[Candidates | None] | None = None
    finished: bool = False
    num_cached_tokens: int | None = None


class View:
    """The outputs that a stream yields of a growing request.

    kind: the whole output so far (CUMULATIVE), the part since the last one (DELTA), or the final one (FINAL_ONLY).
    """

    def __init__(self, output: RequestOutput, kind: RequestOutputKind) -> None:
        self._output = output
        self._kind = kind
        self._shown = [(0, 0)] * len(output.outputs)  # characters and tokens

    def take(self) -> RequestOutput | None:
        """Return a copy of what is to be yielded now, if anything."""
        if self._kind is RequestOutputKind.FINAL_ONLY and not self._output.finished:
            return None
        delta = self._kind is RequestOutputKind.DELTA
        starts = self._shown if delta else [(0, 0)] * len(self._shown)
        outputs = [_cut(one, *start) for one, start in zip(self._output.outputs, starts, strict=True)]
        if delta:
            outputs = [one for one in outputs if one.token_ids or one.text or self._output.finished]
            self._shown = [(len(one.text), len(one.token_ids)) for one in self._output.outputs]
        return replace(self._output, outputs=outputs, metrics=replace(self._output.metrics)) if outputs else None


def _cut(one: CompletionOutput, characters: int, tokens: int) -> CompletionOutput:
    """Return a copy of an answer without its first characters and tokens."""
    logprobs = None if one.logprobs is None else one.logprobs[tokens:]
    return replace(one, text=one.text[characters:], token_ids=one.token_ids[tokens:], logprobs=logprobs)


class Answers:
    """One request's growing outputs."""

    def __init__(self, output: RequestOutput, params: SamplingParams, tokenizer: Tokenizer) -> None:
        self.output = output
        self._tokenizer = tokenizer
        options = text_options(params) if params.detokenize else None
        self._readers = [OutputReader(tokenizer, output.prompt_token_ids, options) for _ in output.outputs]

    def add(self, message: wire.Tokens, now_s: float) -> bool:
        """Add new tokens of one output. Returns: True if a stop string has ended it, and the engine must abort it."""
        request, one = self.output, self.output.outputs[message.index]
        if one.finished():
            return False
        request.metrics.first_token_time = request.metrics.first_token_time or now_s
        if message.cached_tokens is not None:
            request.num_cached_tokens = message.cached_tokens
        if message.prompt_logprobs is not None:
            request.prompt_logprobs = [
                None if position is None else candidates(position, self._tokenizer)
                for position in message.prompt_logprobs
            ]
        reader = self._readers[one.index]
        piece = reader.read(one.index, message)
        one.text += piece.text
        one.token_ids += piece.token_ids
        one.finish_reason, one.stop_reason = piece.finish_reason, piece.stop_reason
        if piece.logprobs is not None:
            one.logprobs = (one.logprobs or []) + [candidates(each, self._tokenizer) for each in piece.logprobs]
            one.cumulative_logprob = (one.cumulative_logprob or 0.0) + sum(each[0].logprob for each in piece.logprobs)
        self._end_if_all_have(now_s)
        return reader.is_stopped

    def fail(self, reason: str | None, now_s: float, finish_reason: str = "error") -> None:
        """End all open outputs: the engine has failed the request, or its client has left (finish_reason abort)."""
        for one in self.output.outputs:
            if not one.finished():
                one.finish_reason, one.stop_reason = finish_reason, reason
        self._end_if_all_have(now_s)

    def _end_if_all_have(self, now_s: float) -> None:
        if all(one.finished() for one in self.output.outputs):
            self.output.finished = True
            self.output.metrics.finished_time = now_s


def candidates(position: PositionLogprobs, tokenizer: Tokenizer) -> Candidates:
    """Return the candidates of one position by token id."""
    return {each.token_id: Logprob(each.logprob, each.rank, tokenizer.token_text(each.token_id)) for each in position}


def text_options(params: SamplingParams) -> TextOptions:
    """Return the options of detokenization that a request's sampling parameters contain."""
    stop: Sequence[str] = [params.stop] if isinstance(params.stop, str) else params.stop or ()
    return TextOptions(
        stop=tuple(stop),
        include_stop_str_in_output=params.include_stop_str_in_output,
        min_tokens=params.min_tokens,
        skip_special_tokens=params.skip_special_tokens,
        spaces_between_special_tokens=params.spaces_between_special_tokens,
    )
