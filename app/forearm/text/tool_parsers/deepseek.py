"""DeepSeek V3 (the arguments in a Markdown block, after `function`) and V3.1 (bare).

Source: the chat templates of deepseek-ai/DeepSeek-V3-0324 and deepseek-ai/DeepSeek-V3.1.
"""

from __future__ import annotations

from forearm.text.tool_parsers.incremental import Steps, TextStream, literal, some, space, upto
from forearm.text.tool_parsers.scan import Calls, answer, arguments, fenced

ALL_BEGIN, ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
BEGIN, BETWEEN, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
MARKS = (ALL_BEGIN, ALL_END, BEGIN, BETWEEN, END)


def deepseek_v3(source: TextStream, calls: Calls) -> Steps[None]:
    """Text and calls."""
    while marker := (yield from answer(source, calls, ALL_BEGIN, BEGIN, ALL_END)):
        if marker == BEGIN:
            yield from fenced(source, calls, BEGIN, END, _in_block)


def deepseek_v31(source: TextStream, calls: Calls) -> Steps[None]:
    """Text and calls."""
    while marker := (yield from answer(source, calls, ALL_BEGIN, BEGIN, ALL_END)):
        if marker == BEGIN:
            yield from fenced(source, calls, BEGIN, END, _bare)


def _in_block(source: TextStream, calls: Calls) -> Steps[bool]:
    """`function<｜tool▁sep｜>name`, a line that opens a block, the arguments, a line that closes it."""
    _kind, found = yield from upto(source, BETWEEN)
    name, ended = yield from upto(source, "\n")
    if not found or not ended or not name.strip():
        return False
    yield from literal(source, "```json")
    is_call = yield from _begun(source, calls, name.strip())
    yield from space(source)
    yield from literal(source, "```")
    return is_call


def _bare(source: TextStream, calls: Calls) -> Steps[bool]:
    """`name<｜tool▁sep｜>` and the arguments."""
    name, found = yield from upto(source, BETWEEN)
    if not found or not name.strip():
        return False
    return (yield from _begun(source, calls, name.strip()))


def _begun(source: TextStream, calls: Calls, name: str) -> Steps[bool]:
    yield from space(source)
    if not (yield from some(source)):
        return False
    source.recorded()
    call = calls.begin(name)
    yield call
    yield from arguments(source, call.index)
    return True
