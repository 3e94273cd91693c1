"""The executor of a pooling model: texts in, vectors out."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from forearm.engine.batch import Float32Array, Int32Array
from forearm.engine.pooling.requests import Pooled, PoolingTerms, Text, pack_texts
from forearm.errors import EngineFailed
from forearm.model.pooling.pooling import PoolingPlan


class Forward(Protocol):
    """What is needed of the native executor (_native.pyi)."""

    def forward(
        self,
        tokens: Int32Array,
        positions: Int32Array,
        starts: Int32Array,
        block_starts: Int32Array,
        blocks: Int32Array,
        logit_rows: Int32Array,
        types: Int32Array | None = None,
    ) -> None:
        """Compute the whole step."""
        ...

    def logits(self) -> Float32Array:
        """The rows of the last step."""
        ...

    def pool(self, starts: Int32Array) -> Float32Array:
        """A vector a text, of rows starts[i] .. starts[i + 1] - 1."""
        ...


class Pooler:
    """One pooling model in memory."""

    def __init__(self, native: Forward, terms: PoolingTerms) -> None:
        self.vocab_size = terms.vocab_size
        self.max_model_len = terms.max_model_len
        self.terms = terms
        self._native = native

    def compute(self, texts: list[Text]) -> list[Float32Array | EngineFailed]:
        """One float32 array a text: [columns], or [tokens, columns] for token_embed; or why there is none.

        Two calls into C++: all layers of all texts, then pooling and the layers behind it.
        """
        step: Pooled = pack_texts(texts, self.terms.plan, self.terms.token_types)
        batch = step.batch
        self._native.forward(
            batch.tokens, batch.positions, batch.starts, batch.block_starts, batch.blocks, batch.logit_rows, step.types
        )
        pooled = self._native.pool(step.row_starts)
        by_token = any(text.request.embed.task == "token_embed" for text in texts)
        rows = self._native.logits() if by_token else pooled
        vectors: list[Float32Array | EngineFailed] = []
        for index, text in enumerate(texts):
            embed, own = text.request.embed, pooled[index]
            if embed.task == "token_embed":
                own = rows[step.row_starts[index] : step.row_starts[index + 1]]
            if np.isfinite(own).all():
                vectors.append(finished(own, self.terms.plan, embed.dimensions, embed.activate))
            else:
                vectors.append(EngineFailed("the model's output has a NaN or an infinity; nothing can be made of it"))
        return vectors


def finished(vector: Float32Array, plan: PoolingPlan, dimensions: int | None, activate: bool) -> Float32Array:
    """What stands behind the last layer: the cut of a matryoshka vector, then unit length, or probabilities.

    vector: [columns] or [tokens, columns]. Sums are float64 and over one text's values alone.
    """
    wide = vector.astype(np.float64)
    if plan.from_tokens:
        wide = wide[..., 1:2] - wide[..., 0:1]
    wide = wide[..., :dimensions]
    if activate and plan.finish == "normalize":
        wide = wide / np.maximum(np.sqrt((wide * wide).sum(axis=-1, keepdims=True)), 1e-12)
    elif activate and plan.finish == "sigmoid":
        wide = 1 / (1 + np.exp(-np.clip(wide, -700, 700)))
    elif activate and plan.finish == "softmax":
        wide = np.exp(wide - wide.max(axis=-1, keepdims=True))
        wide = wide / wide.sum(axis=-1, keepdims=True)
    return wide.astype("<f4")
