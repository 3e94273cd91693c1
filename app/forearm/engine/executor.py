"""The executor: the loop's only interface to C++, for computing a step, sampling and pooling."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from forearm.array_types import Float32Array, Int32Array
from forearm.engine.batch import Batch, Sampled, Sampling, ScoredTokens
from forearm.model.checkpoint.rounding_errors import NOTHING_ROUNDED, RoundingErrors

if TYPE_CHECKING:
    from forearm import _native
    from forearm.model.checkpoint.checkpoint import Checkpoint


class Executor(Protocol):
    """The interface of an executor of a generative model. `NativeExecutor` implements it; tests have tiny ones."""

    vocab_size: int
    max_model_len: int
    blocks: int  # KV blocks of 32 tokens
    states: int  # slots for the states that layers keep of sequences, and before drafts; 0: they keep none
    kept_states: int  # slots for copies of states, in the prefix cache
    folder: Path | None

    def forward(self, batch: Batch) -> None:
        """Compute the whole step, embedding to logits; the logits stay inside for sample and score."""
        ...

    def copy_state(self, source: int, target: int) -> None:
        """Copy the states in slot `source` to slot `target`; the slots of running sequences come first."""
        ...

    def merge_page(self) -> bool:
        """Make a huge page of small pages of the KV cache; return whether one was left to be made."""
        ...

    def sample(self, sampling: Sampling) -> Sampled:
        """Choose a token for each line from the last step's logits."""
        ...

    def score(self, rows: Int32Array, tokens: Int32Array, alternatives: int) -> ScoredTokens:
        """Log-probabilities of `tokens[i]` in row `rows[i]` of the last step's logits, and the best alternatives."""
        ...


class NativeExecutor:
    """The executor in C++ with loaded weights; `allocate` makes its KV cache.

    forward, pool: of a model that transformers computes (model/modules); None: the native ones.
    rounding: errors of the quantized matrices, as they were loaded.
    """

    def __init__(
        self,
        native: _native.Executor,
        checkpoint: Checkpoint,
        forward: Callable[..., None] | None = None,
        rounding: RoundingErrors = NOTHING_ROUNDED,
        pool: Callable[[Int32Array, int], Float32Array] | None = None,
    ) -> None:
        self.vocab_size = checkpoint.config.vocab_size
        self.max_model_len = checkpoint.max_model_len
        self.blocks = self.states = self.kept_states = 0
        self.block_bytes = native.kv_bytes_per_block
        self.packed_bytes = native.packed_bytes + checkpoint.module_bytes
        self.mapped = native.weights_mapped
        self.scratch_bytes = native.scratch_bytes
        self.state_bytes = native.state_bytes_per_slot
        self.folder: Path | None = checkpoint.folder
        self.rounding = rounding
        self.native = native
        self._forward, self._pool = forward or native.forward, pool or native.pool
        self._own_cache = bool(checkpoint.own_cache)

    def allocate(self, blocks: int, sequences: int, kept: int = 0) -> None:
        """Allocate the KV cache, slots for the states of sequences and before drafts, and for so many copies of
        states; transformers' own caches grow as they are filled.

        Raises: MemoryError naming the size if it can't be had.
        """
        if not self._own_cache:
            self.native.allocate_kv(blocks)
        if self.state_bytes:
            self.native.allocate_states(sequences + kept)
            self.states, self.kept_states = sequences, kept
        self.blocks = blocks

    def forward(self, batch: Batch, hidden: Float32Array | None = None) -> None:
        """Compute the whole step; the GIL is released meanwhile.

        hidden: of a layer that predicts further tokens, a row for each token, float32 [tokens, hidden].
        Raises: ValueError naming the array and the index if the batch is out of range.
        """
        if hidden is None:
            self._forward(*batch)
        else:
            self.native.forward(*batch, hidden=hidden)

    def copy_state(self, source: int, target: int) -> None:
        """Copy the states in slot `source` to slot `target`; the GIL is released meanwhile."""
        self.native.copy_state(source, target)

    def merge_page(self) -> bool:
        """Make a huge page of small pages of the KV cache; return whether one was left to be made."""
        return self.blocks > 0 and self.native.merge_page()

    def logits(self) -> Float32Array:
        """Return the last step's rows, float32 [rows, columns]: logits, or last hidden states where the model pools."""
        return self.native.logits()

    def hidden(self) -> Float32Array:
        """Return the last step's rows behind the final norm, float32 [tokens, hidden], where the model keeps them."""
        return self.native.hidden()

    def pool(self, starts: Int32Array, head: int) -> Float32Array:
        """Return a vector for each text, of the rows starts[i] .. starts[i + 1] - 1, through the layers of `head`."""
        return self._pool(starts, head)

    def sample(self, sampling: Sampling) -> Sampled:
        """Choose a token for each line from the last step's logits."""
        return Sampled(*self.native.sample(*sampling))

    def score(self, rows: Int32Array, tokens: Int32Array, alternatives: int) -> ScoredTokens:
        """Log-probabilities of `tokens[i]` in row `rows[i]` of the last step's logits, and the best alternatives."""
        return ScoredTokens(*self.native.score(rows, tokens, alternatives))
