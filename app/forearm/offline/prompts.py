"""The prompts and conversations that callers of LLM may write, and their checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import Any

import numpy as np

from forearm.errors import InvalidRequest
from forearm.text.templates.chat_template import ChatTemplate, TemplateMessage
from forearm.text.templates.messages import ANOTHER_MESSAGE, SYSTEM_ROLES, render_chat, system_characters
from forearm.text.tokenizer.tokenizer import Tokenizer

# A prompt is a text, token ids, or vLLM's {"prompt": …} and {"prompt_token_ids": …}.
Prompt = str | Sequence[int] | Mapping[str, Any]

_FORMS = "write a text, a list of token ids, {'prompt': text} or {'prompt_token_ids': ids}"
_CHAT = "write [{'role': 'user', 'content': 'Hello'}], or a list of such conversations"
_NAMES = {"prompt", "prompt_token_ids", "cache_salt"}


def listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return one prompt as a list of one; a list of numbers is one prompt.

    Raises: InvalidRequest for what is no prompt.
    """
    if isinstance(prompts, str | Mapping) or (isinstance(prompts, Sequence) and prompts and _is_id(prompts[0])):
        return [prompts]  # type: ignore[list-item]
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        raise InvalidRequest(f"prompts is {prompts!r:.100}, a {type(prompts).__name__}; {_FORMS}", "prompts")
    return list(prompts)  # type: ignore[arg-type]


def text_or_ids(prompt: Prompt) -> str | list[int]:
    """Return a prompt's text, or its token ids where those are given.

    Raises: InvalidRequest.
    """
    given: object = prompt
    as_ids = isinstance(prompt, Mapping) and "prompt_token_ids" in prompt
    if isinstance(prompt, Mapping):
        if prompt.get("prompt_embeds") is not None:  # a tensor, which is neither true nor false
            raise InvalidRequest(f"the prompt has 'prompt_embeds', which is not supported; {_FORMS}", "prompts")
        if unknown := [name for name, value in prompt.items() if name not in _NAMES and value]:
            raise InvalidRequest(
                f"the prompt has {unknown[0]!r}, which is not supported: only text is served", "prompts"
            )
        given = prompt.get("prompt_token_ids", prompt.get("prompt"))
    if isinstance(given, np.ndarray):
        given = given.tolist()
    if isinstance(given, str) and not as_ids:
        return given
    if isinstance(given, Sequence) and not isinstance(given, str | bytes) and all(_is_id(token) for token in given):
        return [int(token) for token in given]
    raise InvalidRequest(f"a prompt is {prompt!r:.100}, a {type(prompt).__name__}; {_FORMS}", "prompts")


def conversations(
    messages: Sequence[TemplateMessage] | Sequence[Sequence[TemplateMessage]],
) -> list[Sequence[TemplateMessage]]:
    """Return one conversation as a list of one.

    Raises: InvalidRequest for what is no conversation.
    """
    single = isinstance(messages, Sequence) and messages and isinstance(messages[0], Mapping)
    found: Any = [messages] if single else messages
    if isinstance(found, str | Mapping) or not isinstance(found, Sequence) or not found:
        raise InvalidRequest(f"messages is {messages!r:.100}; {_CHAT}", "messages")
    for conversation in found:
        if isinstance(conversation, str) or not isinstance(conversation, Sequence) or not conversation:
            raise InvalidRequest(f"messages has {conversation!r:.100} for a conversation; {_CHAT}", "messages")
        for message in conversation:
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise InvalidRequest(f"a message is {message!r:.100}, without a role; {_CHAT}", "messages")
    return list(found)


def chat_prompt(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: Sequence[TemplateMessage],
    tools: Sequence[Mapping[str, Any]] | None,
    *,
    add_generation_prompt: bool,
    continue_final_message: bool,
    as_parts: bool,
    kwargs: Mapping[str, Any] | None,
    keeps_states: bool,
) -> tuple[str, list[int], int]:
    """Return a conversation's prompt as text and token ids, and how many of these are the system prompt (wire.Submit).

    keeps_states: the number is of use to the engine; otherwise it is 0.
    Raises: InvalidRequest.
    """
    render = partial(render_chat, template, tools=tools, as_parts=as_parts, kwargs=kwargs)
    text = render(
        messages,
        add_generation_prompt=add_generation_prompt and not continue_final_message,
        continue_final_message=continue_final_message,
    )
    system, end = [*takewhile(lambda one: one["role"] in SYSTEM_ROLES, messages)], 0
    if (system or tools) and keeps_states:
        system.append(ANOTHER_MESSAGE)
        with suppress(InvalidRequest):
            another = render(system, add_generation_prompt=False, continue_final_message=False)
            end = system_characters(text, another)
    # The template has written the special tokens already.
    ids, system_tokens = tokenizer.encode_from(text, end, add_special_tokens=False)
    return text, ids, system_tokens


def as_parts(content_format: str) -> bool:
    """Return whether a template gets each message's content as a list of parts, by vLLM's names of formats.

    Raises: InvalidRequest for another name.
    """
    if content_format not in ("auto", "string", "openai"):
        remedy = "write auto, string or openai"
        raise InvalidRequest(
            f"chat_template_content_format is {content_format!r}: {remedy}", "chat_template_content_format"
        )
    return content_format == "openai"


def _is_id(value: object) -> bool:
    """True for a whole number, Python's or numpy's."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
