"""Refusal of fields that this server does not support: ignoring a constraint would give a wrong answer."""

from __future__ import annotations

import logging
from typing import Any

from forearm.api.generation.request_bodies import ChatRequest, CompletionRequest, GenerationBody
from forearm.api.http.http_metrics import HttpMeter
from forearm.api.http.json_size import MOST_VALUES
from forearm.config.api_config import ApiConfig
from forearm.errors import InvalidRequest

# Refused unless null, false or empty, with what to do instead.
_UNSUPPORTED = {
    **dict.fromkeys(("functions", "function_call"), "use tools and tool_choice"),
    "prompt_embeds": "send texts or token ids as prompt",
    "logits_processors": "use logit_bias, allowed_token_ids, bad_words or structured_outputs",
    **dict.fromkeys(
        ("kv_transfer_params", "ec_transfer_params", "media_io_kwargs", "mm_processor_kwargs", "audio"), "leave it out"
    ),
}
# Fields of OpenAI and vLLM that are accepted and have no effect here.
IGNORED = frozenset(
    (
        *("user", "store", "metadata", "service_tier", "prediction", "modalities", "verbosity", "safety_identifier"),
        *("prompt_cache_key", "prompt_cache_retention", "web_search_options", "vllm_xargs"),
        *("session_id", "watermarking", "return_weight_versions", "routed_experts_prompt_start"),
        *("return_token_offsets", "mm_payload", "return_mm_kwargs"),
    )
)

# Fields of Ollama, llama-server, TGI and other clients, with what does the same here.
COUNTERPARTS = {
    **dict.fromkeys(("n_predict", "num_predict", "max_new_tokens", "max_length", "max_tokens_to_sample"), "max_tokens"),
    "max_completion_tokens": "max_tokens",  # of completions; chats have both
    "repeat_penalty": "repetition_penalty",
    "stop_sequences": "stop",
    **dict.fromkeys(("n_probs", "top_logprobs"), "logprobs"),
    "best_of": "n",
    "prompt_token_ids": "prompt, which may be token ids",
    "format": "response_format",
    "options": "fields beside it, such as temperature",
    "system": "a message whose role is system",
    **dict.fromkeys(("think", "enable_thinking", "thinking"), 'chat_template_kwargs, {"enable_thinking": false}'),
    "reasoning": "reasoning_effort",
}

_MOST_WARNINGS = 1000  # clients choose the names of fields: the memory for them is bounded
log = logging.getLogger(__name__)


class ClientWarnings:
    """Logs each warning about clients' requests once, however often it comes."""

    def __init__(self, meter: HttpMeter) -> None:
        self._meter = meter
        self._logged: set[str] = set()
        self._fields: set[str] = set()

    def once(self, message: str) -> None:
        """Log a message the first time it comes."""
        if message not in self._logged and len(self._logged) < _MOST_WARNINGS:
            self._logged.add(message)
            log.warning("%s", message)

    def unknown_fields(self, extra: dict[str, Any] | None) -> None:
        """Count each unknown field, and log it the first time it comes."""
        for name in (extra or {}).keys() - IGNORED:
            if name not in self._fields:
                if len(self._fields) == _MOST_WARNINGS:
                    continue
                self._fields.add(name)
                told = f"; write {COUNTERPARTS[name]}" if name in COUNTERPARTS else ""
                log.warning("requests have a field %.100r, which this server does not know and ignores%s", name, told)
            self._meter.count("forearm:unknown_request_fields", name[:100])


def check_generation(body: GenerationBody, config: ApiConfig, vocab_size: int) -> None:
    """Check what neither the types (request_bodies.py) nor the engine's ranges cover.

    Raises: InvalidRequest naming the field.
    """
    extra = body.model_extra or {}
    for name, instead in _UNSUPPORTED.items():
        if extra.get(name, getattr(body, name, None)):
            raise InvalidRequest(f"{name} is not supported by this server; {instead}", name)
    if extra.get("modalities") not in (None, ["text"]):
        raise InvalidRequest("modalities: this server answers with text only", "modalities")
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("Stream options can only be defined when `stream=True`.", "stream_options")
    if body.logprob_token_ids is not None and body.logprob_count is None:
        raise InvalidRequest("logprob_token_ids needs logprobs", "logprob_token_ids")
    if body.prompt_logprobs is not None and body.stream:
        raise InvalidRequest("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs")
    _at_most("n", body.n or 1, config.max_n_sequences, "VLLM_MAX_N_SEQUENCES")
    _at_most("stop", len(body.stops), config.max_stop_strings, "VLLM_MAX_STOP_STRINGS", "stop strings")
    _at_most("bad_words", len(body.bad_words or ()), config.max_num_bad_words, "VLLM_MAX_NUM_BAD_WORDS", "bad words")
    counts = {"prompt_logprobs": body.prompt_logprobs}
    counts["top_logprobs" if isinstance(body, ChatRequest) else "logprobs"] = body.logprob_count
    for name, count in counts.items():
        limit, most = config.max_logprobs, vocab_size if count == -1 else count
        if most is not None and limit != -1 and not 0 <= most <= limit:
            shown = "the whole vocabulary" if count == -1 else str(count)
            raise InvalidRequest(f"Requested {name} of {shown}, which is greater than max allowed: {limit}", name)


def check_template(template: str | None, generation_prompt: bool | None, continued: bool, config: ApiConfig) -> None:
    """Check the fields of a request that choose the template. Raises: InvalidRequest naming the field."""
    if template is not None and not config.trust_request_chat_template:
        raise InvalidRequest(
            "a request's own chat_template is not trusted; start the server with --trust-request-chat-template",
            "chat_template",
        )
    if continued and generation_prompt:
        raise InvalidRequest(
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True.", "add_generation_prompt"
        )


def check_completion(body: CompletionRequest, config: ApiConfig, vocab_size: int) -> None:
    """Check the fields of a completion that may be unsupported. Raises: InvalidRequest naming the field."""
    check_generation(body, config, vocab_size)
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise InvalidRequest("best_of is not supported by this server; leave it out", "best_of")
    if (body.model_extra or {}).get("thinking_token_budget") is not None:
        raise InvalidRequest("thinking_token_budget is for chats; leave it out", "thinking_token_budget")
    if body.suffix is not None and (body.echo or body.prompt_logprobs is not None):
        name = "echo" if body.echo else "prompt_logprobs"
        raise InvalidRequest(f"{name} cannot be combined with suffix; leave one of them out", name)
    if body.max_tokens == 0 and not body.echo:
        raise InvalidRequest("max_tokens is 0; it must be at least 1 unless `echo` is set", "max_tokens")
    if not isinstance(body.prompt, list) or (body.prompt and isinstance(body.prompt[0], int)):
        return  # one prompt
    prompts = len(body.prompt)
    _at_most("prompt", prompts, config.max_completion_prompts, "VLLM_MAX_COMPLETION_PROMPTS", "prompts")
    for name in ("logit_bias", "allowed_token_ids", "stop_token_ids", "bad_words"):
        count = len(getattr(body, name) or ())
        if count * prompts > MOST_VALUES:  # they are sent to the engine once per prompt
            raise InvalidRequest(
                f"{name} has {count} entries, and prompt has {prompts} prompts; {MOST_VALUES} entries may come for all "
                "prompts together",
                name,
            )


def _at_most(name: str, count: int, limit: int, setting: str, what: str = "") -> None:
    if count > limit:
        shown = f"has {count} {what}" if what else f"is {count}"
        raise InvalidRequest(f"{name} {shown}; the limit is {limit} (the server's {setting})", name)
