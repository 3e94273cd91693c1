"""Sets of texts, as trees of what regular expressions are made of, intersections and complements among them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from forearm.text.grammars.regex_syntax import LAST, Ranges

_KINDS = ("chars", "cat", "or", "and", "not", "repeat")


@dataclass(frozen=True)
class Language:
    """Texts. `kind` is one of _KINDS."""

    kind: str
    parts: tuple[Language, ...] = ()
    ranges: Ranges = ()
    least: int = 0
    most: int | None = None

    @cached_property
    def _hash(self) -> int:
        """The same in every process, for the order of options follows from it."""
        most = -1 if self.most is None else self.most
        return hash((_KINDS.index(self.kind), self.parts, self.ranges, self.least, most))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def nullable(self) -> bool:
        """Whether the empty text is one of them."""
        inner = [part.nullable for part in self.parts]
        if self.kind == "repeat":
            return self.least == 0 or inner[0]
        return {"chars": False, "or": any(inner), "not": not any(inner)}.get(self.kind, all(inner))

    @cached_property
    def plain(self) -> bool:
        """Whether a regular expression can be written down as it stands."""
        return self.kind not in ("and", "not") and all(part.plain for part in self.parts)


NONE, EMPTY = Language("or"), Language("cat")
ANY = Language("repeat", (Language("chars", ranges=((0, LAST),)),))


def cat(first: Language, rest: Language) -> Language:
    """Texts of the first, each followed by one of the rest."""
    if NONE in (first, rest):
        return NONE
    parts = tuple(part for one in (first, rest) for part in (one.parts if one.kind == "cat" else (one,)))
    return parts[0] if len(parts) == 1 else Language("cat", parts)


def alternatives(options: list[Language]) -> Language:
    """Texts of any of these."""
    parts = {part: None for one in options for part in (one.parts if one.kind == "or" else (one,))}
    if ANY in parts:
        return ANY
    return next(iter(parts)) if len(parts) == 1 else Language("or", tuple(sorted(parts, key=hash)))


def intersection(needed: list[Language]) -> Language:
    """Texts that all of these have."""
    parts = {part: None for one in needed for part in (one.parts if one.kind == "and" else (one,)) if part != ANY}
    if NONE in parts:
        return NONE
    if len(parts) < 2:
        return next(iter(parts), ANY)
    return Language("and", tuple(sorted(parts, key=hash)))


def complement(language: Language) -> Language:
    """All other texts."""
    if language.kind == "not":
        return language.parts[0]
    return ANY if language == NONE else NONE if language == ANY else Language("not", (language,))


def repeat(language: Language, least: int, most: int | None) -> Language:
    """So many texts of the language in a row; `most` None: without end."""
    if most == 0 or language == EMPTY:
        return EMPTY
    if language == NONE:
        return NONE if least else EMPTY
    if (least, most) == (1, 1):
        return language
    return Language("repeat", (language,), least=0 if language.nullable else least, most=most)
