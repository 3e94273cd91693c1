"""Response bodies of the pooling endpoints, as vLLM writes them."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from forearm.api.generation.response_bodies import Usage
from forearm.text.tokenizer.late_chunking import LateChunkingMetadata

Vector = list[float] | list[list[float]] | str  # base64


class Embedding(msgspec.Struct, kw_only=True):
    index: int
    object: str = "embedding"
    embedding: Vector
    late_chunking: LateChunkingMetadata | UnsetType = UNSET


class PooledText(msgspec.Struct, kw_only=True):
    index: int
    object: str = "pooling"
    data: Vector


class Classified(msgspec.Struct, kw_only=True):
    index: int
    label: str | None
    probs: list[float]
    num_classes: int


class Score(msgspec.Struct, kw_only=True):
    index: int
    object: str = "score"
    score: float


PoolingData = list[Embedding] | list[PooledText] | list[Classified] | list[Score]


class PoolingReply(msgspec.Struct, kw_only=True):
    """The reply of all pooling endpoints but /rerank."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: PoolingData
    usage: Usage


class RerankUsage(msgspec.Struct, kw_only=True):
    prompt_tokens: int
    total_tokens: int


class RerankText(msgspec.Struct, kw_only=True):
    text: str
    multi_modal: None = None


class Ranked(msgspec.Struct, kw_only=True):
    index: int
    document: RerankText | UnsetType = UNSET
    relevance_score: float


class RerankReply(msgspec.Struct, kw_only=True):
    id: str
    model: str
    usage: RerankUsage
    results: list[Ranked]
