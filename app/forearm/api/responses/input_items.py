"""Input items of /v1/responses as messages of a chat, and its text format as a chat's response format."""

from __future__ import annotations

import base64
import binascii
import json
import uuid
from typing import Any, NoReturn

from forearm.api.responses.tools import flat_name
from forearm.errors import InvalidRequest
from forearm.json_types import Json

_MOST_ITEMS = 10_000
_ROLES = ("user", "assistant", "system", "developer")
_ORDERS = ("system", "developer")
_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
# Calls that a client runs itself, and their results: local_shell's is a text, the others' have parts of their own.
_SHELL_CALLS = ("local_shell_call", "shell_call", "apply_patch_call")
_SHELL_OUTPUTS = tuple(f"{call}_output" for call in _SHELL_CALLS)
# Calls that other servers ran in earlier turns are left out: the messages have their results.
_RUN_ELSEWHERE = (
    *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_"),
    *("tool_search_", "compaction"),
)
# encrypted_content is packed but not encrypted: the reasoning belongs to the client.
_PACKED = "forearm-1:"


class ItemsConversation:
    """Builds messages from items. Consecutive items of the model's output form one message."""

    def __init__(self, instructions: str | None) -> None:
        self.messages: list[Json] = []
        self._names: dict[str, str] = {}  # tool names by call_id
        self._assistant: Json | None = None  # the model's message that is being built
        self._orders: list[str] = []  # texts of the system message
        if instructions:
            self.messages.append({"role": "system", "content": instructions})

    def end(self) -> list[Json]:
        """Return the messages, after the last item."""
        if self._orders:
            self.messages[0]["content"] = "\n\n".join([_as_text(self.messages[0]["content"]), *self._orders])
        for message in self.messages:
            if "reasoning_content" in message:
                message["reasoning_content"] = "".join(message["reasoning_content"])
        return self.messages

    def take(self, where: str, item: Json) -> None:
        """Add the next item; `where` names it in error messages.

        Raises: InvalidRequest.
        """
        kind = _kind(item)
        if kind == "message":
            self._message(where, item)
        elif kind == "reasoning":
            text = reasoning_text(where, item)
            self._answered(begins=True).setdefault("reasoning_content", []).append(text)
        elif kind in ("function_call", "custom_tool_call"):
            self._call(where, item)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            self._output(where, item, _text(where, item, "call_id"))
        elif kind in _SHELL_CALLS:
            call_id = item.get("call_id") or item.get("id")
            if not isinstance(call_id, str):
                refuse(f"{where}.call_id: it must be a string")
            commands = item.get("action") or item.get("operation") or {}
            self._called(call_id, kind.removesuffix("_call"), json.dumps(commands))
        elif kind in _SHELL_OUTPUTS:
            self._output(where, item, str(item.get("call_id") or item.get("id")))
        elif not kind.startswith(_RUN_ELSEWHERE):
            refuse(f"{where}: items of type {kind[:100]!r} are not supported by this server")

    def _message(self, where: str, item: Json) -> None:
        role, content = item.get("role"), _content(f"{where}.content", item.get("content"))
        if role not in _ROLES:
            refuse(f"{where}.role: {str(role)[:100]!r} is not one of {', '.join(_ROLES)}")
        if role == "assistant":
            self._answered(begins=True)["content"] = content
            return
        self._assistant = None
        if role in _ORDERS and len(self.messages) == 1 and self.messages[0]["role"] in _ORDERS:
            # Many templates know one system message, and only as the first.
            self._orders.append(_as_text(content))
            return
        self.messages.append({"role": role, "content": content})

    def _call(self, where: str, item: Json) -> None:
        call_id, name = (_text(where, item, key) for key in ("call_id", "name"))
        if item["type"] == "custom_tool_call":
            arguments = json.dumps({"input": _text(where, item, "input")})
        else:
            arguments = _text(where, item, "arguments")
        self._called(call_id, flat_name(name, item.get("namespace")), arguments)

    def _called(self, call_id: str, name: str, arguments: str) -> None:
        self._names[call_id] = name
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self._answered(begins=False).setdefault("tool_calls", []).append(call)

    def _output(self, where: str, item: Json, call_id: str) -> None:
        if call_id not in self._names:
            refuse(f"{where}.call_id: no function_call before it has the call_id {call_id[:100]!r}")
        self._assistant = None
        given = item.get("output")
        content = json.dumps(given) if item["type"] in _SHELL_OUTPUTS[1:] else _content(f"{where}.output", given)
        self.messages.append(
            {"role": "tool", "tool_call_id": call_id, "name": self._names[call_id], "content": content}
        )

    def _answered(self, begins: bool) -> Json:
        """Return the model's message to add to; a new one if a text or reasoning `begins` after text or calls."""
        said = self._assistant
        if said is None or (begins and (said["content"] or "tool_calls" in said)):
            self._assistant = said = {"role": "assistant", "content": ""}
            self.messages.append(said)
        return said


def items_of(given: str | list[Json] | None) -> tuple[list[Json], bool]:
    """Return a request's own input as items with ids, as they are stored and listed.

    `encrypted_content` that comes from other servers is removed, so that an agent that switches servers within a
    conversation can go on; the summaries stay. The second value: whether any was removed.

    Raises: InvalidRequest.
    """
    items: list[Json] = [{"role": "user", "content": given}] if isinstance(given, str) else list(given or ())
    if len(items) > _MOST_ITEMS:
        refuse(f"input has {len(items)} items; the limit is {_MOST_ITEMS}")
    listed = [_listed(item) for item in items]
    foreign = [
        item
        for item in listed
        if item["type"] == "reasoning"
        and not item.get("content")
        and isinstance(item.get("encrypted_content"), str)
        and _unpacked(item["encrypted_content"]) is None
    ]
    for item in foreign:
        item["encrypted_content"] = None
    return listed, bool(foreign)


def _listed(item: Json) -> Json:
    kind = _kind(item)
    prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}.get(kind, "item")
    given = item.get("id")
    listed = {**item, "type": kind, "id": given if given and isinstance(given, str) else f"{prefix}_{uuid.uuid4().hex}"}
    if kind == "message" and isinstance(item.get("content"), str):
        if item.get("role") == "assistant":
            listed["content"] = [{"type": "output_text", "text": item["content"], "annotations": []}]
        else:
            listed["content"] = [{"type": "input_text", "text": item["content"]}]
    return {"status": "completed", **listed} if kind != "item_reference" else listed


def pack_reasoning(text: str) -> str:
    """Return the `encrypted_content` of reasoning: a prefix that marks it as this server's, and the text in base64."""
    return _PACKED + base64.b64encode(text.encode()).decode()


def reasoning_text(where: str, item: Json) -> str:
    """Return the text of a reasoning item: its content, else its encrypted_content, else its summary.

    Raises: InvalidRequest.
    """
    for name in ("content", "summary"):
        parts = item.get(name)
        listed = [] if parts is None else parts
        if not isinstance(listed, list) or not all(
            isinstance(p, dict) and isinstance(p.get("text"), str) for p in listed
        ):
            refuse(f"{where}.{name}: it must be a list of parts with text")
    packed = item.get("encrypted_content")
    if item.get("content"):
        return "".join(part["text"] for part in item["content"])
    if packed is not None:
        text = _unpacked(packed) if isinstance(packed, str) else None
        if text is None:
            refuse(f"{where}.encrypted_content: it does not come from this server; leave the reasoning item out")
        return text
    return "\n\n".join(part["text"] for part in item.get("summary") or ())


def _unpacked(packed: str) -> str | None:
    try:
        return base64.b64decode(packed.removeprefix(_PACKED), validate=True).decode()
    except (binascii.Error, ValueError):
        return None


def response_format(given: Json | None) -> Json | None:
    """Return `text.format` as a chat's response_format.

    Raises: InvalidRequest.
    """
    if given is None or given.get("type") == "text":
        return None
    if given.get("type") == "json_object":
        return {"type": "json_object"}
    if given.get("type") != "json_schema":
        refuse(
            f"text.format.type: {str(given.get('type'))[:100]!r} is not one of text, json_object, json_schema",
            "text.format",
        )
    if not isinstance(given.get("schema"), dict):
        refuse("text.format.schema: a JSON schema is needed", "text.format")
    kept = ("name", "description", "schema", "strict")
    schema = {name: given[name] for name in kept if given.get(name) is not None}
    return {"type": "json_schema", "json_schema": {"name": "answer", **schema}}


def refuse(message: str, param: str = "input") -> NoReturn:
    """Refuse an input with this message. Raises: InvalidRequest."""
    raise InvalidRequest(message, param)


def type_of(place: str, part: Any, param: str) -> str:
    """Return the type of a part of a message. Raises: InvalidRequest if it is no object that has one."""
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        refuse(f'{place}: write an object with a type, as {{"type": "text", "text": "Hello"}}', param)
    kind: str = part["type"]
    return kind


def _kind(item: Json) -> str:
    """Return the type of an item, which messages and references may leave out."""
    kind = item.get("type")
    if kind is None:
        return "message" if "role" in item else "item_reference" if "id" in item else ""
    return str(kind)


def _content(where: str, content: Any) -> str | list[Json]:
    """Return content as a string or as text parts. Raises: InvalidRequest."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        refuse(f"{where}: it must be a string or a list of parts")
    parts = []
    for number, part in enumerate(content):
        kind = type_of(f"{where}[{number}]", part, "input")
        if kind not in _TEXTS:
            refuse(f"{where}[{number}]: parts of type {kind[:100]!r} are not supported; this model takes text only")
        text = part.get(_TEXTS[kind])
        if not isinstance(text, str):
            refuse(f"{where}[{number}].{_TEXTS[kind]}: it must be a string")
        parts.append({"type": "text", "text": text})
    return parts[0]["text"] if len(parts) == 1 else parts


def _as_text(content: str | list[Json]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _text(where: str, item: Json, name: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        refuse(f"{where}.{name}: it must be a string")
    return value
