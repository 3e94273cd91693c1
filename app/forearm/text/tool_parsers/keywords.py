"""Strict calls in formats that write each argument by itself, as grammars: Python's keywords, Qwen 3 Coder's tags.

Where a model may call, text is free and a call is not: it names a tool, and its arguments are within the tool's schema.
Arguments come in the schema's order, those that need not be may be left out. Values are JSON, which the readers of both
formats take; text of Qwen's tags stands as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forearm.errors import InvalidRequest
from forearm.text.grammars.constraints import schema_expression
from forearm.text.grammars.lark import Lark, either
from forearm.text.grammars.schema_strings import FORMATS
from forearm.text.tool_parsers import pythonic, qwen_coder
from forearm.text.tool_parsers.shapes import Tool

FIELD = "tools"
# Of a tool's schema: what is imposed argument by argument, and remarks.
_TAKEN = frozenset(("type", "properties", "required", "additionalProperties", "$defs", "definitions"))
_REMARKS = frozenset(("title", "description", "$schema", "$id", "$comment", "examples", "default", "deprecated"))
_LOCAL = ("#/$defs/", "#/definitions/")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# No answer that is text begins so. Llama 4 opens its calls with <|python_start|>.
_NO_LIST = r"/((<([^|](?s:.*))?|[^<\[ \t\r\n](?s:.*)))?/"
_MARKS = (qwen_coder.PARAMETER_END, qwen_coder.PARAMETER, qwen_coder.FUNCTION_END, qwen_coder.END)
# A string in a list or an object has none of _MARKS, nor "</" or "<pa" at all: patterns of schemas know no "but not".
_UNMARKED = "^([^<]|<+[^</p]|<+p[^a<])*(<+p?)?$"


@dataclass(frozen=True)
class Argument:
    """One of a tool's: its name, the schema of its value, whether it must be there."""

    name: str
    schema: Any
    required: bool


def arguments(tool: Tool) -> list[Argument] | None:
    """What the tool takes; None: anything.

    Raises: InvalidRequest for what cannot be imposed on one argument at a time.
    """
    name, schema = tool
    for key in schema:
        if key not in _TAKEN | _REMARKS:
            raise _wrong(name, f"{key} holds for all arguments together")
    properties, required = schema.get("properties"), schema.get("required") or []
    if schema.get("type", "object") != "object":
        raise _wrong(name, f"arguments are an object, not {schema['type']!r:.60}")
    if not properties and schema.get("additionalProperties") is not False and not required:
        return None
    if not isinstance(properties or {}, Mapping) or not isinstance(required, list):
        raise _wrong(name, "properties must be an object, required a list")
    for missing in [one for one in required if one not in (properties or {})]:
        raise _wrong(name, f"required has {missing!r:.60}, which is none of the properties")
    for reference in _references(schema):
        if not reference.startswith(_LOCAL):
            raise _wrong(name, f"$ref {reference!r:.60} is none of $defs")
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    return [
        Argument(key, {**value, **definitions} if isinstance(value, Mapping) else value, key in required)
        for key, value in (properties or {}).items()
    ]


def pythonic_calls(lark: Lark, tools: Sequence[Tool], parallel: bool) -> str:
    """Text, or a list of calls and nothing else."""
    calls = lark.rule(either([_pythonic_call(lark, tool) for tool in tools]))
    many = f'{calls} (", " {calls})*' if parallel else calls
    start = f"({lark.literal(pythonic.BEGIN)})?"
    return either([lark.terminal(_NO_LIST), f'{start} "[" {many} "]" ({lark.literal(pythonic.END)})?'])


def _pythonic_call(lark: Lark, tool: Tool) -> str:
    taken = arguments(tool)
    begin = lark.plain(tool[0] + "(")
    if taken is None:
        one = lark.rule(f'/{_NAME.pattern}/ "=" {_json(lark, {})}')
        return f'{begin} ({one} (", " {one})*)? ")"'
    for argument in taken:
        if not _NAME.fullmatch(argument.name):
            raise _wrong(tool[0], f"{argument.name!r:.60} is no name in Python")
    # Rules of what may follow, from the last argument back: where one came before, and where none did.
    later = first = '""'
    for argument in reversed(taken):
        value = lark.rule(f"{lark.plain(argument.name + '=')} {_json(lark, argument.schema)}")
        begun = f"{value} {later}"
        first = lark.rule(begun if argument.required else either([begun, first]))
        later = lark.rule(f'", " {begun}' if argument.required else either([f'", " {begun}', later]))
    return f'{begin} {first} ")"'


def qwen_coder_calls(lark: Lark, tools: Sequence[Tool], parallel: bool) -> str:
    """Text with calls in it: whatever tag is opened, one of the tools goes on from there."""
    bodies = lark.rule(either([_qwen_body(lark, tool) for tool in tools]))
    wrapped = f'{lark.until([qwen_coder.BEGIN])} "\\n{qwen_coder.FUNCTION}" {bodies} "\\n" '
    wrapped += lark.literal(qwen_coder.END)
    bare = f"{lark.until([qwen_coder.FUNCTION])} {bodies}"
    call, text = lark.rule(either([wrapped, bare])), lark.any_text()
    return f"{call}* {text}" if parallel else either([call, text])


def _qwen_body(lark: Lark, tool: Tool) -> str:
    """From the function's name to its end."""
    begin = lark.plain(f"{tool[0]}>\n")
    end = lark.plain(qwen_coder.FUNCTION_END)
    taken = arguments(tool)
    if taken is None:
        key = f'"{qwen_coder.PARAMETER}" /[^<>\\n]+/ ">\\n"'
        return f"{begin} ({key} {_qwen_text(lark, '(?s:.*)')})* {end}"
    parts = []
    for argument in taken:
        if not re.fullmatch(r"[^<>\n]+", argument.name):
            raise _wrong(tool[0], f"{argument.name!r:.60} cannot stand in a tag")
        key = lark.plain(f"{qwen_coder.PARAMETER}{argument.name}>\n")
        parts.append(f"({key} {_qwen_value(lark, tool[0], argument)}){'' if argument.required else '?'}")
    return " ".join([begin, *parts, end])


def _qwen_value(lark: Lark, tool: str, argument: Argument) -> str:
    """A value and the end of its tag. What its reader takes for text is text."""
    schema, end = argument.schema, lark.plain(f"\n{qwen_coder.PARAMETER_END}\n")
    types = qwen_coder.types_of(schema)
    if "string" not in types:
        return f"{_json(lark, _unmarked(schema))} {end}"
    known = schema if isinstance(schema, Mapping) else {}
    for key in ("pattern", "format"):
        if key in known and (key == "pattern" or known[key] in FORMATS):
            raise _wrong(tool, f"{key} cannot be imposed on {argument.name!r:.60}, which is written without quotes")
    if "enum" in known or "const" in known:
        listed = [known["const"]] if "const" in known else known["enum"]
        texts = [one for one in listed if isinstance(one, str)]
        if not texts or any(mark in text for text in texts for mark in _MARKS):
            raise _wrong(tool, f"{argument.name!r:.60} has no value that could be written")
        return f"{either([lark.plain(one) for one in texts])} {end}"
    return _qwen_text(lark, f"(?s:.{{{known.get('minLength', 0)},{known.get('maxLength', '')}}})")


def _qwen_text(lark: Lark, pattern: str) -> str:
    """Text as it stands, and the end of its tag."""
    text = lark.terminal(f"/{pattern}/", _MARKS)
    return lark.rule(f'{text} "\\n{qwen_coder.PARAMETER_END}"', "[lazy]") + ' "\\n"'


def _unmarked(schema: Any) -> Any:
    """The schema, but strings have nothing in them that would end their tag."""
    if isinstance(schema, list):
        return [_unmarked(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    made = {key: value if key in ("enum", "const") else _unmarked(value) for key, value in schema.items()}
    if "string" in _listed(schema.get("type")) and not schema.keys() & {"pattern", "format", "enum", "const"}:
        made["pattern"] = _UNMARKED
    return made


def _json(lark: Lark, schema: Any) -> str:
    """Raises: InvalidRequest naming what cannot be imposed."""
    return schema_expression(lark, schema, FIELD, white_space=r"\x20")


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        for value in schema.values():
            yield from _references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references(value)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _wrong(tool: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"{FIELD}: strict of {json.dumps(tool)}: this model writes each argument by itself, and {why}; leave strict "
        "out, change the schema, or require the call (tool_choice)",
        FIELD,
    )


KeywordCalls = Callable[[Lark, Sequence[Tool], bool], str]
_CALLS: dict[str, KeywordCalls] = {
    "llama4_pythonic": pythonic_calls,
    "pythonic": pythonic_calls,
    "qwen3_coder": qwen_coder_calls,
    "qwen3_xml": qwen_coder_calls,
}


def keyword_calls(name: str) -> KeywordCalls | None:
    """What makes the expression of an answer that may have calls in the format of this name."""
    return _CALLS.get(name)
