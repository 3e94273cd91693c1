"""Parameters and outputs of LLM.embed, .classify, .score and .encode, with vLLM's names and fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from forearm.errors import InvalidRequest
from forearm.text.tokenizer.late_chunking import LateChunkingMetadata

Output = TypeVar("Output")


@dataclass(frozen=True)
class LateChunkingParams:
    """Late chunking, of the task token_embed. chunk_size: tokens whose mean becomes a vector.

    Raises: InvalidRequest for a size below 1, or of 2^63 and more.
    """

    chunk_size: int

    def __post_init__(self) -> None:
        if type(self.chunk_size) is not int or not 0 < self.chunk_size < 1 << 63:
            raise InvalidRequest(f"chunk_size is {self.chunk_size!r:.100}; it must be a whole number from 1 on")


@dataclass(frozen=True)
class PoolingParams:
    """The pooling of texts. None: the model's default.

    dimensions: of matryoshka models. use_activation: False is without normalization, softmax or sigmoid.
    truncate_prompt_tokens: most tokens of a text; -1: the context's length.
    """

    dimensions: int | None = None
    use_activation: bool | None = None
    truncate_prompt_tokens: int | None = None
    task: Literal["embed", "classify", "score", "token_embed", "token_classify"] | None = None
    late_chunking_params: LateChunkingParams | None = None


@dataclass(frozen=True)
class PoolingOutput:
    """float32 [columns]; of tasks token_embed and token_classify [tokens, columns], of bge-m3's weights [tokens]; of
    late chunking [chunks, columns]."""

    data: npt.NDArray[np.float32]


@dataclass(frozen=True)
class EmbeddingOutput:
    """A text's vector."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """The vector's number of values."""
        return len(self.embedding)


@dataclass(frozen=True)
class ClassificationOutput:
    """The probability of each label."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        """The number of labels."""
        return len(self.probs)


@dataclass(frozen=True)
class ScoringOutput:
    """The similarity or relevance of two texts."""

    score: float


@dataclass(frozen=True)
class PoolingRequestOutput(Generic[Output]):
    """A text's output. late_chunking: the chunks whose vectors it has; None: it was not cut."""

    request_id: str
    outputs: Output
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True
    late_chunking: LateChunkingMetadata | None = None
