"""Common parts of the tool call formats: numbering, JSON that arrives in pieces, and handling of malformed calls.

No text of the model is lost: what turns out not to be a call is text. A call begins once its name is known and its
arguments begin; all that follows is arguments, even if the JSON is wrong or cut off, so that a stream and a complete
answer have the same content.
"""

from __future__ import annotations

import json
import re
import secrets
import string as alphabets
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from forearm.text.tool_parsers.incremental import Steps, TextStream, literal, prose, rest, some, space
from forearm.text.tool_parsers.parts import CallArguments, CallBegin, TextPart

_IN_STRING = re.compile(r'(?:[^"\\]+|\\.)+', re.DOTALL)
_BETWEEN = re.compile(r'[^"{}\[\]]+')
_BARE = re.compile(r'[^\s,:"{}\[\]]+')


class Calls:
    """The calls of one output. tools: the JSON schema of each tool's parameters, by its name."""

    def __init__(self, new_id: Callable[[], str], tools: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self.count = 0
        self.tools = tools or {}
        self._new_id = new_id

    def begin(self, name: str, own_id: str = "") -> CallBegin:
        """Return the beginning of the next call."""
        begun = CallBegin(self.count, own_id or self._new_id(), name)
        self.count += 1
        return begun


CallReader = Callable[[TextStream, Calls], Steps[None]]


def long_id() -> str:
    """Return a call id of vLLM's form."""
    return f"chatcmpl-tool-{uuid.uuid4().hex}"


def short_id() -> str:
    """Return nine letters and digits: the only form of id that Mistral's templates accept."""
    return "".join(secrets.choice(alphabets.ascii_letters + alphabets.digits) for _ in range(9))


def answer(source: TextStream, calls: Calls, *markers: str) -> Steps[str]:
    """Read text up to a marker, which is returned; "" at the end. White space before and between calls is dropped."""
    lead = yield from space(source)
    if not (yield from some(source)):
        if lead and not calls.count:
            yield TextPart(lead)
        return ""
    return (yield from prose(source, markers, lead="" if calls.count else lead))


def fenced(
    source: TextStream,
    calls: Calls,
    begin: str,
    end: str,
    body: Callable[[TextStream, Calls], Steps[bool]],
    dropped: Sequence[str] = (),
) -> Steps[None]:
    """Read a call between two markers, of which the first was read. If there is no call, all of it is text.

    dropped: markers that are no text behind a call.
    """
    source.record(begin)
    source.fence(end)
    yield from space(source)
    is_call = yield from body(source, calls)
    before, after = source.recorded(), (yield from rest(source))
    end = source.unfence()
    if is_call:
        for marker in dropped:
            after = after.replace(marker, "")
    text = after.strip() if is_call else before + after + end
    if text:
        yield TextPart(text)


def fenced_calls(begin: str, end: str, body: Callable[[TextStream, Calls], Steps[bool]]) -> CallReader:
    """Return the reader of text with calls between two markers; `body` reads what is between them."""

    def read(source: TextStream, calls: Calls) -> Steps[None]:
        while (yield from answer(source, calls, begin)):
            yield from fenced(source, calls, begin, end, body)

    return read


def attempt(source: TextStream, body: Steps[bool]) -> Steps[bool]:
    """Read a call whose text is recorded; if there is none, the text that was read is yielded as text."""
    is_call = yield from body
    text = source.recorded()
    if text and not is_call:
        yield TextPart(text)
    return is_call


def call_object(
    source: TextStream,
    calls: Calls,
    needs_arguments: bool = False,
    name_key: str = "name",
    known_name: str = "",
    argument_keys: Sequence[str] = ("arguments", "parameters"),
) -> Steps[bool]:
    """Read `{"name": …, "arguments": {…}}`, or `parameters`; other keys are skipped. known_name: counts where no
    name comes before the arguments.

    Returns: whether it is a call; recording has stopped then.
    """
    if not (yield from literal(source, "{")):
        return False
    name, held, begun = "", "", False
    while (key := (yield from object_key(source))) is not None:
        if key == name_key and not name:
            name = (yield from _string(source)) or ""
            if not name:
                return begun
        elif key in argument_keys and (name or known_name) and not begun:
            begun, held = True, ""
            source.recorded()
            call = calls.begin(name or known_name)
            yield call
            yield from arguments(source, call.index)
        elif key in argument_keys and not held:
            held = yield from value(source)
        else:
            yield from value(source)
        yield from space(source)
        if not (yield from literal(source, ",")):
            break
    if not (yield from literal(source, "}")) or begun:
        return begun
    name = name or known_name
    if not name or (needs_arguments and not held):
        return False
    source.recorded()
    call = calls.begin(name)
    yield call
    yield CallArguments(call.index, plain_arguments(held))
    return True


def call_list(
    source: TextStream, calls: Calls, call: Callable[[TextStream, Calls], Steps[bool]] = call_object
) -> Steps[bool]:
    """Read `[…, …]` of calls, JSON's by default. Returns: whether the list is complete; the rest is recorded if not."""
    if not (yield from literal(source, "[")):
        return False
    while True:
        yield from space(source)
        if not (yield from call(source, calls)):
            return False
        source.record()
        yield from space(source)
        if (yield from literal(source, "]")):
            return True
        if not (yield from literal(source, ",")):
            return False


def arguments(source: TextStream, index: int) -> Steps[None]:
    """Read the arguments of a call that has begun, piece by piece; a JSON string is decoded first."""
    if (yield from some(source)) and source.peek() in '"n':
        yield CallArguments(index, plain_arguments((yield from value(source))))
    else:
        yield from value(source, index)


def plain_arguments(text: str) -> str:
    """Return arguments as a JSON object: some models write the object into a string, or null for none."""
    if text in ("", "null"):
        return "{}"
    decoded = _decoded(text) if text.startswith('"') else None
    return text if decoded is None else decoded


def value(source: TextStream, index: int | None = None) -> Steps[str]:
    """Read a JSON value of any depth as it is written. index: if given, yield the text as arguments of this call."""
    depth, quoted, found = 0, False, []
    while (yield from some(source)):
        char = source.peek()
        ends = False
        if quoted:
            text = source.match(_IN_STRING)
            if not text and char == "\\":
                yield from some(source, 2)
                text = source.take(2)
            elif not text:
                text, quoted, ends = source.take(1), False, depth == 0
        elif char == '"':
            text, quoted = source.take(1), True
        elif char in "{[":
            text, depth = source.take(1), depth + 1
        elif depth and char in "}]":
            text, depth = source.take(1), depth - 1
            ends = depth == 0
        elif depth:
            text = source.match(_BETWEEN)
        elif not (text := source.match(_BARE)):
            break
        if index is None:
            found.append(text)
        else:
            yield CallArguments(index, text)
        if ends:
            break
    return "".join(found)


def object_key(source: TextStream) -> Steps[str | None]:
    """Read a key, its colon and the white space around them; None where there is none."""
    yield from space(source)
    if not (yield from some(source)) or source.peek() != '"':
        return None
    key = yield from _string(source)
    yield from space(source)
    if key is None or not (yield from literal(source, ":")):
        return None
    yield from space(source)
    return key


def _string(source: TextStream) -> Steps[str | None]:
    """Read a JSON string and decode it; None where there is none, or it is malformed."""
    if not (yield from some(source)) or source.peek() != '"':
        return None
    return _decoded((yield from value(source)))


def _decoded(text: str) -> str | None:
    try:
        decoded = json.loads(text, strict=False)
    except ValueError:
        return None
    # Half of a surrogate pair (\ud83d alone) cannot be encoded as UTF-8.
    return decoded.encode("utf-8", "replace").decode() if isinstance(decoded, str) else None
