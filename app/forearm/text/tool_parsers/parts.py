"""The parts of an answer: text, reasoning and tool calls, as output_parser.py reads them from a model's output."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby


@dataclass(frozen=True)
class TextPart:
    """A piece of the answer itself."""

    text: str


@dataclass(frozen=True)
class ReasoningPart:
    """A piece of the model's reasoning before the answer."""

    text: str


@dataclass(frozen=True)
class CallBegin:
    """The beginning of a tool call; its arguments follow. index: counts an output's calls from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class CallArguments:
    """A piece of a call's arguments, which are JSON text."""

    index: int
    text: str


AnswerPart = TextPart | ReasoningPart | CallBegin | CallArguments


def joined(parts: Iterable[AnswerPart]) -> list[AnswerPart]:
    """Return the parts with adjacent ones of the same kind joined."""
    found: list[AnswerPart] = []
    # A call begins once: two beginnings differ by their index.
    for _, same in groupby(parts, lambda part: (type(part), getattr(part, "index", 0))):
        first, *others = same
        if others and not isinstance(first, CallBegin):
            first = replace(first, text="".join([first.text, *(part.text for part in others)]))  # type: ignore[union-attr]
        found.append(first)
    return found


def _kind(part: AnswerPart) -> tuple[type[AnswerPart], int, bool]:
    """Equal for parts that go together; a call begins once."""
    return type(part), getattr(part, "index", 0), isinstance(part, CallBegin)
