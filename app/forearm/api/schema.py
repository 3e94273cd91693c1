"""OpenAI's request bodies, with vLLM's extra fields. Ranges of sampling fields are the engine's to check."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, StringConstraints

Int64 = Annotated[int, Field(ge=-(1 << 63), le=(1 << 63) - 1)]
TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
NonEmpty = Annotated[str, StringConstraints(min_length=1)]
# Bounds that no honest request meets: a million ids took a worker a second, 200,000 messages 6 s, in which it served
# nobody else (tests/e2e/test_hostile_http.py's machine).
StopString = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
TokenIds = Annotated[list[TokenId], Field(max_length=1 << 18)]  # the largest vocabularies have as many
MOST_MESSAGES = 10_000
LogprobCount = Annotated[int, Field(ge=-1, lt=1 << 31)]


class Body(BaseModel):
    """Fields this server does not know are kept apart, in `model_extra`, for refusals.py to look at."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())


class StreamOptions(BaseModel):
    """What a stream says of its usage."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class JsonSchemaFormat(Body):
    """A schema by its name. `strict` or not, answers fit it."""

    name: str
    description: str | None = None
    schema_: Annotated[dict[str, Any] | bool | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Body):
    """What the answer is. A structural_tag's other fields stand beside its type."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(BaseModel):
    """vLLM's constraints; exactly one of the first six."""

    model_config = ConfigDict(extra="forbid")

    json_: Annotated[dict[str, Any] | bool | str | None, Field(alias="json")] = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    disable_fallback: bool = False  # of vLLM's backends, of which there is one here
    backend: str | None = None


class RepetitionDetection(BaseModel):
    """An output ends once its last tokens are `min_count` times the same pattern of so many tokens."""

    max_pattern_size: Annotated[int, Field(ge=0, lt=1 << 31)]
    min_pattern_size: Annotated[int, Field(ge=0, lt=1 << 31)] = 0
    min_count: Annotated[int, Field(ge=0, lt=1 << 31)] = 2


class GenerationBody(Body):
    """What chat and completions have in common. None: the model's default, else SamplingParams'."""

    model: str | None = None
    n: int | None = None
    temperature: Annotated[FiniteFloat, Field(ge=0, le=2)] | None = None
    top_p: FiniteFloat | None = None
    top_k: Int64 | None = None
    min_p: FiniteFloat | None = None
    presence_penalty: FiniteFloat | None = None
    frequency_penalty: FiniteFloat | None = None
    repetition_penalty: FiniteFloat | None = None
    seed: Int64 | None = None
    stop: StopString | list[StopString] | None = None
    stop_token_ids: TokenIds | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: Int64 | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logit_bias: dict[TokenId, FiniteFloat] | None = None
    allowed_token_ids: TokenIds | None = None
    bad_words: list[NonEmpty] | None = None
    prompt_logprobs: LogprobCount | None = None
    logprob_token_ids: Annotated[list[TokenId], Field(max_length=128)] | None = None
    repetition_detection: RepetitionDetection | None = None
    use_beam_search: bool | None = None
    length_penalty: Annotated[FiniteFloat, Field(ge=-10, le=10)] = 1.0  # of beams
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stream_interval: Annotated[int, Field(ge=1)] = 1  # tokens of a choice that go into one chunk
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    priority: Int64 = 0
    request_id: Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[!-~]+$")] | None = None
    cache_salt: Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^@/\\\x00]+$")] | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    # vLLM's names before 0.12, which other servers still have
    guided_json: dict[str, Any] | bool | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_json_object: bool | None = None
    guided_whitespace_pattern: str | None = None
    guided_decoding_backend: str | None = None
    # llama.cpp's
    grammar: str | None = None
    json_schema: dict[str, Any] | bool | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def asked_max_tokens(self) -> int | None:
        """The most tokens to generate, where the request says."""
        raise NotImplementedError

    @property
    def logprob_count(self) -> int | None:
        """Alternatives wanted at each generated token; None: no log-probabilities."""
        raise NotImplementedError


class Message(Body):
    """One turn. What else it has (name, tool_calls, reasoning_content) is the template's to read."""

    role: str
    content: str | list[dict[str, Any]] | None = None


Messages = Annotated[list[Message], Field(min_length=1, max_length=MOST_MESSAGES)]


class Document(Body):
    """What a template for retrieval cites."""


class ChatRequest(GenerationBody):
    """POST /v1/chat/completions."""

    messages: Messages
    max_tokens: Int64 | None = None
    max_completion_tokens: Int64 | None = None
    logprobs: bool | None = False
    top_logprobs: LogprobCount | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool = True
    thinking_token_budget: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    echo: bool = False
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    add_special_tokens: bool = False
    documents: list[Document] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    return_prompt_text: bool | None = None

    @property
    def asked_max_tokens(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def logprob_count(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


class ChatBatchRequest(Body):
    """POST /v1/chat/completions/batch: several conversations; every other field is a chat's, and holds for all."""

    model: str | None = None
    messages: Annotated[list[Annotated[list[dict[str, Any]], Field(max_length=MOST_MESSAGES)]], Field(min_length=1)]


class CompletionRequest(GenerationBody):
    """POST /v1/completions. A prompt is text or token ids; several of either may come at once."""

    prompt: str | list[TokenId] | list[str] | list[list[TokenId]] | None = None
    max_tokens: Int64 | None = 16
    logprobs: LogprobCount | None = None
    echo: bool = False
    suffix: str | None = None
    best_of: int | None = None
    add_special_tokens: bool = True

    @property
    def asked_max_tokens(self) -> int | None:
        return 16 if self.max_tokens is None else self.max_tokens

    @property
    def logprob_count(self) -> int | None:
        return self.logprobs


class TokenizeRequest(Body):
    """POST /tokenize: a text, or a chat to be rendered first."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    # None: true for a text; false for a chat, whose template brings the special tokens
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = False
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None


class DetokenizeRequest(Body):
    """POST /detokenize."""

    model: str | None = None
    tokens: Annotated[list[TokenId], Field(max_length=1 << 20)]
