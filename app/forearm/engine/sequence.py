"""A request and its outputs, each a sequence with its tokens, the number of computed ones, and its KV blocks."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from concurrent.futures import Future
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal, NamedTuple

from forearm.engine.constraints.grammar import Matcher
from forearm.engine.constraints.output_constraint import Constraint
from forearm.engine.constraints.repetition import Repetition
from forearm.model.pooling.token_heads import TokenHead
from forearm.wire import PoolingPrompt, PositionLogprobs, SamplingParams

# (due, order of arrival, index of the output): the lower goes first, and no two are equal.
Rank = tuple[float, int, int]
# The tokens of a text whose last hidden states a pooling model reads.
PooledRows = Literal["all", "first", "last"]


class Columns(NamedTuple):
    """The sampling columns of a request that are the same at every token.

    floats  float32: temperature, top_p, min_p, presence, frequency, repetition
    ints    int32: top_k, logprobs
    free    no penalty applies, and no token is forbidden or favoured
    """

    floats: bytes
    ints: bytes
    free: bool


@dataclass(frozen=True)
class PoolingTask:
    """The task of a request to embed, score or classify, with one output per text.

    in_turns    the texts alternate with those of other requests: a query does not wait for thousands of documents
    rows        the tokens whose last hidden states are pooled, or returned one by one
    by_token    return an output for each token instead of one for the text
    chunk       tokens whose mean has one output; 0: each has its own
    head        makes the outputs of tokens; None: the model's own
    dimensions  length to truncate vectors to; None: their full length
    activate    normalize vectors, turn scores into probabilities
    """

    texts: list[PoolingPrompt]
    in_turns: bool
    rows: PooledRows
    by_token: bool
    chunk: int
    head: TokenHead | None
    dimensions: int | None
    activate: bool


@dataclass(eq=False)
class Request:
    """One request and the state that its outputs share. Times are time.monotonic() seconds.

    Outputs are made one after another, each when the one before it gets its place: thousands may be asked for. A
    request to generate has `params.n` outputs of one prompt. A pooling request has one output per text, which ends
    with the step that computes the text.

    prompt        int32 token ids that all outputs begin with; empty if the request pools
    system_tokens the first of these that are a chat's system prompt; 0: none, or not known
    columns       of params
    root          start of the hash chain of its blocks: requests share blocks if their roots are equal; blocks of a
                  request without a root are never shared
    rank          (due, order of arrival), from which its outputs' ranks are made
    seed          from which its outputs' seeds are made
    sequences     the outputs made so far, in order of their index
    open_outputs  number of outputs that have not ended, including those not made yet
    compiling     its grammar is being compiled; until then the prompt is computed except for its last token
    matcher       start state of its grammar, once it is compiled
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
    system_tokens: int = 0
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
        """Drop output `index` (None: every output) if it is not made yet. Returns: how many were dropped."""
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
        """Return connection and request id, which are unique among open requests."""
        return self.connection, self.request_id

    def made(self, index: int) -> Sequence | None:
        """Return output `index`; None if it is not made yet."""
        at = bisect_left(self.sequences, index, key=lambda one: one.index)
        found = at < len(self.sequences) and self.sequences[at].index == index
        return self.sequences[at] if found else None

    @property
    def open(self) -> list[Sequence]:
        """Return the outputs that are made and have not ended."""
        return [sequence for sequence in self.sequences if sequence.finish_reason is None]

    @property
    def open_indexes(self) -> list[int]:
        """Return the indexes of the outputs that have not ended, including those not made yet."""
        unmade = range(self._next, self.params.n)
        return [*(one.index for one in self.open), *(index for index in unmade if index not in self._dropped)]


@dataclass(eq=False)
class Sequence:
    """One output of a request.

    tokens      int32: the prompt and the generated tokens; shares the request's prompt until the first of these
    computed    the first `computed` tokens have their keys and values in `blocks`
    blocks      int32: block i holds positions 32 i .. 32 i + 31
    tables      the blocks of each group of layers (KvGroups), these first
    passed      blocks of windowed groups that no later token sees, which are dropped
    state       slot of the states that layers keep of it; None: it is not running, or the model has no states
    kept        position of the last copy of its states in the prefix cache; 0: none
    shared      end of the cached blocks that its tokens began with, though no copy of states was there; 0: none
    passing     number of the block with the copy that its next one replaces while it decodes
    saved       slot of its states before the drafts of the present step; None: it has none, or no states
    verified    end of the tokens that were computed before states were taken back; those after `computed` are again
    digests     of the full blocks of `tokens`, as far as they have been needed
    constraint  of the next tokens by grammar or reasoning budget; None: any token is allowed
    repetition  detects repetition, which ends the output; None: off
    """

    request: Request
    index: int
    rank: Rank
    seed: int
    prompt: array[int]
    tokens: array[int] = field(init=False)
    computed: int = 0
    blocks: array[int] = field(default_factory=lambda: array("i"))
    tables: list[array[int]] = field(init=False)
    passed: int = 0
    state: int | None = None
    kept: int = 0
    shared: int = 0
    passing: int | None = None
    saved: int | None = None
    verified: int = 0
    digests: list[bytes] = field(default_factory=list)
    finish_reason: str | None = None
    last_token_s: float = 0.0  # time of its newest token
    cached_tokens: int = 0  # tokens adopted from the prefix cache when it first ran
    preemptions: int = 0
    constraint: Constraint | None = None
    repetition: Repetition | None = None

    def __post_init__(self) -> None:
        self.tokens = self.prompt
        self.tables = [self.blocks]

    def append(self, token: int) -> None:
        """Append the newest token. The first one copies the prompt, which thousands of waiting outputs may share."""
        if self.tokens is self.prompt:
            self.tokens = self.tokens[:]
        self.tokens.append(token)

    @property
    def pending(self) -> int:
        """Count the tokens to compute: a prompt or its rest, the last sampled token, or all after a preemption."""
        return len(self.tokens) - self.computed

    @property
    def grows(self) -> bool:
        """Return whether it decodes: it has output, and all tokens but the newest are or were computed."""
        computed = self.computed if self.computed > self.verified else self.verified
        return len(self.tokens) - computed == 1 and len(self.tokens) > len(self.prompt)

    @property
    def computable(self) -> int:
        """Count the pending tokens that can be computed now: not the last one while the grammar is being compiled."""
        return self.pending - (self.request.compiling is not None)

    @property
    def output_length(self) -> int:
        return len(self.tokens) - len(self.prompt)

    @property
    def to_score(self) -> int:
        """Count the prompt positions whose log-probabilities the first output must still compute."""
        if self.request.params.prompt_logprobs is None or self.index > 0:
            return 0
        return len(self.prompt) - len(self.request.prompt_logprobs)

    @property
    def ready(self) -> bool:
        """Return whether it can be computed now. Later outputs wait until the first one has computed the shared prompt,
        so that they adopt its blocks instead of computing them again.
        """
        if self.index == 0 or self.request.pooling is not None:
            return True
        first = self.request.sequences[0]
        return first.finish_reason is not None or first.computed >= len(self.prompt) or first.output_length > 0


class Slice(NamedTuple):
    """Pending tokens of a sequence to compute in one step: positions start .. end - 1, and drafts after them.

    samples  no token stays pending, so the next one is sampled from the last token's logits
    scores   positions whose logits give the wanted log-probability of the prompt token after them; for a pooling
             request, positions whose last hidden states are pooled
    drafts   tokens that may come next, computed at positions end .. end + len(drafts) - 1: if a draft equals the
             sampled token, its logits give the one after it. Only if the slice samples
    certain  the drafts are forced by the grammar
    again    tokens that were computed before, until wrong drafts took the states back
    """

    sequence: Sequence
    start: int
    end: int
    samples: bool
    scores: range
    drafts: tuple[int, ...] = ()
    certain: bool = False
    again: int = 0

    @property
    def computes(self) -> int:
        """Count the tokens, including drafts."""
        return self.end - self.start + len(self.drafts)

    @property
    def rows(self) -> int:
        """Count the rows of logits."""
        return len(self.scores) + (1 + len(self.drafts) if self.samples else 0)

    @classmethod
    def next(cls, sequence: Sequence, count: int) -> Slice:
        """Return the slice of the next `count` pending tokens."""
        start, end = sequence.computed, sequence.computed + count
        if (task := sequence.request.pooling) is not None:
            rows = {"all": range(end), "first": range(1), "last": range(end - 1, end)}[task.rows]
            return cls(sequence, start, end, samples=False, scores=rows)
        scores = range(0)
        if sequence.to_score:
            request = sequence.request
            scores = range(max(start, len(request.prompt_logprobs) - 1), min(end, len(sequence.prompt) - 1))
        again = min(sequence.verified, end) - start if sequence.verified > start else 0
        return cls(sequence, start, end, count == sequence.pending, scores, again=again)


def output_seed(seed: int, index: int) -> int:
    """Return 64 bits that, with the position, determine every random choice of output `index` of a request.

    The first output has the seed itself, so that n does not change it.
    """
    if index == 0:
        return seed & 0xFFFFFFFFFFFFFFFF
    mixed = blake2b(f"{seed} {index}".encode(), digest_size=8).digest()
    return int.from_bytes(mixed, "little")
