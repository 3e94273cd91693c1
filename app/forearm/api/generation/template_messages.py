"""A chat's messages as templates take them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from forearm.api.generation.request_bodies import ChatMessageBody
from forearm.api.http.json_size import MOST_CHARACTERS
from forearm.errors import InvalidRequest
from forearm.json_types import Json
from forearm.text.templates.chat_template import ChatTemplate
from forearm.text.templates.tool_prompt import as_text, with_tools, with_tools_key

_TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
_REASONING = ("reasoning", "reasoning_content")


def conversation(
    messages: Sequence[ChatMessageBody],
    tools: list[Json] | None,
    template: ChatTemplate,
    as_parts: bool,
    tools_in: str,
    arguments: str,
    beside_calls: str | None,
) -> list[Json]:
    """The messages; where the template knows no tools, they tell of them.

    as_parts: contents are lists of parts. tools_in: the role whose first message tells of tools. arguments: of calls
    made earlier, each an object or text. beside_calls: the content of a message that only calls.
    Raises: InvalidRequest naming the message.
    """
    plain = [_plain(number, message, as_parts) for number, message in enumerate(messages)]
    try:
        for message in plain:
            _renamed(message, template, arguments)
            if message.get("tool_calls") and message["content"] is None:
                message["content"] = beside_calls
        if tools and template.shows_tools_of_messages:
            return with_tools_key(plain, tools)
        if tools and not template.shows_tools:
            return with_tools(plain, tools, tools_in)
        called = any(message.get("tool_calls") for message in plain)
        return as_text(plain) if called and not template.knows_calls else plain
    except RecursionError:
        raise InvalidRequest("messages or tools are nested too deeply", "messages") from None


def _renamed(message: Json, template: ChatTemplate, arguments: str) -> None:
    """What this template calls otherwise, or takes in another form."""
    if message["role"] == "developer" and "developer" not in template.source:
        message["role"] = "system"  # OpenAI's newer name of it
    if "thinking" in template.source and message.get("reasoning") is not None:
        message.setdefault("thinking", message["reasoning"])  # gpt-oss calls it so
    if arguments == "text":
        for call in message.get("tool_calls") or ():
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)


def _plain(number: int, message: ChatMessageBody, as_parts: bool) -> Json:
    """One message. Reasoning has both of its names: templates read either.

    Raises: InvalidRequest for a part that is not text.
    """
    plain = {**message.model_dump(exclude={"content"}), "content": _content(number, message.content, as_parts)}
    if plain.get("tool_calls"):
        if not isinstance(plain["tool_calls"], list):
            raise InvalidRequest(f"messages[{number}].tool_calls must be a list", "messages")
        plain["tool_calls"] = [_tool_call(number, call) for call in plain["tool_calls"]]
        plain["content"] = plain["content"] or None  # an empty one is none: see ChatTemplate
    reasoning = next((plain[name] for name in _REASONING if plain.get(name) is not None), None)
    return plain if reasoning is None else {**plain, **dict.fromkeys(_REASONING, reasoning)}


def _content(number: int, content: str | list[Json] | None, as_parts: bool) -> Any:
    if isinstance(content, list):
        texts = [_part_text(number, part) for part in content]
        return [{"type": "text", "text": text} for text in texts] if as_parts else "\n".join(texts)
    if as_parts and content is not None:
        return [{"type": "text", "text": content}]
    return content


def _part_text(number: int, part: Json) -> str:
    kind = part.get("type", "text")
    text = part.get("refusal" if kind == "refusal" else "text")
    if kind not in _TEXT_PARTS or not isinstance(text, str):
        raise InvalidRequest(
            f"messages[{number}].content has a part of type {kind!r}; this model takes text only", "messages"
        )
    return text


def _tool_call(number: int, call: Any) -> Any:
    """A call made earlier: its arguments are JSON text in the API and an object in templates.

    Raises: InvalidRequest.
    """
    try:
        written = call["function"].get("arguments")
        if isinstance(written, str) and len(written) > MOST_CHARACTERS:
            raise InvalidRequest(
                f"messages[{number}].tool_calls has arguments of {len(written)} characters; the limit is "
                f"{MOST_CHARACTERS}",
                "messages",
            )
        return {**call, "function": {**call["function"], "arguments": _arguments(written)}}
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidRequest(f"messages[{number}].tool_calls is malformed: {error!r}", "messages") from error


def _arguments(written: Any) -> Json:
    """The object that a call's arguments are.

    What the model wrote need not be one, and an answer that max_tokens cut off ends within it. The client, who only
    sends it back, is not blamed: the model is shown what it wrote, in a form that every template takes.
    """
    if not isinstance(written, str):
        return written if isinstance(written, dict) else {} if written is None else {"invalid": written}
    try:
        parsed = json.loads(written or "{}")
    except (ValueError, RecursionError):
        return {"invalid": written}
    return parsed if isinstance(parsed, dict) else {} if parsed is None else {"invalid": written}
