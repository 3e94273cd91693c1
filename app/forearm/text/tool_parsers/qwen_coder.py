"""Read XML calls: a tag for the function and one for each parameter, values as plain text. Qwen 3 Coder and 3.5,
Nemotron 3; Seed-OSS, whose outer tag has another name; MiniCPM 5, whose names are attributes.

Source: the chat templates of Qwen/Qwen3-Coder-30B-A3B-Instruct, ByteDance-Seed/Seed-OSS-36B-Instruct and
openbmb/MiniCPM5; values as in Qwen's qwen3coder_tool_parser.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from forearm.text.tool_parsers.incremental import Steps, TextStream, literal, space, upto
from forearm.text.tool_parsers.json_calls import CallReader, Calls, answer, attempt, call_object, fenced
from forearm.text.tool_parsers.parts import CallArguments

BEGIN, END = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
SEED_BEGIN, SEED_END = "<seed:tool_call>", "</seed:tool_call>"
_CDATA, _CDATA_END = "<![CDATA[", "]]>"


@dataclass(frozen=True)
class Tags:
    """The tags of a call. named, keyed: what ends the name of the function, and of a parameter."""

    function: str = FUNCTION
    named: str = ">"
    parameter: str = PARAMETER
    keyed: str = ">"
    parameter_end: str = PARAMETER_END
    function_end: str = FUNCTION_END


_ATTRIBUTES = Tags('<function name="', '">', '<param name="', '">', "</param>")


def tagged(tags: Tags, begin: str = "", end: str = "") -> CallReader:
    """Return the format with these tags. begin, end: the tag around a call, which it may lack; empty: there is none."""

    def wrapped(source: TextStream, calls: Calls) -> Steps[bool]:
        if (yield from literal(source, tags.function)):
            return (yield from _function(source, calls, tags))
        return (yield from call_object(source, calls))

    def read(source: TextStream, calls: Calls) -> Steps[None]:
        markers = [one for one in (begin, tags.function, end) if one]
        while marker := (yield from answer(source, calls, *markers)):
            if marker == begin:
                yield from fenced(source, calls, begin, end, wrapped)
            elif marker == tags.function:
                source.record(marker)
                yield from attempt(source, _function(source, calls, tags))

    return read


qwen3_coder = tagged(Tags(), BEGIN, END)
seed_oss = tagged(Tags(), SEED_BEGIN, SEED_END)
minicpm5 = tagged(_ATTRIBUTES)


def _function(source: TextStream, calls: Calls, tags: Tags) -> Steps[bool]:
    """Read the name, the parameters and the end. The model may omit a parameter's end where another tag follows."""
    name, found = yield from upto(source, tags.named)
    if not found or not name.strip():
        return False
    source.recorded()
    call = calls.begin(name.strip())
    yield call
    yield CallArguments(call.index, "{")
    schemas = schemas_of(calls, call.name)
    before = ""
    _, marker = yield from upto(source, tags.parameter, tags.function_end)
    while marker == tags.parameter:
        key, found = yield from upto(source, tags.keyed)
        if not found:
            return True
        text, marker = yield from upto(source, tags.parameter_end, tags.parameter, tags.function_end)
        written = json.dumps(key) + ": " + parameter(text, schemas.get(key), bool(marker))
        yield CallArguments(call.index, before + written)
        before = ", "
        if marker == tags.parameter_end:
            _, marker = yield from upto(source, tags.parameter, tags.function_end)
    if marker:
        yield CallArguments(call.index, "}")
    yield from space(source)
    return True


def schemas_of(calls: Calls, name: str) -> Mapping[str, Any]:
    """Return the schemas of a tool's parameters by their names; empty for an unknown tool."""
    properties = (calls.tools.get(name) or {}).get("properties")
    return properties if isinstance(properties, Mapping) else {}


def parameter(text: str, schema: Any, is_whole: bool) -> str:
    """Return a parameter as JSON of the schema's type, by default a string. A value cut off has no closing quote."""
    text = text[1:] if text.startswith("\n") else text
    if not is_whole:
        return json.dumps(text, ensure_ascii=False)[:-1]
    text = text[:-1] if text.endswith("\n") else text
    if text.startswith(_CDATA) and text.endswith(_CDATA_END):
        text = text[len(_CDATA) : -len(_CDATA_END)]
    plain = text.strip()
    types = types_of(schema)
    if "string" in types and not ("null" in types and plain == "null"):
        return json.dumps(text, ensure_ascii=False)
    return json_or_text({"True": "true", "False": "false", "None": "null"}.get(plain, plain), text)


def json_or_text(plain: str, text: str) -> str:
    """Return what is JSON as it is, or else the text as a JSON string."""
    try:
        json.loads(plain, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    return plain


def types_of(schema: Any) -> Sequence[Any]:
    """Return the types that a schema names; "string" where it restricts the value in no other way."""
    if not isinstance(schema, Mapping):
        return ("string",)
    kind = schema.get("type", () if schema.keys() & {"anyOf", "oneOf", "allOf", "$ref", "enum", "const"} else "string")
    return kind if isinstance(kind, list) else (kind,)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)  # NaN and Infinity are not JSON
