"""The pooling plan: the steps from the rows of a text to a vector or scores, and the comparison of texts by them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from forearm.model.families.encoders.dense import Dense
from forearm.model.pooling.adapters import Adapter
from forearm.model.pooling.token_heads import TokenHead, lexical_weights

if TYPE_CHECKING:
    from forearm.array_types import Float32Array

    Comparable = Float32Array | dict[int, float]

Kind = Literal["embed", "classify", "token_classify"]
Task = Literal["embed", "classify", "token_embed", "token_classify"]
# late: the mean of what the layers after pooling make of each row.
Pool = Literal["mean", "cls", "last", "late"]
# The step after the last layer: scaling to unit length, a classifier's probabilities, or weights of tokens.
Finish = Literal["none", "normalize", "sigmoid", "softmax", "relu"]


@dataclass(frozen=True)
class PoolingAsked:
    """The settings that concern pooling. pooler_config, hf_overrides: vLLM's, as JSON objects."""

    runner: str = "auto"
    convert: str = "auto"
    pooler_config: Mapping[str, Any] | None = None
    hf_overrides: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class PoolingPlan:
    """The steps from the outputs of the final norm to a vector or scores.

    dense: layers after pooling. dense_folders: folders of the layers that are not in the checkpoint itself, by index.
    labels: the classes of a classifier, of texts or (kind token_classify) of tokens. dimensions: lengths that vectors
    may be cut to (matryoshka); (): none; None: any. late_interaction: each token has a vector of its own, and two texts
    are compared by all of theirs (ColBERT). token_heads: the heads of tasks that have their own. default_dimensions:
    the length of a request that gives none. max_tokens: the longest text, if the model's authors give one. from_tokens:
    scores come from the output head's rows of these tokens. yes_no: the places of "yes" and "no" among the outputs,
    whose difference is the one score; (): each output is one. adapter: of the task that the vectors are for, if the
    checkpoint has adapters.
    """

    kind: Kind
    pool: Pool
    finish: Finish
    dense: tuple[Dense, ...] = ()
    dense_folders: Mapping[int, Path] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    dimensions: tuple[int, ...] | None = ()
    default_dimensions: int | None = None
    max_tokens: int | None = None
    lower_case: bool = False
    model_type: str = ""
    from_tokens: tuple[str, ...] = ()
    yes_no: tuple[int, ...] = ()
    late_interaction: bool = False
    token_heads: Mapping[Task, TokenHead] = field(default_factory=dict)
    adapter: Adapter | None = None

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Return what the model does with a text, its default first."""
        if self.kind != "embed":
            return (self.kind,)
        if self.late_interaction:
            return ("token_embed",)
        return ("embed", "token_embed", "token_classify") if self.token_heads else ("embed", "token_embed")

    def comparable(
        self, task: Task, token_ids: list[list[int]], outputs: Sequence[Float32Array], special: Set[int]
    ) -> list[Comparable]:
        """Return what `similarities` compares texts by: their outputs, or the lexical weights that these stand for.

        token_ids: of each text. special: tokens without a weight.
        """
        if task != "token_classify":
            return list(outputs)
        head = self.token_heads[task]
        return [lexical_weights(ids, one, head, special) for ids, one in zip(token_ids, outputs, strict=True)]


def output_array(values: bytes, rows: int | None) -> Float32Array:
    """Return an output that the engine has sent: float32 [values], or [rows, columns] where it has several rows."""
    import numpy as np

    flat = np.frombuffer(values, "<f4")
    return flat if rows is None else flat.reshape(rows, len(flat) // max(rows, 1))


def similarities(pairs: Sequence[tuple[Comparable, Comparable]]) -> list[float]:
    """Return the similarity of the texts of each pair, computed in float64: of one vector each, their cosine.

    Of lexical weights, the sum of the products of shared tokens' (Chen et al. 2024, arXiv:2402.03216, section 3.2).

    Of vectors of tokens, [tokens, columns], the sum over the first text's tokens of the largest product with a token of
    the second (Khattab and Zaharia 2020, arXiv:2004.12832, section 3.3).
    """
    import numpy as np

    found = list[float]()
    for one, two in pairs:
        if isinstance(one, dict) and isinstance(two, dict):
            found.append(math.fsum(weight * two.get(token, 0.0) for token, weight in one.items()))
            continue
        first, second = np.asarray(one, np.float64), np.asarray(two, np.float64)
        if first.ndim == 2:
            found.append(float((first @ second.T).max(axis=1).sum()))
        else:
            lengths = float(np.linalg.norm(first) * np.linalg.norm(second))
            found.append(float((first * second).sum()) / max(lengths, 1e-12))
    return found
