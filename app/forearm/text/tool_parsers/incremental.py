"""Reading a text that comes in pieces: formats are generators that read straight on and yield what they find.

A generator of this kind (`Steps`) yields parts as it completes them, and None when it must wait for more text. However
the text is cut, and however hostile it is, reading costs time in proportion to its length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TypeVar

from forearm.text.tool_parsers.parts import AnswerPart, TextPart

T = TypeVar("T")
Steps = Generator[AnswerPart | None, None, T]
_SPACE = re.compile(r"[ \t\r\n]+")
_ANYTHING = re.compile(r".+", re.DOTALL)


class TextStream:
    """The text as it comes, and how far it was read. A fence ends it before its end: nothing is read beyond."""

    def __init__(self) -> None:
        self._text = ""  # from somewhere before what is unread; `feed` drops what was read
        self._at = 0
        self._limit = 0  # up to here it may be read
        self._fence = ""
        self._fenced = False  # the fence stands at the limit
        self._ended = False
        self._taken: list[str] | None = None

    def feed(self, text: str) -> None:
        """More text."""
        self._text = self._text[self._at :] + text
        self._at = 0
        self._look()

    def end(self) -> None:
        """No more text."""
        self._ended = True
        self._look()

    @property
    def is_over(self) -> bool:
        """Nothing comes after what can be read now: the text or the fence has ended it."""
        return self._fenced or self._ended

    @property
    def left(self) -> int:
        """Characters that can be read now."""
        return self._limit - self._at

    def begins(self, literal: str) -> bool:
        """Whether this comes next."""
        return len(literal) <= self.left and self._text.startswith(literal, self._at)

    def peek(self) -> str:
        """The next character; empty where there is none yet."""
        return self._text[self._at] if self.left else ""

    def take(self, count: int) -> str:
        """So many characters."""
        text = self._text[self._at : self._at + count]
        self._at += len(text)
        if self._taken is not None:
            self._taken.append(text)
        return text

    def match(self, pattern: re.Pattern[str]) -> str:
        """As much as the pattern takes of what can be read now; empty where it does not match."""
        found = pattern.match(self._text, self._at, self._limit)
        return self.take(found.end() - self._at) if found else ""

    def find(self, pattern: re.Pattern[str], markers: Iterable[str]) -> tuple[str, str]:
        """The text before the first marker, and the marker; both are read. `pattern` matches any of the markers.

        Without one: what cannot be the beginning of a marker, and nothing.
        """
        found = pattern.search(self._text, self._at, self._limit)
        if found:
            return self.take(found.start() - self._at), self.take(len(found.group()))
        held = 0 if self.is_over else max((begun(self._text, self._at, marker) for marker in markers), default=0)
        return self.take(max(self.left - held, 0)), ""

    def fence(self, marker: str) -> None:
        """From here on the text ends where `marker` begins."""
        self._fence = marker
        self._look()

    def unfence(self) -> str:
        """Go on behind the fence, which is all that can come next. Returns: it, where it was there."""
        marker = self._fence if self._fenced else ""
        self._fence = ""
        self._look()
        return self.take(len(marker))

    def back(self, text: str) -> None:
        """Put back what was just read."""
        self._text = text + self._text[self._at :]
        self._at = 0
        self._look()

    def record(self, before: str = "") -> None:
        """Keep what is read from here on, and `before` in front of it."""
        self._taken = [before]

    def recorded(self) -> str:
        """What was read since `record`; it is kept no longer."""
        taken, self._taken = "".join(self._taken or ()), None
        return taken

    def _look(self) -> None:
        """Find the limit anew."""
        self._fenced, self._limit = False, len(self._text)
        if self._fence:
            found = self._text.find(self._fence, self._at)
            if found >= 0:
                self._fenced, self._limit = True, found
            elif not self._ended:
                self._limit -= begun(self._text, self._at, self._fence)


def begun(text: str, start: int, marker: str) -> int:
    """Characters at the end of `text`, none before `start`, that are a beginning of `marker`: at most all but one."""
    for count in range(min(len(text) - start, len(marker) - 1), 0, -1):
        if text.endswith(marker[:count]):
            return count
    return 0


def some(source: TextStream, count: int = 1) -> Steps[bool]:
    """Wait for so many characters. Returns: whether they are there."""
    while source.left < count:
        if source.is_over:
            return False
        yield None
    return True


def space(source: TextStream) -> Steps[str]:
    """Read white space, up to something else."""
    return (yield from word(source, _SPACE))


def literal(source: TextStream, text: str) -> Steps[bool]:
    """Read this, if it comes next."""
    for count in range(1, len(text) + 1):  # as soon as it cannot be, nothing is waited for
        if not ((yield from some(source, count)) and source.begins(text[:count])):
            return False
    source.take(len(text))
    return True


def word(source: TextStream, pattern: re.Pattern[str]) -> Steps[str]:
    """As much as the pattern, which is of single characters, takes."""
    found = []
    while (yield from some(source)) and (text := source.match(pattern)):
        found.append(text)
    return "".join(found)


def rest(source: TextStream) -> Steps[str]:
    """All that comes."""
    return (yield from word(source, _ANYTHING))


def upto(source: TextStream, *markers: str) -> Steps[tuple[str, str]]:
    """The text before the first of the markers, and the marker; empty at the end. Both are read."""
    pattern, found = _any_of(markers), []
    while True:
        text, marker = source.find(pattern, markers)
        found.append(text)
        if marker or source.is_over:
            return "".join(found), marker
        yield None


def prose(
    source: TextStream, markers: Sequence[str], make: Callable[[str], AnswerPart] = TextPart, lead: str = ""
) -> Steps[str]:
    """Text up to a marker, as parts. Returns: the marker; empty at the end. `lead` comes before any text."""
    pattern = _any_of(markers)
    while True:
        text, marker = source.find(pattern, markers)
        if text:
            yield make(lead + text)
            lead = ""
        if marker or source.is_over:
            return marker
        yield None


def _any_of(markers: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, markers)) or r"(?!)")


class IncrementalParser:
    """Runs a format over a text in pieces."""

    def __init__(self, read: Callable[[TextStream], Steps[None]]) -> None:
        self._source = TextStream()
        self._steps = read(self._source)

    def add(self, text: str) -> list[AnswerPart]:
        """The parts that this text completes."""
        self._source.feed(text)
        return self._run()

    def finish(self) -> list[AnswerPart]:
        """What was held back."""
        self._source.end()
        return self._run()

    def _run(self) -> list[AnswerPart]:
        found = []
        for part in self._steps:
            if part is None:
                break
            found.append(part)
        return found
