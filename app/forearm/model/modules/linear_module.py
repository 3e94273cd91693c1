"""A linear layer of a model that transformers builds, as ModelConfig lists them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forearm.model.families.config import Activation


@dataclass(frozen=True)
class LinearModule:
    """A linear layer of a model that transformers builds.

    name: of its module. rows, k: the shape of its weight. matrix: the packed matrix that its rows are in, by the name
    of the first of the layers that share it, which follow each other. gate: the activation of a matrix of two layers,
    of which the first, activated, is multiplied with the second; None: the layers stand side by side.
    """

    name: str
    rows: int
    k: int
    bias: bool
    matrix: str
    gate: Activation | None = None
