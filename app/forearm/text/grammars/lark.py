"""Parts of a grammar in llguidance's dialect of Lark, and whole grammars made of them.

An expression is text of the right-hand side of a rule. Source: docs/syntax.md of guidance-ai/llguidance.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from forearm.text.grammars.schema_strings import Strings

ANY_TEXT = "/(?s:.*)/"  # newlines too


class Lark:
    """Rules of one grammar.

    special: the tokenizer's special tokens by their text. Models write them as one token, which is not the same as the
    characters of its name, so that they stand in the grammar by their ids.
    """

    def __init__(self, special: Mapping[str, int]) -> None:
        self._special = special
        self._rules: list[str] = []
        self._others: list[dict[str, str]] = []
        self.strings = Strings()
        self._cut = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True)))) if special else None

    def literal(self, text: str) -> str:
        """Exactly this text."""
        return " ".join(self._quoted(piece) for piece in self._pieces(text)) or '""'

    def plain(self, text: str) -> str:
        """These characters, even where they are those of a special token's name."""
        return json.dumps(text, ensure_ascii=False)

    def schema(self, schema: Any) -> str:
        """JSON that fits this schema (prepared by json_schema.py)."""
        return f"%json {json.dumps(schema, ensure_ascii=False)}"

    def regex(self, pattern: str) -> str:
        """Text that this regular expression matches from its beginning to its end; \\d and \\w are ASCII's."""
        from llguidance import regex_to_lark

        return f"/{regex_to_lark(pattern, 'dw')}/"

    def all_of(self, patterns: Sequence[str]) -> str:
        """Text that all of these regular expressions match."""
        return self.rule(self.terminal(" & ".join(map(self.regex, patterns))))

    def grammar(self, lark: str) -> str:
        """Text of another grammar, whose names are its own."""
        name = f"grammar_{len(self._others)}"
        self._others.append({"name": name, "lark_grammar": lark})
        return f"@{name}"

    def rule(self, expression: str, attributes: str = "") -> str:
        """A name for the expression."""
        name = f"rule_{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {expression}")
        return name

    def any_text(self, excludes: Sequence[str] = ()) -> str:
        """Any text without special tokens and without `excludes`. Nothing but a special token or the end can follow."""
        return self.rule(self.terminal(ANY_TEXT, excludes))

    def terminal(self, expression: str, excludes: Sequence[str] = ()) -> str:
        """A name for text that this regular expression (between slashes) matches and that has none of `excludes`."""
        name = f"TEXT_{len(self._rules)}"
        without = "".join(f" & ~/(?s:.*){_escaped(text)}(?s:.*)/" for text in excludes)
        self._rules.append(f"{name}: {expression}{without}")
        return name

    def until(self, ends: Sequence[str]) -> str:
        """Any text up to the first of `ends`, and that end, which is plain text or one special token."""
        plain = [self.plain(end) for end in ends if end not in self._special]
        options = [f"{self.any_text()} {self.literal(end)}" for end in ends if end in self._special]
        if plain:
            options.append(self.rule(f"{ANY_TEXT} ({' | '.join(plain)})", "[lazy]"))
        return either(options)

    def special(self, text: str) -> list[bool]:
        """Of each piece that the text has, whether it is a special token."""
        return [piece in self._special for piece in self._pieces(text)]

    def text(self, start: str) -> str:
        """The grammar of which `start` is the whole."""
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

    def _quoted(self, piece: str) -> str:
        if piece in self._special:
            return f"<[{self._special[piece]}]>"
        return self.plain(piece)


_WARNINGS = '{"warnings": '


def warnings_of(grammar: str | None) -> list[str]:
    """What this grammar, made by Lark.text, imposes in part."""
    if grammar is None or not grammar.startswith(_WARNINGS):
        return []
    found: list[str] = json.JSONDecoder().raw_decode(grammar, len(_WARNINGS))[0]
    return found


def either(options: Iterable[str]) -> str:
    """One of these expressions."""
    return f"({' | '.join(options)})"


def _escaped(text: str) -> str:
    """The text as a regular expression between slashes."""
    return "".join(char if char.isalnum() and char.isascii() else f"\\u{{{ord(char):x}}}" for char in text)
