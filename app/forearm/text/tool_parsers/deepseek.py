"""Read the tool calls of DeepSeek V3 (arguments in a Markdown block, after `function`), V3.1 and PLaMo 3 (bare
arguments) and Kimi K2 (bare arguments behind an id that has the name in it).

Sources: the chat templates of deepseek-ai/DeepSeek-V3-0324 and deepseek-ai/DeepSeek-V3.1, docs/tool_call_guidance.md
of MoonshotAI/Kimi-K2, and vLLM 0.33's parser plamo3.
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
PLAMO_PIECES = ("<|plamo:begin_", "<|plamo:end_", ":plamo|>", "<|plamo:constrain|>", "<|plamo:msg|>")


def _plamo(name: str) -> str:
    return f"<|plamo:{name}:plamo|>"


def _call_format(
    marks: Sequence[str], opening: str = "", closing: str = "", has_kind: bool = False, around: Sequence[str] = ()
) -> CallReader:
    """Return the format of calls with a name and arguments.

    marks: around all calls, before a call, behind its name, and behind its arguments. opening, closing: what may stand
    at the ends of the arguments. has_kind: the call's kind stands where the name does elsewhere, and the name in the
    rest of the line. around: other marks around a call, which are dropped.
    """

    def call(source: TextStream, calls: Calls) -> Steps[bool]:
        name, found = yield from upto(source, marks[3])
        if has_kind:
            name, ended = yield from upto(source, "\n")
            found = found and ended
        if not found or not name.strip():
            return False
        yield from literal(source, opening)
        yield from space(source)
        is_call = yield from some(source)
        if is_call:
            source.recorded()
            begun = calls.begin(name.strip())
            yield begun
            yield from arguments(source, begun.index)
        if closing:
            yield from space(source)
            yield from literal(source, closing)
        return is_call

    return _in_sections(marks, call, around)


def _in_sections(
    marks: Sequence[str], call: Callable[[TextStream, Calls], Steps[bool]], around: Sequence[str] = ()
) -> CallReader:
    """Return the format of calls between the third and the last of `marks`, in sections between the first two."""

    def read(source: TextStream, calls: Calls) -> Steps[None]:
        while marker := (yield from answer(source, calls, *marks[:3], *around)):
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
deepseek_v3 = _call_format(MARKS, "```json", "```", has_kind=True)
deepseek_v31 = _call_format(MARKS)
PLAMO_MARKS = (
    *(_plamo("begin_tool_requests"), _plamo("end_tool_requests"), _plamo("begin_tool_name")),
    *(_plamo("end_tool_name"), _plamo("end_tool_arguments")),
)
plamo3 = _call_format(
    PLAMO_MARKS,
    opening=_plamo("begin_tool_arguments") + "<|plamo:constrain|>json<|plamo:msg|>",
    around=(_plamo("begin_tool_request"), _plamo("end_tool_request")),
)
