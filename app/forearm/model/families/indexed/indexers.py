"""Small heads that choose the keys, or blocks of keys, which a token attends to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Indexer:
    """Small heads that choose the keys which a token attends to (DeepSeek-AI 2025, arXiv:2512.02556, sparse attention).

    A token sees the `chosen` keys before it whose scores are the largest, and all if it has no more. A score is the sum
    over `heads` heads of head_dim numbers of weight * max(0, query . key); queries are made of the latent of queries,
    keys and weights of the residual. interleaved: its rope, with the angles of the layer. shared: the layer has no
    indexer, but sees the keys that the last layer with one has chosen (GLM-5.2; Bai et al. 2026, arXiv:2603.12201).
    last: the last numbers of a head are rotated, not the first. key_eps: of the LayerNorm of keys.
    """

    heads: int
    head_dim: int
    chosen: int
    interleaved: bool = False
    shared: bool = False
    last: bool = False
    key_eps: float = 1e-6


@dataclass(frozen=True)
class BlockIndexer:
    """Small queries, one of each kv head, that choose the blocks of keys which a token attends to (MiniMax M3).

    A token sees the `chosen` blocks of `block` neighbouring keys whose scores are the largest, and all if there are no
    more; its own block and the local - 1 before it are always among them. A block's score is its largest product of
    the query and a key of head_dim numbers, one for all kv heads. Both are made of the residual, normalized, and
    rotated as the layer's own.
    heads: if not 0, so many queries choose for all kv heads, of blocks that are complete: a block's score is the sum of
    the products above 0 with the mean of its keys, which is normalized and rotated as the block's first key; the keys
    behind the last complete block are seen, too (Qwen4-Exp).
    """

    head_dim: int
    block: int
    chosen: int
    local: int = 1
    heads: int = 0
