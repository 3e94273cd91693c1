"""Drafts by the layer of the model's own checkpoint that predicts a further token (multi-token prediction).

It reads the model's hidden states, so that each step's are handed to it at once, while their KV blocks are still those
of the sequence: its keys and values have the block numbers of the model's first group of layers, as a draft model's
have. The hidden state of the newest position waits until the token after it is known and a draft is wanted. A further
token of a draft is predicted from its own output. In a block of the prefix cache, keys and values of the last position
may be those of another continuation, which changes drafts alone.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence as Row
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from forearm.array_types import Float32Array
from forearm.engine.batch import TokenSpan, flat
from forearm.engine.cache.blocks import BlockPool
from forearm.engine.executor import NativeExecutor
from forearm.engine.sampling import greedy
from forearm.engine.sequence import Sequence
from forearm.engine.speculation.draft_length import RoundTime
from forearm.engine.step import SliceOutcome
from forearm.model.checkpoint.checkpoint import Checkpoint
from forearm.model.predictor import final_norm


class _Newest(NamedTuple):
    """A sequence's newest position whose hidden state is known, the state behind the final norm, and the next token."""

    position: int
    state: Float32Array
    token: int


class Predictor:
    """The drafter. model: computes the steps whose outputs are drafted. executor: of the layer that predicts.

    step_tokens: most tokens of one forward of the executor.
    """

    def __init__(
        self, model: tuple[NativeExecutor, Checkpoint], layer: tuple[NativeExecutor, Checkpoint], step_tokens: int
    ) -> None:
        self._model, self._executor = model[0], layer[0]
        self._norm, self._own_norm = final_norm(model[1]), final_norm(layer[1])
        self._step_tokens = step_tokens
        self._newest: WeakKeyDictionary[Sequence, _Newest] = WeakKeyDictionary()
        self._round = RoundTime()
        width = layer[1].config.hidden
        self._executor.forward(flat([(array("i", [0]), 0, array("i", [0]))], [0]), np.zeros((1, width), np.float32))

    @property
    def round_s(self) -> float:
        """Return the measured seconds of one more token of every draft."""
        return self._round.seconds

    def available(self, sequence: Sequence, most: int) -> int:
        """Return how many tokens it can draft: none if the newest hidden state is not that before the newest token, or
        the sequence has lost its blocks since.
        """
        newest, length = self._newest.get(sequence), len(sequence.tokens)
        if newest is None or not newest.position + 1 == length - 1 == max(sequence.computed, sequence.verified):
            return 0
        return max(0, min(most, self._executor.max_model_len - length))

    def learn(self, outcomes: Row[SliceOutcome]) -> None:
        """Compute the positions of a step that has just been computed, whose sequences still have their blocks."""
        states, first = self._model.hidden(), 0
        spans: list[TokenSpan] = []
        rows: list[Float32Array] = []
        for outcome in outcomes:
            piece, sequence = outcome.piece, outcome.piece.sequence
            own = states[first : first + piece.end - piece.start + len(piece.drafts)]
            first += len(own)
            tokens = _next_tokens(outcome)
            before = self._newest.pop(sequence, None)
            if not tokens:
                continue
            normed, begin = self._norm(own[: len(tokens)]), piece.start
            self._newest[sequence] = _Newest(begin + len(tokens) - 1, normed[-1].copy(), tokens.pop())
            normed = normed[:-1]
            if before is not None and before.position == begin - 1:
                tokens.insert(0, before.token)
                normed, begin = np.concatenate([before.state[None], normed]), before.position
            if tokens:
                spans.append((tokens, begin, sequence.blocks))
                rows.append(normed)
        self._compute(spans, rows)

    def draft(self, wanted: Row[tuple[Sequence, int]], blocks: BlockPool) -> list[list[int]]:
        """Return greedy continuations."""
        drafts: list[list[int]] = [[] for _ in wanted]
        going = list(range(len(wanted)))
        newest = [self._newest[sequence] for sequence, _ in wanted]
        tokens, states = [one.token for one in newest], [one.state for one in newest]
        while going:
            spans = [
                (array("i", [token]), newest[i].position + len(drafts[i]), wanted[i][0].blocks)
                for i, token in zip(going, tokens, strict=True)
            ]
            start_s = time.monotonic()
            self._executor.forward(flat(spans, list(range(len(spans)))), np.stack(states))
            sampled = self._executor.sample(greedy(len(spans), self._executor.vocab_size))
            self._round.observe(time.monotonic() - start_s)
            rows = [row for row, nan in enumerate(sampled.nan.tolist()) if not nan]
            for row in rows:
                drafts[going[row]].append(int(sampled.token[row]))
            rows = [row for row in rows if len(drafts[going[row]]) < wanted[going[row]][1]]
            states = list(self._own_norm(self._executor.hidden()[rows]))
            going = [going[row] for row in rows]
            tokens = [drafts[i][-1] for i in going]
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
