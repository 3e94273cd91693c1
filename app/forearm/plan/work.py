"""The work of a step: the bytes it reads and the operations it computes, from sizes and formats alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from forearm.config.number_formats import WeightFormat
from forearm.engine.cache.kv_groups import BLOCK_TOKENS
from forearm.engine.host.memory_plan import kv_bytes, state_slot_bytes
from forearm.model.checkpoint.checkpoint import Checkpoint
from forearm.model.checkpoint.formats import described, spec_bytes
from forearm.model.families.config import Attention, LatentAttention, Mixer, ModelConfig
from forearm.model.families.matrices import matrices
from forearm.model.families.matrix_spec import MatrixSpec
from forearm.model.families.recurrences import CompressedAttention


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


@dataclass(frozen=True)
class _Piece:
    """A part of a layer's attention: keys that a query sees up to `window` tokens back, or scores.

    width: heads * head_dim, less where a key stands for several tokens; half of it for scores, which have no value to
    add up. kept: values of keys for each token. own: the layer has these keys, not another one.
    """

    window: int
    width: float
    kept: float
    scores: bool = False
    own: bool = True

    @classmethod
    def of(cls, config: ModelConfig, mixer: Mixer | None) -> Iterator[_Piece]:
        """Yield the parts of a layer's attention; none for a mixer of another kind."""
        if isinstance(mixer, CompressedAttention):
            width = config.heads * config.head_dim
            yield cls(mixer.window, width, config.head_dim)
            if mixer.ratio:
                yield cls(mixer.chosen * mixer.ratio, width / mixer.ratio, config.head_dim / mixer.ratio)
            if mixer.chosen:
                queries = mixer.index_heads * mixer.index_dim
                yield cls(0, queries / 2 / mixer.ratio, mixer.index_dim / mixer.ratio, scores=True)
        if not isinstance(mixer, Attention | LatentAttention):
            return
        heads, kv_heads, head_dim = config.heads_of(mixer)
        indexer = mixer.indexer if isinstance(mixer, LatentAttention) else None
        blocks = mixer.blocks if isinstance(mixer, Attention) else None
        window = indexer.chosen if indexer else mixer.window
        window = blocks.chosen * blocks.block if blocks else window
        own = isinstance(mixer, LatentAttention) or mixer.shared_from is None
        yield cls(window, heads * head_dim, kv_heads * head_dim, own=own)
        if indexer and not indexer.shared:  # of all keys
            yield cls(0, indexer.heads * indexer.head_dim / 2, indexer.head_dim, scores=True)
        if blocks:
            keys, queries = (blocks.block, blocks.heads) if blocks.heads else (1, kv_heads)  # keys of a mean
            yield cls(0, queries * blocks.head_dim / 2 / keys, blocks.head_dim / keys, scores=True)


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
    pieces = [piece for layer in config.layers for piece in _Piece.of(config, layer.mixer)]
    kept = sum(piece.kept for piece in pieces if piece.own)
    a_value = kv_bytes(checkpoint) / BLOCK_TOKENS / max(1, pieces[0].kept if config.pooled and pieces else kept)
    attention = []
    for scores, window in sorted({(piece.scores, piece.window) for piece in pieces}):
        same = [piece for piece in pieces if (piece.scores, piece.window) == (scores, window)]
        width, read = sum(piece.width for piece in same), round(a_value * sum(piece.kept for piece in same))
        attention.append(AttentionWork(window, len(same), round(width), read))
    states = state_slot_bytes(checkpoint)
    return StepWork(_matrices(body), _matrices(head), tuple(attention), len(config.layers), states)


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
