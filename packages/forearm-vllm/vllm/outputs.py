"""Types of results, under vLLM's names."""

from forearm.offline.outputs import CompletionOutput, RequestOutput
from forearm.offline.pooling_outputs import (
    ClassificationOutput,
    EmbeddingOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringOutput,
)
from forearm.text.tokenizer.late_chunking import LateChunk, LateChunkingMetadata

ClassificationRequestOutput = PoolingRequestOutput[ClassificationOutput]
EmbeddingRequestOutput = PoolingRequestOutput[EmbeddingOutput]
ScoringRequestOutput = PoolingRequestOutput[ScoringOutput]

__all__ = [
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "LateChunk",
    "LateChunkingMetadata",
    "PoolingOutput",
    "PoolingRequestOutput",
    "RequestOutput",
    "ScoringOutput",
    "ScoringRequestOutput",
]
