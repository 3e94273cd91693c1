"""Compares a quantized checkpoint with the floats that it was made of, on texts of the package (quality_texts)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from forearm.array_types import Float32Array, Int32Array
from forearm.model.checkpoint.calibration import BLOCK, WINDOW, tokens_of
from forearm.model.checkpoint.checkpoint import Checkpoint, open_checkpoint
from forearm.model.checkpoint.weights import load_native
from forearm.model.gguf.gguf import is_gguf
from forearm.model.quantization.quality import Loss, QualityReport
from forearm.model.quantization.quantization import Asked

TEXTS = Path(__file__).with_name("quality_texts")  # public domain; README.md there names the sources


def measured_quality(floats: Path, quantized: Path, tokens: int, threads: int) -> QualityReport:
    """Return what a quantized checkpoint loses on the first `tokens` tokens of each text, in windows of at most 512.

    Both models are in memory at once, the floats in the checkpoint's dtype.
    Raises: ConfigError if a model can't be opened, or has no tokenizer.
    """
    exact = Asked(activations="float")  # another quantized file may be the truth
    truth = open_checkpoint(floats)
    size = min(WINDOW, tokens, truth.config.max_positions)
    truth = open_checkpoint(floats, max_model_len=size, quantization=exact)
    vocabulary = truth.config.vocab_size
    texts = [tokens_of(floats, path.read_text("utf-8"), vocabulary)[:tokens] for path in sorted(TEXTS.glob("*.txt"))]
    windows = [text[i : i + size] for text in texts for i in range(0, len(text) - 1, size)]
    model, compared = TextModel(truth, threads), dict[str, Comparison]()
    for activations in ("int8", "float"):
        asked = Asked(embeddings="none", activations=activations)
        mine = TextModel(open_checkpoint(quantized, max_model_len=size, quantization=asked), threads)
        own = compared[activations] = Comparison()
        for window in windows:
            own.add(window, model.log_probabilities(window), mine.log_probabilities(window))
    true = np.concatenate(own.true)
    file = quantized.name if is_gguf(quantized) else ""
    return QualityReport(math.exp(float(true.mean())), len(true), compared["int8"].loss, compared["float"].loss, file)


class TextModel:
    """One way to serve a checkpoint: the logits after every token of a text of at most WINDOW tokens."""

    def __init__(self, checkpoint: Checkpoint, threads: int) -> None:
        self._executor = load_native(
            checkpoint, step_tokens=WINDOW, step_sequences=1, step_logit_rows=WINDOW, cores=(), threads=threads,
            progress=False,
        )  # fmt: skip
        self._executor.allocate_kv(WINDOW // BLOCK)
        if self._executor.state_bytes_per_slot:
            self._executor.allocate_states(1)

    def logits(self, tokens: Sequence[int] | Int32Array, begin: int = 0) -> Float32Array:
        """Return the logits after tokens that stand at positions begin, begin + 1, ...: float32 [tokens, vocab]."""
        rows = np.arange(len(tokens), dtype=np.int32)
        blocks = np.arange(-(-(begin + len(tokens)) // BLOCK), dtype=np.int32)
        starts, block_starts = (np.array([0, len(values)], np.int32) for values in (rows, blocks))
        states = np.zeros(1, np.int32) if self._executor.state_bytes_per_slot else None
        ids = np.asarray(tokens, np.int32)
        self._executor.forward(ids, rows + np.int32(begin), starts, block_starts, blocks, rows, states=states)
        return self._executor.logits()

    def log_probabilities(self, tokens: Int32Array) -> Float32Array:
        """Return the log-probabilities of the token after each but the last, float32 [tokens - 1, vocab]."""
        return log_softmax(self.logits(tokens)[:-1])


def log_softmax(logits: Float32Array) -> Float32Array:
    """Turn logits into log-probabilities, float32 [rows, vocab], in place, and return them."""
    logits -= logits.max(axis=1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return logits


@dataclass
class Comparison:
    """A model's predictions beside the true ones, an array of values of each prediction for every window.

    true: losses of the truth, in nats. changes: how much more the model loses. divergences: KL divergence from the
    truth's distribution, in nats. same: whether the best token is the same.
    """

    true: list[Float32Array] = field(default_factory=list)
    changes: list[Float32Array] = field(default_factory=list)
    divergences: list[Float32Array] = field(default_factory=list)
    same: list[npt.NDArray[np.bool_]] = field(default_factory=list)

    def add(self, window: Int32Array, truth: Float32Array, mine: Float32Array) -> None:
        """Add a window's log-probabilities, float32 [tokens - 1, vocab]."""
        rows = np.arange(len(truth))
        true = -truth[rows, window[1:]]
        self.true.append(true)
        self.changes.append(-mine[rows, window[1:]] - true)
        self.divergences.append(np.einsum("ij,ij->i", np.exp(truth), truth - mine))
        self.same.append(mine.argmax(axis=1) == truth.argmax(axis=1))

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
