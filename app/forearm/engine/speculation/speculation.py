"""Speculative decoding: drafts of the next tokens are verified in the same step, so one forward gives several tokens.

A drafted token is accepted if the sampler, with the same seed and counter as without drafts, chooses the same token: so
drafts never change an output. Measured times and acceptance rates decide which drafts are worth their cost.

Technique: Stern et al. 2018 (blockwise parallel decoding), Leviathan et al. 2023; rejection sampling is not needed,
because choices are functions of logits, seed and position.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Row
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

from forearm.engine.cache.blocks import BlockPool
from forearm.engine.cache.kv_groups import BLOCK_TOKENS
from forearm.engine.scheduler import StepLimits
from forearm.engine.sequence import Sequence, Slice
from forearm.engine.speculation.draft_length import DraftAccuracy, Gain
from forearm.engine.step import SliceOutcome

# The most prompt tokens of a step with drafts: beyond it a step is compute-bound, and drafts cost their full share.
_BUSY_TOKENS = 32
_FIRST_SHARE = 0.5  # assumed acceptance rate before any draft was verified
_ALL_KEEPS = 0.98  # weight that the statistics of all outputs retain after one draft
_UNTRIED_KEEPS = 0.99  # weight that an output's statistics retain after a step that left out an available draft
_ALL_WEIGHT, _FIRST_WEIGHT = 2.0, 1.0  # weights of priors in tokens: of all outputs for one, of _FIRST_SHARE for all


class Drafter(Protocol):
    """The interface of a source of drafts."""

    @property
    def round_s(self) -> float:
        """Measured seconds for one more token of every draft."""
        ...

    def available(self, sequence: Sequence, most: int) -> int:
        """Return how many tokens it can draft, at most `most`."""
        ...

    def draft(self, wanted: Row[tuple[Sequence, int]], blocks: BlockPool) -> Row[Row[int]]:
        """Return a draft of at most the wanted length for each sequence, whose blocks have room for it."""
        ...


@runtime_checkable
class LearningDrafter(Drafter, Protocol):
    """The interface of a source of drafts that needs every step's results."""

    def learn(self, outcomes: Row[SliceOutcome]) -> None:
        """Take the results of a step that has just been computed."""
        ...


@dataclass
class _Room:
    """The remaining tokens and rows of a step, and the free blocks."""

    tokens: int
    rows: int
    blocks: BlockPool

    def admits(self, piece: Slice) -> bool:
        """Return whether the slice may have drafts, or more of them. States go back to its start if drafts are wrong,
        so that where layers keep some, it has no other token than the newest.
        """
        if self.blocks.states is not None and not (piece.start >= len(piece.sequence.prompt) and piece.computes == 1):
            return False
        return piece.samples and not piece.drafts

    def take(self, piece: Slice, drafts: int) -> int:
        """Allocate blocks for up to `drafts` tokens. Returns: for how many there is room."""
        drafts = max(0, min(drafts, self.tokens, self.rows))
        own = len(piece.sequence.blocks) * BLOCK_TOKENS - piece.end
        if not self.blocks.grow(piece.sequence, piece.end - piece.start + drafts):
            drafts = min(drafts, own)
        self.tokens -= drafts
        self.rows -= drafts
        return drafts


class Speculation:
    """Chooses the drafts of each step, and learns their gain. `tokens`: the most of one draft."""

    def __init__(self, drafter: Drafter | None = None, tokens: int = 0, gain: Gain | None = None) -> None:
        self._drafter = drafter
        self._learner = drafter if isinstance(drafter, LearningDrafter) else None
        self._tokens = tokens
        self._gain = gain or Gain()
        self.times = self._gain.times
        self._all = DraftAccuracy(_ALL_KEEPS)
        self._shares: WeakKeyDictionary[Sequence, DraftAccuracy] = WeakKeyDictionary()
        self._drafting_s = 0.0

    def plan(self, slices: list[Slice], limits: StepLimits, blocks: BlockPool) -> list[Slice]:
        """Return the slices of a step, with the drafts that are worth their cost and have room."""
        self._drafting_s = 0.0
        # A light step, with few or no prompt tokens, is bound by reading weights.
        prompt_tokens = sum(piece.end - piece.start - piece.again - piece.samples for piece in slices)
        guesses = self._drafter is not None and prompt_tokens <= _BUSY_TOKENS
        if not guesses and not [piece for piece in slices if piece.sequence.constraint is not None]:
            return slices
        tokens, rows = (sum(getattr(piece, name) for piece in slices) for name in ("computes", "rows"))
        room = _Room(limits.step_tokens - tokens, limits.step_rows - rows, blocks)
        planned: list[Slice] = []
        for piece in slices:
            own, request = piece.sequence, piece.sequence.request
            # Forced tokens become drafts if their log-probabilities are wanted; else they need no forward.
            if own.constraint is not None and request.params.logprobs is not None and room.admits(piece):
                forced = own.constraint.forced()[: max(0, request.max_tokens - own.output_length - 1)]
                if count := room.take(piece, len(forced)):
                    piece = piece._replace(drafts=tuple(forced[:count]), certain=True)
            planned.append(piece)
        planned = self._with_guesses(planned, tokens, room) if guesses else planned
        without: dict[str, Any] = {"drafts": (), "certain": False}
        return [p._replace(**without) if p.drafts and not blocks.save(p.sequence) else p for p in planned]

    def computed(self, outcomes: Row[SliceOutcome]) -> None:
        """Hand the results of a step, whose sequences still have their blocks, to a drafter that learns from them."""
        if self._learner is not None:
            self._learner.learn(outcomes)

    def verified(self, piece: Slice, accepted: int) -> None:
        """Learn that `accepted` tokens of the slice's draft were accepted."""
        for share in (self._share(piece.sequence), self._all):
            share.observe(len(piece.drafts), accepted)

    def measured(self, slices: list[Slice], seconds: float) -> None:
        """Learn from the time of a step, including drafting."""
        seconds -= self._drafting_s
        newest = [piece for piece in slices if piece.samples and piece.end - piece.start - piece.again == 1]
        drafts = sum([len(piece.drafts) for piece in newest if piece.drafts])
        if len(newest) < len(slices):
            decoded = sum(piece.end - piece.start for piece in newest)
            tokens = sum(piece.end - piece.start for piece in slices) - decoded
            decoding = {id(piece) for piece in newest}
            prompts = [piece for piece in slices if id(piece) not in decoding]
            context = sum((piece.start + piece.end) / 2 * (piece.end - piece.start) for piece in prompts) / tokens
            self.times.observe_prompts(decoded + drafts, tokens, context, seconds)
        elif not [piece for piece in slices if piece.certain]:
            self._gain.step(sum([piece.end - piece.start for piece in slices]) + drafts, drafts, seconds)

    def _with_guesses(self, slices: list[Slice], tokens: int, room: _Room) -> list[Slice]:
        assert self._drafter is not None
        start_s = time.monotonic()
        open_ = [piece for piece in slices if piece.samples]
        # No draft is longer than the tokens that the output may still get, less the sampled one.
        left = [piece.sequence.request.max_tokens - piece.sequence.output_length - 1 for piece in open_]
        available = [
            self._drafter.available(piece.sequence, min(self._tokens, most)) if room.admits(piece) else 0
            for piece, most in zip(open_, left, strict=True)
        ]
        if not any(available):
            return slices
        expected = self._all.after(_FIRST_SHARE, _FIRST_WEIGHT)  # the share of accepted tokens, for any output
        shares = [self._share(piece.sequence).after(expected, _ALL_WEIGHT) for piece in open_]
        lengths = self._gain.lengths(tokens, shares, available, self._drafter.round_s)
        # Outputs whose drafts are not tried count less from step to step, so that their drafts are tried again.
        for piece, could, length in zip(open_, available, lengths, strict=True):
            if could and not length:
                self._share(piece.sequence).fade(_UNTRIED_KEEPS)
        if not any(lengths):
            self._all.fade(_UNTRIED_KEEPS)
        wanted = [(piece, room.take(piece, length)) for piece, length in zip(open_, lengths, strict=True)]
        wanted = [(piece, length) for piece, length in wanted if length]
        drafts = self._drafter.draft([(piece.sequence, length) for piece, length in wanted], room.blocks)
        self._drafting_s = time.monotonic() - start_s
        found: dict[int, tuple[int, ...]] = {}
        for (piece, _), guess in zip(wanted, drafts, strict=True):
            constraint = piece.sequence.constraint
            found[id(piece)] = tuple(guess if constraint is None else constraint.cut(guess))
        return [piece._replace(drafts=found[id(piece)]) if found.get(id(piece)) else piece for piece in slices]

    def _share(self, sequence: Sequence) -> DraftAccuracy:
        return self._shares.setdefault(sequence, DraftAccuracy())
