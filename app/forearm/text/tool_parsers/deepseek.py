"""Read the tool calls of DeepSeek V3 (arguments in a Markdown block, after `function`) and V3.1 (bare arguments).

Source: the chat templates of deepseek-ai/DeepSeek-V3-0324 and deepseek-ai/DeepSeek-V3.1.
"""

from __future__ import annotations

from forearm.text.tool_parsers.incremental import Steps, TextStream, literal, some, space, upto
from forearm.text.tool_parsers.json_calls import CallReader, Calls, answer, arguments, fenced

ALL_BEGIN, ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
BEGIN, BETWEEN, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
MARKS = (ALL_BEGIN, ALL_END, BEGIN, BETWEEN, END)


def _call_format(in_block: bool) -> CallReader:
    """Return the format whose arguments are in a Markdown block, or bare.

    In a block: `function<｜tool▁sep｜>name`, a line that opens it, the arguments, a line that closes it. Bare:
    `name<｜tool▁sep｜>` and the arguments.
    """

    def call(source: TextStream, calls: Calls) -> Steps[bool]:
        name, found = yield from upto(source, BETWEEN)
        if in_block:
            name, ended = yield from upto(source, "\n")
            found = found and ended
        if not found or not name.strip():
            return False
        if in_block:
            yield from literal(source, "```json")
        yield from space(source)
        is_call = yield from some(source)
        if is_call:
            source.recorded()
            begun = calls.begin(name.strip())
            yield begun
            yield from arguments(source, begun.index)
        if in_block:
            yield from space(source)
            yield from literal(source, "```")
        return is_call

    def read(source: TextStream, calls: Calls) -> Steps[None]:
        while marker := (yield from answer(source, calls, ALL_BEGIN, BEGIN, ALL_END)):
            if marker == BEGIN:
                yield from fenced(source, calls, BEGIN, END, call)

    return read


deepseek_v3, deepseek_v31 = _call_format(in_block=True), _call_format(in_block=False)
