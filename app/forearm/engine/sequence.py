"""One request and its outputs, each a sequence: its tokens, how many are computed, the blocks they live in."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from concurrent.futures import Future
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal, NamedTuple

from forearm.engine.constraints.grammar import Matcher
from forearm.engine.constraints.output_constraint import AllowedTokens, Constraint
from forearm.engine.constraints.repetition import Repetition
from forearm.wire import PoolingPrompt, PositionLogprobs, SamplingParams

# (due, order of arrival, index of the output): the lower goes first, and no two are equal.
Rank = tuple[float, int, int]
# Which of a text's tokens a pooling model reads the last hidden states of.
PooledRows = Literal["all", "first", "last"]


class Columns(NamedTuple):
    """The sampling columns of a request that are the same at every token.

    floats  float32: temperature, top_p, min_p, presence, frequency, repetition
    ints    int32: top_k, logprobs
    free    nothing else counts: no penalty, and no token is forbidden or favoured
    """

    floats: bytes
    ints: bytes
    free: bool


@dataclass(frozen=True)
class PoolingTask:
    """The task of a request to embed, score or classify, with one output per text.

    in_turns    the texts take turns with those of other requests: a query does not wait for thousands of documents
    rows        the tokens whose last hidden states are pooled, or returned one by one
    by_token    return a vector for each token instead of one for the text
    dimensions  cut vectors to so many values; None: leave them whole
    activate    normalize vectors, turn scores into probabilities
    """

    texts: list[PoolingPrompt]
    in_turns: bool
    rows: PooledRows
    by_token: bool
    dimensions: int | None
    activate: bool


@dataclass(eq=False)
class Request:
    """One request and what its outputs share. Times are time.monotonic() seconds.

    Outputs are made one after another, each when the one before it gets its place: thousands may be asked for. A
    request to generate has `params.n` outputs of one prompt. A request to pool has one output per text, which ends
    with the step that computes the text.

    prompt        int32 token ids that all outputs begin with; empty if the request pools
    columns       of params
    root          what the hash chain of its blocks starts from: requests share blocks where roots are equal, and
                  blocks of a request without a root are never shared
    rank          (due, order of arrival), of which its outputs' ranks are made
    seed          of which its outputs' seeds are made
    sequences     the outputs made so far, in order of their index
    open_outputs  how many outputs have not ended, made or not
    compiling     its grammar; until it is there the prompt is computed but for its last token
    matcher       where its grammar begins, once it is compiled
    """

    connection: int
    request_id: str
    arrived_s: float
    rank: tuple[float, int]
    params: SamplingParams
    priority: int = 0
    client: str = ""
    pooling: PoolingTask | None = None
    prompt: array[int] = field(default_factory=lambda: array("i"))
    columns: Columns = field(default_factory=lambda: Columns(b"", b"", free=True))
    max_tokens: int = 0
    stop_ids: frozenset[int] = frozenset()
    eos_ids: frozenset[int] = frozenset()
    root: bytes = b""
    seed: int = 0
    sequences: list[Sequence] = field(default_factory=list)
    scheduled_s: float | None = None
    first_token_s: float | None = None
    # Position i holds the log-probabilities of prompt token i; the first token has none. Filled in order.
    prompt_logprobs: list[PositionLogprobs | None] = field(default_factory=lambda: [None])
    compiling: Future[Matcher] | None = None
    matcher: Matcher | None = None
    _next: int = 0
    _dropped: set[int] = field(default_factory=set)  # indexes of outputs that ended before they were made

    def __post_init__(self) -> None:
        self.open_outputs = self.params.n

    def make_output(self) -> bool:
        """Append the next output to `sequences`; False if all are made."""
        while self._next in self._dropped:
            self._next += 1
        index = self._next
        if index == self.params.n:
            return False
        self._next += 1
        (due, arrival), prompt = self.rank, self.prompt
        if self.pooling is not None:
            prompt = array("i", self.pooling.texts[index].token_ids)
            due += index if self.pooling.in_turns else 0
        sequence = Sequence(self, index, (due, arrival, index), output_seed(self.seed, index), prompt)
        params = self.params
        if self.matcher is not None or (params.grammar is None and params.thinking_token_budget is not None):
            sequence.constraint = Constraint(params, self.matcher)
        if params.repetition_detection is not None:
            sequence.repetition = Repetition(params.repetition_detection)
        self.sequences.append(sequence)
        return True

    def drop_unmade(self, index: int | None = None) -> int:
        """Mark output `index`, or None: each, as never to be made, unless it was made. Returns: how many."""
        unmade = range(self._next, self.params.n)
        if index is None:
            self._next = self.params.n
            return len(unmade) - sum(one in unmade for one in self._dropped)
        if index not in unmade or index in self._dropped:
            return 0
        self._dropped.add(index)
        return 1

    @property
    def name(self) -> tuple[int, str]:
        """Unique among the open requests."""
        return self.connection, self.request_id

    def made(self, index: int) -> Sequence | None:
        """Return output `index`, if it is made."""
        at = bisect_left(self.sequences, index, key=lambda one: one.index)
        found = at < len(self.sequences) and self.sequences[at].index == index
        return self.sequences[at] if found else None

    @property
    def open(self) -> list[Sequence]:
        """The outputs that are made and have not ended."""
        return [sequence for sequence in self.sequences if sequence.finish_reason is None]

    @property
    def open_indexes(self) -> list[int]:
        """Return the indexes of the outputs that have not ended, made or not."""
        unmade = range(self._next, self.params.n)
        return [*(one.index for one in self.open), *(index for index in unmade if index not in self._dropped)]


@dataclass(eq=False)
class Sequence:
    """One output of a request.

    tokens      int32: the prompt and what was generated; the request's own prompt until something was
    computed    the first `computed` tokens have their keys and values in `blocks`
    blocks      int32: block i holds positions 32 i .. 32 i + 31
    digests     of the full blocks of `tokens`, as far as they have been needed
    constraint  what it may go on with; None: anything
    repetition  what would end it for going round in circles; None: nothing
    """

    request: Request
    index: int
    rank: Rank
    seed: int
    prompt: array[int]
    tokens: array[int] = field(init=False)
    computed: int = 0
    blocks: array[int] = field(default_factory=lambda: array("i"))
    digests: list[bytes] = field(default_factory=list)
    finish_reason: str | None = None
    last_token_s: float = 0.0  # when its newest token came
    cached_tokens: int = 0  # adopted instead of computed when it first ran
    preemptions: int = 0
    constraint: Constraint | None = None
    repetition: Repetition | None = None

    def __post_init__(self) -> None:
        self.tokens = self.prompt

    def append(self, token: int) -> None:
        """Append the newest token. Until the first one the prompt is shared: thousands of outputs may wait with it."""
        if self.tokens is self.prompt:
            self.tokens = self.tokens[:]
        self.tokens.append(token)

    @property
    def pending(self) -> int:
        """Count the tokens to compute: a prompt or the rest of one, the last sampled token, all after a preemption."""
        return len(self.tokens) - self.computed

    @property
    def grows(self) -> bool:
        """Return whether it decodes: all but the newest token of its output is computed."""
        return len(self.tokens) - self.computed == 1 and len(self.tokens) > len(self.prompt)

    @property
    def computable(self) -> int:
        """Count the pending tokens that can be computed now: all but the last while the grammar is being compiled."""
        return self.pending - (self.request.compiling is not None)

    @property
    def output_length(self) -> int:
        return len(self.tokens) - len(self.prompt)

    @property
    def to_score(self) -> int:
        """Count the prompt positions whose log-probabilities are still to be found, by the first output."""
        if self.request.params.prompt_logprobs is None or self.index > 0:
            return 0
        return len(self.prompt) - len(self.request.prompt_logprobs)

    @property
    def ready(self) -> bool:
        """Return whether it can be computed now. Outputs after the first wait until that has computed the prompt they
        share, so that they adopt its blocks instead of computing them again.
        """
        if self.index == 0 or self.request.pooling is not None:
            return True
        first = self.request.sequences[0]
        return first.finish_reason is not None or first.computed >= len(self.prompt) or first.output_length > 0


class Slice(NamedTuple):
    """Pending tokens of a sequence to compute in one step: positions start .. end - 1, and drafts after them.

    samples  nothing stays pending, so the last token's logits choose the next one
    scores   positions whose logits tell the log-probability, still wanted, of the prompt token after them; where the
             request pools, positions whose last hidden states are pooled
    drafts   tokens that may come next, computed along at positions end .. end + len(drafts) - 1: where each is what is
             chosen, its logits choose the one after it. Only where it samples
    certain  the drafts are what must come
    """

    sequence: Sequence
    start: int
    end: int
    samples: bool
    scores: range
    drafts: tuple[int, ...] = ()
    certain: bool = False

    @property
    def computes(self) -> int:
        """Count the tokens, drafts included."""
        return self.end - self.start + len(self.drafts)

    @property
    def rows(self) -> int:
        """Count the rows of logits."""
        return len(self.scores) + (1 + len(self.drafts) if self.samples else 0)

    @classmethod
    def next(cls, sequence: Sequence, count: int) -> Slice:
        """The next `count` pending tokens."""
        start, end = sequence.computed, sequence.computed + count
        if (task := sequence.request.pooling) is not None:
            rows = {"all": range(end), "first": range(1), "last": range(end - 1, end)}[task.rows]
            return cls(sequence, start, end, samples=False, scores=rows)
        scores = range(0)
        if sequence.to_score:
            request = sequence.request
            scores = range(max(start, len(request.prompt_logprobs) - 1), min(end, len(sequence.prompt) - 1))
        return cls(sequence, start, end, count == sequence.pending, scores)


def prefills(slices: list[Slice]) -> int:
    """Count the prompt tokens of the slices."""
    prompts = [piece for piece in slices if piece.start < len(piece.sequence.prompt)]
    return sum(min(piece.end, len(piece.sequence.prompt)) - piece.start for piece in prompts)


class SampleRow(NamedTuple):
    """One place at which a token is chosen: after all tokens of the sequence and these drafts.

    row     of the step's logits
    choice  what may be chosen
    """

    row: int
    sequence: Sequence
    drafts: tuple[int, ...] = ()
    choice: AllowedTokens = None

    @property
    def position(self) -> int:
        """Return the position of the token that is chosen."""
        return len(self.sequence.tokens) + len(self.drafts)

    @property
    def output_length(self) -> int:
        """Count the tokens of the output before the one that is chosen."""
        return self.sequence.output_length + len(self.drafts)

    def last(self, count: int) -> tuple[int, ...]:
        """Return the `count` tokens before the one that is chosen."""
        ours = max(0, count - len(self.drafts))
        tokens = self.sequence.tokens
        return (*tokens[len(tokens) - ours :], *self.drafts[len(self.drafts) + ours - count :])


def output_seed(seed: int, index: int) -> int:
    """64 bits that, with the position, decide every random choice of output `index` of a request with this seed.

    The first output has the seed itself, so that n does not change it.
    """
    if index == 0:
        return seed & 0xFFFFFFFFFFFFFFFF
    mixed = blake2b(f"{seed} {index}".encode(), digest_size=8).digest()
    return int.from_bytes(mixed, "little")
