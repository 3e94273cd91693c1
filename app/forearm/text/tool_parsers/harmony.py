"""Read answers that are messages, each of which says whether it is reasoning, text or a call: harmony and Inkling's.

In harmony, the format of gpt-oss, a message has a channel (analysis: reasoning, final: answer, commentary):

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json
    <|message|>{…}<|call|>

In Inkling's format a mark tells the kind of a message; the prompt ends with the first <|message_model|>:

    <|content_thinking|>…<|end_message|><|message_model|><|content_text|>…<|end_message|><|message_model|>f
    <|content_invoke_tool_json|>{"name":"f","args":{…}}<|end_message|><|content_model_end_sampling|>

Sources: OpenAI's "harmony response format" (cookbook.openai.com/articles/openai-harmony); for Inkling, vLLM's parser
inkling, SGLang's inkling_detector, and the template of unsloth's GGUF files of thinkingmachines/Inkling.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from forearm.text.tool_parsers.incremental import Steps, TextStream, literal, prose, some, upto
from forearm.text.tool_parsers.json_calls import Calls, call_object, fenced
from forearm.text.tool_parsers.parts import AnswerPart, CallArguments, ReasoningPart, TextPart
from forearm.text.tool_parsers.reasoning import ReasoningState

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
MARKS = (START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN)
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_FUNCTIONS = "functions."
_LONGEST_HEADER = 200

MODEL, THINKING, TEXT = "<|message_model|>", "<|content_thinking|>", "<|content_text|>"
INVOKE, END_MESSAGE = "<|content_invoke_tool_json|>", "<|end_message|>"
# Marks of what is shown as text: a call that is no JSON, a tool's error. The mark at the end is the model's EOS.
_OTHERS = ("<|content_invoke_tool_text|>", "<|content_tool_error|>")
INKLING_MARKS = (MODEL, THINKING, TEXT, INVOKE, *_OTHERS, END_MESSAGE, "<|content_model_end_sampling|>")
_ARGUMENTS = ("args", "arguments", "parameters")
_LONGEST_NAME = 256  # as long as a request's tools may have it

# Reads an answer that is messages. The last argument: whether the prompt opened a message of reasoning (True), one of
# the answer (False), or neither (None).
MessageReader = Callable[[TextStream, Calls, ReasoningState, bool | None], Steps[None]]


def harmony(source: TextStream, calls: Calls, thinking: ReasoningState, opened: bool | None) -> Steps[None]:
    """Read messages until the text ends; `<|start|>assistant` of the first message is the end of the prompt."""
    if opened is not None:
        yield from _body(source, calls, thinking, f"{CHANNEL}analysis" if opened else "")
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


def inkling(source: TextStream, calls: Calls, thinking: ReasoningState, opened: bool | None) -> Steps[None]:
    """Read messages until the text ends. Text that no mark introduces is text of the answer."""
    marker = MODEL if opened is None else THINKING if opened else TEXT
    is_first = True
    while marker:
        name = ""
        if marker == MODEL:
            name, marker = yield from _author(source, is_first)
        if marker == INVOKE:
            known = name if name in calls.tools else ""
            body = partial(call_object, known_name=known, argument_keys=_ARGUMENTS)
            yield from fenced(source, calls, name + INVOKE, END_MESSAGE, body, INKLING_MARKS)
            marker = END_MESSAGE
        elif marker == THINKING:
            thinking.is_open = True
            marker = yield from prose(source, INKLING_MARKS, ReasoningPart)
            thinking.is_open = False
        else:
            marker = yield from prose(source, INKLING_MARKS)
        is_first = False


def _author(source: TextStream, is_first: bool) -> Steps[tuple[str, str]]:
    """Read the name of a tool, and the mark of the message's kind; where other text comes, it is the answer's.

    is_first: the prompt opened the message, so that text without any mark comes here, too.
    """
    name, found = "", ""
    while not found and len(name) <= _LONGEST_NAME and (yield from some(source)):
        if source.peek() == "<":
            for marker in INKLING_MARKS:
                if (yield from literal(source, marker)):
                    found = marker
                    break
        if not found:
            name += source.take(1)
    if found in (THINKING, TEXT, INVOKE, *_OTHERS):
        return name.strip(), found
    if name and (found or is_first or len(name) > _LONGEST_NAME):  # a name that was cut off is not shown
        yield TextPart(name)
    return "", found or TEXT
