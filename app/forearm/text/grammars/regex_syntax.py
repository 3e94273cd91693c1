"""Parse regular expressions to trees, so that look-ahead, which llguidance does not support, can be rewritten.

The syntax is that of ECMA 262 without back references and Unicode properties; \\d and \\w are ASCII.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LAST = 0x10FFFF
Ranges = tuple[tuple[int, int], ...]  # of code points, both ends included, sorted and disjoint


class NotRead(Exception):
    """The expression has syntax that is not supported here."""


@dataclass(frozen=True)
class Chars:
    """One character out of a set."""

    ranges: Ranges


@dataclass(frozen=True)
class Repeat:
    """A repeated node. most None: without an upper bound."""

    of: Node
    least: int
    most: int | None


@dataclass(frozen=True)
class Anchor:
    """The beginning or the end of the text; "behind": any assertion about the text before it, such as \\b."""

    at: Literal["^", "$", "behind"]


@dataclass(frozen=True)
class LookAhead:
    """An assertion that the following text begins like one of the options, or (`wanted` False) that it does not."""

    options: Options
    wanted: bool


@dataclass(frozen=True)
class Group:
    """Alternatives, of which one must match."""

    options: Options


Node = Chars | Repeat | Anchor | LookAhead | Group
Options = tuple[tuple[Node, ...], ...]

_DIGIT: Ranges = ((0x30, 0x39),)
_WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: Ranges = (
    *((0x09, 0x0D), (0x20, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
    *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)),
)
_CLASSES = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_HEX = {"x": 2, "u": 4}
_MOST = 1000  # repetitions: each becomes a state
_DEEPEST = 50


def others(ranges: Ranges) -> Ranges:
    """Return all other characters."""
    found, after = [], 0
    for low, high in ranges:
        if low > after:
            found.append((after, low - 1))
        after = high + 1
    return (*found, (after, LAST)) if after <= LAST else tuple(found)


def union(ranges: list[tuple[int, int]]) -> Ranges:
    """Return the ranges sorted, with adjacent and overlapping ones joined."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return tuple(found)


def parsed(pattern: str) -> Options:
    """Return the alternatives of the pattern as trees.

    Raises: NotRead.
    """
    parser = _RegexParser(pattern)
    options = parser.options()
    if parser.at < len(pattern):
        raise NotRead(f"a parenthesis too many at {parser.at}")
    return options


class _RegexParser:
    def __init__(self, text: str) -> None:
        self._text, self.at, self._depth = text, 0, 0

    def _consume(self, what: str) -> bool:
        """Skip this text if it comes next, and return whether it did."""
        if not self._text.startswith(what, self.at):
            return False
        self.at += len(what)
        return True

    def _next(self) -> str:
        if self.at == len(self._text):
            raise NotRead("it ends too early")
        self.at += 1
        return self._text[self.at - 1]

    def options(self) -> Options:
        found: list[tuple[Node, ...]] = []
        while True:
            found.append(self._sequence())
            if not self._consume("|"):
                return tuple(found)

    def _sequence(self) -> tuple[Node, ...]:
        found: list[Node] = []
        while self.at < len(self._text) and self._text[self.at] not in "|)":
            found.append(self._repeated(self._atom()))
        return tuple(found)

    def _atom(self) -> Node:
        char = self._next()
        if char in "^$":
            return Anchor("^" if char == "^" else "$")
        if char == "(":
            return self._group()
        if char == "[":
            return Chars(self._class())
        if char == ".":
            return Chars(others(((10, 10),)))
        if char in "*+?":
            raise NotRead(f"{char} repeats nothing")
        if char == "\\" and (self._consume("b") or self._consume("B")):
            return Anchor("behind")
        return Chars(self._escaped() if char == "\\" else ((ord(char), ord(char)),))

    def _group(self) -> Node:
        ahead = "=" if self._consume("?=") else "!" if self._consume("?!") else ""
        if not ahead and not self._consume("?:") and self._consume("?"):
            if not self._consume("P<") and not self._consume("<"):
                raise NotRead("flags")
            behind = self._next() in "=!"
            while not behind and self._next() != ">":
                pass
        else:
            behind = False
        self._depth += 1
        if self._depth > _DEEPEST:
            raise NotRead("its nesting depth")
        options = self.options()
        self._depth -= 1
        if not self._consume(")"):
            raise NotRead("a parenthesis is not closed")
        if behind:
            return Anchor("behind")
        return LookAhead(options, ahead == "=") if ahead else Group(options)

    def _repeated(self, atom: Node) -> Node:
        """Return the atom with the quantifiers after it; greedy and lazy ones match the same texts."""
        bounds = next((two for sign, two in _SIGNS if self._consume(sign)), None)
        if bounds is None and self._text.startswith("{", self.at):
            end = self._text.find("}", self.at)
            least, comma, most = self._text[self.at + 1 : max(end, 0)].partition(",")
            if end < 0 or not least.isdecimal() or (most and not most.isdecimal()) or len(least + most) > 9:
                raise NotRead("bounds of a repetition")
            self.at = end + 1
            bounds = int(least), int(most) if most else None if comma else int(least)
        if bounds is None:
            return atom
        self._consume("?")
        if isinstance(atom, Anchor | LookAhead) or max(bounds[0], bounds[1] or 0) > _MOST:
            raise NotRead("this repetition")
        return self._repeated(Repeat(atom, *bounds))

    def _class(self) -> Ranges:
        negated, found = self._consume("^"), list[tuple[int, int]]()
        while not self._consume("]"):
            ranges = self._member()
            single = len(ranges) == 1 and ranges[0][0] == ranges[0][1]
            if single and self._text.startswith("-", self.at) and not self._text.startswith("-]", self.at):
                self.at += 1
                last = self._member()
                if len(last) != 1 or last[0][0] != last[0][1] or last[0][0] < ranges[0][0]:
                    raise NotRead("a range of characters")
                ranges = ((ranges[0][0], last[0][0]),)
            found += ranges
        return others(union(found)) if negated else union(found)

    def _member(self) -> Ranges:
        char = self._next()
        if char == "\\":
            return ((8, 8),) if self._consume("b") else self._escaped()
        if char == "[" or self._text.startswith(("&&", "--", "~~"), self.at - 1):
            raise NotRead("a set in a set")  # llguidance's dialect has them, ECMA 262 does not
        return ((ord(char), ord(char)),)

    def _escaped(self) -> Ranges:
        char = self._next()
        if char.lower() in _CLASSES:
            ranges = _CLASSES[char.lower()]
            return ranges if char.islower() else others(ranges)
        if char in _HEX:
            digits = self._text[self.at : self.at + _HEX[char]]
            if len(digits) < _HEX[char] or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
                raise NotRead("an escape")
            self.at += len(digits)
            code = int(digits, 16)
        elif char in _CONTROLS:
            code = _CONTROLS[char]
        elif char.isalnum():
            raise NotRead(f"\\{char}")
        else:
            code = ord(char)
        if 0xD800 <= code < 0xE000:
            raise NotRead("half a surrogate pair")
        return ((code, code),)


_SIGNS: tuple[tuple[str, tuple[int, int | None]], ...] = (("*", (0, None)), ("+", (1, None)), ("?", (0, 1)))
