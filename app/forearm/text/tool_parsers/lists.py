"""Read a JSON list of calls after a marker (Granite 3, Phi-4-mini, Jamba, Nemotron 2, HunYuan-A13B, Apertus, Command A,
xLAM), or one call after each marker (Granite 20B, GigaChat 3).

Sources: the chat templates of ibm-granite/granite-3.1-8b-instruct (`<|tool_call|>`; 3.0 and 3.2 write `<tool_call>`),
microsoft/Phi-4-mini-instruct's model card (`<|tool_call|>` … `<|/tool_call|>`), vLLM's template for it (`functools`),
ai21labs/AI21-Jamba-1.5-Mini (`<tool_calls>`), nvidia/NVIDIA-Nemotron-Nano-9B-v2 (`<TOOLCALL>`), and
ibm-granite/granite-20b-functioncalling (`<function_call>`); vLLM 0.33's parsers hunyuan_a13b, apertus, cohere_command3,
xlam and gigachat3; docs/format.md of swiss-ai/apertus_format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from forearm.text.tool_parsers.incremental import Steps, TextStream, literal, some, space
from forearm.text.tool_parsers.json_calls import (
    CallReader,
    Calls,
    answer,
    arguments,
    attempt,
    call_list,
    call_object,
    object_key,
)

APERTUS, APERTUS_END = "<|tools_prefix|>", "<|tools_suffix|>"
COHERE, COHERE_END = "<|START_ACTION|>", "<|END_ACTION|>"
# Tags around the answer, which are dropped.
COHERE_ANSWER = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")
HUNYUAN_ANSWER = ("<answer>", "\n</answer>", "</answer>")
GIGACHAT = ("<|message_sep|>", "<|role_sep|>", "<|function_call|>")


def lists(
    *begins: str,
    ends: Sequence[str] = (),
    call: Callable[[TextStream, Calls], Steps[bool]] = call_object,
    needs_marker: bool = False,
    kind: str = "",
    closing: Sequence[str] = (),
) -> CallReader:
    """Return the format with these markers before a list; end markers are skipped.

    call: reads one call of the list. needs_marker: a list without marker that comes first is text. kind, closing:
    what may stand between marker and list, and behind a list; elsewhere it is text.
    """

    def read(source: TextStream, calls: Calls) -> Steps[None]:
        lead = yield from space(source)
        if not needs_marker and (yield from some(source)) and source.peek() == "[":
            source.record(lead)
            yield from attempt(source, call_list(source, calls, call))
        else:
            source.back(lead)
        while marker := (yield from answer(source, calls, *begins, *ends)):
            if marker not in begins:
                yield from space(source)
                continue
            source.record(marker)
            yield from literal(source, kind)
            yield from space(source)
            if (yield from attempt(source, call_list(source, calls, call))) and closing:
                yield from space(source)
                for one in closing:
                    yield from literal(source, one)

    return read


def objects(*begins: str, ends: Sequence[str] = ()) -> CallReader:
    """Return the format with one of these markers before each call; end markers are skipped."""

    def read(source: TextStream, calls: Calls) -> Steps[None]:
        while marker := (yield from answer(source, calls, *begins, *ends)):
            if marker not in begins:
                yield from space(source)
                continue
            source.record(marker)
            yield from space(source)
            yield from attempt(source, call_object(source, calls))

    return read


def _keyed_call(source: TextStream, calls: Calls) -> Steps[bool]:
    """Read `{"name": {…}}`."""
    name = (yield from object_key(source)) if (yield from literal(source, "{")) else None
    if not name or not (yield from some(source)) or source.peek() != "{":
        return False
    source.recorded()
    begun = calls.begin(name)
    yield begun
    yield from arguments(source, begun.index)
    yield from space(source)
    yield from literal(source, "}")
    return True


granite = lists("<|tool_call|>", "<tool_call>")
phi4_mini_json = lists("functools", "<|tool_call|>", ends=("<|/tool_call|>",))
jamba = lists("<tool_calls>", ends=("</tool_calls>",))
nemotron_json = lists("<TOOLCALL>", ends=("</TOOLCALL>",))
hunyuan_a13b = lists("<tool_calls>", ends=("</tool_calls>", *HUNYUAN_ANSWER))
apertus = lists(APERTUS, ends=(APERTUS_END,), call=_keyed_call, needs_marker=True)
cohere_command = lists(
    COHERE, ends=(COHERE_END, *COHERE_ANSWER), call=partial(call_object, name_key="tool_name"), needs_marker=True
)
xlam = lists("```", "<tool_call>", kind="json", closing=("```", "</tool_call>"))
granite_20b_fc = objects("<function_call>")
gigachat3 = objects(f"function call{GIGACHAT[1]}", GIGACHAT[2], ends=GIGACHAT[:1])
