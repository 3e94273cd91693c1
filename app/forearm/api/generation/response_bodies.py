"""OpenAI's response bodies, as vLLM writes them. msgspec encodes them, several times faster than pydantic.

A field that is UNSET is left out, None is written as null: clients expect exactly these keys.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from forearm.wire import ModelFacts

encoder = msgspec.json.Encoder()


class CachedTokens(msgspec.Struct, kw_only=True):
    cached_tokens: int


class ReasoningTokens(msgspec.Struct, kw_only=True):
    reasoning_tokens: int


class Usage(msgspec.Struct, kw_only=True):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: CachedTokens | None = None
    completion_tokens_details: ReasoningTokens | UnsetType = UNSET


class DraftMetrics(msgspec.Struct, kw_only=True):
    """vLLM's counts of speculative decoding for one answer. acceptance_histogram: drafts by accepted tokens;
    num_spec_tokens: tokens of the longest draft.
    """

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int

    @classmethod
    def of(cls, drafts: list[tuple[int, int]]) -> DraftMetrics | None:
        """Return the metrics of (drafted, accepted) tokens of each draft; None if there was no draft."""
        if not drafts:
            return None
        drafted, accepted = (sum(column) for column in zip(*drafts, strict=True))
        longest = max(count for count, _ in drafts)
        right = [count for _, count in drafts]
        return cls(
            mean_acceptance_length=1 + accepted / len(drafts),
            draft_acceptance_rate=accepted / drafted,
            acceptance_histogram=[right.count(count) for count in range(longest + 1)],
            num_spec_steps=len(drafts),
            num_accepted_draft_tokens=accepted,
            num_draft_tokens=drafted,
            num_spec_tokens=longest,
        )


class AnswerMetrics(msgspec.Struct, kw_only=True):
    """vLLM's metrics of one answer."""

    time_to_first_token_ms: float | UnsetType = UNSET
    generation_time_ms: float | UnsetType = UNSET
    queue_time_ms: float | UnsetType = UNSET
    mean_itl_ms: float | UnsetType = UNSET  # for two tokens or more
    tokens_per_second: float | UnsetType = UNSET
    speculative_decoding: DraftMetrics | None = None


class TopLogprob(msgspec.Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(msgspec.Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, kw_only=True):
    content: list[ContentLogprob]


class CompletionLogprobs(msgspec.Struct, kw_only=True):
    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class PromptLogprob(msgspec.Struct, kw_only=True):
    logprob: float
    rank: int
    decoded_token: str


# Keyed by token id as text, since JSON keys are strings.
PromptLogprobs = list[dict[str, PromptLogprob] | None]


class FunctionReply(msgspec.Struct, kw_only=True):
    name: str
    arguments: str  # JSON


class ToolCallReply(msgspec.Struct, kw_only=True):
    id: str
    type: Literal["function"] = "function"
    function: FunctionReply


class ChatMessage(msgspec.Struct, kw_only=True):
    role: str
    content: str | None
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None
    tool_calls: list[ToolCallReply] | UnsetType = UNSET
    reasoning: str | None = None
    reasoning_content: str | None = None  # the former name of `reasoning`: clients read either


class ChatChoice(msgspec.Struct, kw_only=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | UnsetType | None = UNSET


class ChatCompletion(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    service_tier: None = None
    system_fingerprint: str | None
    usage: Usage
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None
    prompt_text: str | UnsetType = UNSET
    kv_transfer_params: None = None
    metrics: AnswerMetrics | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


class FunctionDelta(msgspec.Struct, kw_only=True):
    name: str | UnsetType = UNSET
    arguments: str


class CallDelta(msgspec.Struct, kw_only=True):
    """A part of a tool call in a stream: the first one has its id and name, later ones only arguments."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta


class Delta(msgspec.Struct, kw_only=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[CallDelta] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class CompletionChoice(msgspec.Struct, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType | None = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType | None = UNSET


class Completion(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    service_tier: None = None
    system_fingerprint: str | None
    usage: Usage
    kv_transfer_params: None = None
    metrics: AnswerMetrics | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


class ChunkHead(msgspec.Struct, kw_only=True):
    """The fields that all chunks of a stream begin with; encoded once."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str | None
    warnings: list[str] | UnsetType = UNSET


class Permission(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["model_permission"] = "model_permission"
    created: int
    allow_create_engine: bool = False
    allow_sampling: bool = True
    allow_logprobs: bool = True
    allow_search_indices: bool = False
    allow_view: bool = True
    allow_fine_tuning: bool = False
    organization: str = "*"
    group: None = None
    is_blocking: bool = False


class ModelCard(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "forearm"
    root: str
    parent: None = None
    max_model_len: int | None
    permission: list[Permission]
    default_sampling_params: dict[str, Any]  # used where a request sets none
    tasks: list[str]  # chat, completions; embed, classify, score and others of a pooling model
    details: ModelFacts | None  # None until an engine is there


class ModelList(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class Tokenized(msgspec.Struct, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Detokenized(msgspec.Struct, kw_only=True):
    prompt: str


class ErrorBody(msgspec.Struct, kw_only=True):
    message: str
    type: str
    param: str | None
    code: int


class ErrorReply(msgspec.Struct, kw_only=True):
    error: ErrorBody
