"""Drafts of what comes next, verified in the step that computes what is known: one forward gives several tokens.

A draft is accepted as long as it is what the sampler chooses anyway, with the seed and the counter it has without
drafts, so it can only be right or cost time. Which drafts are worth it is decided by measured times and shares.

Technique: Stern et al. 2018 (blockwise parallel decoding), Leviathan et al. 2023; no rejection sampling is needed where
choices are functions of logits, seed and position.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Row
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakKeyDictionary

from forearm.engine.blocks import BLOCK_TOKENS, BlockPool
from forearm.engine.metrics.step_times import StepTimes
from forearm.engine.scheduler import StepLimits
from forearm.engine.sequence import Sequence, Slice
from forearm.engine.speculation.draft_length import DraftAccuracy, Gain

# Tokens of a step beside the newest ones of open outputs, from which on drafts would cost their full share of it.
_BUSY_TOKENS = 32
_FIRST_SHARE = 0.5  # that is taken to be right before anything was seen
_ALL_KEEPS = 0.98  # of what is known of all outputs, after the draft of one
_UNTRIED_KEEPS = 0.99  # of what is known, after a step that made no use of a draft that was to be had
_ALL_WEIGHT, _FIRST_WEIGHT = 2.0, 1.0  # tokens that all outputs count for one, and the first share for all


class Drafter(Protocol):
    """The interface of a source of drafts."""

    round_s: float  # seconds that one token more of every draft takes, as measured so far

    def available(self, sequence: Sequence, most: int) -> int:
        """Return how many tokens it can draft, at most `most`."""
        ...

    def draft(self, wanted: Row[tuple[Sequence, int]], blocks: BlockPool) -> Row[Row[int]]:
        """Return drafts, for each sequence of the wanted length or shorter. Its blocks have room for them."""
        ...


@dataclass
class _Room:
    """Tokens and rows that a step has left, and the blocks that are free."""

    tokens: int
    rows: int
    blocks: BlockPool

    def take(self, piece: Slice, drafts: int) -> int:
        """Allocate blocks for up to `drafts` tokens. Returns: how many find room."""
        drafts = max(0, min(drafts, self.tokens, self.rows))
        own = len(piece.sequence.blocks) * BLOCK_TOKENS - piece.end
        if not self.blocks.grow(piece.sequence, piece.end - piece.start + drafts):
            drafts = min(drafts, own)
        self.tokens -= drafts
        self.rows -= drafts
        return drafts


class Speculation:
    """Chooses the drafts of each step, and learns what they bring. `tokens`: most of one draft."""

    def __init__(self, drafter: Drafter | None = None, tokens: int = 0, gain: Gain | None = None) -> None:
        self._drafter = drafter
        self._tokens = tokens
        self._gain = gain or Gain()
        self._all = DraftAccuracy(_ALL_KEEPS)
        self._shares: WeakKeyDictionary[Sequence, DraftAccuracy] = WeakKeyDictionary()
        self._drafting_s = 0.0

    @property
    def times(self) -> StepTimes:
        """Return the step times."""
        return self._gain.times

    def plan(self, slices: list[Slice], limits: StepLimits, blocks: BlockPool) -> list[Slice]:
        """The slices of a step, with the drafts that are worth it and find room."""
        self._drafting_s = 0.0
        # A light step is bound by reading weights: it has no prompt in it, or little of one.
        prompt_tokens = sum(piece.end - piece.start - piece.samples for piece in slices)
        guesses = self._drafter is not None and prompt_tokens <= _BUSY_TOKENS
        if not guesses and not [piece for piece in slices if piece.sequence.constraint is not None]:
            return slices
        tokens, rows = (sum(getattr(piece, name) for piece in slices) for name in ("computes", "rows"))
        room = _Room(limits.step_tokens - tokens, limits.step_rows - rows, blocks)
        planned = [_with_certain(piece, room) for piece in slices]
        return self._with_guesses(planned, tokens, room) if guesses else planned

    def verified(self, piece: Slice, accepted: int) -> None:
        """Learn that `accepted` tokens of the slice's draft were accepted."""
        for share in (self._share(piece.sequence), self._all):
            share.saw(len(piece.drafts), accepted)

    def measured(self, slices: list[Slice], seconds: float) -> None:
        """Learn from the time that a step took, drafting included."""
        seconds -= self._drafting_s
        newest = [piece for piece in slices if piece.samples and piece.end - piece.start == 1]
        drafts = sum([len(piece.drafts) for piece in newest if piece.drafts])
        if len(newest) < len(slices):
            tokens = sum(piece.end - piece.start for piece in slices) - len(newest)
            self.times.saw_prompts(len(newest) + drafts, tokens, seconds)
        elif not [piece for piece in slices if piece.certain]:
            self._gain.step(len(slices) + drafts, drafts, seconds)

    def _with_guesses(self, slices: list[Slice], tokens: int, room: _Room) -> list[Slice]:
        assert self._drafter is not None
        start_s = time.monotonic()
        open_ = [piece for piece in slices if piece.samples]
        available = [
            0 if piece.drafts else self._drafter.available(piece.sequence, self._most(piece)) for piece in open_
        ]
        if not any(available):
            return slices
        expected = self._all.after(_FIRST_SHARE, _FIRST_WEIGHT)  # the share of accepted tokens, for any output
        shares = [self._share(piece.sequence).after(expected, _ALL_WEIGHT) for piece in open_]
        lengths = self._gain.lengths(tokens, shares, available, self._drafter.round_s)
        self._forget(open_, available, lengths)
        wanted = [(piece, room.take(piece, length)) for piece, length in zip(open_, lengths, strict=True)]
        wanted = [(piece, length) for piece, length in wanted if length]
        drafts = self._drafter.draft([(piece.sequence, length) for piece, length in wanted], room.blocks)
        self._drafting_s = time.monotonic() - start_s
        found: dict[int, tuple[int, ...]] = {}
        for (piece, _), guess in zip(wanted, drafts, strict=True):
            constraint = piece.sequence.constraint
            found[id(piece)] = tuple(guess if constraint is None else constraint.cut(guess))
        return [piece._replace(drafts=found[id(piece)]) if found.get(id(piece)) else piece for piece in slices]

    def _most(self, piece: Slice) -> int:
        """Drafts beyond what the output may still get are of no use: with the last one comes one token more."""
        request = piece.sequence.request
        return min(self._tokens, request.max_tokens - piece.sequence.output_length - 1)

    def _share(self, sequence: Sequence) -> DraftAccuracy:
        return self._shares.setdefault(sequence, DraftAccuracy())

    def _forget(self, pieces: list[Slice], available: list[int], lengths: list[int]) -> None:
        """Make outputs whose available drafts are not tried less certain, so that they are tried again some time."""
        for piece, could, length in zip(pieces, available, lengths, strict=True):
            if could and not length:
                self._share(piece.sequence).fade(_UNTRIED_KEEPS)
        if not any(lengths):
            self._all.fade(_UNTRIED_KEEPS)


def _with_certain(piece: Slice, room: _Room) -> Slice:
    """Make forced tokens drafts where their log-probabilities are wanted; else they are appended without a forward."""
    constraint = piece.sequence.constraint
    if not piece.samples or constraint is None or piece.sequence.request.params.logprobs is None:
        return piece
    forced = constraint.forced()[: max(0, piece.sequence.request.max_tokens - piece.sequence.output_length - 1)]
    count = room.take(piece, len(forced))
    return piece._replace(drafts=tuple(forced[:count]), certain=True) if count else piece
