"""What an output says, in parts: text, reasoning, and calls of tools. A `Reader` makes them of text as it comes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TextPart:
    """A piece of the answer itself."""

    text: str


@dataclass(frozen=True)
class ReasoningPart:
    """A piece of what the model thought before."""

    text: str


@dataclass(frozen=True)
class CallBegin:
    """The model calls a tool; `index` counts an output's calls from 0. Its arguments follow."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class CallArguments:
    """A piece of a call's arguments, which are JSON text."""

    index: int
    text: str


Part = TextPart | ReasoningPart | CallBegin | CallArguments


class Reader:
    """One output's text as parts. The parts joined are the same wherever the text was cut."""

    def add(self, text: str, token_ids: Sequence[int]) -> list[Part]:
        """The parts that this piece of text completes; `token_ids` are those it came with."""
        return [TextPart(text)] if text else []

    def finish(self) -> list[Part]:
        """What was held back, once nothing follows."""
        return []


def joined(parts: Iterable[Part]) -> list[Part]:
    """The same with neighbours of one kind as one part."""
    found: list[Part] = []
    for part in parts:
        last = found[-1] if found else None
        if isinstance(part, TextPart) and isinstance(last, TextPart):
            found[-1] = TextPart(last.text + part.text)
        elif isinstance(part, ReasoningPart) and isinstance(last, ReasoningPart):
            found[-1] = ReasoningPart(last.text + part.text)
        elif isinstance(part, CallArguments) and isinstance(last, CallArguments) and part.index == last.index:
            found[-1] = CallArguments(part.index, last.text + part.text)
        else:
            found.append(part)
    return found
