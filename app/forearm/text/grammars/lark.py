"""Build grammars in llguidance's dialect of Lark.

An expression is the text of a rule's right-hand side. Source: docs/syntax.md of guidance-ai/llguidance.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from forearm.text.grammars.schema_strings import SchemaStrings

ANY_TEXT = "/(?s:.*)/"  # newlines too


class Lark:
    """The rules of one grammar.

    special: the ids of the tokenizer's special tokens by their text. Models generate them as single tokens, which
    differ from the characters of their names; the grammar therefore refers to them by id.
    """

    def __init__(self, special: Mapping[str, int]) -> None:
        self._special = special
        self._rules: list[str] = []
        self._others: list[dict[str, str]] = []
        self.strings = SchemaStrings()
        self._cut = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True)))) if special else None

    def literal(self, text: str) -> str:
        """Return an expression of exactly this text, special tokens included."""
        special = self._special
        pieces = (f"<[{special[piece]}]>" if piece in special else self.plain(piece) for piece in self._pieces(text))
        return " ".join(pieces) or '""'

    def plain(self, text: str) -> str:
        """Return an expression of these characters, even where they spell the name of a special token."""
        return json.dumps(text, ensure_ascii=False)

    def schema(self, schema: Any) -> str:
        """Return an expression of JSON that fits this schema (prepared by json_schema.py)."""
        return f"%json {json.dumps(schema, ensure_ascii=False)}"

    def regex(self, pattern: str) -> str:
        """Return an expression of text that the regular expression matches as a whole; \\d and \\w are ASCII."""
        from llguidance import regex_to_lark

        return f"/{regex_to_lark(pattern, 'dw')}/"

    def grammar(self, lark: str) -> str:
        """Return an expression of another grammar, whose rule names are separate."""
        name = f"grammar_{len(self._others)}"
        self._others.append({"name": name, "lark_grammar": lark})
        return f"@{name}"

    def rule(self, expression: str, attributes: str = "") -> str:
        """Add a rule for the expression and return its name."""
        name = f"rule_{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {expression}")
        return name

    def any_text(self, excludes: Sequence[str] = ()) -> str:
        """Add a rule for text without special tokens and without `excludes`; only a special token or the end can
        follow.
        """
        return self.rule(self.terminal(ANY_TEXT, excludes))

    def terminal(self, expression: str, excludes: Sequence[str] = ()) -> str:
        """Add a terminal for text that the regular expression (between slashes) matches and that has none of
        `excludes`.
        """
        name = f"TEXT_{len(self._rules)}"
        without = "".join(f" & ~/(?s:.*){_escaped(text)}(?s:.*)/" for text in excludes)
        self._rules.append(f"{name}: {expression}{without}")
        return name

    def until(self, ends: Sequence[str]) -> str:
        """Return an expression of any text up to the first of `ends`, and that end: plain text or one special token."""
        plain = [self.plain(end) for end in ends if end not in self._special]
        options = [f"{self.any_text()} {self.literal(end)}" for end in ends if end in self._special]
        if plain:
            options.append(self.rule(f"{ANY_TEXT} ({' | '.join(plain)})", "[lazy]"))
        return either(options)

    def special(self, text: str) -> list[bool]:
        """Return for each piece of the text whether it is a special token."""
        return [piece in self._special for piece in self._pieces(text)]

    def text(self, start: str) -> str:
        """Return the grammar whose start rule is `start`."""
        lark = "\n".join([f"start: {start}", *self._rules, ""])
        warnings = {"warnings": self.strings.warnings} if self.strings.warnings else {}
        grammars = [{"name": "main", "lark_grammar": lark}, *self._others]
        return json.dumps({**warnings, "grammars": grammars}, ensure_ascii=False)

    def _pieces(self, text: str) -> list[str]:
        if self._cut is None:
            return [text] if text else []
        found, at = [], 0
        for match in self._cut.finditer(text):
            found += [text[at : match.start()], match.group()]
            at = match.end()
        return [piece for piece in (*found, text[at:]) if piece]


_WARNINGS = '{"warnings": '


def warnings_of(grammar: str | None) -> list[str]:
    """Return the warnings in a grammar made by Lark.text: parts of its schemas that are not fully imposed."""
    if grammar is None or not grammar.startswith(_WARNINGS):
        return []
    found: list[str] = json.JSONDecoder().raw_decode(grammar, len(_WARNINGS))[0]
    return found


def either(options: Iterable[str]) -> str:
    """Return an expression of any one of these expressions."""
    return f"({' | '.join(options)})"


def _escaped(text: str) -> str:
    """Return the text as a regular expression between slashes."""
    return "".join(char if char.isalnum() and char.isascii() else f"\\u{{{ord(char):x}}}" for char in text)
