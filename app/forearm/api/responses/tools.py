"""The tools of a /v1/responses request as functions of a chat, and calls of them in their original form.

Agents offer more than functions. Namespaces are flattened; a custom tool, whose input is a text, becomes a function
with that text as its one argument; a tool that the server would have to run (web search, a shell, …) is left out, with
a line in the response's `warnings`, because agents offer it whether or not the server has it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn

import pydantic_core

from forearm.errors import InvalidRequest
from forearm.json_types import Json

_INPUT: Json = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
# Types also occur with a suffix of OpenAI's: _preview, a date.
_RUN_ELSEWHERE = (
    *("web_search", "file_search", "tool_search", "code_interpreter", "image_generation", "computer", "mcp"),
    *("local_shell", "shell", "apply_patch"),
)


@dataclass
class OfferedTools:
    """The tools offered to the model. `spaces`: namespace and name by flat name, for functions in a namespace."""

    functions: list[Json] = field(default_factory=list)
    spaces: dict[str, tuple[str, str]] = field(default_factory=dict)
    custom: set[str] = field(default_factory=set)
    warnings: list[str] = field(default_factory=list)

    def call(self, flat: str) -> tuple[str, Json]:
        """Return type and name fields of the output item for a call of this function."""
        space, name = self.spaces.get(flat, ("", flat))
        named = {"name": name, "namespace": space} if space else {"name": name}
        if flat in self.custom:
            return "custom_tool_call", {**named, "input": ""}
        return "function_call", {**named, "arguments": ""}

    def take(self, where: str, tool: Json, space: str = "") -> None:
        """Add the next tool.

        Raises: InvalidRequest naming it by `where`.
        """
        kind = str(tool.get("type"))[:100]
        if kind == "namespace" and not space:
            inner = tool.get("tools")
            if not isinstance(inner, list) or not all(isinstance(one, dict) for one in inner):
                _refuse(f"{where}.tools: a namespace needs a list of tools")
            for number, one in enumerate(inner):
                self.take(f"{where}.tools[{number}]", one, _name(where, tool))
        elif kind == "custom":
            name, form = _name(where, tool), tool.get("format")
            told = [str(tool.get("description") or "")]
            if isinstance(form, dict) and form.get("type") == "grammar":
                told.append(f"The input follows this {form.get('syntax')} grammar:\n{form.get('definition')}")
                self._warn(f"the format of custom tool {name[:100]!r} is told to the model, and not imposed")
            description = "\n\n".join(part for part in told if part)
            self.custom.add(self._offer(name, {"description": description, "parameters": _INPUT}, space))
        elif kind == "function":
            direct = tool.get("allowed_callers") in (None, [], ["direct"])
            if tool.get("defer_loading") or tool.get("async") or not direct:
                _refuse(f"{where}: defer_loading, async and allowed_callers are not supported; leave them out")
            kept = {name: tool[name] for name in ("description", "parameters", "strict") if tool.get(name) is not None}
            self._offer(_name(where, tool), kept, space)
        elif kind.startswith(_RUN_ELSEWHERE):
            self._warn(f"this server does not run tools of type {kind}; they were left out")
        else:
            _refuse(f"{where}: tools of type {kind!r} are not known; offer functions, custom tools or namespaces")

    def _offer(self, name: str, function: Json, space: str) -> str:
        flat = flat_name(name, space)
        if space:
            self.spaces[flat] = space, name
        self.functions.append({"type": "function", "function": {"name": flat, **function}})
        return flat

    def _warn(self, message: str) -> None:
        if message not in self.warnings:
            self.warnings.append(message)


def flat_name(name: str, space: object) -> str:
    """Return the function's name for the model, with its namespace as a prefix."""
    return f"{space}__{name}" if space and isinstance(space, str) else name


def custom_input(arguments: str) -> str:
    """Return the input text of a custom tool's call; the available part of it, if the answer was cut off."""
    try:
        parsed = pydantic_core.from_json(arguments or "{}", allow_partial="trailing-strings")
    except ValueError:
        return arguments
    found = parsed.get("input", "") if isinstance(parsed, dict) else arguments
    return found if isinstance(found, str) else arguments


def chat_tool_choice(choice: str | Json | None) -> str | Json | None:
    """Return the choice in the chat's form; the chat checks it further.

    Raises: InvalidRequest.
    """
    if choice is None or choice in ("none", "auto", "required"):
        return choice
    kind = str(choice.get("type") if isinstance(choice, dict) else choice)[:100]
    if isinstance(choice, str) or kind not in ("function", "custom", "allowed_tools"):
        _refuse(f"{kind!r} is not one of none, auto, required, function, custom, allowed_tools", "tool_choice")
    if kind != "allowed_tools":
        return _named(choice)
    given = choice.get("tools")
    tools = (
        [_named(one) if isinstance(one, dict) else {"type": "none"} for one in given] if isinstance(given, list) else 0
    )
    return {"type": kind, kind: {"mode": choice.get("mode"), "tools": tools}}


def _named(one: Json) -> Json:
    kind, name = one.get("type"), one.get("name")
    flat = flat_name(name, one.get("namespace")) if isinstance(name, str) else name
    return {"type": "function" if kind == "custom" else kind, "function": {"name": flat}}


def _name(where: str, tool: Json) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        _refuse(f"{where}.name: a {tool['type']} needs a name")
    return name


def _refuse(message: str, param: str = "tools") -> NoReturn:
    raise InvalidRequest(f"tool_choice: {message}" if param == "tool_choice" else message, param)
