"""Structural tags (structural_tags.py) of tool calls in the models' own formats, for calls that a grammar imposes.

The model generates calls in the format that it was trained on, with arguments that fit the schema. Formats whose
arguments are not JSON have no layout; for them a JSON list of calls is imposed.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from forearm.json_types import Json
from forearm.text.tool_parsers import deepseek, harmony, hermes, lists, mistral

# An answer that does not begin as Llama's calls do.
_NO_CALL = r"([^{\s](.|\n)*)?"
# A tool: its name, and the JSON schema of its arguments.
Tool = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True)
class MessageMarks:
    """The marks of messages that each say what they are: what begins reasoning, a remark before calls, and the answer.

    end: ends a message; next: begins the one that follows. closes: the last message has an end, too.
    """

    reasoning: str
    remark: str
    answer: str
    end: str
    next: str
    closes: bool = False

    def before(self, marks: Sequence[str], opened: bool | None) -> list[Json]:
        """Return the elements of messages before the last one, which begin with any of these marks; there may be none.

        opened: whether the prompt opened reasoning (True), the answer (False), or neither; that message ends first, and
        reasoning at once if it is not among the marks.
        """
        text, found = {"type": "any_text"}, []
        if opened is not None:
            content = text if self.reasoning in marks or not opened else _const("")
            found = [self.message("", content, self.end), _const(self.next)]
        if marks:
            messages = {
                "type": "tags_with_separator",
                "tags": [self.message(mark, text, self.end) for mark in marks],
                "separator": self.next,
                "at_least_one": True,
            }
            found.append(_either(_const(""), _sequence(messages, _const(self.next))))
        return found

    def last(self, mark: str, content: Json) -> Json:
        """Return an element of the message that ends the answer."""
        return self.message(mark, content, self.end if self.closes else "")

    def message(self, mark: str, content: Json, end: str) -> Json:
        """Return an element of one message."""
        return {"type": "tag", "begin": mark, "content": content, "end": end}


@dataclass(frozen=True)
class CallLayout:
    """The layout of calls: `marker`, `opening`, calls separated by `separator`, `last`.

    A call is `begin`, name, `between`, arguments, `end`; if is_named, its name also comes first, as it is.
    marker: text or one special token that begins a list of calls and never occurs in answers.
    trigger: for calls that are not in a list, the text that begins each. Without marker and trigger, an answer that
    begins like a call is one.
    is_json: the name is written in a JSON string. messages: the marks around calls that are messages. is_single: a call
    ends the answer.
    """

    begin: str
    between: str
    end: str = ""
    separator: str = ""
    marker: str = ""
    opening: str = ""
    last: str = ""
    trigger: str = ""
    is_json: bool = True
    is_named: bool = False
    messages: MessageMarks | None = None
    is_single: bool = False

    def required(self, tools: Sequence[Tool], parallel: bool, before: Sequence[Json] = ()) -> Json:
        """Return the structural tag of an answer that consists of calls. before: elements that may precede them."""
        return {"format": self._calls(tools, parallel, before)}

    def answered(self, tools: Sequence[Tool], parallel: bool, schema: Mapping[str, Any] | bool) -> Json:
        """Return the structural tag of an answer that is either calls or JSON that fits the schema."""
        return {"format": _either({"type": "json_schema", "json_schema": schema}, self._calls(tools, parallel))}

    def chosen(self, tools: Sequence[Tool], parallel: bool) -> Json:
        """Return the structural tag of an answer that may contain calls."""
        assert not self.messages, "they need chosen_messages"
        if self.trigger:
            tags = [self._tag(tool) for tool in tools]
            return {"format": {"type": "triggered_tags", "triggers": [self.trigger], "tags": tags}}
        if not self.marker:
            return {"format": _either({"type": "regex", "pattern": _NO_CALL}, self._calls(tools, parallel))}
        text, excludes = {"type": "any_text"}, [self.marker]
        return {"format": _either({**text, "excludes": excludes}, self._calls(tools, parallel, [text]))}

    def chosen_messages(
        self,
        tools: Sequence[Tool],
        parallel: bool,
        thinks: bool,
        opened: bool | None = None,
        schema: Mapping[str, Any] | bool | None = None,
    ) -> Json:
        """Return the structural tag of messages, of which the last may be calls; calls end the answer.

        thinks: whether reasoning is allowed. opened: as in MessageMarks.before. schema: the schema of the answer.
        """
        marks, text = self.messages, {"type": "any_text"}
        assert marks, "its calls need chosen"
        answer = text if schema is None else {"type": "json_schema", "json_schema": schema}
        notes = [marks.reasoning] if thinks else []
        if schema is None or marks.remark != marks.answer:
            notes.append(marks.remark)
        ends = dict.fromkeys([*(notes if schema is None else ()), marks.answer])
        lasts = [marks.last(mark, answer if mark == marks.answer else text) for mark in ends]
        last = _either(*lasts, self._calls(tools, parallel))
        whole = _sequence(*marks.before(notes, opened), last)
        if opened is False:  # the answer that the prompt opened goes on; without a schema, messages may follow it
            whole = _either(marks.last("", answer), *([whole] if schema is None else ()))
        return {"format": whole}

    def _calls(self, tools: Sequence[Tool], parallel: bool, before: Sequence[Json] = ()) -> Json:
        calls = {
            "type": "tags_with_separator",
            "tags": [self._tag(tool) for tool in tools],
            "separator": self.separator,
            "at_least_one": True,
            "stop_after_first": self.is_single or not parallel,
        }
        marker, opening, last = (
            {"type": "const_string", "value": one} for one in (self.marker, self.opening, self.last)
        )
        elements = [*before, marker, opening, calls, last]
        return _sequence(*(one for one in elements if one.get("value") != ""))

    def _tag(self, tool: Tool) -> Json:
        name, schema = tool
        shown = json.dumps(name, ensure_ascii=False)[1:-1] if self.is_json else name
        begin = (name if self.is_named else "") + self.begin + shown + self.between
        return {
            "type": "tag",
            "begin": begin,
            "content": {"type": "json_schema", "json_schema": schema},
            "end": self.end,
        }


def _either(*options: Json) -> Json:
    return {"type": "or", "elements": list(options)}


def _sequence(*elements: Json) -> Json:
    return {"type": "sequence", "elements": list(elements)}


def _const(value: str) -> Json:
    return {"type": "const_string", "value": value}


_HERMES = CallLayout(
    begin=hermes.BEGIN + '\n{"name": "',
    between='", "arguments": ',
    end="}\n" + hermes.END,
    separator="\n",
    trigger=hermes.BEGIN,
)
_LONGCAT = CallLayout(
    begin=hermes.LONGCAT[0] + '\n{"name": "',
    between='", "arguments": ',
    end="}\n" + hermes.LONGCAT[1],
    separator="\n",
    trigger=hermes.LONGCAT[0],
)
_INTERNLM = CallLayout(
    begin=hermes.ACTION + hermes.PLUGIN + '\n{"name": "',
    between='", "parameters": ',
    end="}" + hermes.ACTION_END,
    separator="\n",
    trigger=hermes.ACTION,
)
_LLAMA = CallLayout(begin='{"name": "', between='", "parameters": ', end="}", separator="; ")
_MISTRAL = CallLayout(mistral.BEGIN, mistral.ARGS, trigger=mistral.BEGIN, is_json=False)
_GRANITE = CallLayout('{"name": "', '", "arguments": ', "}", ", ", marker="<|tool_call|>", opening="[", last="]")
_GRANITE_20B = CallLayout('<function_call> {"name": "', '", "arguments": ', "}", "\n", trigger="<function_call>")
_OLD_MISTRAL = replace(_GRANITE, marker=mistral.BEGIN, opening=" [")
_PHI, _VLLMS_PHI = replace(_GRANITE, last="]<|/tool_call|>"), replace(_GRANITE, marker="functools")
_JAMBA = replace(_GRANITE, marker="<tool_calls>", last="]</tool_calls>")
_APERTUS = CallLayout(
    begin='{"', between='": ', end="}", separator=", ", marker=lists.APERTUS, opening="[", last="]" + lists.APERTUS_END
)
_COHERE = CallLayout(
    begin='{"tool_call_id": "0", "tool_name": "',
    between='", "parameters": ',
    end="}",
    separator=",\n    ",
    marker=lists.COHERE,
    opening="[\n    ",
    last="\n]" + lists.COHERE_END,
)
_GIGACHAT = CallLayout(
    begin=lists.GIGACHAT[2] + '{"name": "',
    between='", "arguments": ',
    end="}",
    separator="\n",
    trigger=lists.GIGACHAT[2],
)
_V3 = CallLayout(
    begin=f"{deepseek.BEGIN}function{deepseek.BETWEEN}",
    between="\n```json\n",
    end="\n```" + deepseek.END,
    separator="\n",
    marker=deepseek.ALL_BEGIN,
    last=deepseek.ALL_END,
    is_json=False,
)
_V31 = CallLayout(
    begin=deepseek.BEGIN,
    between=deepseek.BETWEEN,
    end=deepseek.END,
    marker=deepseek.ALL_BEGIN,
    last=deepseek.ALL_END,
    is_json=False,
)
# <|call|> is an end-of-sequence token, so that a call ends the output.
_HARMONY = CallLayout(
    begin="<|channel|>commentary to=functions.",
    between=" <|constrain|>json<|message|>",
    is_json=False,
    messages=MessageMarks(
        reasoning=f"{harmony.CHANNEL}analysis{harmony.MESSAGE}",
        remark=f"{harmony.CHANNEL}commentary{harmony.MESSAGE}",
        answer=f"{harmony.CHANNEL}final{harmony.MESSAGE}",
        end=harmony.END,
        next=f"{harmony.START}assistant",
    ),
    is_single=True,
)
_INKLING = CallLayout(
    begin=harmony.INVOKE + '{"name":"',
    between='","args":',
    end="}" + harmony.END_MESSAGE,
    separator=harmony.MODEL,
    is_named=True,
    messages=MessageMarks(
        harmony.THINKING, harmony.TEXT, harmony.TEXT, harmony.END_MESSAGE, harmony.MODEL, closes=True
    ),
)
_LAYOUTS = {
    "apertus": _APERTUS,
    "cohere_command3": _COHERE,
    "cohere_command4": _COHERE,
    "deepseek_v3": _V3,
    "deepseek_v31": _V31,
    "ernie45": _HERMES,
    "gigachat3": _GIGACHAT,
    "granite": _GRANITE,
    "granite-20b-fc": _GRANITE_20B,
    "granite4": _HERMES,
    "hermes": _HERMES,
    "hunyuan_a13b": _JAMBA,
    "inkling": _INKLING,
    "internlm": _INTERNLM,
    "jamba": _JAMBA,
    "llama3_json": _LLAMA,
    "llama4_json": _LLAMA,
    "longcat": _LONGCAT,
    "nemotron_json": replace(_GRANITE, marker="<TOOLCALL>", last="]</TOOLCALL>"),
    "openai": _HARMONY,
    "qwen3_json": _HERMES,
}


def layout_of(name: str, tokens: Container[str]) -> CallLayout | None:
    """Return the layout of the format of this name; None where it has none. tokens: the tokenizer's added tokens."""
    if name == "mistral":
        return _MISTRAL if mistral.ARGS in tokens else _OLD_MISTRAL
    if name == "phi4_mini_json":
        return _PHI if "<|tool_call|>" in tokens else _VLLMS_PHI
    return _LAYOUTS.get(name)
