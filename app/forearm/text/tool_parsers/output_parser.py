"""How one model writes reasoning and calls, and the readers of its outputs."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from forearm.text import tool_parsers
from forearm.text.tool_parsers import CallsFormat, calls_told_by, harmony, reasoning
from forearm.text.tool_parsers.incremental import IncrementalParser, Steps, TextStream, some, space
from forearm.text.tool_parsers.keywords import KeywordCalls, keyword_calls
from forearm.text.tool_parsers.parts import AnswerPart, CallArguments, CallBegin, ReasoningPart, TextPart
from forearm.text.tool_parsers.reasoning import ReasoningFormat, ReasoningState, reasoning_told_by
from forearm.text.tool_parsers.scan import Calls, answer, attempt, call_list, long_id
from forearm.text.tool_parsers.shapes import Shape, shape_of

# What an output may have of calls: none, some in the model's own format, some as a JSON list that a grammar imposes, or
# the arguments alone of the one function that was asked for.
CallsWanted = Literal["none", "auto", "required", "named"]


@dataclass(frozen=True)
class Dialect:
    """The formats of one model; None: it has none that is known.

    shape: in which its calls can be imposed. keywords: how strict calls without one are imposed where they come.
    """

    reasoning: ReasoningFormat | None = None
    calls: CallsFormat | None = None
    shape: Shape | None = None
    keywords: KeywordCalls | None = None

    @property
    def is_harmony(self) -> bool:
        """One format for both: what it marks is always read, whether tools were given or not."""
        return self.reasoning is reasoning.FORMATS["openai_gptoss"]

    def marks(self, wanted: CallsWanted) -> frozenset[str]:
        """The special tokens that must be seen in the text."""
        if self.is_harmony:
            return frozenset(harmony.MARKS)
        found = self.reasoning.marks if self.reasoning else ()
        if wanted == "auto" and self.calls:
            found += self.calls.marks
        return frozenset(found)


def find_dialect(template: str, calls_name: str = "", reasoning_name: str = "", tokens: Container[str] = ()) -> Dialect:
    """The formats of these names. What the chat template tells: for calls "", for reasoning auto; else reasoning stays
    text, as with vLLM, but gpt-oss', which is read in one with its calls. `tokens`: added ones.
    """
    calls_name = calls_name or calls_told_by(template)
    if reasoning_name == "auto":
        reasoning_name = reasoning_told_by(template)
    if calls_name == "openai":
        reasoning_name = "openai_gptoss"
    elif reasoning_name == "openai_gptoss":
        calls_name = "openai"
    formats = reasoning.FORMATS.get(reasoning_name), tool_parsers.FORMATS.get(calls_name)
    return Dialect(*formats, shape_of(calls_name, tokens), keyword_calls(calls_name))


@dataclass(frozen=True)
class ParserOptions:
    """What one request wants of its outputs. `tools`: each one's JSON schema of parameters; `name`: the named one.

    opened: whether the prompt left reasoning open (True), closed it (False), or neither.
    """

    calls: CallsWanted = "none"
    tools: Mapping[str, Mapping[str, Any]] | None = None
    name: str = ""
    parallel: bool = True
    reasoning: bool = True
    opened: bool | None = None


class OutputParser:
    """One output's text as parts. The parts joined are the same wherever the text was cut."""

    def __init__(self, dialect: Dialect, wanted: ParserOptions) -> None:
        self.reasoning_tokens = 0
        self._dialect, self._wanted = dialect, wanted
        self._thinking = ReasoningState()
        self._parser = IncrementalParser(self._steps)

    def add(self, text: str, token_ids: Sequence[int]) -> list[AnswerPart]:
        """The parts that this piece of text completes; `token_ids` are those it came with."""
        before = self._thinking.is_open
        parts = self._parser.add(text) if text else []
        if before and self._thinking.is_open:
            self.reasoning_tokens += len(token_ids)
        return self._shown(parts)

    def finish(self) -> list[AnswerPart]:
        """What was held back, once nothing follows."""
        return self._shown(self._parser.finish())

    def _shown(self, parts: list[AnswerPart]) -> list[AnswerPart]:
        """Without what the request does not want to see."""
        return [
            part
            for part in parts
            if not (isinstance(part, ReasoningPart) and not self._wanted.reasoning)
            and not (isinstance(part, (CallBegin, CallArguments)) and part.index and not self._wanted.parallel)
        ]

    def _steps(self, source: TextStream) -> Steps[None]:
        dialect, wanted = self._dialect, self._wanted
        found = Calls(dialect.calls.new_id if dialect.calls else long_id, wanted.tools)
        if dialect.is_harmony and wanted.calls not in ("required", "named"):
            yield from harmony.harmony(source, found, self._thinking)
            return
        if dialect.reasoning and not dialect.is_harmony:
            yield from dialect.reasoning.steps(source, self._thinking, wanted.opened)
        if wanted.calls == "named":
            yield from _arguments(source, found.begin(wanted.name))
        elif wanted.calls == "required":
            yield from _forced_list(source, found)
        elif wanted.calls == "auto" and dialect.calls and dialect.calls.read:
            yield from dialect.calls.read(source, found)
        yield from _text(source)


def _arguments(source: TextStream, call: CallBegin) -> Steps[None]:
    """All that comes are the arguments of this call."""
    yield from space(source)
    if not (yield from some(source)):
        return
    yield call
    while (yield from some(source)):
        yield CallArguments(call.index, source.take(source.left))


def _forced_list(source: TextStream, found: Calls) -> Steps[None]:
    source.record((yield from space(source)))
    yield from attempt(source, call_list(source, found))
    yield from answer(source, found)


def _text(source: TextStream) -> Steps[None]:
    while (yield from some(source)):
        yield TextPart(source.take(source.left))
