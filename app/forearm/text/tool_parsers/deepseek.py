"""Read the tool calls of DeepSeek V3 (arguments in a Markdown block, after `function`), V3.1 (bare arguments) and Kimi
K2 (bare arguments behind an id that has the name in it).

Source: the chat templates of deepseek-ai/DeepSeek-V3-0324 and deepseek-ai/DeepSeek-V3.1, and
docs/tool_call_guidance.md of MoonshotAI/Kimi-K2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from forearm.text.tool_parsers.incremental import Steps, TextStream, literal, some, space, upto
from forearm.text.tool_parsers.json_calls import CallReader, Calls, answer, arguments, fenced

ALL_BEGIN, ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
BEGIN, BETWEEN, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
MARKS = (ALL_BEGIN, ALL_END, BEGIN, BETWEEN, END)
KIMI_ALL_BEGIN, KIMI_ALL_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
KIMI_BEGIN, KIMI_BETWEEN, KIMI_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
KIMI_MARKS = (KIMI_ALL_BEGIN, KIMI_ALL_END, KIMI_BEGIN, KIMI_BETWEEN, KIMI_END)


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

    return _in_sections(MARKS, call)


def _in_sections(marks: Sequence[str], call: Callable[[TextStream, Calls], Steps[bool]]) -> CallReader:
    """Return the format of calls between the third and the last of `marks`, in sections between the first two."""

    def read(source: TextStream, calls: Calls) -> Steps[None]:
        while marker := (yield from answer(source, calls, *marks[:3])):
            if marker == marks[2]:
                yield from fenced(source, calls, marks[2], marks[-1], call)

    return read


def _kimi_call(source: TextStream, calls: Calls) -> Steps[bool]:
    """Read `functions.name:index`, which the template shows again as the call's id, and the arguments."""
    own, found = yield from upto(source, KIMI_BETWEEN)
    own = own.strip()
    name = own.removeprefix("functions.").partition(":")[0]
    if not found or not name:
        return False
    yield from space(source)
    is_call = yield from some(source)
    if is_call:
        source.recorded()
        begun = calls.begin(name, own)
        yield begun
        yield from arguments(source, begun.index)
    return is_call


kimi_k2 = _in_sections(KIMI_MARKS, _kimi_call)
deepseek_v3, deepseek_v31 = _call_format(in_block=True), _call_format(in_block=False)
