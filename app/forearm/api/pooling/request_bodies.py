"""Request bodies of the pooling endpoints: OpenAI's embeddings, vLLM's pooling, classify and score, Jina's rerank."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AliasChoices, Field, StringConstraints

from forearm.api.generation.request_bodies import (
    Int64,
    JsonObject,
    LateBody,
    Many,
    Messages,
    Name,
    PromptIds,
    PromptText,
    SourceText,
    needs,
)

EncodingFormat = Literal["float", "base64", "bytes", "bytes_only"]
PairTexts = PromptText | Many[PromptText]
Cut = Annotated[Int64, Field(ge=-1)]
Count = Annotated[Int64, Field(ge=0)]


class PoolingFields(LateBody):
    """Fields that all pooling requests share. None: the model's default."""

    model: Name | None = None
    user: Name | None = None
    truncate_prompt_tokens: Cut | None = None
    truncation_side: Literal["left", "right"] | None = None
    padding: Literal["max_length", "do_not_pad"] | None = None
    request_id: Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[!-~]+$")] | None = None
    priority: Int64 = 0
    cache_salt: Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^@/\\\x00]+$")] | None = None
    # vLLM's names of use_activation before 0.33: normalize for embeddings, activation and softmax for classifiers
    use_activation: bool | None = Field(
        None, validation_alias=AliasChoices("use_activation", "normalize", "activation", "softmax")
    )


class InputFields(PoolingFields):
    """Texts, token ids, several of either, or a chat that is rendered to one text."""

    model_config = needs("input", "messages")

    input: PromptText | PromptIds | Many[PromptText] | Many[PromptIds] | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None  # None: true for texts, false for a chat, whose template adds them
    add_generation_prompt: bool = False
    continue_final_message: bool = False
    chat_template: SourceText | None = None
    chat_template_kwargs: JsonObject | None = None


class VectorFields(InputFields):
    """Fields for the encoding of vectors."""

    encoding_format: EncodingFormat = "float"
    dimensions: Annotated[Int64, Field(ge=1)] | None = None
    embed_dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    endianness: Literal["native", "big", "little"] = "native"


class LateChunking(LateBody):
    """Tokens whose mean becomes a vector; vLLM's LateChunkingParams."""

    chunk_size: Annotated[Int64, Field(ge=1, strict=True)]


class EmbeddingRequest(VectorFields):
    """POST /v1/embeddings."""

    late_chunking_params: LateChunking | None = None


class PoolingRequest(VectorFields):
    """POST /pooling. `task` None: embed or classify, by the kind of model."""

    task: Literal["embed", "classify", "score", "token_embed", "token_classify", "encode"] | None = None


class ClassifyRequest(InputFields):
    """POST /classify."""


class PairFields(PoolingFields):
    """Fields that /score and /rerank share. max_tokens_*: the length to which each text is first cut; 0: uncut.

    task: the outputs by which texts are compared, where the model has several; None: its default.
    """

    max_tokens_per_query: Count = 0
    max_tokens_per_doc: Count = 0
    task: Literal["classify", "embed", "token_embed", "token_classify"] | None = None
    instruction: PromptText | None = None
    chat_template_kwargs: JsonObject | None = None


class ScoreRequest(PairFields):
    """POST /score: one text with many, or two lists of equal length, under one of four pairs of names."""

    model_config = needs("queries documents", "queries items", "data_1 data_2", "text_1 text_2")

    text_1: PairTexts | None = None
    text_2: PairTexts | None = None
    queries: PairTexts | None = None
    documents: PairTexts | None = None
    items: PairTexts | None = None
    data_1: PairTexts | None = None
    data_2: PairTexts | None = None

    @property
    def sides(self) -> list[tuple[str, PairTexts, str, PairTexts]]:
        """Return every complete pair of fields with their names: a valid request has one."""
        pairs = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))
        given = ((one, getattr(self, one), two, getattr(self, two)) for one, two in pairs)
        return [pair for pair in given if pair[1] is not None and pair[3] is not None]


class RerankDocument(LateBody):
    """A document as Cohere's clients may send it."""

    text: PromptText


class RerankRequest(PairFields):
    """POST /rerank. top_n 0: return all documents."""

    query: PromptText
    documents: Many[PromptText | RerankDocument]
    top_n: Count | None = 0
    return_documents: bool = True
