"""Anthropic's request bodies of /v1/messages. Further fields of vLLM's chats are accepted under the same names."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, FiniteFloat, StringConstraints

from forearm.api.generation.request_bodies import (
    Int64,
    JsonObject,
    JsonObjects,
    LateBody,
    Name,
    PromptText,
    Some,
    StopString,
)
from forearm.errors import InvalidRequest

# Refused unless null, false or empty.
_UNSUPPORTED = {
    "container": "it runs no code",
    "mcp_servers": "it runs no tools; offer them in tools",
}
# Other APIs' names of fields that this API names differently, and fields that would change the form of an answer.
_ELSEWHERE = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "output_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "thinking_token_budget": "thinking.budget_tokens",
    "max_completion_tokens": "max_tokens",
    "functions": "tools",
    **dict.fromkeys(("logprobs", "top_logprobs", "prompt_logprobs", "echo"), "/v1/chat/completions"),
    **dict.fromkeys(("return_token_ids", "return_prompt_text"), "/v1/chat/completions"),
}


class Thinking(LateBody):
    """Options of thinking: on or off, its budget of tokens, and whether it is shown."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[Int64, Field(ge=1024)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class MessagesToolChoice(LateBody):
    """The tool choice: whether tools may or must be called, and whether several at once."""

    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool = False


class OutputConfig(LateBody):
    """Options of the answer: its format and effort."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonObject | None = None


class MessagesMetadata(LateBody):
    """The end user's id. It is accepted and not used."""

    user_id: Annotated[str, StringConstraints(max_length=512)] | None = None


class KeptTurns(LateBody):
    """The number of turns whose thinking is kept."""

    type: Literal["thinking_turns"]
    value: Annotated[Int64, Field(ge=1)]


class ClearThinking(LateBody):
    """The edit that removes thinking from old turns."""

    type: Literal["clear_thinking_20251015"]
    keep: Literal["all"] | KeptTurns = KeptTurns(type="thinking_turns", value=1)


class ContextManagement(LateBody):
    """Edits of the conversation before the model sees it; results of tools are kept."""

    edits: Annotated[Some[ClearThinking], Field(default_factory=list)]


class CountRequest(LateBody):
    """POST /v1/messages/count_tokens."""

    model: Name | None = None
    messages: Annotated[Some[dict[str, Any]], Field(min_length=1)]
    system: PromptText | Some[dict[str, Any]] | None = None
    tools: JsonObjects | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    context_management: ContextManagement | None = None

    @property
    def kept_thinking(self) -> int | None:
        """Return the number of turns whose thinking is kept; None: all."""
        kept = [edit.keep.value for edit in self._edits if not isinstance(edit.keep, str)]
        return min(kept, default=None)

    @property
    def _edits(self) -> list[ClearThinking]:
        return [] if self.context_management is None else self.context_management.edits


class MessagesRequest(CountRequest):
    """POST /v1/messages."""

    max_tokens: Annotated[Int64, Field(ge=1)]
    stop_sequences: Some[StopString] | None = None
    stream: bool | None = None
    temperature: Annotated[FiniteFloat, Field(ge=0, le=2)] | None = None
    top_k: Int64 | None = None
    top_p: FiniteFloat | None = None
    metadata: MessagesMetadata | None = None
    service_tier: Name | None = None


def check_messages(body: CountRequest) -> None:
    """Check what the types do not cover.

    Raises: InvalidRequest naming the field.
    """
    extra = body.model_extra or {}
    for name, reason in _UNSUPPORTED.items():
        if extra.get(name):
            raise InvalidRequest(f"{name} is not supported by this server: {reason}", name)
    for name, instead in _ELSEWHERE.items():
        if extra.get(name) not in (None, False):
            raise InvalidRequest(f"{name} is no field of /v1/messages; use {instead}", name)
    if extra.get("n") not in (None, 1):
        raise InvalidRequest("n is no field of /v1/messages; use /v1/chat/completions", "n")
    thinking = body.thinking
    if thinking is None or thinking.type != "enabled":
        return
    budget = thinking.budget_tokens
    if budget is None:
        raise InvalidRequest("thinking.budget_tokens is required where thinking is enabled; at least 1024", "thinking")
    if isinstance(body, MessagesRequest) and budget >= body.max_tokens:
        raise InvalidRequest(
            f"thinking.budget_tokens is {budget}; it must be less than max_tokens, {body.max_tokens}", "thinking"
        )
