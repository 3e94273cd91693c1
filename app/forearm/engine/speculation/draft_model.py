"""Drafts by greedy decoding with a smaller model of the same vocabulary.

Its own KV cache has as many blocks as the model's and uses the same block numbers (of the model's first group of
layers, which sees all tokens), so that prefix cache hits, preemption and eviction apply to both. For each block the
number of positions that the draft model has computed is kept; the others are computed when a draft is wanted.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence as Row
from dataclasses import dataclass, field

from forearm.engine.batch import TokenSpan, flat
from forearm.engine.cache.blocks import BlockPool
from forearm.engine.cache.kv_groups import BLOCK_TOKENS
from forearm.engine.executor import Executor
from forearm.engine.sampling import greedy
from forearm.engine.sequence import Sequence
from forearm.engine.speculation.draft_length import RoundTime

_FEW = 64  # most tokens of a forward that counts as a round; a larger one computes prompts


@dataclass
class _Draft:
    """One output's draft under construction, and its wanted length."""

    sequence: Sequence
    wanted: int
    tokens: list[int] = field(default_factory=list)

    def newest(self) -> TokenSpan:
        """Return its last token, which is computed next."""
        position = len(self.sequence.tokens) + len(self.tokens) - 1
        return array("i", self.tokens[-1:]), position, self.sequence.blocks


class DraftModel:
    """The drafter. step_tokens: most tokens of one forward of the executor."""

    def __init__(self, executor: Executor, step_tokens: int) -> None:
        self._executor = executor
        self._step_tokens = step_tokens
        self._round_time = RoundTime()

    @property
    def round_s(self) -> float:
        """Return the measured seconds of one more token of every draft."""
        return self._round_time.seconds

    def available(self, sequence: Sequence, most: int) -> int:
        """Return how many tokens it can draft: those that its own context leaves."""
        return max(0, min(most, self._executor.max_model_len - len(sequence.tokens)))

    def draft(self, wanted: Row[tuple[Sequence, int]], blocks: BlockPool) -> list[list[int]]:
        """Return greedy continuations; an output with too many uncomputed tokens gets none yet."""
        drafts = [_Draft(sequence, count) for sequence, count in wanted]
        # Compute missing positions, at most one forward's: drafts of outputs that still lack some wait.
        left, written = self._step_tokens, set[int]()
        parts, ends, done = [], [], []
        for draft in drafts:
            tokens, own = draft.sequence.tokens, draft.sequence.blocks
            at = next((i for i, block in enumerate(own) if blocks.drafted[block] < BLOCK_TOKENS), len(own) - 1)
            start = min(at * BLOCK_TOKENS + blocks.drafted[own[at]], len(tokens) - 1)
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
        while going := [draft for draft in going if len(draft.tokens) < draft.wanted]:
            going = self._round([draft.newest() for draft in going], going)
        return [draft.tokens for draft in drafts]

    def _round(self, parts: list[TokenSpan], drafts: Row[_Draft | None]) -> list[_Draft]:
        """Compute one forward and append a token to each draft (None: part of a prompt). Returns: unfinished ones."""
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
            self._round_time.observe(time.monotonic() - start_s)
        return going
