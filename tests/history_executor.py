"""A tiny executor whose next token depends on every token before it, read back out of the blocks it was given.

A wrong position, block, order or a block that was given away too early changes what it says, or trips an assertion.
"""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

import numpy as np

from forearm.array_types import Float32Array, Int32Array
from forearm.engine.batch import Batch, Sampled, Sampling, ScoredTokens
from forearm.engine.cache.kv_groups import BLOCK_TOKENS

_UNWRITTEN = -1


def logits_after(history: list[int], vocab_size: int) -> Float32Array:
    """Logits of the token after `history`: float32 [vocab_size], a function of all of it."""
    digest = blake2b(np.array(history, np.int32).tobytes(), digest_size=8).digest()
    random = np.random.default_rng(int.from_bytes(digest, "little"))
    return np.asarray(random.normal(0, 2, vocab_size), np.float32)


def choose(logits: Float32Array, temperature: float, seed: int, counter: int) -> int:
    """The best token at temperature 0, else one drawn by (seed, counter) alone (Gumbel's trick)."""
    if temperature == 0:
        return int(np.argmax(logits))
    noise = np.random.default_rng([seed, counter]).gumbel(size=len(logits))
    return int(np.argmax(logits / np.float32(temperature) + noise))


def log_softmax(logits: Float32Array) -> Float32Array:
    shifted = logits.astype(np.float64) - logits.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()), np.float32)


class HistoryExecutor:
    """`forward` writes tokens into its blocks; logits come from what the sequence's blocks hold.

    states        slots of states, if it has some: a state holds every token of its sequence
    kept_states   slots for copies of states
    copies        (source, target) of each copy so far
    steps         tokens of each forward() so far
    nan_after     a token after which the logits are NaN
    failures      exceptions that the next calls of forward() raise
    """

    def __init__(
        self, blocks: int = 64, max_model_len: int = 256, vocab_size: int = 50, states: int = 0, kept_states: int = 0
    ) -> None:
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self.blocks = blocks
        self.states, self.kept_states = states, kept_states
        self.folder: Path | None = None
        self.steps: list[int] = []
        self.nan_after: int | None = None
        self.failures: list[Exception] = []
        self._held = np.full((blocks, BLOCK_TOKENS), _UNWRITTEN, np.int32)
        self._states: list[list[int]] = [[] for _ in range(states + kept_states)]
        self.copies: list[tuple[int, int]] = []
        self._logits = np.zeros((0, vocab_size), np.float32)

    def forward(self, batch: Batch) -> None:
        self._check(batch)
        if self.failures:
            raise self.failures.pop()
        self.steps.append(len(batch.tokens))
        histories = [self._write(batch, s) for s in range(len(batch.starts) - 1)]
        owner = np.searchsorted(batch.starts, batch.logit_rows, side="right") - 1
        rows = [
            self._row(histories[s][: batch.positions[row] + 1])
            for s, row in zip(owner.tolist(), batch.logit_rows.tolist(), strict=True)
        ]
        self._logits = np.array(rows, np.float32).reshape(len(rows), self.vocab_size)

    def copy_state(self, source: int, target: int) -> None:
        assert source != target
        self.copies.append((source, target))
        self._states[target] = self._states[source][:]

    def merge_page(self) -> bool:
        return False

    def sample(self, sampling: Sampling) -> Sampled:
        lines = len(sampling.row)
        raw = self._logits[sampling.row]
        tokens = [self._choose(sampling, line) for line in range(lines)]
        most = max(0, int(sampling.logprobs.max()))
        found = self._score(raw, np.array(tokens, np.int32), most)
        return Sampled(
            token=np.array(tokens, np.int32),
            nan=np.asarray(np.isnan(raw).any(axis=1)),
            logprob=found.logprob,
            rank=found.rank,
            top_ids=found.top_ids,
            top_logprobs=found.top_logprobs,
        )

    def score(self, rows: Int32Array, tokens: Int32Array, alternatives: int) -> ScoredTokens:
        return self._score(self._logits[rows], tokens, alternatives)

    def _check(self, batch: Batch) -> None:
        """Check the properties of a batch that every executor relies on."""
        sequences = len(batch.starts) - 1
        assert batch.starts[0] == 0
        assert batch.starts[-1] == len(batch.tokens) == len(batch.positions)
        assert len(batch.block_starts) == sequences + 1
        assert batch.block_starts[-1] == len(batch.blocks)
        assert (np.diff(batch.starts) > 0).all()
        assert (np.diff(batch.logit_rows) > 0).all()
        for array in (batch.tokens, batch.positions, batch.starts, batch.block_starts, batch.blocks, batch.logit_rows):
            assert array.dtype == np.int32
        for s in range(sequences):
            positions = batch.positions[batch.starts[s] : batch.starts[s + 1]]
            assert (np.diff(positions) == 1).all()
            held = batch.block_starts[s + 1] - batch.block_starts[s]
            assert positions[-1] < held * BLOCK_TOKENS, "blocks cover the step"
        if self.states:
            assert batch.states is not None
            assert len(batch.states) == sequences == len(set(batch.states.tolist())), "each sequence has its own slot"

    def _write(self, batch: Batch, s: int) -> list[int]:
        """Put a sequence's tokens where its blocks say; returns all it holds from position 0 on."""
        blocks = batch.blocks[batch.block_starts[s] : batch.block_starts[s + 1]]
        tokens = batch.tokens[batch.starts[s] : batch.starts[s + 1]]
        for token, position in zip(tokens.tolist(), batch.positions[batch.starts[s] :].tolist(), strict=False):
            self._held[blocks[position // BLOCK_TOKENS], position % BLOCK_TOKENS] = token
        history = self._held[blocks].ravel()[: batch.positions[batch.starts[s + 1] - 1] + 1]
        assert (history != _UNWRITTEN).all(), "every earlier position was computed"
        if self.states:
            assert batch.states is not None
            state = self._states[batch.states[s]]
            del state[0 if batch.positions[batch.starts[s]] == 0 else len(state) :]
            state.extend(tokens.tolist())
            assert state == history.tolist(), "a state is that of the position before"
        return [int(token) for token in history]

    def _row(self, history: list[int]) -> Float32Array:
        logits = logits_after(history, self.vocab_size)
        if history[-1] == self.nan_after:
            logits[3] = np.nan
        return logits

    def _choose(self, sampling: Sampling, line: int) -> int:
        logits = self._logits[sampling.row[line]].copy()
        bias = slice(sampling.bias_starts[line], sampling.bias_starts[line + 1])
        logits[sampling.bias_ids[bias]] += sampling.bias[bias]
        allowed = sampling.allowed_ids[sampling.allowed_starts[line] : sampling.allowed_starts[line + 1]]
        if len(allowed):
            forbidden = np.setdiff1d(np.arange(self.vocab_size), allowed)
            logits[forbidden] = -np.inf
        if sampling.mask[line] >= 0:
            bits = np.unpackbits(sampling.masks[sampling.mask[line]].view(np.uint8), bitorder="little")
            logits[bits[: self.vocab_size] == 0] = -np.inf
        seed, counter = int(sampling.seed[line]), int(sampling.counter[line])
        return choose(logits, float(sampling.temperature[line]), seed, counter)

    def _score(self, rows: Float32Array, tokens: Int32Array, alternatives: int) -> ScoredTokens:
        logprobs = np.array([log_softmax(row) for row in rows], np.float32).reshape(rows.shape)
        chosen = logprobs[np.arange(len(rows)), tokens]
        best = np.argsort(-logprobs, axis=1, kind="stable")[:, :alternatives]
        return ScoredTokens(
            logprob=chosen,
            rank=(1 + (logprobs > chosen[:, None]).sum(axis=1)).astype(np.int32),
            top_ids=best.astype(np.int32),
            top_logprobs=np.take_along_axis(logprobs, best, axis=1),
        )
