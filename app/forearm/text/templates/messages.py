"""A chat's messages in the form that its template takes, and the prompt that the template makes of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from forearm.errors import InvalidRequest
from forearm.json_types import Json
from forearm.text.templates.chat_template import ChatTemplate
from forearm.text.templates.tool_prompt import as_text, with_tools

_TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
SYSTEM_ROLES = ("system", "developer")  # of messages that stand before a chat
ANOTHER_MESSAGE = {"role": "user", "content": "FOREARM_ANOTHER_CHAT"}
_REASONING = ("reasoning", "reasoning_content")


class _Form(NamedTuple):
    """A form of messages; each template accepts some of them.

    tools_in: the role whose first message lists the tools. arguments: whether those of earlier calls are objects or
    text. beside_calls: the content of a message that has only calls.
    """

    tools_in: str = "system"
    arguments: str = "object"
    beside_calls: str | None = None


def render_chat(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    *,
    add_generation_prompt: bool,
    continue_final_message: bool,
    as_parts: bool = False,
    documents: list[Json] | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> str:
    """Return a chat's prompt, with the messages in the first form that the template accepts.

    messages: as in OpenAI's API. tools: listed by a message if the template does not support them. as_parts:
    contents are lists of parts. kwargs: the template's other variables.
    Raises: InvalidRequest naming the message, or with the template's error about the first form.
    """
    # Some templates have no system role; DeepSeek's take a call's arguments as text. Qwen3's first templates, which
    # GGUF files still carry, need a string as the content of a message with calls.
    tells_of_tools = bool(tools) and not template.shows_tools  # a message lists them
    others = (_Form(tools_in="user") if tells_of_tools else _Form(arguments="text"), _Form(beside_calls=""))

    def rendered(form: _Form) -> str:
        return template.render(
            _conversation(messages, tools, template, as_parts, form),
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools if template.shows_tools else None,
            documents=documents,
            kwargs=kwargs,
        )

    try:
        return rendered(_Form())
    except InvalidRequest as error:
        if error.param != "messages":
            raise
        for form in others:
            with suppress(InvalidRequest):
                return rendered(form)
        raise


def system_characters(text: str, another: str) -> int:
    """Return how many characters of a chat's prompt are its system prompt: what another chat's begins with, too.

    another: the prompt of a chat with the same system messages and tools, and ANOTHER_MESSAGE behind them.
    """
    before = another.partition(ANOTHER_MESSAGE["content"])[0]
    return len(before) if text.startswith(before) else 0


def _conversation(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    template: ChatTemplate,
    as_parts: bool,
    form: _Form,
) -> list[Json]:
    """Return the messages in this form; if the template does not support tools, a message lists them.

    Raises: InvalidRequest naming the message.
    """
    plain = [_plain(number, message, as_parts) for number, message in enumerate(messages)]
    try:
        for message in plain:
            if message["role"] == "developer" and "developer" not in template.source:
                message["role"] = "system"  # "developer" is OpenAI's newer name of it
            if "thinking" in template.source and message.get("reasoning") is not None:
                message.setdefault("thinking", message["reasoning"])  # gpt-oss's name
            for call in message.get("tool_calls") or () if form.arguments == "text" else ():
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
            if message.get("tool_calls") and message["content"] is None:
                message["content"] = form.beside_calls
        if tools and template.shows_tools_of_messages:
            # In the system message's `tools`, as JSON text of their functions: Phi-4-mini's model card and template.
            if plain[0]["role"] != "system":
                plain.insert(0, {"role": "system", "content": "You are a helpful assistant with some tools."})
            plain[0]["tools"] = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
            return plain
        if tools and not template.shows_tools:
            return with_tools(plain, tools, form.tools_in)
        called = any(message.get("tool_calls") for message in plain)
        return as_text(plain) if called and not template.knows_calls else plain
    except RecursionError:
        raise InvalidRequest("messages or tools are nested too deeply", "messages") from None


def _plain(number: int, message: Mapping[str, Any], as_parts: bool) -> Json:
    """Return one message with its content as text. Reasoning has both of its names: templates read either.

    Raises: InvalidRequest for a part that is not text.
    """
    plain = {**message, "content": _content(number, message.get("content"), as_parts)}
    if plain.get("tool_calls"):
        if not isinstance(plain["tool_calls"], list):
            raise InvalidRequest(f"messages[{number}].tool_calls must be a list", "messages")
        plain["tool_calls"] = [_tool_call(number, call) for call in plain["tool_calls"]]
        plain["content"] = plain["content"] or None  # an empty content counts as none: see ChatTemplate
    elif plain["content"] is None:  # an answer cut within its reasoning comes back so; templates expect a content
        plain["content"] = [] if as_parts else ""
    reasoning = next((plain[name] for name in _REASONING if plain.get(name) is not None), None)
    return plain if reasoning is None else {**plain, **dict.fromkeys(_REASONING, reasoning)}


def _content(number: int, content: str | list[Json | str] | None, as_parts: bool) -> Any:
    if isinstance(content, bytes):  # which Jinja would write as such
        raise InvalidRequest(
            f"messages[{number}].content is {content!r:.100}; decode it, it must be a text", "messages"
        )
    if isinstance(content, list):
        texts: list[str] = []
        for part in content:
            if isinstance(part, str):  # as vLLM takes it
                texts.append(part)
                continue
            if not isinstance(part, Mapping):
                remedy = "write a text, or an object with type and text"
                raise InvalidRequest(f"messages[{number}].content has {part!r:.100} for a part; {remedy}", "messages")
            kind = part.get("type", "text")
            text = part.get("refusal" if kind == "refusal" else "text")
            if kind not in _TEXT_PARTS:
                raise InvalidRequest(
                    f"messages[{number}].content has a part of type {kind!r}; this model takes text only", "messages"
                )
            if not isinstance(text, str):
                raise InvalidRequest(f"messages[{number}].content has a part of type {kind!r} without text", "messages")
            texts.append(text)
        return [{"type": "text", "text": text} for text in texts] if as_parts else "\n".join(texts)
    if as_parts and content is not None:
        return [{"type": "text", "text": content}]
    return content


def _tool_call(number: int, call: Any) -> Any:
    """Return a call made earlier with its arguments as an object, as templates take them; the API has JSON text.

    The model's text may not be an object, or be cut off by max_tokens. The client only sends it back, so it is no
    error: the model is shown its own text, in a form that every template accepts.

    Raises: InvalidRequest.
    """
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise InvalidRequest(
            f"messages[{number}].tool_calls: a call has no function; write an object with its name and arguments",
            "messages",
        )
    written = given = function.get("arguments")
    if isinstance(written, str):
        with suppress(ValueError, RecursionError):
            given = json.loads(written or "{}")
    arguments = given if isinstance(given, dict) else {} if given is None else {"invalid": written}
    return {**call, "function": {**function, "arguments": arguments}}
