"""Rewrite regular expressions without look-ahead; where the exact result would be too large, it matches more.

`A(?=X)B` matches what A followed by (B and X.*) matches; `(?!X)` is the complement. Intersections at the top level
remain separate expressions, because llguidance intersects them itself.
"""

from __future__ import annotations

from forearm.text.grammars.automaton import to_regex
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
    """Return expressions without look-ahead that must all match, and whether they are exact or match more.

    whole: the pattern must match the whole text, not only a part of it.

    Raises: NotRead if the pattern has other syntax that is not supported.
    """
    options = parsed(pattern)
    try:
        language = _searched(options, whole)
    except NotRead:
        return _all_regexes(_searched(_without_assertions(options), whole))[0], False
    found, exact = _all_regexes(language)
    if not exact:
        found += _all_regexes(_searched(_without_assertions(options), whole))[0]
    return found, exact


def _all_regexes(language: Language) -> tuple[list[str], bool]:
    """Return the expressions that must all match, and whether none was left out for being too large."""
    parts = language.parts if language.kind == "and" else (language,)
    texts = [to_regex(part) for part in parts if part != ANY]
    return [f"^(?:{text})$" for text in texts if text is not None], None not in texts


def _without_assertions(options: Options) -> Options:
    """Return the options without look-ahead and look-behind."""

    def bare(node: Node) -> Node:
        if isinstance(node, Group):
            return Group(_without_assertions(node.options))
        return Repeat(bare(node.of), node.least, node.most) if isinstance(node, Repeat) else node

    return tuple(
        tuple(bare(node) for node in nodes if not isinstance(node, LookAhead) and node != Anchor("behind"))
        for nodes in options
    )


# --- The tree becomes a language from its end backwards, so that what follows a look-ahead is known.


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
    """Return the language of the nodes followed by `rest`. start: no text precedes the nodes."""
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
            raise NotRead("^ inside the pattern")
        return rest
    if isinstance(node, LookAhead):
        ahead = _options(node.options, ANY, start)
        return intersection([ahead if node.wanted else complement(ahead), rest])
    if _asserts(node):
        if isinstance(node, Group):
            return _options(node.options, rest, start)
        assert isinstance(node, Repeat)
        if node.most is None or node.most > 8:
            raise NotRead("a repeated look-ahead")
        found = [rest]
        for _ in range(node.most):
            found.append(_one(node.of, found[-1], start=False))
        return alternatives(found[node.least :])
    return cat(_alone(node), rest)


def _asserts(node: Node) -> bool:
    """Return whether the node has an anchor, a look-ahead or a look-behind in it."""
    if isinstance(node, Group):
        return any(_asserts(one) for nodes in node.options for one in nodes)
    return _asserts(node.of) if isinstance(node, Repeat) else not isinstance(node, Chars)


def _alone(node: Node) -> Language:
    """Return the language of a node whose matches do not depend on the text around them."""
    if isinstance(node, Chars):
        return Language("chars", ranges=node.ranges) if node.ranges else NONE
    if isinstance(node, Repeat):
        return repeat(_alone(node.of), node.least, node.most)
    assert isinstance(node, Group)
    return _options(node.options, EMPTY, start=False)
