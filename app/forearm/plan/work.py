"""The work of a step: what it reads and multiplies, from its sizes and formats alone."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from forearm.model.checkpoint.checkpoint import Checkpoint
from forearm.model.checkpoint.formats import described, packed_bytes, packed_name
from forearm.model.families.config import WeightFormat

Shapes = dict[WeightFormat, list[tuple[int, ...]]]


@dataclass(frozen=True)
class Matrices:
    """Matrices of one format. weights: multiply-adds of a token."""

    format: WeightFormat
    weights: int
    size_bytes: int


@dataclass(frozen=True)
class Attention:
    """Layers with one window. window: keys a query sees; 0: all. Sums over the layers."""

    window: int
    layers: int
    width: int  # heads * head_dim of all of them
    kv_bytes: int  # of a token


@dataclass(frozen=True)
class StepWork:
    """The work of a step. body: a token's matrices; head: those of a row of logits; layers: in all."""

    body: tuple[Matrices, ...]
    head: tuple[Matrices, ...]
    attention: tuple[Attention, ...]
    layers: int

    @property
    def read_bytes(self) -> int:
        """Return the bytes of weights that a step with logits reads."""
        return sum(matrices.size_bytes for matrices in (*self.body, *self.head))


def work_of(checkpoint: Checkpoint) -> StepWork:
    """The work of a step of this model as it is served."""
    body: Shapes = defaultdict(list)
    head: Shapes = defaultdict(list)
    config = checkpoint.config
    tables = {"positions", "types"} | (set() if config.tied_head and not config.pooled else {"embed"})
    for part, _ in checkpoint.sources:
        name = packed_name(part.name)
        if len(part.shape) != 2 or name in tables:
            continue  # of which a token reads one row
        (head if name in ("embed", "head") else body)[checkpoint.formats[name]].append(part.shape)
    return StepWork(_matrices(body), _matrices(head), _attention(checkpoint), len(checkpoint.config.layers))


def by_format(checkpoint: Checkpoint) -> dict[str, int]:
    """Bytes of packed matrices by what they are kept in, and of vectors."""
    found: dict[str, int] = defaultdict(int)
    for part, _ in checkpoint.sources:
        if len(part.shape) == 1:
            found["vectors"] += 4 * part.shape[0]
        else:
            format = checkpoint.formats[packed_name(part.name)]
            found[described(format)] += packed_bytes(format, *part.shape)
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _matrices(found: Shapes) -> tuple[Matrices, ...]:
    return tuple(
        Matrices(format, sum(rows * k for rows, k in shapes), sum(packed_bytes(format, *shape) for shape in shapes))
        for format, shapes in found.items()
    )


def _attention(checkpoint: Checkpoint) -> tuple[Attention, ...]:
    config = checkpoint.config
    a_layer = config.kv_bytes_per_token[checkpoint.kv_dtype] // (1 if config.pooled else len(config.layers))
    windows = [layer.window for layer in config.layers]
    return tuple(
        Attention(
            window, windows.count(window), windows.count(window) * config.heads * config.head_dim,
            windows.count(window) * a_layer,
        )
        for window in sorted(set(windows))
    )  # fmt: skip
