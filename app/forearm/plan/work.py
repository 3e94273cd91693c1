"""The work of a step: the bytes it reads and the operations it computes, from sizes and formats alone."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from forearm.config.number_formats import WeightFormat
from forearm.engine.blocks import BLOCK_TOKENS
from forearm.engine.host.memory_plan import kv_bytes, state_slot_bytes
from forearm.model.checkpoint.checkpoint import Checkpoint
from forearm.model.checkpoint.formats import described, spec_bytes
from forearm.model.families.config import Attention, Indexer, LatentAttention, ModelConfig
from forearm.model.families.matrices import MatrixSpec, matrices


@dataclass(frozen=True)
class Matrices:
    """The matrices of one format. weights: multiply-adds per token. share: of the experts, that a token chooses."""

    format: WeightFormat
    weights: int
    size_bytes: int
    share: float = 1.0

    def read_bytes(self, rows: int) -> float:
        """Return the bytes that a step of `rows` rows reads: of experts those of an even choice, which is the worst."""
        return self.size_bytes * (1 - (1 - self.share) ** rows) if rows else 0.0


@dataclass(frozen=True)
class AttentionWork:
    """The attention of layers with one window, or the indexers of layers, summed. window: keys that a query sees.

    A window of 0: it sees all keys.
    """

    window: int
    layers: int
    width: int  # heads * head_dim, summed over the layers
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

    def read_bytes(self, rows: int, logits: int) -> float:
        """Return the bytes of weights that a step reads of `rows` rows, `logits` of which get logits."""
        return sum(one.read_bytes(rows) for one in self.body) + sum(one.read_bytes(logits) for one in self.head)


def work_of(checkpoint: Checkpoint) -> StepWork:
    """Return the work of a step of this model as it is served; a token is multiplied with its active experts."""
    body: dict[tuple[WeightFormat, float], list[MatrixSpec]] = defaultdict(list)
    head: dict[tuple[WeightFormat, float], list[MatrixSpec]] = defaultdict(list)
    config = checkpoint.config
    for spec in matrices(config):
        multiplied = config.tied_head and not config.pooled if spec.role == "embedding" else spec.role != "table"
        if multiplied:  # a token reads only one row of an embedding table
            kind = checkpoint.formats[spec.name], spec.active / spec.experts
            (head if spec.role in ("embedding", "head") else body)[kind].append(spec)
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


def _matrices(found: dict[tuple[WeightFormat, float], list[MatrixSpec]]) -> tuple[Matrices, ...]:
    return tuple(
        Matrices(
            format,
            sum(spec.rows * spec.k * spec.active for spec in specs),
            sum(spec_bytes(spec, format) for spec in specs),
            share,
        )
        for (format, share), specs in found.items()
    )


def _attention(checkpoint: Checkpoint) -> tuple[AttentionWork, ...]:
    config = checkpoint.config
    mixers = [layer.mixer for layer in config.layers if isinstance(layer.mixer, Attention | LatentAttention)]
    windows = [_window(mixer) for mixer in mixers]
    indexers = [one for one in map(_indexer, mixers) if one and not one.shared]
    indexed = sum(one.head_dim for one in indexers)
    kept = sum(_kept(config, one) for one in mixers if isinstance(one, LatentAttention) or one.shared_from is None)
    kept += indexed
    a_value = kv_bytes(checkpoint) / BLOCK_TOKENS / max(1, _kept(config, mixers[0]) if config.pooled else kept)
    found = []
    for window in sorted(set(windows)):
        own = [mixer for mixer, its_window in zip(mixers, windows, strict=True) if its_window == window]
        width = sum(heads * head_dim for heads, _, head_dim in map(config.heads_of, own))
        read = round(a_value * sum(_kept(config, mixer) for mixer in own))
        found.append(AttentionWork(window, len(own), width, read))
    if indexers:  # of all keys; half the width, because a score has no value to add up
        width = sum(one.heads * one.head_dim for one in indexers) // 2
        found.append(AttentionWork(0, len(indexers), width, round(a_value * indexed)))
    return tuple(found)


def _indexer(mixer: Attention | LatentAttention) -> Indexer | None:
    return mixer.indexer if isinstance(mixer, LatentAttention) else None


def _window(mixer: Attention | LatentAttention) -> int:
    """Return the most keys that a query attends to; 0: all."""
    indexer = _indexer(mixer)
    return indexer.chosen if indexer else mixer.window if isinstance(mixer, Attention) else 0


def _kept(config: ModelConfig, mixer: Attention | LatentAttention) -> int:
    """Return the values of a token's keys in a layer."""
    _, kv_heads, head_dim = config.heads_of(mixer)
    return kv_heads * head_dim
