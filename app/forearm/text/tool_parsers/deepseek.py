"""Read the tool calls of DeepSeek V3 (arguments in a Markdown block, after `function`) and V3.1 (bare arguments).

Source: the chat templates of deepseek-ai/DeepSeek-V3-0324 and deepseek-ai/DeepSeek-V3.1.
"""

from __future__ import annotations

from collections.abc import Callable

from forearm.text.tool_parsers.incremental import Steps, TextStream, literal, some, space, upto
from forearm.text.tool_parsers.json_calls import CallFormat, Calls, answer, arguments, fenced

ALL_BEGIN, ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
BEGIN, BETWEEN, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
MARKS = (ALL_BEGIN, ALL_END, BEGIN, BETWEEN, END)


def _calls_with(body: Callable[[TextStream, Calls], Steps[bool]]) -> CallFormat:
    """Return a format of text and calls, each with this body between its markers."""

    def read(source: TextStream, calls: Calls) -> Steps[None]:
        while marker := (yield from answer(source, calls, ALL_BEGIN, BEGIN, ALL_END)):
            if marker == BEGIN:
                yield from fenced(source, calls, BEGIN, END, body)

    return read


def _in_block(source: TextStream, calls: Calls) -> Steps[bool]:
    """Read `function<｜tool▁sep｜>name`, a line that opens a block, the arguments, and a line that closes it."""
    _kind, found = yield from upto(source, BETWEEN)
    name, ended = yield from upto(source, "\n")
    if not found or not ended or not name.strip():
        return False
    yield from literal(source, "```json")
    is_call = yield from _arguments_of(source, calls, name.strip())
    yield from space(source)
    yield from literal(source, "```")
    return is_call


def _bare(source: TextStream, calls: Calls) -> Steps[bool]:
    """Read `name<｜tool▁sep｜>` and the arguments."""
    name, found = yield from upto(source, BETWEEN)
    if not found or not name.strip():
        return False
    return (yield from _arguments_of(source, calls, name.strip()))


def _arguments_of(source: TextStream, calls: Calls, name: str) -> Steps[bool]:
    yield from space(source)
    if not (yield from some(source)):
        return False
    source.recorded()
    call = calls.begin(name)
    yield call
    yield from arguments(source, call.index)
    return True


deepseek_v3, deepseek_v31 = _calls_with(_in_block), _calls_with(_bare)
