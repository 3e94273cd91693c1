"""The one door to C++: load a model, compute a step, sample."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from forearm.engine.batch import Batch, Int32Array, Sampled, Sampling, Scored


class Executor(Protocol):
    """What the loop needs of an executor. `NativeExecutor` is it; tests have tiny ones."""

    vocab_size: int
    max_model_len: int
    blocks: int  # KV blocks of 32 tokens
    folder: Path | None

    def forward(self, batch: Batch) -> None:
        """Compute the whole step, embedding to logits; the logits stay inside for sample and score."""
        ...

    def sample(self, sampling: Sampling) -> Sampled:
        """Choose a token for each line from the last step's logits."""
        ...

    def score(self, rows: Int32Array, tokens: Int32Array, alternatives: int) -> Scored:
        """Log-probabilities of `tokens[i]` in row `rows[i]` of the last step's logits, and the best alternatives."""
        ...
