"""Look-ahead in regular expressions without it: what fits is the same, or more where that would become too large.

`A(?=X)B` fits what A followed by (B and X.*) fits; `(?!X)` is the complement. Intersections at the top stay apart, for
llguidance makes them itself.
"""

from __future__ import annotations

from forearm.text.grammars.automaton import written
from forearm.text.grammars.language import (
    ANY,
    EMPTY,
    NONE,
    Language,
    alternatives,
    cat,
    complement,
    intersection,
    repeat,
)
from forearm.text.grammars.regex_syntax import Anchor, Chars, Group, LookAhead, Node, NotRead, Options, Repeat, parsed


def without_look_ahead(pattern: str, *, whole: bool = False) -> tuple[list[str], bool]:
    """Expressions that all have to fit, without look-ahead; and whether they say the same as the pattern, or less.

    whole: the pattern is of the whole text, from its beginning to its end.
    Raises: NotRead where the pattern has more that cannot be read.
    """
    options = parsed(pattern)
    try:
        language = _searched(options, whole)
    except NotRead:
        return _all_written(_searched(_bare(options), whole))[0], False
    found, exact = _all_written(language)
    if not exact:
        found += _all_written(_searched(_bare(options), whole))[0]
    return found, exact


def _all_written(language: Language) -> tuple[list[str], bool]:
    """Expressions that all have to fit, and whether these are all there are: some would be too large."""
    parts = language.parts if language.kind == "and" else (language,)
    texts = [written(part) for part in parts if part != ANY]
    return [f"^(?:{text})$" for text in texts if text is not None], None not in texts


def _bare(options: Options) -> Options:
    """Without its look-ahead, and what looks behind."""
    return tuple(tuple(_bare_node(node) for node in nodes if not _looks(node)) for nodes in options)


def _looks(node: Node) -> bool:
    return isinstance(node, LookAhead) or node == Anchor("behind")


def _bare_node(node: Node) -> Node:
    if isinstance(node, Group):
        return Group(_bare(node.options))
    return Repeat(_bare_node(node.of), node.least, node.most) if isinstance(node, Repeat) else node


# --- from the tree to the language, from its end on: what follows a look-ahead is known then


def _searched(options: Options, whole: bool) -> Language:
    if whole:
        return _options(options, EMPTY, start=True)
    found = []
    for nodes in options:
        begins = bool(nodes) and nodes[0] == Anchor("^")
        text = _sequence(nodes, ANY, start=begins)
        found.append(text if begins else cat(ANY, text))
    return alternatives(found)


def _options(options: Options, rest: Language, start: bool) -> Language:
    return alternatives([_sequence(nodes, rest, start) for nodes in options])


def _sequence(nodes: tuple[Node, ...], rest: Language, start: bool) -> Language:
    """`start`: nothing stands before it."""
    for number in range(len(nodes) - 1, -1, -1):
        first = start and all(isinstance(node, Anchor | LookAhead) for node in nodes[:number])
        rest = _one(nodes[number], rest, first)
    return rest


def _one(node: Node, rest: Language, start: bool) -> Language:
    if isinstance(node, Anchor):
        if node.at == "behind":
            raise NotRead("look-behind")
        if node.at == "$":
            return EMPTY if rest.nullable else NONE
        if not start:
            raise NotRead("^ within")
        return rest
    if isinstance(node, LookAhead):
        ahead = _options(node.options, ANY, start)
        return intersection([ahead if node.wanted else complement(ahead), rest])
    if _asserts(node):
        if isinstance(node, Repeat):
            return _unrolled(node, rest)
        assert isinstance(node, Group)
        return _options(node.options, rest, start)
    return cat(_alone(node), rest)


def _unrolled(node: Repeat, rest: Language) -> Language:
    if node.most is None or node.most > 8:
        raise NotRead("a look-ahead that is repeated")
    found = [rest]
    for _ in range(node.most):
        found.append(_one(node.of, found[-1], start=False))
    return alternatives(found[node.least :])


def _asserts(node: Node) -> bool:
    if isinstance(node, Group):
        return any(_asserts(one) for nodes in node.options for one in nodes)
    return _asserts(node.of) if isinstance(node, Repeat) else not isinstance(node, Chars)


def _alone(node: Node) -> Language:
    """Without regard to what stands around it."""
    if isinstance(node, Chars):
        return Language("chars", ranges=node.ranges) if node.ranges else NONE
    if isinstance(node, Repeat):
        return repeat(_alone(node.of), node.least, node.most)
    assert isinstance(node, Group)
    return _options(node.options, EMPTY, start=False)
