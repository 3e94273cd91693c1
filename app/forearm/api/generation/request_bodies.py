"""OpenAI's request bodies, with vLLM's extra fields. Ranges of sampling fields are the engine's to check."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    StringConstraints,
    TypeAdapter,
)
from pydantic_core import PydanticCustomError

from forearm.api.http.json_size import MOST_CHARACTERS, short_json

One = TypeVar("One")
Int64 = Annotated[int, Field(ge=-(1 << 63), le=(1 << 63) - 1)]
TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
# Every field has a bound far above real requests (tests/api/test_bounds.py), because validation of one request blocks
# the whole worker. Validation of a list stops at the first invalid member: a million errors took a minute.
Name = Annotated[str, StringConstraints(max_length=1024)]  # of a model, a role, a user
# Text of the prompt: the context bounds its length, and FOREARM_MAX_BODY_BYTES that of the body it comes in.
PromptText = Annotated[str, StringConstraints(max_length=1 << 25)]
SourceText = Annotated[str, StringConstraints(max_length=MOST_CHARACTERS)]  # of a template, grammar or schema
StopString = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
BadWord = Annotated[str, StringConstraints(min_length=1, max_length=256)]  # 128 of them are tokenized in 15 ms
TokenIds = Annotated[list[TokenId], Field(max_length=1 << 18, fail_fast=True)]  # the largest vocabularies have as many
PromptIds = Annotated[list[TokenId], Field(max_length=1 << 20, fail_fast=True)]  # as long as the longest contexts
MOST_MESSAGES = 10_000
Some = Annotated[list[One], Field(max_length=MOST_MESSAGES, fail_fast=True)]
Many = Annotated[list[One], Field(max_length=1 << 16, fail_fast=True)]  # prompts and texts; other lists are shorter
# Free-form objects, for templates and grammars.
JsonObject = Annotated[dict[str, Any], AfterValidator(short_json)]
JsonObjects = Annotated[Some[dict[str, Any]], AfterValidator(short_json)]
LogprobCount = Annotated[int, Field(ge=-1, lt=1 << 31)]


def few_members(value: Any) -> Any:
    """Refuse an object with too many members before they are validated. Raises: PydanticCustomError."""
    if isinstance(value, dict) and len(value) > _FEW:
        raise PydanticCustomError(
            "too_long", "it has {count} members; the limit is {most}", {"count": len(value), "most": _FEW}
        )
    return value


def first_wrong(value: Any) -> Any:
    """Validate an object's members up to the first invalid one. Raises: ValidationError."""
    if isinstance(value, dict) and len(value) > _FEW:
        members = iter(value.items())
        while some := dict(islice(members, _FEW)):
            _BIASES.validate_python(some)
    return value


_FEW = 100
_BIASES = TypeAdapter(dict[TokenId, FiniteFloat])
LogitBias = Annotated[dict[TokenId, FiniteFloat], Field(max_length=1 << 18), BeforeValidator(first_wrong)]


class Body(BaseModel):
    """A request body; unknown fields are kept in `model_extra`, which unsupported.py checks."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())


class LateBody(Body):
    """A body of a rarely used API: its validator is made with the first request, in 1 to 5 ms, not at each start."""

    model_config = ConfigDict(defer_build=True)


def needs(*alternatives: str) -> ConfigDict:
    """Return the config by which /openapi.json lists the required fields, or sets of them; the handler checks them."""
    return ConfigDict(json_schema_extra={"anyOf": [{"required": [*names.split()]} for names in alternatives]})


class StreamOptions(BaseModel):
    """Options of a stream: when it reports usage."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class JsonSchemaFormat(Body):
    """A named JSON schema. Answers fit it whether or not `strict` is set."""

    name: Name
    description: SourceText | None = None
    schema_: Annotated[JsonObject | bool | None, Field(alias="schema")] = None
    strict: bool | None = None


Choices = Annotated[Some[SourceText], AfterValidator(short_json)]


class ResponseFormat(Body):
    """The format of the answer. The other fields of a structural_tag stand beside its type."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(BaseModel):
    """vLLM's constraints; a request sets exactly one of the first six."""

    model_config = ConfigDict(extra="forbid")

    json_: Annotated[JsonObject | bool | SourceText | None, Field(alias="json")] = None
    regex: SourceText | None = None
    choice: Choices | None = None
    grammar: SourceText | None = None
    json_object: bool | None = None
    structural_tag: SourceText | JsonObject | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: SourceText | None = None
    disable_fallback: bool = False  # of vLLM's backends, of which there is one here
    backend: Name | None = None


class RepetitionDetectionBody(BaseModel):
    """The rule that ends an output whose last tokens are `min_count` repetitions of one pattern of these sizes."""

    max_pattern_size: Annotated[int, Field(ge=0, lt=1 << 31)]
    min_pattern_size: Annotated[int, Field(ge=0, lt=1 << 31)] = 0
    min_count: Annotated[int, Field(ge=0, lt=1 << 31)] = 2


class GenerationBody(Body):
    """Fields that chats and completions share. None: the model's default, else that of SamplingParams."""

    model: Name | None = None
    n: Int64 | None = None
    temperature: Annotated[FiniteFloat, Field(ge=0, le=2)] | None = None
    top_p: FiniteFloat | None = None
    top_k: Int64 | None = None
    min_p: FiniteFloat | None = None
    presence_penalty: FiniteFloat | None = None
    frequency_penalty: FiniteFloat | None = None
    repetition_penalty: FiniteFloat | None = None
    seed: Int64 | None = None
    stop: StopString | Some[StopString] | None = None
    stop_token_ids: TokenIds | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: Int64 | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logit_bias: LogitBias | None = None
    allowed_token_ids: TokenIds | None = None
    bad_words: Some[BadWord] | None = None
    prompt_logprobs: LogprobCount | None = None
    logprob_token_ids: Annotated[list[TokenId], Field(max_length=128, fail_fast=True)] | None = None
    repetition_detection: RepetitionDetectionBody | None = None
    use_beam_search: bool | None = None
    length_penalty: Annotated[FiniteFloat, Field(ge=-10, le=10)] = 1.0  # of beams
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stream_interval: Annotated[Int64, Field(ge=1)] = 1  # tokens of a choice in one chunk
    truncate_prompt_tokens: Annotated[Int64, Field(ge=-1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    priority: Int64 = 0
    request_id: Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[!-~]+$")] | None = None
    cache_salt: Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^@/\\\x00]+$")] | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    response_format: Annotated[ResponseFormat, AfterValidator(short_json)] | None = None
    structured_outputs: Annotated[StructuredOutputs, BeforeValidator(few_members)] | None = None
    # vLLM's names before 0.12, which other servers still use
    guided_json: JsonObject | bool | SourceText | None = None
    guided_regex: SourceText | None = None
    guided_choice: Choices | None = None
    guided_grammar: SourceText | None = None
    guided_json_object: bool | None = None
    guided_whitespace_pattern: SourceText | None = None
    guided_decoding_backend: Name | None = None
    # llama.cpp's
    grammar: SourceText | None = None
    json_schema: JsonObject | bool | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """Return the stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def asked_max_tokens(self) -> int | None:
        """Return the most tokens to generate; None if the request does not set it."""
        raise NotImplementedError

    @property
    def logprob_count(self) -> int | None:
        """Return how many alternatives are wanted at each generated token; None: no log-probabilities."""
        raise NotImplementedError


class ChatMessageBody(Body):
    """One message of a chat. The template reads its other fields (name, tool_calls, reasoning_content)."""

    role: Name
    content: PromptText | Some[dict[str, Any] | PromptText] | None = None  # a text is a part, too, as in vLLM


Messages = Annotated[Some[ChatMessageBody], Field(min_length=1)]


class Document(Body):
    """A document that a template for retrieval cites."""


class ChatRequest(GenerationBody):
    """POST /v1/chat/completions."""

    messages: Messages
    max_tokens: Int64 | None = None
    max_completion_tokens: Int64 | None = None
    logprobs: bool | None = False
    top_logprobs: LogprobCount | None = None
    tools: JsonObjects | None = None
    tool_choice: Name | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool = True
    thinking_token_budget: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    echo: bool = False
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    add_special_tokens: bool = False
    documents: Some[Document] | None = None
    chat_template: SourceText | None = None
    chat_template_kwargs: JsonObject | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    return_prompt_text: bool | None = None

    @property
    def asked_max_tokens(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def logprob_count(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


class ChatBatchRequest(Body):
    """POST /v1/chat/completions/batch: several conversations; every other field is a chat's and holds for all."""

    model: Name | None = None
    messages: Annotated[Many[Some[dict[str, Any]]], Field(min_length=1)]


class CompletionRequest(GenerationBody):
    """POST /v1/completions. A prompt is text or token ids; several of either may come at once."""

    model_config = needs("prompt")

    prompt: PromptText | PromptIds | Many[PromptText] | Many[PromptIds] | None = None
    max_tokens: Int64 | None = 16
    logprobs: LogprobCount | None = None
    echo: bool = False
    suffix: PromptText | None = None
    best_of: Int64 | None = None
    add_special_tokens: bool = True

    @property
    def asked_max_tokens(self) -> int | None:
        return 16 if self.max_tokens is None else self.max_tokens

    @property
    def logprob_count(self) -> int | None:
        return self.logprobs


class TokenizeRequest(Body):
    """POST /tokenize: a text, or a chat to be rendered first."""

    model_config = needs("prompt", "messages")

    model: Name | None = None
    prompt: PromptText | None = None
    messages: Messages | None = None
    # None: true for a text; false for a chat, whose template adds the special tokens
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = False
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template: SourceText | None = None
    chat_template_kwargs: JsonObject | None = None
    tools: JsonObjects | None = None


class DetokenizeRequest(Body):
    """POST /detokenize."""

    model: Name | None = None
    tokens: PromptIds
