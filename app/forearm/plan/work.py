"""The work of a step: the bytes it reads and the operations it computes, from sizes and formats alone."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from forearm.engine.blocks import BLOCK_TOKENS
from forearm.engine.host.memory_plan import kv_bytes, state_slot_bytes
from forearm.model.checkpoint.checkpoint import Checkpoint
from forearm.model.checkpoint.formats import described, spec_bytes
from forearm.model.families.config import Attention, LatentAttention, WeightFormat
from forearm.model.families.matrices import MatrixSpec, matrices


@dataclass(frozen=True)
class Matrices:
    """The matrices of one format. weights: multiply-adds per token."""

    format: WeightFormat
    weights: int
    size_bytes: int


@dataclass(frozen=True)
class AttentionWork:
    """The attention of layers with one window, summed. window: keys that a query sees; 0: all."""

    window: int
    layers: int
    width: int  # heads * head_dim of all layers
    kv_bytes: int  # per token


@dataclass(frozen=True)
class StepWork:
    """The work of a step. body: matrices per token; head: matrices per row of logits; layers: their number.

    state_bytes: states that layers keep of a sequence.
    """

    body: tuple[Matrices, ...]
    head: tuple[Matrices, ...]
    attention: tuple[AttentionWork, ...]
    layers: int
    state_bytes: int = 0

    @property
    def read_bytes(self) -> int:
        """Return the bytes of weights that a step with logits reads."""
        return sum(matrices.size_bytes for matrices in (*self.body, *self.head))


def work_of(checkpoint: Checkpoint) -> StepWork:
    """Return the work of a step of this model as it is served; of experts, only the active ones count."""
    body: dict[WeightFormat, list[MatrixSpec]] = defaultdict(list)
    head: dict[WeightFormat, list[MatrixSpec]] = defaultdict(list)
    config = checkpoint.config
    for spec in matrices(config):
        multiplied = config.tied_head and not config.pooled if spec.role == "embedding" else spec.role != "table"
        if multiplied:  # a token reads only one row of an embedding table
            (head if spec.role in ("embedding", "head") else body)[checkpoint.formats[spec.name]].append(spec)
    states = state_slot_bytes(checkpoint)
    return StepWork(_matrices(body), _matrices(head), _attention(checkpoint), len(config.layers), states)


def by_format(checkpoint: Checkpoint) -> dict[str, int]:
    """Return the bytes of packed matrices by format, and the bytes of vectors."""
    found: dict[str, int] = defaultdict(int)
    for spec in matrices(checkpoint.config):
        format = checkpoint.formats[spec.name]
        found[described(format)] += spec_bytes(spec, format)
    found["vectors"] = sum(4 * part.shape[0] for part, _ in checkpoint.sources if not part.matrix)
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _matrices(found: dict[WeightFormat, list[MatrixSpec]]) -> tuple[Matrices, ...]:
    return tuple(
        Matrices(
            format,
            sum(spec.rows * spec.k * spec.active for spec in specs),
            sum(spec_bytes(spec, format) * spec.active // spec.experts for spec in specs),
        )
        for format, specs in found.items()
    )


def _attention(checkpoint: Checkpoint) -> tuple[AttentionWork, ...]:
    config = checkpoint.config
    mixers = [layer.mixer for layer in config.layers]
    attending = [one for one in mixers if isinstance(one, Attention | LatentAttention)]
    windows = [one.window if isinstance(one, Attention) else 0 for one in attending]
    a_layer = kv_bytes(checkpoint) // BLOCK_TOKENS // (1 if config.pooled else max(1, len(windows)))
    return tuple(
        AttentionWork(
            window, windows.count(window), windows.count(window) * config.heads * config.head_dim,
            windows.count(window) * a_layer,
        )
        for window in sorted(set(windows))
    )  # fmt: skip
