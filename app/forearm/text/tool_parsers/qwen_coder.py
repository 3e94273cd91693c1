"""Read XML calls: a tag for the function and one for each parameter, values as plain text. Qwen 3 Coder and 3.5,
Nemotron 3, Step 3.5; MiMo, whose values have no lines of their own; Seed-OSS and ZAYA1, whose outer tag has another
name; MiniCPM 5, MiniMax M2, dots and Step 3, whose names are attributes.

Sources: the chat templates of Qwen/Qwen3-Coder-30B-A3B-Instruct, ByteDance-Seed/Seed-OSS-36B-Instruct and
openbmb/MiniCPM5; vLLM 0.33's parsers mimo, minimax_m2, dots and step3; values as in Qwen's qwen3coder_tool_parser.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from forearm.text.tool_parsers.incremental import Steps, TextStream, literal, space, upto
from forearm.text.tool_parsers.json_calls import CallReader, Calls, answer, attempt, call_object, fenced
from forearm.text.tool_parsers.parts import CallArguments

BEGIN, END = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
SEED_BEGIN, SEED_END = "<seed:tool_call>", "</seed:tool_call>"
ZAYA_BEGIN, ZAYA_END = "<zyphra_tool_call>", "</zyphra_tool_call>"
_CDATA, _CDATA_END = "<![CDATA[", "]]>"
_QUOTES = "\"'"


@dataclass(frozen=True)
class Tags:
    """The tags of a call. named, keyed: what ends the name of the function, and of a parameter; quotes around a name
    are dropped. verbatim: a line break beside a tag belongs to the value.
    """

    function: str = FUNCTION
    named: str = ">"
    parameter: str = PARAMETER
    keyed: str = ">"
    parameter_end: str = PARAMETER_END
    function_end: str = FUNCTION_END
    verbatim: bool = False


_PARAM = Tags("<function name=", ">", "<param name=", ">", "</param>")
_INVOKE = Tags("<invoke name=", ">", "<parameter name=", ">", PARAMETER_END, "</invoke>")
_STEP = Tags("<steptml:invoke name=", ">", "<steptml:parameter name=", ">", "</steptml:parameter>", "</steptml:invoke>")
MINIMAX = ("<minimax:tool_call>", "</minimax:tool_call>")
DOTS = ("<dots_function_call>", "</dots_function_call>")
STEP = (
    "<｜tool_call_begin｜>",
    "<｜tool_call_end｜>",
    "<｜tool_calls_begin｜>",
    "<｜tool_calls_end｜>",
    "<｜tool_sep｜>",
)


def tagged(tags: Tags, begin: str = "", end: str = "", around: Sequence[str] = (), lead: str = "") -> CallReader:
    """Return the format with these tags.

    begin, end: the tag around one call or several, which may lack; empty: there is none. around: the tags around all,
    which are dropped. lead: what may stand between `begin` and the call.
    """

    def wrapped(source: TextStream, calls: Calls) -> Steps[bool]:
        yield from literal(source, lead)
        if not (yield from literal(source, tags.function)):
            return (yield from call_object(source, calls))
        is_call = yield from _function(source, calls, tags)
        while is_call and (yield from literal(source, tags.function)):
            source.record(tags.function)
            is_call = yield from attempt(source, _function(source, calls, tags))
        return True

    def read(source: TextStream, calls: Calls) -> Steps[None]:
        markers = [one for one in (begin, tags.function, end, *around) if one]
        while marker := (yield from answer(source, calls, *markers)):
            if marker == begin:
                yield from fenced(source, calls, begin, end, wrapped)
            elif marker == tags.function:
                source.record(marker)
                yield from attempt(source, _function(source, calls, tags))

    return read


qwen3_coder = tagged(Tags(), BEGIN, END)
seed_oss = tagged(Tags(), SEED_BEGIN, SEED_END)
zaya = tagged(Tags(), ZAYA_BEGIN, ZAYA_END)
mimo = tagged(Tags(verbatim=True), BEGIN, END)
minicpm5 = tagged(_PARAM)
minimax_m2 = tagged(replace(_INVOKE, verbatim=True), *MINIMAX)
dots = tagged(_INVOKE, *DOTS)
step3 = tagged(_STEP, *STEP[:2], around=STEP[2:4], lead=f"function{STEP[4]}")


def _function(source: TextStream, calls: Calls, tags: Tags) -> Steps[bool]:
    """Read the name, the parameters and the end. The model may omit a parameter's end where another tag follows."""
    name, found = yield from upto(source, tags.named)
    name = name.strip().strip(_QUOTES)
    if not found or not name:
        return False
    source.recorded()
    call = calls.begin(name)
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
        key = key.strip(_QUOTES)
        written = json.dumps(key) + ": " + parameter(text, schemas.get(key), bool(marker), tags.verbatim)
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


def parameter(text: str, schema: Any, is_whole: bool, verbatim: bool = False) -> str:
    """Return a parameter as JSON of the schema's type, by default a string. A value cut off has no closing quote.

    verbatim: a line break at an end belongs to the value.
    """
    text = text if verbatim else text.removeprefix("\n")
    if not is_whole:
        return json.dumps(text, ensure_ascii=False)[:-1]
    text = text if verbatim else text.removesuffix("\n")
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
