"""Read calls written in Python: `[get_weather(city='Oslo', days=3), now()]` (Llama 3.2 and 4, ToolACE), between tokens
(LFM2), or a call a line (OLMo 3; MiniCPM 3 and 4, in a Markdown block).

Nothing is evaluated: literals are converted to JSON token by token.
Sources: Meta's model card of Llama 3.2, "zero-shot function calling"; `<|python_start|>` is Llama 4's; the chat
templates of LiquidAI/LFM2-1.2B, openbmb/MiniCPM3-4B and allenai/Olmo-3-7B-Instruct.
"""

from __future__ import annotations

import json
import re

from forearm.text.tool_parsers.incremental import Steps, TextStream, literal, some, space, word
from forearm.text.tool_parsers.json_calls import CallReader, Calls, answer, attempt, call_list, fenced_calls
from forearm.text.tool_parsers.parts import CallArguments

BEGIN, END = "<|python_start|>", "<|python_end|>"
TAGGED_BEGIN, TAGGED_END = "<|tool_call_start|>", "<|tool_call_end|>"
OLMO_BEGIN, OLMO_END = "<function_calls>", "</function_calls>"
_DEEPEST = 50
_NAME = re.compile(r"[\w.-]+")
_QUOTED = {"'": re.compile(r"(?:[^'\\]+|\\.)+", re.DOTALL), '"': re.compile(r'(?:[^"\\]+|\\.)+', re.DOTALL)}
_BETWEEN = re.compile(r"[^'\"(){}\[\]]+")
_TOKEN = re.compile(
    r"\s*(?:(?P<string>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(?P<number>-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)"
    r"|(?P<name>[A-Za-z_]\w*)|(?P<sign>[()\[\]{},:=]))",
    re.DOTALL,
)
_NAMED = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_ESCAPE = re.compile(
    r"\\(?:x(?P<x>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})|U(?P<U>000[0-9a-fA-F]{5})|(?P<octal>[0-3]?[0-7]{1,2})|(?P<sign>.))",
    re.DOTALL,
)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "\n": ""}
_SIGNS = "\\'\""
_CLOSING = {"(": ")", "[": "]", "{": "}"}


def pythonic(source: TextStream, calls: Calls) -> Steps[None]:
    """Read a list of calls, then text; or text only."""
    lead = yield from space(source)
    source.record(lead)
    yield from literal(source, BEGIN)
    yield from space(source)
    if (yield from some(source)) and source.peek() == "[":
        if (yield from attempt(source, call_list(source, calls, _call))):
            yield from space(source)
            yield from literal(source, END)
    else:
        source.back(source.recorded())
    yield from answer(source, calls)


def _call(source: TextStream, calls: Calls) -> Steps[bool]:
    """Read `name(key=value, …)`. Returns: whether it is a call; recording has stopped then."""
    name = yield from word(source, _NAME)
    if not name or not (yield from literal(source, "(")):
        return False
    text = yield from _upto_closing(source)
    arguments = None if text is None else as_json(text)
    if arguments is None:
        return False
    source.recorded()
    call = calls.begin(name)
    yield call
    yield CallArguments(call.index, arguments)
    return True


def python_between(begin: str, end: str) -> CallReader:
    """Return the format with a list of calls, or a call a line, between these markers."""

    def body(source: TextStream, calls: Calls) -> Steps[bool]:
        if (yield from literal(source, "```python")):
            yield from space(source)
        if (yield from some(source)) and source.peek() == "[":
            return (yield from call_list(source, calls, _call))
        is_call = False
        while (yield from _call(source, calls)):
            is_call = True
            source.record()
            yield from space(source)
        if is_call:
            yield from literal(source, "```")
        return is_call

    return fenced_calls(begin, end, body)


lfm2 = python_between(TAGGED_BEGIN, TAGGED_END)
olmo3 = python_between(OLMO_BEGIN, OLMO_END)


def _upto_closing(source: TextStream) -> Steps[str | None]:
    """Read the text between a call's brackets, of which the first was read; None where the second does not come."""
    found: list[str] = []
    depth, quote = 1, ""
    while (yield from some(source)):
        char = source.peek()
        if quote:
            text = source.match(_QUOTED[quote])
            if not text and char == "\\":
                yield from some(source, 2)
                text = source.take(2)
            elif not text:
                text, quote = source.take(1), ""
        elif char in _QUOTED:
            text, quote = source.take(1), char
        elif char in "([{":
            text, depth = source.take(1), depth + 1
        elif char in ")]}":
            text, depth = source.take(1), depth - 1
            if depth == 0:
                return "".join(found)
        else:
            text = source.match(_BETWEEN)
        found.append(text)
    return None


def as_json(text: str) -> str | None:
    """Return keyword arguments as a JSON object; None where they are not all literals."""
    try:
        return _Literals(text).keywords()
    except ValueError:
        return None


def _unescaped(found: re.Match[str]) -> str:
    """Return what an escape sequence stands for in a Python string."""
    sign = found["sign"]
    if sign is None:
        digits = found["x"] or found["u"] or found["U"]
        return chr(int(digits, 16) if digits else int(found["octal"], 8))
    return sign if sign in _SIGNS else _ESCAPED.get(sign, "\\" + sign)


class _Literals:
    """Converts Python literals to JSON. Methods raise ValueError for any other expression."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._kind, self._token = "", ""
        self._next()

    def keywords(self) -> str:
        """Convert the whole text."""
        found = []
        while self._kind == "name":
            name = self._token
            self._next()
            self._expect("=")
            found.append(f"{json.dumps(name)}: {self._value(0)}")
            if self._token != ",":
                break
            self._next()
        if self._kind:
            raise ValueError(self._token)
        return "{" + ", ".join(found) + "}"

    def _value(self, depth: int) -> str:
        kind, token = self._kind, self._token
        if depth > _DEEPEST:
            raise ValueError(token)
        self._next()
        if kind == "string":
            text = _ESCAPE.sub(_unescaped, token[1:-1])
            return json.dumps(text.encode("utf-8", "replace").decode(), ensure_ascii=False)
        if kind == "number":
            return token
        if kind == "name" and token in _NAMED:
            return _NAMED[token]
        if token not in _CLOSING:
            raise ValueError(token)
        found, closing = [], _CLOSING[token]  # the items of a list, tuple or dictionary
        while self._token != closing:
            item = ""
            if token == "{":
                if self._kind != "string":
                    raise ValueError(self._token)
                item = self._value(depth + 1) + ": "
                self._expect(":")
            found.append(item + self._value(depth + 1))
            if self._token != ",":
                break
            self._next()
        self._expect(closing)
        return ("{%s}" if token == "{" else "[%s]") % ", ".join(found)

    def _expect(self, sign: str) -> None:
        if self._kind != "sign" or self._token != sign:
            raise ValueError(self._token)
        self._next()

    def _next(self) -> None:
        """Read a token; its kind is empty at the end."""
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            if self._text[self._at :].strip():
                raise ValueError(self._text[self._at :][:20])
            self._kind, self._token = "", ""
            return
        self._at = found.end()
        self._kind = str(found.lastgroup)
        self._token = found.group(self._kind)
