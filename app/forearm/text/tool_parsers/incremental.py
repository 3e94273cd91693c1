"""Parse text that arrives in pieces: a format is a generator that reads the text in order and yields what it finds.

Such a generator (`Steps`) yields parts as they are complete, and None when it must wait for more text. However the text
is cut, and even if it is hostile, the time to read it is proportional to its length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TypeVar

from forearm.text.tokenizer.detokenizer import begun
from forearm.text.tool_parsers.parts import AnswerPart, TextPart

T = TypeVar("T")
Steps = Generator[AnswerPart | None, None, T]
_SPACE = re.compile(r"[ \t\r\n]+")
_ANYTHING = re.compile(r".+", re.DOTALL)


class TextStream:
    """The text received so far and the position up to which it was read. A fence, if set, ends the text early."""

    def __init__(self) -> None:
        self._text = ""  # begins at or before the position; `feed` drops what was read
        self._at = 0
        self._limit = 0  # text may be read up to here
        self._fence = ""
        self._fenced = False  # the fence was found at the limit
        self._ended = False
        self._taken: list[str] | None = None

    def feed(self, text: str) -> None:
        """Add more text."""
        self._text = self._text[self._at :] + text
        self._at = 0
        self._look()

    def end(self) -> None:
        """Mark the end of the text."""
        self._ended = True
        self._look()

    @property
    def is_over(self) -> bool:
        """True if no more text follows what can be read now: the text ended, or the fence was found."""
        return self._fenced or self._ended

    @property
    def is_fenced(self) -> bool:
        """True if the fence was found, so that the text before it is complete."""
        return self._fenced

    @property
    def left(self) -> int:
        """The number of characters that can be read now."""
        return self._limit - self._at

    def begins(self, literal: str) -> bool:
        """Return whether this text comes next."""
        return len(literal) <= self.left and self._text.startswith(literal, self._at)

    def peek(self) -> str:
        """Return the next character; empty where there is none yet."""
        return self._text[self._at] if self.left else ""

    def take(self, count: int) -> str:
        """Read this many characters."""
        text = self._text[self._at : self._at + count]
        self._at += len(text)
        if self._taken is not None:
            self._taken.append(text)
        return text

    def match(self, pattern: re.Pattern[str]) -> str:
        """Read as much as the pattern matches now; empty where it does not match."""
        found = pattern.match(self._text, self._at, self._limit)
        return self.take(found.end() - self._at) if found else ""

    def find(self, pattern: re.Pattern[str], markers: Iterable[str]) -> tuple[str, str]:
        """Read the text before the first marker, and the marker. pattern: matches any of the markers.

        Without a marker: the text that cannot be the beginning of one, and "".
        """
        found = pattern.search(self._text, self._at, self._limit)
        if found:
            return self.take(found.start() - self._at), self.take(len(found.group()))
        held = 0 if self.is_over else max((begun(self._text, self._at, marker) for marker in markers), default=0)
        return self.take(max(self.left - held, 0)), ""

    def fence(self, marker: str) -> None:
        """End the text from here on where `marker` begins."""
        self._fence = marker
        self._look()

    def unfence(self) -> str:
        """Remove the fence and read its marker, which is all that can come next; empty where it was not found."""
        marker = self._fence if self._fenced else ""
        self._fence = ""
        self._look()
        return self.take(len(marker))

    def back(self, text: str) -> None:
        """Put back text that was just read."""
        self._text = text + self._text[self._at :]
        self._at = 0
        self._look()

    def record(self, before: str = "") -> None:
        """Record the text that is read from here on, with `before` in front of it."""
        self._taken = [before]

    def recorded(self) -> str:
        """Return the text that was read since `record`, and stop recording."""
        taken, self._taken = "".join(self._taken or ()), None
        return taken

    def _look(self) -> None:
        """Update the limit."""
        self._fenced, self._limit = False, len(self._text)
        if self._fence:
            found = self._text.find(self._fence, self._at)
            if found >= 0:
                self._fenced, self._limit = True, found
            elif not self._ended:
                self._limit -= begun(self._text, self._at, self._fence)


def some(source: TextStream, count: int = 1) -> Steps[bool]:
    """Wait for this many characters. Returns: whether they have arrived."""
    while source.left < count:
        if source.is_over:
            return False
        yield None
    return True


def space(source: TextStream) -> Steps[str]:
    """Read white space."""
    return (yield from word(source, _SPACE))


def literal(source: TextStream, text: str) -> Steps[bool]:
    """Read this text if it comes next. Returns: whether it did."""
    for count in range(1, len(text) + 1):  # do not wait for more once the text differs
        if not ((yield from some(source, count)) and source.begins(text[:count])):
            return False
    source.take(len(text))
    return True


def word(source: TextStream, pattern: re.Pattern[str]) -> Steps[str]:
    """Read as much as the pattern, which matches single characters, takes."""
    found = []
    while (yield from some(source)) and (text := source.match(pattern)):
        found.append(text)
    return "".join(found)


def rest(source: TextStream) -> Steps[str]:
    """Read all remaining text."""
    return (yield from word(source, _ANYTHING))


def upto(source: TextStream, *markers: str) -> Steps[tuple[str, str]]:
    """Read the text before the first of the markers, and the marker; empty at the end."""
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
    """Read text up to a marker and yield it as parts. Returns: the marker; empty at the end. lead: prepended to any
    text.
    """
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
    """Runs a format over text in pieces."""

    def __init__(self, read: Callable[[TextStream], Steps[None]]) -> None:
        self._source = TextStream()
        self._steps = read(self._source)

    def add(self, text: str) -> list[AnswerPart]:
        """Return the parts that this text completes."""
        self._source.feed(text)
        return self._run()

    def finish(self) -> list[AnswerPart]:
        """Return the parts that were withheld."""
        self._source.end()
        return self._run()

    def _run(self) -> list[AnswerPart]:
        found = []
        for part in self._steps:
            if part is None:
                break
            found.append(part)
        return found
