"""One request of a load: its body, as vLLM's bench sends it, and the times of its stream (see statistics.py)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from forearm.bench.datasets import Sample
from forearm.bench.http import Broken, Http, reason
from forearm.bench.statistics import RequestOutcome

ENDPOINTS = {
    "vllm": "/v1/completions",
    "openai": "/v1/completions",
    "openai-chat": "/v1/chat/completions",
    "openai-embeddings": "/v1/embeddings",
    "vllm-pooling": "/pooling",
}  # by --backend
POOLING = ("openai-embeddings", "vllm-pooling")  # backends that generate no tokens
NO_TOKENS = "the stream had no event with a choice"


@dataclass(frozen=True)
class RequestForm:
    """The common part of a run's requests. `extra`: further fields of the body, such as sampling parameters."""

    endpoint: str
    backend: str
    logprobs: int | None = None
    ignore_eos: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def pooling(self) -> bool:
        """Return whether answers are vectors or scores, and not streams of tokens."""
        return self.backend in POOLING

    def body(self, sample: Sample, model: str) -> bytes:
        """Return the encoded request."""
        if self.pooling:
            prompts = [sample.prompt, *sample.others] if sample.others else sample.prompt
            fields: dict[str, Any] = {"input": prompts, "truncate_prompt_tokens": -1}  # cut, not refused
        else:
            fields = self._generation(sample)
        return msgspec.json.encode({"model": model, **fields, **self.extra})

    def _generation(self, sample: Sample) -> dict[str, Any]:
        chat = self.backend == "openai-chat"
        if chat:
            content = [{"type": "text", "text": sample.prompt}]
            fields: dict[str, Any] = {"messages": [{"role": "user", "content": content}]}
            fields["max_completion_tokens"] = sample.output_tokens
        else:
            fields = {"prompt": sample.prompt, "repetition_penalty": 1.0, "max_tokens": sample.output_tokens}
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
        if self.logprobs is not None:
            fields |= {"logprobs": True, "top_logprobs": self.logprobs} if chat else {"logprobs": self.logprobs}
        if self.ignore_eos:
            fields["ignore_eos"] = True
        return fields


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_decode: Callable[[bytes], _Event] = msgspec.json.Decoder(_Event).decode


class Listener:
    """Reads one stream of server-sent events and writes times, text and counts into a RequestOutcome."""

    def __init__(self, outcome: RequestOutcome) -> None:
        self._outcome = outcome
        self._unread = b""
        self._texts: list[str] = []
        self._last_s = 0.0

    def take(self, part: bytes, received_s: float) -> None:
        """Take some bytes of the body. Events end with an empty line; comments (keep-alive) are skipped."""
        *lines, self._unread = (self._unread + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                event = line[5:].strip()
                if event != b"[DONE]":
                    self._read(event, received_s)

    def end(self) -> None:
        """Complete the outcome at the end of the stream."""
        outcome = self._outcome
        outcome.text = "".join(self._texts)
        outcome.latency_s = self._last_s - outcome.start_s if self._last_s else 0.0
        if not self._last_s and not outcome.error:
            outcome.error = NO_TOKENS

    def _read(self, encoded: bytes, received_s: float) -> None:
        outcome = self._outcome
        try:
            event = _decode(encoded)
        except msgspec.DecodeError as error:
            outcome.error = f"the stream has an event that can't be read: {error}"
            return
        if event.error:
            outcome.error = f"the stream ended with an error: {event.error}"
        if event.choices:
            if self._last_s:
                outcome.itl_s.append(received_s - self._last_s)
            else:
                outcome.ttft_s = received_s - outcome.start_s
            self._last_s = received_s
            choice = event.choices[0]
            self._texts.append((choice.delta.content if choice.delta is not None else choice.text) or "")
        if event.usage is not None:  # llama.cpp's completions have it in the last event with a choice
            outcome.output_tokens = event.usage.completion_tokens or 0
            if event.usage.prompt_tokens is not None:
                outcome.prompt_tokens = event.usage.prompt_tokens


class Whole:
    """Reads an answer that is no stream: the request ends with its last byte."""

    def __init__(self, outcome: RequestOutcome) -> None:
        self._outcome = outcome
        self._parts: list[bytes] = []

    def take(self, part: bytes, received_s: float) -> None:
        """Take some bytes of the body."""
        self._parts.append(part)
        self._outcome.ttft_s = self._outcome.latency_s = received_s - self._outcome.start_s

    def end(self) -> None:
        """Complete the outcome: the prompt's tokens are those of its usage."""
        if self._outcome.error:
            return
        try:
            usage = _decode(b"".join(self._parts)).usage
        except msgspec.DecodeError as error:
            self._outcome.error = f"the answer can't be read: {error}"
            return
        if usage is not None and usage.prompt_tokens is not None:
            self._outcome.prompt_tokens = usage.prompt_tokens


async def ask(http: Http, form: RequestForm, sample: Sample, model: str, count: Callable[[str], int]) -> RequestOutcome:
    """Send one request and read its answer to the end. A failure is in the outcome, not raised.

    count: counts a text's tokens, for servers that send no usage.
    """
    body = form.body(sample, model)
    outcome = RequestOutcome(sample.prompt_tokens, sequences=sample.sequences)
    listener = Whole(outcome) if form.pooling else Listener(outcome)
    outcome.start_s = time.perf_counter()
    try:
        reply = await http.post(form.endpoint, body, {"X-Request-Id": sample.request_id}, listener.take)
        if reply.status != 200:
            outcome.error = reason(reply)
    except (OSError, Broken, asyncio.TimeoutError) as error:
        outcome.error = str(error) or type(error).__name__
    listener.end()
    if not (outcome.error or outcome.output_tokens or form.pooling):
        outcome.output_tokens = count(outcome.text)
    return outcome
