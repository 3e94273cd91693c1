"""Dense: a layer between pooling and the results of a model that computes vectors, or before an output head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from forearm.model.families.config import Activation

DenseActivation = Literal["none", "tanh"] | Activation


@dataclass(frozen=True)
class Dense:
    """A layer after pooling: activation(W x + bias), followed by a LayerNorm if `norm` names one.

    stored, norm: modules of the checkpoint. rows: if given, W is these rows of the output head, in ascending order (a
    reranker's tokens "no" and "yes"). head: layers of one head follow each other, the first reads what is pooled.
    """

    outputs: int
    stored: str
    bias: bool = True
    activation: DenseActivation = "none"
    norm: str = ""
    rows: tuple[int, ...] = ()
    head: int = 0
