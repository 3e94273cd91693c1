"""Read the calls of Gemma 4 and FunctionGemma: `call:name{key:value}` between two tokens, strings between others.

Source: the chat templates of google/gemma-4-E4B-it and google/functiongemma-270m-it.
"""

from __future__ import annotations

import json
import re

from forearm.text.tool_parsers.incremental import Steps, TextStream, literal, some, space, upto, word
from forearm.text.tool_parsers.json_calls import CallReader, Calls, fenced_calls
from forearm.text.tool_parsers.parts import CallArguments

BEGIN, END, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
FUNCTION_BEGIN, FUNCTION_END, FUNCTION_QUOTE = "<start_function_call>", "<end_function_call>", "<escape>"
_NAME = re.compile(r"[\w.-]+")
_BARE = re.compile(r"[^,{}\[\]<]+")
_DEEPEST = 50


def calls_between(begin: str, end: str, quote: str) -> CallReader:
    """Return the format with these markers of calls and strings."""

    def call(source: TextStream, calls: Calls) -> Steps[bool]:
        named = yield from literal(source, "call:")
        name = yield from word(source, _NAME)
        yield from space(source)
        if not named or not name or not (yield from some(source)) or source.peek() != "{":
            return False
        source.recorded()
        begun = calls.begin(name)
        yield begun
        yield from _value(source, begun.index, quote, 0)
        return True

    return fenced_calls(begin, end, call)


def _value(source: TextStream, index: int, quote: str, depth: int) -> Steps[bool]:
    """Read a value and yield it as JSON. Returns: whether it is complete."""
    if (yield from literal(source, quote)):
        text, found = yield from upto(source, quote)
        written = json.dumps(text, ensure_ascii=False)
        yield CallArguments(index, written if found else written[:-1])
        return bool(found)
    if not (yield from some(source)):
        return False
    if source.peek() not in "{[":
        bare = (yield from word(source, _BARE)).strip()
        if bare and source.left:  # what ends with the text may be cut off
            yield CallArguments(index, _as_json(bare))
        return bool(bare and source.left)
    if depth >= _DEEPEST:
        return False
    opening = source.take(1)
    closing = "}" if opening == "{" else "]"
    yield CallArguments(index, opening)
    before = ""
    while True:
        yield from space(source)
        if (yield from literal(source, closing)):
            yield CallArguments(index, closing)
            return True
        if before and not (yield from literal(source, ",")):
            return False
        yield from space(source)
        if opening == "{":
            key, found = yield from upto(source, ":")
            if not found:
                return False
            before += json.dumps(key.strip().removeprefix(quote).removesuffix(quote), ensure_ascii=False) + ": "
        yield CallArguments(index, before)
        before = ", "
        yield from space(source)
        if not (yield from _value(source, index, quote, depth + 1)):
            return False


def _as_json(bare: str) -> str:
    """Return a number, true, false or null as it is, and anything else as a string."""
    plain = {"True": "true", "False": "false", "None": "null", "none": "null", "nil": "null"}.get(bare, bare)
    try:
        return plain if not isinstance(json.loads(plain, parse_constant=lambda _: ""), str) else json.dumps(bare)
    except (ValueError, RecursionError):
        return json.dumps(bare, ensure_ascii=False)


gemma4 = calls_between(BEGIN, END, QUOTE)
functiongemma = calls_between(FUNCTION_BEGIN, FUNCTION_END, FUNCTION_QUOTE)
