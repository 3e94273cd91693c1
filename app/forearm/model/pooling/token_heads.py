"""Heads beside a model's own that make an output for each token: bge-m3's lexical weights and vectors of tokens.

Source: Chen et al. 2024, arXiv:2402.03216, section 3.2; which tokens are left out: vLLM's BgeM3EmbeddingModel.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from forearm.errors import ConfigError
from forearm.model.checkpoint.shards import read_torch
from forearm.model.families.encoders.dense import Dense
from forearm.model.families.keys import Keys

if TYPE_CHECKING:
    from forearm.array_types import Float32Array

BGE_M3 = "BgeM3EmbeddingModel"
_SPARSE, _MULTI_VECTOR = "sparse_linear.pt", "colbert_linear.pt"


@dataclass(frozen=True)
class TokenHead:
    """One layer, its tensors' file, and the step after it.

    first, last: a text's first token has no output if it is `first`, its last none if it is `last`.
    """

    dense: Dense
    file: Path
    finish: Literal["normalize", "relu"]
    first: int | None
    last: int | None = None

    def kept(self, token_ids: Sequence[int]) -> slice:
        """Return the tokens that have an output."""
        return slice(int(token_ids[0] == self.first), len(token_ids) - (token_ids[-1] == self.last))


def bge_m3_heads(folder: Path, keys: Keys, asked: bool) -> tuple[TokenHead, ...]:
    """Return the heads of a bge-m3, of vectors and of weights; (): the folder is of another model.

    asked: the model is said to be a bge-m3. Raises: ConfigError if it lacks the files, or they fit no such model.
    """
    sparse, vectors = folder / _SPARSE, folder / _MULTI_VECTOR
    missing = [file.name for file in (sparse, vectors) if not file.is_file()]
    if missing:
        if asked:
            raise ConfigError(f"{folder}: architectures names {BGE_M3}, whose {' and '.join(missing)} it does not have")
        return ()
    bos, eos = keys.integer("bos_token_id", 0), keys.integer("eos_token_id", 2)
    return (
        TokenHead(_dense(vectors, keys, 1), vectors, "normalize", bos),
        TokenHead(_dense(sparse, keys, 2), sparse, "relu", bos, eos),
    )


def _dense(file: Path, keys: Keys, head: int) -> Dense:
    tensors, hidden = read_torch(file), keys.integer("hidden_size")
    shape = tensors["weight"].shape if set(tensors) == {"weight", "bias"} else ()
    if len(shape) != 2 or shape[1] != hidden or (file.name == _SPARSE and shape[0] != 1):
        rows = "1" if file.name == _SPARSE else "rows"
        raise ConfigError(f"{file} has {sorted(tensors)}; it must have bias and weight [{rows}, {hidden}]")
    return Dense(shape[0], file.stem, head=head)


def lexical_weights(
    token_ids: Sequence[int], weights: Float32Array, head: TokenHead, special: Set[int]
) -> dict[int, float]:
    """Return the largest weight of each token of a text; special tokens have none.

    weights: float32 [tokens], as the head makes them.
    """
    found: dict[int, float] = {}
    for token, weight in zip(token_ids[head.kept(token_ids)], weights.tolist(), strict=True):
        if token not in special:
            found[token] = max(weight, found.get(token, 0.0))
    return found
