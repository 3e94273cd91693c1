"""Compares a quantized checkpoint with the floats that it was made of, on texts of the package (quality_texts)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from forearm import _native
from forearm.array_types import Float32Array, Int32Array
from forearm.model.checkpoint.calibration import BLOCK, WINDOW, tokens_of
from forearm.model.checkpoint.checkpoint import Checkpoint, open_checkpoint
from forearm.model.checkpoint.weights import load_native
from forearm.model.quantization.quality import Loss, QualityReport
from forearm.model.quantization.quantization import Asked

TEXTS = Path(__file__).with_name("quality_texts")  # public domain; README.md there names the sources


def measured_quality(floats: Path, quantized: Path, tokens: int, threads: int) -> QualityReport:
    """Return what a quantized checkpoint loses on the first `tokens` tokens of each text, in windows of at most 512.

    Both models are in memory at once, the floats in the checkpoint's dtype.
    Raises: ConfigError if a model can't be opened, or has no tokenizer.
    """
    truth = open_checkpoint(floats)
    size = min(WINDOW, tokens, truth.config.max_positions)
    truth = open_checkpoint(floats, max_model_len=size)
    vocabulary = truth.config.vocab_size
    texts = [tokens_of(floats, path.read_text("utf-8"), vocabulary)[:tokens] for path in sorted(TEXTS.glob("*.txt"))]
    windows = [text[i : i + size] for text in texts for i in range(0, len(text) - 1, size)]
    model, losses = _loaded(truth, threads), dict[str, _Totals]()
    for activations in ("int8", "float"):
        asked = Asked(embeddings="none", activations=activations)
        mine = _loaded(open_checkpoint(quantized, max_model_len=size, quantization=asked), threads)
        totals = losses[activations] = _Totals()
        for window in windows:
            totals.add(window, _log_probabilities(model, window), _log_probabilities(mine, window))
    found = losses["float"]
    perplexity = math.exp(float(np.concatenate(found.true).mean()))
    predictions = sum(map(len, found.true))
    return QualityReport(perplexity, predictions, losses["int8"].loss, losses["float"].loss)


@dataclass
class _Totals:
    """Losses and divergences of each prediction, window by window."""

    true: list[Float32Array] = field(default_factory=list)
    changes: list[Float32Array] = field(default_factory=list)
    divergences: list[Float32Array] = field(default_factory=list)
    same: list[Float32Array] = field(default_factory=list)

    def add(self, window: Int32Array, truth: Float32Array, mine: Float32Array) -> None:
        """Add a window's log-probabilities, float32 [tokens - 1, vocab]."""
        rows = np.arange(len(truth))
        true = -truth[rows, window[1:]]
        self.true.append(true)
        self.changes.append(-mine[rows, window[1:]] - true)
        self.divergences.append(np.einsum("ij,ij->i", np.exp(truth), truth - mine))
        self.same.append((mine.argmax(axis=1) == truth.argmax(axis=1)).astype(np.float32))

    @property
    def loss(self) -> Loss:
        """Return the means over all predictions."""
        change = np.concatenate(self.changes).astype(np.float64)
        return Loss(
            perplexity_rise=math.expm1(change.mean()),
            standard_error=float(change.std() / math.sqrt(len(change))),
            divergence=float(np.concatenate(self.divergences).mean()),
            same_best_token=float(np.concatenate(self.same).mean()),
        )


def _loaded(checkpoint: Checkpoint, threads: int) -> _native.Executor:
    executor = load_native(
        checkpoint, step_tokens=WINDOW, step_sequences=1, step_logit_rows=WINDOW, cores=(), threads=threads,
        progress=False,
    )  # fmt: skip
    executor.allocate_kv(WINDOW // BLOCK)
    return executor


def _log_probabilities(executor: _native.Executor, window: Int32Array) -> Float32Array:
    """Return the log-probabilities of every next token but the one behind the last, float32 [tokens - 1, vocab]."""
    rows, blocks = (np.arange(count, dtype=np.int32) for count in (len(window), -(-len(window) // BLOCK)))
    ends, block_ends = (np.array([0, len(values)], np.int32) for values in (rows, blocks))
    executor.forward(window, rows, ends, block_ends, blocks, rows)
    logits = executor.logits()[:-1]
    logits -= logits.max(axis=1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return logits
