"""Sets of texts as expression trees: the operations of regular expressions, intersections and complements."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from forearm.text.grammars.regex_syntax import LAST, Ranges

_KINDS = ("chars", "cat", "or", "and", "not", "repeat")


@dataclass(frozen=True)
class Language:
    """A set of texts. kind: one of _KINDS."""

    kind: str
    parts: tuple[Language, ...] = ()
    ranges: Ranges = ()
    least: int = 0
    most: int | None = None

    @cached_property
    def _hash(self) -> int:
        """A hash that is the same in every process, because it decides the order of options."""
        most = -1 if self.most is None else self.most
        return hash((_KINDS.index(self.kind), self.parts, self.ranges, self.least, most))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def nullable(self) -> bool:
        """True if the set contains the empty text."""
        inner = [part.nullable for part in self.parts]
        if self.kind == "repeat":
            return self.least == 0 or inner[0]
        return {"chars": False, "or": any(inner), "not": not any(inner)}.get(self.kind, all(inner))

    @cached_property
    def plain(self) -> bool:
        """True if a regular expression can express the tree directly."""
        return self.kind not in ("and", "not") and all(part.plain for part in self.parts)


NONE, EMPTY = Language("or"), Language("cat")
ANY = Language("repeat", (Language("chars", ranges=((0, LAST),)),))


def cat(first: Language, rest: Language) -> Language:
    """Return the texts of the first language, each followed by a text of the second."""
    if NONE in (first, rest):
        return NONE
    parts = tuple(part for one in (first, rest) for part in (one.parts if one.kind == "cat" else (one,)))
    return parts[0] if len(parts) == 1 else Language("cat", parts)


def alternatives(options: list[Language]) -> Language:
    """Return the texts of any of the languages."""
    parts = {part: None for one in options for part in (one.parts if one.kind == "or" else (one,))}
    if ANY in parts:
        return ANY
    return next(iter(parts)) if len(parts) == 1 else Language("or", tuple(sorted(parts, key=hash)))


def intersection(needed: list[Language]) -> Language:
    """Return the texts that all of the languages have."""
    parts = {part: None for one in needed for part in (one.parts if one.kind == "and" else (one,)) if part != ANY}
    if NONE in parts:
        return NONE
    if len(parts) < 2:
        return next(iter(parts), ANY)
    return Language("and", tuple(sorted(parts, key=hash)))


def complement(language: Language) -> Language:
    """Return all texts that are not in the language."""
    if language.kind == "not":
        return language.parts[0]
    return ANY if language == NONE else NONE if language == ANY else Language("not", (language,))


def repeat(language: Language, least: int, most: int | None) -> Language:
    """Return sequences of `least` to `most` texts of the language. most None: without an upper bound."""
    if most == 0 or language == EMPTY:
        return EMPTY
    if language == NONE:
        return NONE if least else EMPTY
    if (least, most) == (1, 1):
        return language
    return Language("repeat", (language,), least=0 if language.nullable else least, most=most)
