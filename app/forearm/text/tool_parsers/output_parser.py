"""Parse a model's outputs into text, reasoning and tool calls, in the formats that the model uses."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from forearm.text import tool_parsers
from forearm.text.tool_parsers import MESSAGE_FORMATS, ToolCallFormat, reasoning
from forearm.text.tool_parsers.call_layouts import CallLayout, layout_of
from forearm.text.tool_parsers.incremental import IncrementalParser, Steps, TextStream, prose, some, space
from forearm.text.tool_parsers.json_calls import Calls, answer, attempt, call_list, long_id
from forearm.text.tool_parsers.parts import AnswerPart, CallArguments, CallBegin, ReasoningPart
from forearm.text.tool_parsers.reasoning import ReasoningFormat, ReasoningState
from forearm.text.tool_parsers.strict_calls import STRICT_CALLS, StrictCalls

# The calls that an output may have: none, calls in the model's own format, calls as a JSON list that a grammar imposes,
# or only the arguments of the one function that was requested.
CallsWanted = Literal["none", "auto", "required", "named"]


@dataclass(frozen=True)
class Dialect:
    """The formats of one model; None: unknown, or the model has none.

    layout: the layout in which its calls can be imposed. strict_calls: makes grammars of strict calls for formats
    without a layout.
    """

    reasoning: ReasoningFormat | None = None
    calls: ToolCallFormat | None = None
    layout: CallLayout | None = None
    strict_calls: StrictCalls | None = None

    @property
    def has_messages(self) -> bool:
        """True if one format has both reasoning and calls; it is always parsed, with or without tools."""
        return self.calls is not None and self.calls.messages is not None

    def marks(self, wanted: CallsWanted) -> frozenset[str]:
        """Return the special tokens that must be visible in the text."""
        if self.calls and self.calls.messages:
            return frozenset(self.calls.marks)
        found = self.reasoning.marks if self.reasoning else ()
        if wanted == "auto" and self.calls:
            found += self.calls.marks
        return frozenset(found)


def find_dialect(
    template: str, calls_name: str = "", reasoning_name: str = "", tokens: Collection[str] = ()
) -> Dialect:
    """Return the formats of these names, or those that the chat template tells: for calls "", for reasoning "auto".

    Without a name, reasoning stays text, as in vLLM; only that in messages (gpt-oss, Inkling) is always read, together
    with calls. tokens: the tokenizer's added tokens.
    """
    calls_told, reasoning_told = (
        next((name for markers, name in table if all(one in template for one in markers)), "")
        for table in (tool_parsers.MARKERS, reasoning.MARKERS)
    )
    calls_name = calls_name or calls_told
    if reasoning_name == "auto":
        reasoning_name = reasoning_told
    if calls_name not in MESSAGE_FORMATS:
        calls_name = next((calls for calls, one in MESSAGE_FORMATS.items() if one == reasoning_name), calls_name)
    reasoning_name = MESSAGE_FORMATS.get(calls_name, reasoning_name)
    formats = reasoning.format_of(reasoning_name, tokens), tool_parsers.format_of(calls_name, tokens)
    return Dialect(*formats, layout_of(calls_name, tokens), STRICT_CALLS.get(calls_name))


@dataclass(frozen=True)
class ParserOptions:
    """The options of one request for parsing its outputs.

    tools: the JSON schema of each tool's parameters. name: the requested function. opened: whether the prompt left
    reasoning open (True), closed it (False), or neither.
    """

    calls: CallsWanted = "none"
    tools: Mapping[str, Mapping[str, Any]] | None = None
    name: str = ""
    parallel: bool = True
    reasoning: bool = True
    opened: bool | None = None


class OutputParser:
    """Parses one output's text into parts. The parts joined are the same wherever the text was cut."""

    def __init__(self, dialect: Dialect, wanted: ParserOptions) -> None:
        self.reasoning_tokens = 0
        self._dialect, self._wanted = dialect, wanted
        self._thinking = ReasoningState()
        self._parser = IncrementalParser(self._steps)

    def add(self, text: str, token_ids: Sequence[int]) -> list[AnswerPart]:
        """Return the parts that this piece of text completes. token_ids: the tokens of the piece."""
        before = self._thinking.is_open
        parts = self._parser.add(text) if text else []
        if before and self._thinking.is_open:
            self.reasoning_tokens += len(token_ids)
        return self._shown(parts)

    def finish(self) -> list[AnswerPart]:
        """Return the parts that were withheld, once no more text follows."""
        return self._shown(self._parser.finish())

    def _shown(self, parts: list[AnswerPart]) -> list[AnswerPart]:
        """Return the parts that the request wants to see."""
        return [
            part
            for part in parts
            if not (isinstance(part, ReasoningPart) and not self._wanted.reasoning)
            and not (isinstance(part, (CallBegin, CallArguments)) and part.index and not self._wanted.parallel)
        ]

    def _steps(self, source: TextStream) -> Steps[None]:
        dialect, wanted = self._dialect, self._wanted
        found = Calls(dialect.calls.new_id if dialect.calls else long_id, wanted.tools)
        messages = dialect.calls.messages if dialect.calls else None
        if messages and wanted.calls not in ("required", "named"):
            yield from messages(source, found, self._thinking, wanted.opened)
            return
        if dialect.reasoning and not messages:
            begins = dialect.calls.begins if dialect.calls and wanted.calls == "auto" else ()
            yield from dialect.reasoning.steps(source, self._thinking, wanted.opened, begins)
        if wanted.calls == "named":  # all text is the arguments of one call
            yield from space(source)
            if (yield from some(source)):
                yield (call := found.begin(wanted.name))
                while (yield from some(source)):
                    yield CallArguments(call.index, source.take(source.left))
        elif wanted.calls == "required":
            source.record((yield from space(source)))
            yield from attempt(source, call_list(source, found))
            yield from answer(source, found)
        elif wanted.calls == "auto" and dialect.calls and dialect.calls.read:
            yield from dialect.calls.read(source, found)
        tags = dialect.reasoning.answer_tags if dialect.reasoning else ()
        while (yield from prose(source, tags)):
            yield from space(source)
