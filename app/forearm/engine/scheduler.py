"""The scheduler: chooses the sequences of the next step, and how many tokens of each.

Requests are ordered by rank: (due, order of arrival). With the policy fcfs a request is due when it arrives. With the
policy priority it is due PRIORITY_HEAD_START_S later for each level of priority (earlier for negative levels), so that
a waiting request is served before newcomers of better priority once it has waited that long: none starves.

Among clients that wait with equal priority, the one with the fewest computed tokens is admitted first (waiting.py).
"""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from operator import attrgetter

from forearm.engine.cache.blocks import BlockPool
from forearm.engine.cache.kv_groups import BLOCK_TOKENS, ONE_GROUP, KvGroups
from forearm.engine.metrics.step_times import StepTimes
from forearm.engine.sequence import Request, Sequence, Slice
from forearm.engine.waiting import WaitingQueue, place
from forearm.errors import ConfigError

PRIORITY_HEAD_START_S = 10.0
# Priorities are clamped to 100 levels (1000 s) in both directions.
PRIORITY_LEVELS = 100


@dataclass(frozen=True)
class StepLimits:
    """The most tokens, sequences and rows of logits of a step; a row is a sampled output or a scored prompt position.

    slice_tokens    most tokens of one sequence in one step (--long-prefill-token-threshold); 0: the whole budget
    whole_prompts   admit a sequence only when a step has room for all its tokens (--no-enable-chunked-prefill)
    target_itl_s    time limit of a step with prompt tokens while outputs decode; 0: no limit
    groups          the layers that have KV blocks of their own
    """

    step_tokens: int
    running: int
    step_rows: int
    slice_tokens: int = 0
    whole_prompts: bool = False
    target_itl_s: float = 0.0
    groups: KvGroups = ONE_GROUP

    def __post_init__(self) -> None:
        assert 1 <= self.running <= self.step_rows, "each running sequence needs a row of a step"
        if self.step_tokens < self.running:
            raise ConfigError(
                f"--max-num-batched-tokens {self.step_tokens} is less than --max-num-seqs {self.running}: each running "
                "sequence needs a token of every step; raise the first or lower the second"
            )


class Scheduler:
    """Owns the sequences: `running` ones, in order of rank, hold blocks; those in `queue` hold none.

    open_outputs: number of outputs that have not ended, including those that are not made yet.
    """

    def __init__(self, limits: StepLimits, blocks: BlockPool, times: StepTimes | None = None) -> None:
        self.limits = limits
        self.blocks = blocks
        self.times = times or StepTimes()
        self.running: list[Sequence] = []
        self.queue = WaitingQueue()
        self.open_outputs = 0
        self.preemptions = 0

    @property
    def waiting(self) -> int:
        """Count the waiting outputs, including those that are not made yet."""
        return self.open_outputs - len(self.running)

    @property
    def turn(self) -> float:
        """Return the present turn of pooling texts, at which those of a new request begin."""
        return self.queue.ranked[0].rank[0] if self.queue.ranked else 0.0

    def add(self, request: Request) -> None:
        """Put the request's outputs in the queue."""
        self.open_outputs += request.open_outputs
        self.queue.enter(request)
        self.queue.put(request.sequences[-1])

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that has ended, and free its place and its blocks."""
        at = place(self.running, sequence)
        if at < len(self.running) and self.running[at] is sequence:
            del self.running[at]
        else:
            self._leave_queue(sequence)
        self.blocks.release(sequence)
        self._ended(sequence.request, 1)

    def drop(self, request: Request, index: int | None = None) -> None:
        """End output `index` (None: every output) if it is not made yet."""
        self._ended(request, request.drop_unmade(index))

    def _ended(self, request: Request, outputs: int) -> None:
        self.open_outputs -= outputs
        request.open_outputs -= outputs
        if outputs and not request.open_outputs:
            self.queue.served.leave(request.client)

    def _leave_queue(self, sequence: Sequence) -> None:
        """Take a sequence out of the queue; after the newest output of its request, make and enqueue the next one."""
        self.queue.remove(sequence)
        request = sequence.request
        if sequence is request.sequences[-1] and request.make_output():
            self.queue.put(request.sequences[-1])

    def schedule(self) -> list[Slice]:
        """Choose the next step: running sequences first, then waiting ones, each in order of rank.

        Every decoding output gets its token, so that a long prompt never delays it; the rest of the budget goes to
        prompts in order of rank, the last one cut where the budget ends. While outputs decode, prompts get what this
        machine computes within `limits.target_itl_s` (StepTimes), so that the step does not delay them either.

        Returns: the slices to compute, with their blocks allocated; at most `limits.step_tokens` tokens and
        `limits.step_rows` rows; empty when there is nothing to do.
        """
        self._preempt_for_fairness()
        step = _Step(self.limits, self.times, self._room_s())
        preemptions = self.preemptions
        index = 0
        while index < len(self.running):
            sequence = self.running[index]
            if sequence.pending > BLOCK_TOKENS:  # more than a whole block, since the last token is always computed
                self.blocks.adopt(sequence)
            count = self.blocks.cut(sequence, step.share(sequence, others=len(self.running) - index - 1))
            if count == 0:  # its grammar is being compiled, or other prompts come first
                index += 1
            elif self._make_room(sequence, count):
                step.add(sequence, count, self.blocks.coming_digests(sequence, count))
                index += 1
        for client, tokens in step.served.items():
            self.queue.served.add(client, tokens)

        if self.preemptions == preemptions:  # else blocks are short, and a new sequence would be preempted again
            self._admit(step)
        return step.slices

    def _room_s(self) -> float:
        """Return how many seconds the prompts of the next step may take; infinity: no bound, or there are none."""
        limits = self.limits
        growing = sum(sequence.grows for sequence in self.running) if limits.target_itl_s else 0
        if not growing or limits.whole_prompts or (growing == len(self.running) and not self.queue.ranked):
            return math.inf
        return self.times.room_s(growing, limits.target_itl_s)

    def _admit(self, step: _Step) -> None:
        """Admit waiting sequences in their turns; if one is ready but does not fit, those behind it wait too."""
        passed: list[Sequence] = []
        fits = True
        while fits and self.queue.ranked and step.has_room and len(self.running) < self.limits.running:
            sequence = self.queue.first()
            adopted = self.blocks.adopt(sequence) if sequence.ready else 0
            # A sequence whose next block another one computes in this step adopts it in the next step instead: a common
            # prefix of prompts that arrive together is computed once.
            computed_now = sequence.ready and self.blocks.comes_soon(sequence, step.coming)
            if not sequence.ready or computed_now or not sequence.computable:
                self.blocks.release(sequence)
                self.queue.remove(sequence)
                passed.append(sequence)
                continue
            fits_step = sequence.pending <= step.tokens or not self.limits.whole_prompts
            # Require room for all pending tokens, not only for this step's share: a prompt that is preempted half-way
            # has taken time from the others for nothing.
            fits = fits_step and self.blocks.fits(sequence, sequence.pending)
            if not fits:
                self.blocks.release(sequence)
                continue
            if not sequence.preemptions:
                sequence.cached_tokens = adopted
            self._leave_queue(sequence)
            insort(self.running, sequence, key=attrgetter("rank"))
            count = self.blocks.cut(sequence, step.share(sequence, others=0))
            self.blocks.grow(sequence, count)
            step.add(sequence, count, self.blocks.coming_digests(sequence, count))
            self.queue.served.add(sequence.request.client, count)
        for sequence in passed:
            self.queue.put(sequence)

    def _preempt_for_fairness(self) -> None:
        """Preempt one sequence of the client with the most places, if all are taken and the next in turn is a client
        that has none: otherwise one client's thousand long answers would make all others wait until they end. A
        preempted sequence finds its full blocks again in the prefix cache.
        """
        if len(self.running) < self.limits.running or not self.queue.ranked:
            return
        first = self.queue.first()
        places = Counter(sequence.request.client for sequence in self.running)
        client, most = places.most_common(1)[0]
        if first.request.client in places or most == 1 or not (first.ready and first.computable):
            return
        if self.blocks.fits(first, first.pending):
            self._preempt(max(at for at, one in enumerate(self.running) if one.request.client == client))

    def _preempt(self, at: int) -> Sequence:
        """Preempt running sequence number `at`: free its place and its blocks, and put it back into the queue."""
        sequence = self.running.pop(at)
        self.blocks.release(sequence)
        self.queue.put(sequence)
        sequence.preemptions += 1
        self.preemptions += 1
        return sequence

    def _make_room(self, sequence: Sequence, count: int) -> bool:
        """Allocate blocks for `count` more tokens, preempting the last in rank while there are too few.

        Returns: False if that was `sequence` itself. The first in rank always finds room, because the pool holds at
        least one sequence of full length, so that every sequence finishes in the end.
        """
        while not self.blocks.grow(sequence, count):
            if self._preempt(-1) is sequence:
                return False
        return True


@dataclass
class _Step:
    """A step under construction: the remaining limits, the slices so far, the digests of the blocks they complete."""

    limits: StepLimits
    times: StepTimes
    room_s: float  # for further prompts; infinity: no bound
    slices: list[Slice] = field(default_factory=list)
    coming: set[bytes] = field(default_factory=set)
    served: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))  # tokens by client

    def __post_init__(self) -> None:
        self.tokens = self.limits.step_tokens
        self.rows = self.limits.step_rows

    @property
    def has_room(self) -> bool:
        return self.tokens > 0 and self.rows > 0 and self.room_s > 0

    def share(self, sequence: Sequence, others: int) -> int:
        """Return the tokens of `sequence` for this step, leaving a token and a row for each of `others`: at least 1 if
        it decodes, but 0 while its grammar is being compiled.
        """
        room = min(self.tokens, self.rows) if sequence.to_score else self.tokens
        most = min(sequence.computable, room - others, self.limits.slice_tokens or room)
        if self.room_s == math.inf or sequence.grows:
            return most
        if self.room_s <= 0:
            return 0
        tokens = self.limits.step_tokens - self.tokens + others
        return min(most, self.times.prompt_tokens(self.room_s, tokens, sequence.computed))

    def add(self, sequence: Sequence, count: int, coming: list[bytes]) -> None:
        self.coming.update(coming)
        self.slices.append(Slice.next(sequence, count))
        self.tokens -= count
        self.served[sequence.request.client] += count
        if count > 1 and not sequence.grows and self.room_s < math.inf:
            self.room_s = self.times.left_s(self.room_s, count, sequence.computed)
        self.rows -= count if sequence.to_score else 1


def due_s(arrived_s: float, priority: int) -> float:
    """Return the time at which a request is due: with priority 0, its arrival."""
    return arrived_s + PRIORITY_HEAD_START_S * level(priority)


def level(priority: int) -> int:
    """Return the priority, clamped to its bounds."""
    return min(max(priority, -PRIORITY_LEVELS), PRIORITY_LEVELS)
