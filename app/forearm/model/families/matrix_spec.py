"""MatrixSpec: one packed matrix of the executor, and the parts of a checkpoint that it is made of; see matrices.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# embedding, table: rows are looked up; a tied head multiplies with the embedding. head: gives the logits.
# *_in: multiplied with the normed residual. mixer_inner: multiplied with rows that the mixer has made of these.
# mixer_heads: a matrix for each head (`experts` of them), multiplied with the head's part of such rows; never
# quantized. mixer_groups: the same for each group of heads, quantized as others. mixer_shifted: multiplied with the
# normed residual of a token, mixed with that of the token before. mixer_low_rank: one of a pair through few numbers,
# the first as mixer_shifted; never quantized. *_out: multiplied with the result of
# the mixer or feed-forward and added to the residual. router: gives the scores of experts or the gates of a recurrence;
# never quantized. pooler: a layer after pooling.
Role = Literal[
    "embedding", "table", "head", "mixer_in", "mixer_inner", "mixer_heads", "mixer_groups", "mixer_shifted",
    "mixer_low_rank", "mixer_out", "feed_forward_in", "feed_forward_out", "router", "pooler",
]  # fmt: skip


@dataclass(frozen=True)
class MatrixPart:
    """Rows of a packed matrix that a checkpoint stores as a matrix of its own.

    name: the executor's name, for loading the rows (_native.pyi). stored: Llama's name of the module in its layer; a
    family may have another one (ModelConfig.names, names.py). {expert} in it stands for the number of an expert.
    bias: it has one if its matrix has.
    """

    name: str
    stored: str
    rows: int
    bias: bool = True

    @property
    def key(self) -> str:
        """Return the name without its layer."""
        return self.name.split(".", 2)[2] if self.name.startswith("layers.") else self.name.rpartition(".")[2]


@dataclass(frozen=True)
class MatrixSpec:
    """One packed matrix of the executor, made of one or several matrices of a checkpoint.

    Parts follow each other, each beginning at a panel; the panels of `interleaved` parts alternate. bias: each part has
    a bias. experts: number of matrices of this shape, whose rows follow each other when they are loaded (row
    e * rows + r of a part is row r of expert e); active: number of them that a token is multiplied with.
    """

    name: str
    parts: tuple[MatrixPart, ...]
    k: int
    role: Role
    bias: bool = False
    interleaved: bool = False
    experts: int = 1
    active: int = 1

    @property
    def rows(self) -> int:
        """Return the rows of all parts together."""
        return sum(part.rows for part in self.parts)


def single(name: str, stored: str, rows: int, k: int, role: Role, bias: bool = False) -> MatrixSpec:
    """Return a packed matrix of one part."""
    return MatrixSpec(name, (MatrixPart(name, stored, rows),), k, role, bias)
