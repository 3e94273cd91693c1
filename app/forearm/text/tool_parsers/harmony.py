"""Read harmony, the format of gpt-oss: messages with a channel each (analysis: reasoning, final: answer, commentary).

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json
    <|message|>{…}<|call|>

Source: OpenAI's "harmony response format" (cookbook.openai.com/articles/openai-harmony).
"""

from __future__ import annotations

import re

from forearm.text.tool_parsers.incremental import Steps, TextStream, literal, prose, some, upto
from forearm.text.tool_parsers.json_calls import Calls
from forearm.text.tool_parsers.parts import AnswerPart, CallArguments, ReasoningPart, TextPart
from forearm.text.tool_parsers.reasoning import ReasoningState

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
MARKS = (START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN)
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_FUNCTIONS = "functions."
_LONGEST_HEADER = 200


def harmony(source: TextStream, calls: Calls, thinking: ReasoningState) -> Steps[None]:
    """Read messages until the text ends; `<|start|>assistant` of the first message is the end of the prompt."""
    while (yield from some(source)):
        header = yield from _header(source)
        if header is None:
            yield from prose(source, (END, RETURN, START), lead="")
            continue
        yield from _body(source, calls, thinking, header)


def _header(source: TextStream) -> Steps[str | None]:
    """Read the header of a message; None where plain text comes without one."""
    yield from literal(source, START)
    source.record()
    yield from literal(source, "assistant")
    for first in (CHANNEL, MESSAGE, CONSTRAIN, " to=", "to="):
        if (yield from literal(source, first)):
            marker = first
            if first != MESSAGE:
                _, marker = yield from upto(source, MESSAGE)
            text = source.recorded()
            if marker or len(text) < _LONGEST_HEADER:  # a header that was cut off is not shown
                return text
            source.back(text)
            return None
    source.back(source.recorded())
    return None


def _body(source: TextStream, calls: Calls, thinking: ReasoningState, header: str) -> Steps[None]:
    channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
    make: type[ReasoningPart] | type[TextPart] = TextPart
    if recipient and recipient[1].startswith(_FUNCTIONS) and recipient[1] != _FUNCTIONS:
        yield from _call(source, calls, recipient[1][len(_FUNCTIONS) :])
        return
    if recipient or (channel and channel[1] == "analysis"):
        make = ReasoningPart
        thinking.is_open = True
    yield from prose(source, (END, CALL, RETURN, START), make)
    thinking.is_open = False


def _call(source: TextStream, calls: Calls, name: str) -> Steps[None]:
    call = calls.begin(name)
    yield call
    empty = True

    def arguments(text: str) -> AnswerPart:
        nonlocal empty
        empty = False
        return CallArguments(call.index, text)

    yield from prose(source, (END, CALL, RETURN, START), arguments)
    if empty:
        yield CallArguments(call.index, "{}")
