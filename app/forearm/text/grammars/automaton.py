"""Convert languages to regular expressions: directly, or by an automaton where they have intersections or complements.

States are derivatives of regular expressions (Brzozowski 1964); they are eliminated one by one (Kleene 1956).
"""

from __future__ import annotations

from forearm.text.grammars.language import EMPTY, NONE, Language, alternatives, cat, complement, intersection, repeat
from forearm.text.grammars.regex_syntax import LAST, NotRead, Ranges, others, union

_NOTHING = r"[^\s\S]"
_MAX_STATES = 2_000
_MAX_CHARACTERS = 12 << 10  # of an expression that an automaton is converted to
_MAX_STEPS = 40_000  # derivatives, computed in 0.3 s
_MAX_NODES = 2_000


def to_regex(language: Language) -> str | None:
    """Return the language as a regular expression, or None if that would be too large."""
    try:
        text = _plain_regex(language) if language.plain else _Automaton(language).expression()
    except NotRead:
        return None
    return text if len(text) <= _MAX_CHARACTERS else None


def _plain_regex(language: Language) -> str:
    if language.kind == "chars":
        return _class(language.ranges)
    parts = [_plain_regex(part) for part in language.parts]
    if language.kind == "repeat":
        most = "" if language.most is None else language.most
        return f"(?:{parts[0]}){{{language.least},{most}}}"
    if language == NONE:
        return _NOTHING
    return "".join(parts) if language.kind == "cat" else f"(?:{'|'.join(parts)})"


def _class(ranges: Ranges) -> str:
    if ranges == ((0, LAST),):
        return "(?s:.)"
    return "[" + "".join(f"{_char(low)}-{_char(high)}" if high > low else _char(low) for low, high in ranges) + "]"


def _char(code: int) -> str:
    char = chr(code)
    return char if char.isascii() and char.isalnum() else f"\\x{{{code:x}}}"


Edges = list[tuple[int, int]]


class _Automaton:
    """A deterministic automaton. States are numbers, 0 is the first; an edge exists for each class of characters."""

    def __init__(self, language: Language) -> None:
        self._steps = 0
        self._known: dict[tuple[Language, int], Language] = {}
        self._classes = _classes(language)
        states = {language: 0}
        edges: list[list[int]] = []
        for state in (found := [language]):
            edges.append([])
            for ranges in self._classes:
                after = self._derivative(state, ranges[0][0])
                if after not in states:
                    states[after] = len(found)
                    found.append(after)
                edges[-1].append(states[after])
            if len(found) > _MAX_STATES:
                raise NotRead("its states")
        self._edges, self._ends = edges, [state.nullable for state in found]

    def _derivative(self, language: Language, char: int) -> Language:
        """Return the texts that may follow this character in the language."""
        key, parts = (language, char), language.parts
        if key in self._known:
            return self._known[key]
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise NotRead("its size")
        if language.kind == "chars":
            made = EMPTY if any(low <= char <= high for low, high in language.ranges) else NONE
        elif language.kind == "repeat":
            most = None if language.most is None else language.most - 1
            made = cat(self._derivative(parts[0], char), repeat(parts[0], max(language.least - 1, 0), most))
        elif language.kind == "cat":
            found = []
            for number, part in enumerate(parts):
                found.append(cat(self._derivative(part, char), Language("cat", parts[number + 1 :])))
                if not part.nullable:
                    break
            made = alternatives(found)
        else:
            inner = [self._derivative(part, char) for part in parts]
            if language.kind == "not":
                made = complement(inner[0])
            else:
                made = alternatives(inner) if language.kind == "or" else intersection(inner)
        self._known[key] = made
        return made

    def expression(self) -> str:
        """Return the automaton as a regular expression.

        Raises: NotRead if it is too large.
        """
        merged = [int(end) for end in self._ends]  # equivalent states get the same number (Moore 1956)
        while True:
            keys = [(kind, *(merged[to] for to in edge)) for kind, edge in zip(merged, self._edges, strict=True)]
            numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
            if len(numbers) == len(set(merged)):
                break
            merged = [numbers[key] for key in keys]
        chars: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for state, edges in enumerate(self._edges):
            if merged.index(merged[state]) == state:
                for ranges, to in zip(self._classes, edges, strict=True):
                    chars.setdefault((merged[state], merged[to]), []).extend(ranges)
        paths = {edge: _class(union(ranges)) for edge, ranges in chars.items()}
        begin, end = -1, -2
        paths[begin, merged[0]] = ""
        paths |= {(merged[state], end): "" for state, ends in enumerate(self._ends) if ends}
        return _eliminated(paths, begin, end)


def _eliminated(paths: dict[tuple[int, int], str], begin: int, end: int) -> str:
    """Return one expression for all paths from the beginning to the end.

    Raises: NotRead if it is too large.
    """
    states = {state for edge in paths for state in edge if state >= 0}
    while states:
        before = {state: [edge for edge in paths if edge[1] == state != edge[0]] for state in states}
        after = {state: [edge for edge in paths if edge[0] == state != edge[1]] for state in states}
        # Eliminate the state that makes the expressions grow least (Delgado and Morais 2004).
        state = min(states, key=lambda one: (_growth(paths, before[one], after[one], one), one))
        states.remove(state)
        loop = paths.pop((state, state), None)
        loop = "" if loop is None else f"(?:{loop})*"
        for into in before[state]:
            for out in after[state]:
                way = f"{paths[into]}{loop}{paths[out]}"
                there = (into[0], out[1])
                paths[there] = way if there not in paths else f"(?:{paths[there]}|{way})"
                if len(paths[there]) > _MAX_CHARACTERS:
                    raise NotRead("its size")
        for edge in (*before[state], *after[state]):
            del paths[edge]
    return paths.get((begin, end), _NOTHING)


def _growth(paths: dict[tuple[int, int], str], before: Edges, after: Edges, state: int) -> int:
    """Return by how many characters the expressions grow when this state is eliminated."""
    come, go = (sum(len(paths[edge]) for edge in edges) for edges in (before, after))
    loop = len(paths.get((state, state), ""))
    return (len(after) - 1) * come + (len(before) - 1) * go + (len(before) * len(after) - 1) * loop


def _classes(language: Language) -> list[Ranges]:
    """Return the classes of characters that the language does not distinguish."""
    sets: dict[Ranges, None] = {}
    stack, seen = [language], 0
    while stack:
        one = stack.pop()
        seen += 1
        if seen > _MAX_NODES:
            raise NotRead("its size")
        stack.extend(one.parts)
        if one.kind == "chars":
            sets[one.ranges] = None
    found: list[Ranges] = [((0, LAST),)]
    for ranges in sets:
        found = [part for one in found for part in (_common(one, ranges), _common(one, others(ranges))) if part]
        if len(found) > 200:
            raise NotRead("its characters")
    return found


def _common(a: Ranges, b: Ranges) -> Ranges:
    pairs = [(max(low, lower), min(high, higher)) for low, high in a for lower, higher in b]
    return tuple((low, high) for low, high in pairs if low <= high)
