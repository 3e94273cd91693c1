"""Read the XML calls of Qwen 3 Coder (and 3.5): a tag for the function and one for each parameter, values as plain
text.

Source: the chat template of Qwen/Qwen3-Coder-30B-A3B-Instruct; values as in its qwen3coder_tool_parser.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from forearm.text.tool_parsers.incremental import Steps, TextStream, literal, space, upto
from forearm.text.tool_parsers.json_calls import Calls, answer, attempt, call_object, fenced
from forearm.text.tool_parsers.parts import CallArguments

BEGIN, END = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"


def qwen3_coder(source: TextStream, calls: Calls) -> Steps[None]:
    """Read text and calls; a call may lack its outer tag."""
    while marker := (yield from answer(source, calls, BEGIN, FUNCTION, END)):
        if marker == BEGIN:
            yield from fenced(source, calls, BEGIN, END, _wrapped)
        elif marker == FUNCTION:
            source.record(FUNCTION)
            yield from attempt(source, _function(source, calls))


def _wrapped(source: TextStream, calls: Calls) -> Steps[bool]:
    if (yield from literal(source, FUNCTION)):
        return (yield from _function(source, calls))
    return (yield from call_object(source, calls))


def _function(source: TextStream, calls: Calls) -> Steps[bool]:
    """Read `name>`, the parameters and the end. The model may omit `</parameter>` where another tag follows."""
    name, found = yield from upto(source, ">")
    if not found or not name.strip():
        return False
    source.recorded()
    call = calls.begin(name.strip())
    yield call
    yield CallArguments(call.index, "{")
    properties = (calls.tools.get(call.name) or {}).get("properties")
    schemas: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
    before = ""
    _, marker = yield from upto(source, PARAMETER, FUNCTION_END)
    while marker == PARAMETER:
        key, found = yield from upto(source, ">")
        if not found:
            return True
        text, marker = yield from upto(source, PARAMETER_END, PARAMETER, FUNCTION_END)
        yield CallArguments(call.index, before + json.dumps(key) + ": " + _value(text, schemas.get(key), bool(marker)))
        before = ", "
        if marker == PARAMETER_END:
            _, marker = yield from upto(source, PARAMETER, FUNCTION_END)
    if marker:
        yield CallArguments(call.index, "}")
    yield from space(source)
    return True


def _value(text: str, schema: Any, is_whole: bool) -> str:
    """Return a parameter as JSON of the schema's type, by default a string. A value cut off has no closing quote."""
    text = text[1:] if text.startswith("\n") else text
    if not is_whole:
        return json.dumps(text, ensure_ascii=False)[:-1]
    text = text[:-1] if text.endswith("\n") else text
    plain = text.strip()
    types = types_of(schema)
    if "string" in types and not ("null" in types and plain == "null"):
        return json.dumps(text, ensure_ascii=False)
    plain = {"True": "true", "False": "false", "None": "null"}.get(plain, plain)
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
