"""The tools and the tool_choice of a chat, and the JSON schema of required calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forearm.api.generation.request_bodies import ChatRequest
from forearm.errors import InvalidRequest
from forearm.json_types import Json
from forearm.text.tool_parsers.output_parser import CallsWanted

_MOST_TOOLS = 1024  # a prompt of many thousand tokens already
_MOST_CALLS = 128  # OpenAI's limit of calls in one answer
_LONGEST_NAME = 256
_MODES = ("none", "auto", "required")


@dataclass(frozen=True)
class ToolChoice:
    """A checked tool_choice. `tools`: may be called; `shown`: are listed in the prompt; `name`: must be called."""

    wanted: CallsWanted = "none"
    tools: list[Json] = field(default_factory=list)
    shown: list[Json] = field(default_factory=list)
    name: str = ""
    parallel: bool = True

    @property
    def must_call(self) -> bool:
        """Return whether the answer must be tool calls."""
        return self.wanted in ("required", "named")

    @property
    def is_strict(self) -> bool:
        """Return whether a tool is strict (its arguments must fit its schema) though no call is required."""
        return self.wanted == "auto" and any(tool["function"].get("strict") is True for tool in self.tools)

    def imposed(self) -> list[tuple[str, Json]]:
        """Return name and schema of each tool that the grammar allows: only the named one, if a tool is named.

        If no call is required, only the arguments of strict tools must fit their schema.
        """
        return [
            (name, _schema(tool) if self.must_call or tool["function"].get("strict") is True else {"type": "object"})
            for tool in self.tools
            if (name := tool["function"]["name"]) == self.name or not self.name
        ]

    @property
    def parameters(self) -> dict[str, Mapping[str, Any]]:
        """Return the schema of each tool, by name."""
        return {tool["function"]["name"]: _schema(tool) for tool in self.tools}

    def schema(self) -> Json | bool | None:
        """Return the JSON schema of the required calls; None if no call is required."""
        if self.wanted == "named":
            return _schema(next(tool for tool in self.tools if tool["function"]["name"] == self.name))
        if self.wanted != "required":
            return None
        calls: list[Json] = []
        definitions: Json = {}  # of all tools, which move to the root, each with a prefix for its tool
        for number, tool in enumerate(self.tools):
            schema = _schema(tool)
            own: Json = {}
            names: dict[str, str] = {}
            for keyword in ("$defs", "definitions"):
                if isinstance(schema.get(keyword), dict):
                    names |= {f"#/{keyword}/{name}": f"#/$defs/f{number}.{name}" for name in schema[keyword]}
                    own |= {f"f{number}.{name}": one for name, one in schema[keyword].items()}
            definitions |= {name: _referred(one, names) for name, one in own.items()}
            body = {key: value for key, value in schema.items() if key not in ("$defs", "definitions")}
            call = {
                "type": "object",
                "properties": {"name": {"const": tool["function"]["name"]}, "parameters": _referred(body, names)},
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
            calls.append(call)
        most = _MOST_CALLS if self.parallel else 1
        listed: Json = {"type": "array", "items": {"anyOf": calls}, "minItems": 1, "maxItems": most}
        return {**listed, "$defs": definitions} if definitions else listed


def tool_choice(body: ChatRequest) -> ToolChoice:
    """Return how the answer may call tools. Raises: InvalidRequest naming the field."""
    choice = body.tool_choice
    if body.tools is None:
        if choice not in (None, "none"):
            raise InvalidRequest("When using `tool_choice`, `tools` must be set.", "tool_choice")
        return ToolChoice()
    tools = _checked(body.tools)
    parallel = body.parallel_tool_calls is not False
    if choice is None:
        choice = "auto"
    if isinstance(choice, str):
        if choice not in _MODES:
            raise InvalidRequest(
                f"tool_choice is {choice!r:.100}; it must be none, auto, required, or a function by its name",
                "tool_choice",
            )
        return ToolChoice(_mode(choice), tools, tools, parallel=parallel)
    if choice.get("type") == "allowed_tools":
        return _allowed(choice, tools, parallel)
    name = _name(choice, tools)
    return ToolChoice("named", tools, tools, name, parallel)


def _checked(tools: Sequence[Json]) -> list[Json]:
    """Return the tools as a list. Raises: InvalidRequest naming the first that is wrong."""
    if not tools:
        raise InvalidRequest("tools must not be an empty array", "tools")
    if len(tools) > _MOST_TOOLS:
        raise InvalidRequest(f"tools has {len(tools)} functions; the limit is {_MOST_TOOLS}", "tools")
    for number, tool in enumerate(tools):
        if (kind := tool.get("type", "function")) != "function":
            raise InvalidRequest(f"tools[{number}].type is {kind!r}; only 'function' is offered", "tools")
        function = tool.get("function")
        if not isinstance(function, dict):
            raise InvalidRequest(f"tools[{number}].function must be an object with a name", "tools")
        name, schema = function.get("name"), function.get("parameters")
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
            raise InvalidRequest(
                f"tools[{number}].function.name must be a text of 1 to {_LONGEST_NAME} characters", "tools"
            )
        if schema is not None and not isinstance(schema, dict):
            raise InvalidRequest(f"tools[{number}].function.parameters must be a JSON schema", "tools")
    return list(tools)


def _mode(choice: object) -> CallsWanted:
    return "auto" if choice == "auto" else "required" if choice == "required" else "none"


def _allowed(choice: Json, tools: list[Json], parallel: bool) -> ToolChoice:
    """OpenAI's allowed_tools: auto or required among some of the tools. Raises: InvalidRequest."""
    inner = choice.get("allowed_tools", choice)
    mode = inner.get("mode", "auto") if isinstance(inner, dict) else None
    listed = inner.get("tools") if isinstance(inner, dict) else None
    if mode not in ("auto", "required") or not isinstance(listed, list) or not listed:
        raise InvalidRequest("tool_choice.allowed_tools needs a mode (auto or required) and tools", "tool_choice")
    names = {_name(one if isinstance(one, dict) else {}, tools) for one in listed}
    some = [tool for tool in tools if tool["function"]["name"] in names]
    return ToolChoice(_mode(mode), some, some, parallel=parallel)


def _name(choice: Json, tools: Sequence[Json]) -> str:
    """Return the name of the function that a tool_choice means. Raises: InvalidRequest."""
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if choice.get("type", "function") != "function" or not isinstance(name, str):
        raise InvalidRequest(
            'tool_choice must be none, auto, required or {"type": "function", "function": {"name": …}}', "tool_choice"
        )
    if all(tool["function"]["name"] != name for tool in tools):
        raise InvalidRequest(f"The tool specified in `tool_choice` ({name!r:.100}) is not among `tools`", "tool_choice")
    return name


def _schema(tool: Json) -> Json:
    """Return the schema of a tool's arguments: always an object, because clients parse them as one."""
    schema = tool["function"].get("parameters")
    if not schema:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return schema if "type" in schema or "$ref" in schema else {"type": "object", **schema}


def _referred(node: Any, names: Mapping[str, str], depth: int = 0) -> Any:
    """Return the schema with its references renamed, down to the depth that accepted schemas have."""
    if not names or depth > 2 * 64:
        return node
    if isinstance(node, list):
        return [_referred(one, names, depth + 1) for one in node]
    if not isinstance(node, dict):
        return node
    return {
        key: names.get(value, value) if key == "$ref" and isinstance(value, str) else _referred(value, names, depth + 1)
        for key, value in node.items()
    }
