"""The scheduler: chooses the sequences of the next step, and how many tokens of each.

Everything goes by rank: (due, order of arrival). With the policy fcfs a request is due when it arrives. With the policy
priority it is due PRIORITY_HEAD_START_S later for each level of priority (earlier for negative ones): a level is worth
that much waiting, so waiting requests overtake newcomers of better priority in the end: none starves.

Of several clients that wait with equal priority, the one that got least is let in first (waiting.py).
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from forearm.engine.blocks import BLOCK_TOKENS, BlockPool
from forearm.engine.metrics.step_times import StepTimes
from forearm.engine.sequence import Rank, Request, Sequence, Slice
from forearm.engine.waiting import WaitingQueue, place
from forearm.errors import ConfigError

PRIORITY_HEAD_START_S = 10.0
# No request is put before or behind others by more than 100 levels (1000 s), whatever number its client sends.
PRIORITY_LEVELS = 100


@dataclass(frozen=True)
class StepLimits:
    """Most tokens, sequences and rows of logits of one step; a row is a sampled output or a scored prompt position.

    slice_tokens    most tokens of one sequence in one step (--long-prefill-token-threshold); 0: the whole budget
    whole_prompts   who waits is let in only when a step has room for all its tokens (--no-enable-chunked-prefill)
    target_itl_s    what a step with tokens of prompts may take while outputs grow; 0: as long as it takes
    """

    step_tokens: int
    running: int
    step_rows: int
    slice_tokens: int = 0
    whole_prompts: bool = False
    target_itl_s: float = 0.0

    def __post_init__(self) -> None:
        assert 1 <= self.running <= self.step_rows, "each running sequence needs a row of a step"
        if self.step_tokens < self.running:
            raise ConfigError(
                f"--max-num-batched-tokens {self.step_tokens} is less than --max-num-seqs {self.running}: each running "
                "sequence needs a token of every step; raise the one or lower the other"
            )


class Scheduler:
    """Owns the sequences: `running` ones, in order of rank, hold blocks, those in `queue` none.

    open_outputs: how many outputs have not ended, those included that will be made when their turn comes.
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
        """Count the outputs that wait, made or not."""
        return self.open_outputs - len(self.running)

    @property
    def turn(self) -> float:
        """The turn that texts to pool have reached: where those of a new request begin."""
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
        """Output `index`, or None: each, is over if it was not made yet."""
        self._ended(request, request.drop_unmade(index))

    def _ended(self, request: Request, outputs: int) -> None:
        self.open_outputs -= outputs
        request.open_outputs -= outputs
        if outputs and not request.open_outputs:
            self.queue.leave(request)

    def _leave_queue(self, sequence: Sequence) -> None:
        """Take a sequence out of the queue; after the newest output of its request, the next one is made and waits."""
        self.queue.remove(sequence)
        request = sequence.request
        if sequence is request.sequences[-1] and request.make_output():
            self.queue.put(request.sequences[-1])

    def schedule(self) -> list[Slice]:
        """Choose the next step: running sequences first, then waiting ones, each in order of rank.

        Every output that grows gets its token, so that a long prompt never holds it up; what remains of the budget goes
        to prompts, the first in rank first, each cut where the budget ends. While outputs grow, that budget is what
        this machine computes in `limits.target_itl_s` (StepTimes), so that the step does not hold them up either.

        Returns: the slices to compute, with their blocks allocated; at most `limits.step_tokens` tokens and
        `limits.step_rows` rows; empty when there is nothing to do.
        """
        self._preempt_for_fairness()
        step = _Step(self.limits, self._prompt_tokens())
        preemptions = self.preemptions
        index = 0
        while index < len(self.running):
            sequence = self.running[index]
            if sequence.pending > BLOCK_TOKENS:  # a whole block, and the last token, which is always computed
                self.blocks.adopt(sequence)
            count = step.share(sequence, others=len(self.running) - index - 1)
            if count == 0:  # its grammar is being compiled, or others' prompts come first
                index += 1
            elif self._make_room(sequence, count):
                step.add(sequence, count, self.blocks.coming_digests(sequence, count))
                index += 1
        for client, tokens in step.served.items():
            self.queue.served(client, tokens)

        if self.preemptions == preemptions:  # else blocks are short: a new one would be preempted again
            self._admit(step)
        return step.slices

    def _prompt_tokens(self) -> int:
        """Tokens of prompts that the next step may have."""
        limits = self.limits
        growing = sum(sequence.grows for sequence in self.running) if limits.target_itl_s else 0
        if not growing or limits.whole_prompts:
            return limits.step_tokens
        return self.times.prompt_tokens(growing, limits.target_itl_s)

    def _admit(self, step: _Step) -> None:
        """Admit waiting sequences, each in its turn; none overtakes one that is ready and does not fit."""
        passed: list[Sequence] = []
        fits = True
        while fits and self.queue.ranked and step.has_room and len(self.running) < self.limits.running:
            sequence = self.queue.first()
            adopted = self.blocks.adopt(sequence) if sequence.ready else 0
            if not self._can_begin(sequence, step):
                self.blocks.release(sequence)
                self.queue.remove(sequence)
                passed.append(sequence)
                continue
            fits_step = sequence.pending <= step.tokens or not self.limits.whole_prompts
            # Room for all that is pending, not for this step's share alone: a prompt that is preempted half-way
            # has cost the others its time.
            fits = fits_step and self.blocks.fits(sequence, sequence.pending)
            if not fits:
                self.blocks.release(sequence)
                continue
            if not sequence.preemptions:
                sequence.cached_tokens = adopted
            self._leave_queue(sequence)
            insort(self.running, sequence, key=_rank)
            count = step.share(sequence, others=0)
            self.blocks.grow(sequence, count)
            step.add(sequence, count, self.blocks.coming_digests(sequence, count))
            self.queue.served(sequence.request.client, count)
        for sequence in passed:
            self.queue.put(sequence)

    def _can_begin(self, sequence: Sequence, step: _Step) -> bool:
        """Return whether a waiting sequence has something to compute, now that it has adopted known blocks.

        A sequence that would compute the very block that another computes in this step adopts it in the next one
        instead: of prompts that begin alike and come together, the beginning is computed once.
        """
        if not sequence.ready or self.blocks.next_digest(sequence) in step.coming:
            return False
        return sequence.computable > 0

    def _preempt_for_fairness(self) -> None:
        """Preempt one sequence of the client that has most places, where all are taken and it is the turn of a client
        that has none: one client's thousand long answers would keep all others waiting for their end. A preempted
        sequence finds its full blocks again.
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
        """Preempt running sequence number `at`: free its place and its blocks, and let it wait again."""
        sequence = self.running.pop(at)
        self.blocks.release(sequence)
        self.queue.put(sequence)
        sequence.preemptions += 1
        self.preemptions += 1
        return sequence

    def _make_room(self, sequence: Sequence, count: int) -> bool:
        """Allocate blocks for `count` more tokens; where there are too few, the last in rank is preempted.

        Returns: False if that was `sequence` itself. The first in rank always finds room, because the pool holds at
        least one sequence of full length: somebody finishes, and then the next.
        """
        while not self.blocks.grow(sequence, count):
            if self._preempt(-1) is sequence:
                return False
        return True


@dataclass
class _Step:
    """A step being put together: what of the limits is left, the slices so far, the digests of blocks they complete."""

    limits: StepLimits
    prompt_tokens: int
    slices: list[Slice] = field(default_factory=list)
    coming: set[bytes] = field(default_factory=set)
    served: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))  # tokens by client

    def __post_init__(self) -> None:
        self.tokens = self.limits.step_tokens
        self.rows = self.limits.step_rows

    @property
    def has_room(self) -> bool:
        return self.tokens > 0 and self.rows > 0 and self.prompt_tokens > 0

    def share(self, sequence: Sequence, others: int) -> int:
        """Tokens of `sequence` for this step, such that a token and a row are left for each of `others`; at least 1 if
        its output grows, but 0 while what chooses its next token is not known.
        """
        room = min(self.tokens, self.rows) if sequence.to_score else self.tokens
        most = min(sequence.computable, room - others, self.limits.slice_tokens or room)
        return most if most <= self.prompt_tokens or sequence.grows else self.prompt_tokens

    def add(self, sequence: Sequence, count: int, coming: list[bytes]) -> None:
        self.coming.update(coming)
        self.slices.append(Slice.next(sequence, count))
        self.tokens -= count
        self.served[sequence.request.client] += count
        if count > 1:  # an output that grows takes one
            self.prompt_tokens -= count
        self.rows -= count if sequence.to_score else 1


def _rank(sequence: Sequence) -> Rank:
    return sequence.rank


def due_s(arrived_s: float, priority: int) -> float:
    """Return when a request is due: with priority 0, when it arrives."""
    return arrived_s + PRIORITY_HEAD_START_S * level(priority)


def level(priority: int) -> int:
    """Return the priority within the bounds that count."""
    return min(max(priority, -PRIORITY_LEVELS), PRIORITY_LEVELS)
