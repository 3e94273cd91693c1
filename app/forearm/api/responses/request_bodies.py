"""OpenAI's request body of /v1/responses. Fields that vLLM adds to it have the names of the chat's fields."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, FiniteFloat, StringConstraints

from forearm.api.generation.request_bodies import (
    Int64,
    JsonObject,
    JsonObjects,
    LateBody,
    Name,
    PromptText,
    Some,
    few_members,
    needs,
)
from forearm.errors import InvalidRequest

ENCRYPTED, LOGPROBS = "reasoning.encrypted_content", "message.output_text.logprobs"
INCLUDABLE = (ENCRYPTED, LOGPROBS)

Id = Annotated[str, StringConstraints(max_length=256)]
Positive = Annotated[Int64, Field(ge=1)]
MetadataKey = Annotated[str, StringConstraints(max_length=64)]
MetadataValue = Annotated[str, StringConstraints(max_length=512)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16), BeforeValidator(few_members)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

# Fields of OpenAI or vLLM that are not supported: refused unless null, false or empty.
_UNSUPPORTED = {
    "prompt": "this server stores no prompts; send the text as input",
    "conversation": "this server stores no conversations; use previous_response_id",
    "context_management": "contexts are not compacted; use truncation",
    "moderation": "it moderates no content",
    "enable_response_messages": "answers have no messages; use /v1/chat/completions",
    "previous_input_messages": "use previous_response_id",
}
# Other APIs' names of fields that this API names differently.
_ELSEWHERE = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "logprobs": "include: [message.output_text.logprobs] and top_logprobs",
    "functions": "tools",
    "function_call": "tool_choice",
    "verbosity": "text.verbosity",
}
# Fields of chats that would change the form of an answer.
_NO_ANSWER = ("n", "echo", "prompt_logprobs", "return_token_ids", "return_prompt_text", "continue_final_message")


class ReasoningOptions(LateBody):
    """Options of reasoning: its effort, and the form in which it is shown."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None  # the former name of `summary`
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: Literal["standard"] | None = None

    @property
    def summarized(self) -> bool:
        """Return whether reasoning is shown as a summary: its whole text, since the model writes no shorter one."""
        return (self.summary or self.generate_summary) is not None


class TextFields(LateBody):
    """Options of the output text."""

    format: JsonObject | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponsesStreamOptions(LateBody):
    """Options of a stream."""

    include_obfuscation: bool = False


class ResponsesRequest(LateBody):
    """POST /v1/responses."""

    model_config = needs("input", "previous_response_id")

    model: Name | None = None
    input: PromptText | Some[dict[str, Any]] | None = None
    instructions: PromptText | None = None
    previous_response_id: Id | None = None
    background: bool | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: ResponsesStreamOptions | None = None
    include: Some[Name] | None = None
    max_output_tokens: Positive | None = None
    max_tool_calls: Positive | None = None  # limits calls of built-in tools, of which there are none
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16), BeforeValidator(few_members)] | None = (
        None
    )
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    text: TextFields | None = None
    tools: JsonObjects | None = None
    tool_choice: Name | JsonObject | None = None
    temperature: Annotated[FiniteFloat, Field(ge=0, le=2)] | None = None
    top_p: FiniteFloat | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    service_tier: Name | None = None
    user: Name | None = None
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    prompt_cache_options: JsonObject | None = None

    @property
    def wants_logprobs(self) -> bool:
        """Return whether the text comes with log-probabilities."""
        return LOGPROBS in (self.include or ()) or bool(self.top_logprobs)


def check_include(include: list[str] | None) -> None:
    """Check the names in `include`. Raises: InvalidRequest naming what cannot be included."""
    for one in include or ():
        if one not in INCLUDABLE:
            raise InvalidRequest(f"include: {one[:100]!r} is not supported; write {' or '.join(INCLUDABLE)}", "include")


def check_responses(body: ResponsesRequest, stores: bool) -> None:
    """Check what the types do not cover. `stores`: whether this server stores responses.

    Raises: InvalidRequest naming the field.
    """
    extra = body.model_extra or {}
    for name, reason in _UNSUPPORTED.items():
        if extra.get(name):
            raise InvalidRequest(f"{name} is not supported by this server: {reason}", name)
    for name, instead in _ELSEWHERE.items():
        if extra.get(name) is not None:
            raise InvalidRequest(f"{name} is no field of /v1/responses; use {instead}", name)
    for name in _NO_ANSWER:
        if extra.get(name) and not (name == "n" and extra[name] == 1):
            raise InvalidRequest(f"{name} is no field of /v1/responses; use /v1/chat/completions", name)
    check_include(body.include)
    if body.input is None and body.previous_response_id is None:
        raise InvalidRequest("input is required: a string or a list of items", "input")
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options are for streams; set stream: true", "stream_options")
    if body.reasoning is not None and "concise" in (body.reasoning.summary, body.reasoning.generate_summary):
        raise InvalidRequest(
            "reasoning.summary: only the whole reasoning is available; write auto", "reasoning.summary"
        )
    if body.background and body.store is False:
        raise InvalidRequest("background needs store: true, as the response is fetched from the store", "background")
    for name in ("background", "previous_response_id"):
        if getattr(body, name) and not stores:
            raise InvalidRequest(
                f"{name} needs stored responses, and this server keeps none (VLLM_ENABLE_RESPONSES_API_STORE=0)", name
            )
