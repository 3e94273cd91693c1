"""From an Embed to a PoolingRequest, or why not; and the texts of a step as flat arrays."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from forearm import wire
from forearm.engine.batch import Batch, Int32Array, csr
from forearm.engine.blocks import BLOCK_TOKENS
from forearm.engine.scheduler import due_s
from forearm.errors import InvalidRequest
from forearm.model.pooling.pooling import PoolingPlan

MAX_PROMPTS = 4096  # of one message: OpenAI's limit of 2048 inputs, and pairs


@dataclass(frozen=True)
class PoolingTerms:
    """What requests are measured against.

    columns: values of a vector. token_types: how many the model tells apart. queued: requests that may wait.
    """

    plan: PoolingPlan
    vocab_size: int
    max_model_len: int
    columns: int
    token_types: int
    queued: int
    priorities: bool


@dataclass(eq=False)
class PoolingRequest:
    """One Embed on its way. `next` is the first text that is still to be computed. Times are time.monotonic() s."""

    connection: int
    embed: wire.Embed
    rank: tuple[float, int]
    arrived_s: float
    next: int = 0
    scheduled_s: float | None = None

    @property
    def name(self) -> tuple[int, str]:
        """Unique among the open requests."""
        return self.connection, self.embed.request_id

    @property
    def tokens(self) -> int:
        """Of all its texts."""
        return sum(len(prompt.token_ids) for prompt in self.embed.prompts)


@dataclass(frozen=True)
class Text:
    """One text of a step."""

    request: PoolingRequest
    index: int

    @property
    def prompt(self) -> wire.PoolingPrompt:
        """Its tokens."""
        return self.request.embed.prompts[self.index]


@dataclass
class PoolingAdmission:
    """Makes requests, numbered in order of arrival."""

    terms: PoolingTerms
    arrivals: int = field(default=0)

    def request(self, connection: int, embed: wire.Embed, now_s: float) -> PoolingRequest:
        """Raises: InvalidRequest naming the field, the numbers and the limit."""
        terms = self.terms
        if embed.priority and not terms.priorities:
            raise InvalidRequest(f"priority is {embed.priority}; it needs --scheduling-policy priority", "priority")
        if not 0 < len(embed.prompts) <= MAX_PROMPTS:
            raise InvalidRequest(f"{len(embed.prompts)} texts; a request has 1 to {MAX_PROMPTS}", "input")
        kinds = ("embed", "token_embed") if terms.plan.kind == "embed" else ("classify",)
        if embed.task not in kinds:
            raise InvalidRequest(f"task is {embed.task}; this model does {' and '.join(kinds)}", "task")
        if embed.dimensions is not None and not 0 < embed.dimensions <= terms.columns:
            raise InvalidRequest(
                f"dimensions is {embed.dimensions}; this model's vectors have {terms.columns} values", "dimensions"
            )
        for prompt in embed.prompts:
            self._check(prompt)
        self.arrivals += 1
        return PoolingRequest(connection, embed, (due_s(now_s, embed.priority), self.arrivals), now_s)

    def _check(self, prompt: wire.PoolingPrompt) -> None:
        ids, terms = prompt.token_ids, self.terms
        if not ids:
            raise InvalidRequest("a text has no tokens; write at least one", "input")
        if len(ids) > terms.max_model_len:
            raise InvalidRequest(
                f"This model's maximum context length is {terms.max_model_len} tokens. However, a text has {len(ids)} "
                "tokens. Shorten it, or ask for truncate_prompt_tokens",
                "input",
            )
        for token in (min(ids), max(ids)):
            if not 0 <= token < terms.vocab_size:
                raise InvalidRequest(
                    f"a text has token id {token}; the vocabulary has {terms.vocab_size} tokens", "input"
                )
        if not 0 <= prompt.second < len(ids):
            raise InvalidRequest(f"second is {prompt.second}; it does not begin a second text here", "input")


@dataclass(frozen=True)
class Pooled:
    """A step: what the executor computes, which rows belong to which text, and token types where there are some."""

    batch: Batch
    row_starts: Int32Array
    types: Int32Array | None


def pack_texts(texts: list[Text], plan: PoolingPlan, token_types: int) -> Pooled:
    """Whole texts, each in blocks of its own. Rows: of all tokens where they are averaged or wanted, else one each."""
    starts, tokens = csr([array("i", text.prompt.token_ids) for text in texts])
    lengths = np.diff(starts)
    needed = -(-lengths // BLOCK_TOKENS)
    block_starts = np.concatenate(([0], np.cumsum(needed))).astype(np.int32)
    rows = [
        _rows(text, plan, int(first), int(end)) for text, first, end in zip(texts, starts[:-1], starts[1:], strict=True)
    ]
    row_starts, logit_rows = csr([array("i", one) for one in rows])
    batch = Batch(
        tokens=tokens,
        positions=np.arange(len(tokens), dtype=np.int32) - np.repeat(starts[:-1], lengths),
        starts=starts,
        block_starts=block_starts,
        blocks=np.arange(block_starts[-1], dtype=np.int32),
        logit_rows=logit_rows,
    )
    return Pooled(batch, row_starts, _types(texts, starts) if token_types > 1 else None)


def _rows(text: Text, plan: PoolingPlan, first: int, end: int) -> range:
    if plan.pool == "mean" or text.request.embed.task == "token_embed":
        return range(first, end)
    return range(first, first + 1) if plan.pool == "cls" else range(end - 1, end)


def _types(texts: list[Text], starts: Int32Array) -> npt.NDArray[np.int32] | None:
    """0 for a first text's tokens, 1 for a second's; None where no text has a second."""
    if not any(text.prompt.second for text in texts):
        return None
    types = np.zeros(starts[-1], np.int32)
    for text, first, end in zip(texts, starts[:-1], starts[1:], strict=True):
        if text.prompt.second:
            types[first + text.prompt.second : end] = 1
    return types
