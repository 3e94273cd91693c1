"""Drafts by the layer of the model's own checkpoint that predicts a further token (multi-token prediction).

It reads the model's hidden states, so that each step's are handed to it at once. They wait until a draft is wanted, or
until they fill a KV block, while the blocks are still those of the sequence: its keys and values have the block numbers
of the model's first group of layers, as a draft model's have. A further token of a draft is predicted from its own
output. In a block of the prefix cache, keys and values of the last position may be those of another continuation, which
changes drafts alone.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence as Row
from dataclasses import dataclass
from itertools import accumulate
from weakref import WeakKeyDictionary

import numpy as np

from forearm.array_types import Float32Array
from forearm.engine.batch import TokenSpan, flat
from forearm.engine.cache.blocks import BlockPool
from forearm.engine.cache.kv_groups import BLOCK_TOKENS
from forearm.engine.executor import NativeExecutor
from forearm.engine.sampling import greedy
from forearm.engine.sequence import Sequence
from forearm.engine.speculation.draft_length import RoundTime
from forearm.engine.step import SliceOutcome


@dataclass
class _Waiting:
    """Positions of a sequence that are not computed yet: the first, and of each the token behind it and the state.

    states: float32 [positions, hidden], in pieces, behind the final norm.
    """

    first: int
    tokens: array[int]
    states: list[Float32Array]

    @property
    def end(self) -> int:
        return self.first + len(self.tokens)

    def cut(self, end: int) -> None:
        """Drop the positions from `end` on."""
        surplus = self.end - end
        del self.tokens[end - self.first :]
        while surplus > 0:
            last = self.states.pop()
            if len(last) > surplus:
                self.states.append(last[: len(last) - surplus])
            surplus -= len(last)

    def take(self, count: int) -> tuple[array[int], Float32Array]:
        """Return the first `count` positions, and remove them."""
        states = self.states[0] if len(self.states) == 1 else np.concatenate(self.states)
        taken = self.tokens[:count], states[:count]
        self.first, self.tokens, self.states = self.first + count, self.tokens[count:], [states[count:].copy()]
        return taken


class Predictor:
    """The drafter. model: computes the steps whose outputs are drafted. executor: of the layer that predicts.

    step_tokens: most tokens of one forward of the executor.
    """

    def __init__(self, model: NativeExecutor, executor: NativeExecutor, step_tokens: int) -> None:
        self._model, self._executor = model, executor
        self._step_tokens = step_tokens
        self._waiting: WeakKeyDictionary[Sequence, _Waiting] = WeakKeyDictionary()
        self._round = RoundTime()
        width = model.hidden().shape[1]
        self._executor.forward(flat([(array("i", [0]), 0, array("i", [0]))], [0]), np.zeros((1, width), np.float32))

    @property
    def round_s(self) -> float:
        """Return the measured seconds of one more token of every draft."""
        return self._round.seconds

    def available(self, sequence: Sequence, most: int) -> int:
        """Return how many tokens it can draft: none if the newest hidden state is not that before the newest token, or
        the sequence has lost its blocks since.
        """
        waiting, length = self._waiting.get(sequence), len(sequence.tokens)
        if not waiting or not waiting.end == length - 1 == max(sequence.computed, sequence.verified):
            return 0
        return max(0, min(most, self._executor.max_model_len - length)) if waiting.tokens else 0

    def learn(self, outcomes: Row[SliceOutcome]) -> None:
        """Take the states of a step that has just been computed, whose sequences still have their blocks.

        Positions are computed when they fill a block, which other sequences may share.
        """
        states, first = self._model.hidden(), 0
        spans: list[TokenSpan] = []
        rows: list[Float32Array] = []
        for outcome in outcomes:
            piece, sequence = outcome.piece, outcome.piece.sequence
            own = states[first : first + piece.end - piece.start + len(piece.drafts)]
            first += len(own)
            tokens = _next_tokens(outcome)
            waiting = self._waiting.get(sequence)
            if not tokens:
                self._waiting.pop(sequence, None)
                continue
            if waiting is None or not waiting.first <= piece.start <= waiting.end:
                waiting = self._waiting[sequence] = _Waiting(piece.start, array("i"), [])
            elif piece.start < waiting.end:
                waiting.cut(piece.start)
            waiting.tokens += tokens
            waiting.states.append(own[: len(tokens)].copy())  # a view would keep the rows of the whole step
            if (waiting.end - 1) // BLOCK_TOKENS > waiting.first // BLOCK_TOKENS:
                begin = waiting.first
                tokens, some = waiting.take(len(waiting.tokens) - 1)  # not the newest: a draft may want its logits
                spans.append((tokens, begin, sequence.blocks))
                rows.append(some)
        self._compute(spans, rows)

    def draft(self, wanted: Row[tuple[Sequence, int]], blocks: BlockPool) -> list[list[int]]:
        """Return greedy continuations."""
        drafts: list[list[int]] = [[] for _ in wanted]
        waiting = [self._waiting[sequence] for sequence, _ in wanted]
        for one, (sequence, _) in zip(waiting, wanted, strict=True):
            if sum(len(other.tokens) for other in waiting) > self._step_tokens and len(one.tokens) > 1:
                begin = one.first
                tokens, some = one.take(len(one.tokens) - 1)
                self._compute([(tokens, begin, sequence.blocks)], [some])
        spans = [(one.tokens, one.first, sequence.blocks) for one, (sequence, _) in zip(waiting, wanted, strict=True)]
        states = [piece for one in waiting for piece in one.states]
        ends = [one.end for one in waiting]
        for one in waiting:
            one.take(len(one.tokens))
        going = list(range(len(wanted)))
        while going:
            start_s = time.monotonic()
            lasts = [end - 1 for end in accumulate(len(tokens) for tokens, _, _ in spans)]
            self._executor.forward(flat(spans, lasts), np.concatenate(states))
            sampled = self._executor.sample(greedy(len(spans), self._executor.vocab_size))
            if lasts[-1] + 1 == len(spans):  # else it has computed what waited, too
                self._round.observe(time.monotonic() - start_s)
            rows = [row for row, nan in enumerate(sampled.nan.tolist()) if not nan]
            for row in rows:
                drafts[going[row]].append(int(sampled.token[row]))
            rows = [row for row in rows if len(drafts[going[row]]) < wanted[going[row]][1]]
            states = [self._executor.hidden()[[lasts[row] for row in rows]]] if rows else []
            going = [going[row] for row in rows]
            spans = [(array("i", drafts[i][-1:]), ends[i] + len(drafts[i]) - 1, wanted[i][0].blocks) for i in going]
        return drafts

    def _compute(self, spans: list[TokenSpan], rows: list[Float32Array]) -> None:
        """Compute keys and values, as many positions at a time as a forward takes."""
        while spans:
            left, now, states = self._step_tokens, [], []
            while spans and left:
                tokens, position, own = spans[0]
                count = min(left, len(tokens))
                now.append((tokens[:count], position, own))
                states.append(rows[0][:count])
                left -= count
                if count < len(tokens):
                    spans[0], rows[0] = (tokens[count:], position + count, own), rows[0][count:]
                else:
                    del spans[0], rows[0]
            self._executor.forward(flat(now, []), np.concatenate(states))


def _next_tokens(outcome: SliceOutcome) -> array[int]:
    """Return the token behind each position of a slice that is computed for good: not behind a wrong draft."""
    piece, tokens = outcome.piece, outcome.piece.sequence.tokens
    if not piece.samples:
        return tokens[piece.start + 1 : piece.end + 1]
    found = tokens[piece.start + 1 : piece.end]
    for one, draft in zip(outcome.sampled, (*piece.drafts, None), strict=True):
        if one.nan or outcome.failed is not None:
            return array("i")
        found.append(one.token)
        if one.token != draft:
            break
    return found
