"""Grammars of strict calls in formats that write each argument separately: Python keywords, and Qwen 3 Coder's tags.

Where a model may call tools, text is free but calls are not: a call names a tool, and its arguments fit the tool's
schema. Arguments come in the schema's order; optional ones may be left out. Values are JSON, which the parsers of both
formats read; strings in Qwen's tags are written without quotes.
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
from forearm.text.tool_parsers.call_layouts import Tool

FIELD = "tools"
# Keywords of a tool's schema that can be imposed argument by argument, and annotations.
_TAKEN = frozenset(("type", "properties", "required", "additionalProperties", "$defs", "definitions"))
_ANNOTATIONS = frozenset(("title", "description", "$schema", "$id", "$comment", "examples", "default", "deprecated"))
_LOCAL = ("#/$defs/", "#/definitions/")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Text that does not begin as a list of calls does. Llama 4 opens its calls with <|python_start|>.
_NO_LIST = r"/((<([^|](?s:.*))?|[^<\[ \t\r\n](?s:.*)))?/"
_MARKS = (qwen_coder.PARAMETER_END, qwen_coder.PARAMETER, qwen_coder.FUNCTION_END, qwen_coder.END)
# A string in a list or an object may contain none of _MARKS. The pattern excludes all of "</" and "<pa", because
# patterns of schemas cannot express exceptions.
_UNMARKED = "^([^<]|<+[^</p]|<+p[^a<])*(<+p?)?$"


@dataclass(frozen=True)
class Argument:
    """An argument of a tool: its name, the schema of its value, and whether it is required."""

    name: str
    schema: Any
    required: bool


def arguments(tool: Tool) -> list[Argument] | None:
    """Return the arguments that the tool takes; None: any.

    Raises: InvalidRequest if the schema cannot be imposed on one argument at a time.
    """
    name, schema = tool
    for key in schema:
        if key not in _TAKEN | _ANNOTATIONS:
            raise _wrong(name, f"{key} applies to all arguments together")
    properties, required = schema.get("properties"), schema.get("required") or []
    if schema.get("type", "object") != "object":
        raise _wrong(name, f"the arguments must be an object, not {schema['type']!r:.60}")
    if not properties and schema.get("additionalProperties") is not False and not required:
        return None
    if not isinstance(properties or {}, Mapping) or not isinstance(required, list):
        raise _wrong(name, "properties must be an object, required a list")
    for missing in [one for one in required if one not in (properties or {})]:
        raise _wrong(name, f"required has {missing!r:.60}, which is not one of the properties")
    for reference in _references(schema):
        if not reference.startswith(_LOCAL):
            raise _wrong(name, f"$ref {reference!r:.60} does not refer to $defs")
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    return [
        Argument(key, {**value, **definitions} if isinstance(value, Mapping) else value, key in required)
        for key, value in (properties or {}).items()
    ]


def pythonic_calls(lark: Lark, tools: Sequence[Tool], parallel: bool) -> str:
    """Return an expression of text, or of a list of calls and nothing else."""
    options = []
    for tool in tools:
        taken = arguments(tool)
        begin = lark.plain(tool[0] + "(")
        if taken is None:
            one = lark.rule(f'/{_NAME.pattern}/ "=" {_json(lark, {})}')
            options.append(f'{begin} ({one} (", " {one})*)? ")"')
            continue
        for argument in taken:
            if not _NAME.fullmatch(argument.name):
                raise _wrong(tool[0], f"{argument.name!r:.60} is not a name in Python")
        # Rules from the last argument backwards: `later` after another argument, `first` without one before.
        later = first = '""'
        for argument in reversed(taken):
            value = lark.rule(f"{lark.plain(argument.name + '=')} {_json(lark, argument.schema)}")
            begun = f"{value} {later}"
            first = lark.rule(begun if argument.required else either([begun, first]))
            later = lark.rule(f'", " {begun}' if argument.required else either([f'", " {begun}', later]))
        options.append(f'{begin} {first} ")"')
    calls = lark.rule(either(options))
    many = f'{calls} (", " {calls})*' if parallel else calls
    start = f"({lark.literal(pythonic.BEGIN)})?"
    return either([lark.terminal(_NO_LIST), f'{start} "[" {many} "]" ({lark.literal(pythonic.END)})?'])


def qwen_coder_calls(lark: Lark, tools: Sequence[Tool], parallel: bool) -> str:
    """Return an expression of text with calls in it: once a tag is opened, a call of one of the tools must follow."""
    options = []  # each from the function's name to the end of its tag
    for tool in tools:
        parts = [lark.plain(f"{tool[0]}>\n")]
        taken = arguments(tool)
        if taken is None:
            key = f'"{qwen_coder.PARAMETER}" /[^<>\\n]+/ ">\\n"'
            parts.append(f"({key} {_qwen_text(lark, '(?s:.*)')})*")
        for argument in taken or ():
            if not re.fullmatch(r"[^<>\n]+", argument.name):
                raise _wrong(tool[0], f"{argument.name!r:.60} cannot be written in a tag")
            key = lark.plain(f"{qwen_coder.PARAMETER}{argument.name}>\n")
            parts.append(f"({key} {_qwen_value(lark, tool[0], argument)}){'' if argument.required else '?'}")
        options.append(" ".join([*parts, lark.plain(qwen_coder.FUNCTION_END)]))
    bodies = lark.rule(either(options))
    wrapped = f'{lark.until([qwen_coder.BEGIN])} "\\n{qwen_coder.FUNCTION}" {bodies} "\\n" '
    wrapped += lark.literal(qwen_coder.END)
    bare = f"{lark.until([qwen_coder.FUNCTION])} {bodies}"
    call, text = lark.rule(either([wrapped, bare])), lark.any_text()
    return f"{call}* {text}" if parallel else either([call, text])


def _qwen_value(lark: Lark, tool: str, argument: Argument) -> str:
    """Return an expression of a value and the end of its tag. Where the parser expects text, the value is text."""
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
            raise _wrong(tool, f"{argument.name!r:.60} has no value that can be written")
        return f"{either([lark.plain(one) for one in texts])} {end}"
    return _qwen_text(lark, f"(?s:.{{{known.get('minLength', 0)},{known.get('maxLength', '')}}})")


def _qwen_text(lark: Lark, pattern: str) -> str:
    """Return an expression of unquoted text and the end of its tag."""
    text = lark.terminal(f"/{pattern}/", _MARKS)
    return lark.rule(f'{text} "\\n{qwen_coder.PARAMETER_END}"', "[lazy]") + ' "\\n"'


def _unmarked(schema: Any) -> Any:
    """Return the schema with strings restricted so that they cannot end their tag."""
    if isinstance(schema, list):
        return [_unmarked(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    made = {key: value if key in ("enum", "const") else _unmarked(value) for key, value in schema.items()}
    types = schema.get("type")
    if "string" in (types if isinstance(types, list) else [types]) and not schema.keys() & {
        "pattern",
        "format",
        "enum",
        "const",
    }:
        made["pattern"] = _UNMARKED
    return made


def _json(lark: Lark, schema: Any) -> str:
    """Return an expression of JSON that fits the schema.

    Raises: InvalidRequest naming the keyword that cannot be imposed.
    """
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


def _wrong(tool: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"{FIELD}: strict of {json.dumps(tool)}: this model writes each argument separately, and {why}; leave strict "
        "out, change the schema, or require the call (tool_choice)",
        FIELD,
    )


StrictCalls = Callable[[Lark, Sequence[Tool], bool], str]
# Functions that make the expression of an answer that may have calls, by the name of their format.
STRICT_CALLS: dict[str, StrictCalls] = {
    "llama4_pythonic": pythonic_calls,
    "pythonic": pythonic_calls,
    "qwen3_coder": qwen_coder_calls,
    "qwen3_xml": qwen_coder_calls,
    "step3p5": qwen_coder_calls,
    "step5": qwen_coder_calls,
}
