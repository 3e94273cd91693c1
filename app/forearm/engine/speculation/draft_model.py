"""Drafts by a smaller model of the same vocabulary: what it would say itself, greedily.

It has a KV cache of its own with as many blocks as the model's and uses the same ones, so that a prompt found in the
prefix cache, a preempted output, a block taken away mean the same for both. Of each block it is kept how many positions
are there for the draft model too; what is missing is computed when a draft is wanted.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence as Row
from dataclasses import dataclass, field

from forearm.engine.batch import TokenSpan, flat
from forearm.engine.blocks import BLOCK_TOKENS, BlockPool
from forearm.engine.executor import Executor
from forearm.engine.sampling import greedy
from forearm.engine.sequence import Sequence

_NEW = 0.2  # weight of a newly measured time
_FEW = 64  # tokens of a round whose time is a round's; with more it is a prompt's


@dataclass
class _Draft:
    """One output's draft in the making: so many tokens are wanted."""

    sequence: Sequence
    wanted: int
    tokens: list[int] = field(default_factory=list)

    def newest(self) -> TokenSpan:
        """Return its last token, to be computed."""
        position = len(self.sequence.tokens) + len(self.tokens) - 1
        return array("i", self.tokens[-1:]), position, self.sequence.blocks


class DraftModel:
    """The drafter. step_tokens: most tokens of one forward of the executor."""

    def __init__(self, executor: Executor, step_tokens: int) -> None:
        self._executor = executor
        self._step_tokens = step_tokens
        self.round_s = 0.0

    def available(self, sequence: Sequence, most: int) -> int:
        """Return how many tokens it can draft: as many as its own context leaves."""
        return max(0, min(most, self._executor.max_model_len - len(sequence.tokens)))

    def draft(self, wanted: Row[tuple[Sequence, int]], blocks: BlockPool) -> list[list[int]]:
        """Return greedy continuations; none yet for an output of which too much is still to be computed."""
        drafts = [_Draft(sequence, count) for sequence, count in wanted]
        going = self._catch_up(drafts, blocks)
        while going := [draft for draft in going if len(draft.tokens) < draft.wanted]:
            going = self._round([draft.newest() for draft in going], going)
        return [draft.tokens for draft in drafts]

    def _catch_up(self, drafts: list[_Draft], blocks: BlockPool) -> list[_Draft]:
        """Compute what the draft model has not, as far as one forward goes. Returns: drafts that have a first token."""
        left, written = self._step_tokens, set[int]()
        parts, ends, done = [], [], []
        for draft in drafts:
            tokens, own = draft.sequence.tokens, draft.sequence.blocks
            start = min(_drafted(own, blocks), len(tokens) - 1)
            end = min(len(tokens), start + left)
            touched = set(own[start // BLOCK_TOKENS : (end - 1) // BLOCK_TOKENS + 1])
            if end == start or touched & written:  # shared: the first one computes it
                continue
            written |= touched
            left -= end - start
            parts.append((tokens[start:end], start, own))
            ends.append((own, end))
            done.append(draft if end == len(tokens) else None)
        going = self._round(parts, done) if parts else []
        for own, end in ends:
            for i in range(-(-end // BLOCK_TOKENS)):
                blocks.drafted[own[i]] = max(blocks.drafted[own[i]], min(BLOCK_TOKENS, end - i * BLOCK_TOKENS))
        return going

    def _round(self, parts: list[TokenSpan], drafts: Row[_Draft | None]) -> list[_Draft]:
        """One forward: the next token of each draft; None: of a part that says nothing yet. Returns: those to go on."""
        start_s = time.monotonic()
        counts = [len(tokens) for tokens, _, _ in parts]
        lasts = [sum(counts[: i + 1]) - 1 for i, draft in enumerate(drafts) if draft is not None]
        self._executor.forward(flat(parts, lasts))
        going = [draft for draft in drafts if draft is not None]
        if going:
            sampled = self._executor.sample(greedy(len(going), self._executor.vocab_size))
            going = [draft for draft, nan in zip(going, sampled.nan.tolist(), strict=True) if not nan]
            for draft, token in zip(going, sampled.token[~sampled.nan].tolist(), strict=True):
                draft.tokens.append(token)
        if sum(counts) <= _FEW:
            seconds = time.monotonic() - start_s
            self.round_s += (_NEW if self.round_s else 1.0) * (min(seconds, 2 * self.round_s or seconds) - self.round_s)
        return going


def _drafted(own: array[int], blocks: BlockPool) -> int:
    """Positions, from the first on, that the draft model has."""
    for i, block in enumerate(own):
        if blocks.drafted[block] < BLOCK_TOKENS:
            return i * BLOCK_TOKENS + blocks.drafted[block]
    return len(own) * BLOCK_TOKENS
