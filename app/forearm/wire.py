"""The messages between an API worker and an engine over their socket, and their framing.

A frame is a little-endian uint32 length and a msgpack body; a body is one `ToEngine` or one `FromEngine`, tagged by
its type's name. Token ids in, token ids out: text stays with the worker.
"""

from __future__ import annotations

import math
import struct
from typing import Any, Literal

import msgspec

MAX_FRAME_BYTES = 256 << 20
_LENGTH = struct.Struct("<I")


class RepetitionDetection(msgspec.Struct, frozen=True, kw_only=True):
    """An output ends ("repetition") once its last tokens are `min_count` times the same `min_pattern_size` ..
    `max_pattern_size` tokens (0 as the least size: 1).
    """

    max_pattern_size: int
    min_pattern_size: int = 0
    min_count: int = 2


class StructuredOutputsParams(msgspec.Struct, frozen=True, kw_only=True):
    """A constraint on an output: exactly one of the first six. json: a schema, or its text; grammar: Lark or EBNF."""

    json: str | dict[str, Any] | bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None


MAX_OUTPUTS = 16384  # default of VLLM_MAX_N_SEQUENCES
# The least and the most of parameters that are numbers.
SAMPLING_RANGES = {
    "temperature": (0.0, 2.0),  # OpenAI's, and vLLM's in LLM, too, since 0.24
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (1e-30, 1e30),  # logits multiplied or divided by it stay within float32
    "n": (1, MAX_OUTPUTS),
    "top_k": (-1, math.inf),
    "min_tokens": (0, math.inf),
    "logprobs": (-1, math.inf),
    "prompt_logprobs": (-1, math.inf),
    "max_tokens": (1, math.inf),
    "thinking_token_budget": (0, math.inf),
}


def range_missed(name: str, value: float) -> str:
    """Return the range of a parameter, in words, if the value is outside; else ""."""
    low, high = SAMPLING_RANGES[name]
    if low <= value <= high:  # false for a NaN
        return ""
    return f"between {low} and {high}" if high != math.inf else f"{low} or more"


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling parameters of one request: vLLM's names, meanings and defaults.

    `stop` and `include_stop_str_in_output` are text and act in the worker or in `LLM`; so does `structured_outputs`,
    which becomes `grammar` there.
    `top_k` 0 or -1 is off; `temperature` 0 is greedy; `logprobs` and `prompt_logprobs` count alternatives (0: the
    chosen token alone, None: none, -1: the whole vocabulary); `logprob_token_ids` names the alternatives instead.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: list[str] | str | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    # Tokenized `bad_words`, filled in by the text layer: the engine forbids a last token after its first ones.
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    logprob_token_ids: list[int] | None = None
    repetition_detection: RepetitionDetection | None = None
    structured_outputs: StructuredOutputsParams | None = None
    # llguidance's grammar text. It constrains the tokens after `grammar_after`; None: from the first token on.
    grammar: str | None = None
    grammar_after: tuple[int, ...] | None = None
    # After this many generated tokens without `thinking_end` the engine forces `thinking_end`.
    thinking_token_budget: int | None = None
    thinking_end: tuple[int, ...] | None = None


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """One candidate at one position. `rank` counts from 1, the most likely."""

    token_id: int
    logprob: float
    rank: int


# The chosen token first, then the alternatives, most likely first.
PositionLogprobs = list[TokenLogprob]


# --- worker to engine ---


class Submit(msgspec.Struct, tag=True, kw_only=True):
    """One prompt and its sampling parameters. `request_id` is unique among the worker's open requests."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    priority: int = 0  # lower goes first, as in vLLM
    client: str = ""  # for fair shares: the name of the API key, else the address
    cache_salt: str | None = None  # prefix blocks are shared only between equal salts
    system_tokens: int = 0  # the first tokens, which the prompts of other chats may begin with, too; 0: not known


class PoolingPrompt(msgspec.Struct, array_like=True):
    """One text. `second`: the first token of a pair's second text, for models with token types; 0: no pair."""

    token_ids: list[int]
    second: int = 0


class Embed(msgspec.Struct, tag=True, kw_only=True):
    """Texts to be pooled. `task`: one vector (or one row of scores) each; token_embed, token_classify: a vector, or
    scores or a weight, for each token.

    `chunk_tokens`, of token_embed: a vector for each so many tokens, the mean of theirs (late chunking); 0: for each.
    `dimensions`: the number of values that vectors are cut to. `activate` False: the last layer's values, neither
    normalized to unit length nor made probabilities.
    """

    request_id: str
    prompts: list[PoolingPrompt]
    task: Literal["embed", "classify", "token_embed", "token_classify"]
    chunk_tokens: int = 0
    dimensions: int | None = None
    activate: bool = True
    priority: int = 0
    client: str = ""  # as Submit's


class Abort(msgspec.Struct, tag=True, kw_only=True):
    """The client left, or a stop string was found. `index` None: all outputs of the request."""

    request_id: str
    index: int | None = None


class AskMetrics(msgspec.Struct, tag=True):
    """Ask for the engine's metrics; answered by `Metrics`."""


class AskState(msgspec.Struct, tag=True):
    """Ask for the engine's state; answered by `State`."""


class ForgetPrefixes(msgspec.Struct, tag=True):
    """Empty the prefix cache: no block computed so far is found in it any more."""


class Profile(msgspec.Struct, tag=True):
    """Start or stop a recording of steps. Answered by `Profiled`, between two steps."""

    start: bool


ToEngine = Submit | Embed | Abort | AskMetrics | AskState | ForgetPrefixes | Profile


# --- engine to worker ---


class Accepted(msgspec.Struct, tag=True, kw_only=True):
    """The engine has taken the request; tokens follow."""

    request_id: str


class Refused(msgspec.Struct, tag=True, kw_only=True):
    """The request was refused or has failed. `error` names a class of errors.py."""

    request_id: str
    error: str
    message: str
    param: str | None = None
    retry_after_s: int = 1


class Tokens(msgspec.Struct, tag=True, kw_only=True, omit_defaults=True):
    """New tokens of one output of a request, in order.

    `finish_reason` (stop, length, repetition, abort) is set on the last message of that output; `stop_reason` is the
    stop token id that ended it, None for the model's own end. `cached_tokens`, `queue_s` (seconds from arrival to the
    first step) and `prompt_logprobs` come with the first message of a request (index 0). Of `drafted` draft tokens the
    first `accepted` were accepted.
    """

    request_id: str
    index: int
    token_ids: list[int]
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | None = None
    cached_tokens: int | None = None
    queue_s: float | None = None
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    drafted: int = 0
    accepted: int = 0


class Embedded(msgspec.Struct, tag=True, kw_only=True):
    """The output for text number `index` of an `Embed`: float32, little-endian, [rows, columns]; `rows` None: a vector
    or one value a token."""

    request_id: str
    index: int
    vector: bytes
    rows: int | None = None


class Metrics(msgspec.Struct, tag=True):
    """The engine's registry in Prometheus' text format."""

    text: str


class Profiled(msgspec.Struct, tag=True):
    """A recording has begun, or its file is complete. `error` says why not; "" is success."""

    error: str = ""


class ModelFacts(msgspec.Struct, kw_only=True, frozen=True):
    """Facts about a model. family: model_type of config.json; parameters: their number; format: of weights."""

    family: str
    parameters: int
    format: str


class State(msgspec.Struct, tag=True, kw_only=True):
    """State of an engine, sent at connection and when asked."""

    max_model_len: int
    vocab_size: int
    max_request_bytes: int = MAX_FRAME_BYTES  # of all frames of one HTTP request
    eos_token_ids: tuple[int, ...] = ()
    running: int
    waiting: int
    kv_usage: float
    last_step_age_s: float  # seconds since the loop last finished a step or found nothing to do
    draining: bool = False
    keeps_states: bool = False  # prompts go on only where copies of layers' states were made: send `system_tokens`
    model: ModelFacts | None = None


class Load(msgspec.Struct, tag=True, frozen=True):
    """Free places in the engine's queue, and after how many seconds a refused request should try again.

    The engine sends it whenever it changes.
    """

    room: int
    retry_after_s: int


FromEngine = Accepted | Refused | Tokens | Embedded | Metrics | Profiled | State | Load

_encoder = msgspec.msgpack.Encoder()
to_engine = msgspec.msgpack.Decoder(ToEngine)
from_engine = msgspec.msgpack.Decoder(FromEngine)


def frame(message: ToEngine | FromEngine) -> bytes:
    """Encode one message for the socket."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


def body_length(head: bytes, most: int = MAX_FRAME_BYTES) -> int:
    """Return the length of the body that follows this 4-byte head.

    Raises: ValueError if it is above `most`: the peer does not speak this protocol.
    """
    (length,) = _LENGTH.unpack(head)
    if length > most:
        raise ValueError(f"frame of {length} bytes; the limit is {most}")
    return int(length)
