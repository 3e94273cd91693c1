"""Structural tags: free text in which certain parts (function calls, say) must follow a format once they have begun.

Two formats are read: vLLM's first one, {"structures": [{"begin", "schema", "end"}], "triggers": [...]}, and XGrammar's
{"format": {"type": "triggered_tags", ...}}, whose types nest.
Source: docs.vllm.ai, "Structured Outputs"; docs of mlc-ai/xgrammar, "Structural Tag".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from forearm.errors import InvalidRequest
from forearm.text.grammars.lark import Lark, either

_MAX_TAGS = 512  # and elements, of one request

# Makes an expression of a nested constraint: (kind: json, regex or grammar; value) -> expression.
Inner = Callable[[str, Any], str]
# For each type of nested constraint: its kind, and the key of its value.
_INNER = {"json_schema": ("json", "json_schema"), "regex": ("regex", "pattern"), "grammar": ("grammar", "grammar")}


def structural_tag(tag: Any, lark: Lark, inner: Inner, field: str) -> str:
    """Return the expression of the whole text.

    Raises: InvalidRequest naming the field and what is wrong.
    """
    made = _Tags(lark, inner, field)
    if not isinstance(tag, dict):
        raise made.wrong("it is not an object")
    if "structures" in tag:
        structures = made.listed(tag, "structures")
        tags = [
            {
                "begin": one.get("begin"),
                "end": one.get("end"),
                "content": {"type": "json_schema", "json_schema": one.get("schema", {})},
            }
            for one in structures
        ]
        return made.triggered({"tags": tags, "triggers": tag.get("triggers")})
    if "format" not in tag:
        raise made.wrong('it needs "structures" and "triggers", or "format"')
    return made.part(tag["format"], last=True)


class _Tags:
    def __init__(self, lark: Lark, inner: Inner, field: str) -> None:
        self._lark, self._inner, self._field = lark, inner, field
        self._parts = 0

    def wrong(self, what: str) -> InvalidRequest:
        return InvalidRequest(f"{self._field}: the structural tag: {what}", self._field)

    def part(self, part: Any, last: bool = False) -> str:
        """Return the expression of one element. last: the text ends after it.

        Raises: InvalidRequest.
        """
        self._parts += 1
        if self._parts > _MAX_TAGS:
            raise self.wrong(f"it has more than {_MAX_TAGS} parts")
        if not isinstance(part, dict):
            raise self.wrong(f"{part!r:.60} is not an element; it must be an object with a type")
        kind = part.get("type")
        if kind == "const_string":
            return self._lark.literal(self._text(part, "value"))
        if kind in _INNER:
            name, key = _INNER[kind]
            return self._lark.rule(self._inner(name, self._needed(part, key)))
        if kind == "any_text":
            if not last:
                raise self.wrong(
                    "any_text must be the content of a tag, be followed by const_string or tag, or come last"
                )
            return self._lark.any_text(self._texts(part, "excludes"))
        makers = {
            "sequence": lambda: self._sequence(part, last),
            "or": lambda: either([self.part(one, last) for one in self.listed(part, "elements")]),
            "tag": lambda: self._tag(part, last),
            "triggered_tags": lambda: self.triggered(part),
        }
        if kind == "tags_with_separator":
            tag = self._lark.rule(either([self._tag(one, last=False) for one in self.listed(part, "tags")]))
            separator = self._lark.literal(self._text(part, "separator"))
            many = tag if part.get("stop_after_first") is True else f"{tag} ({separator} {tag})*"
            return either([many]) if part.get("at_least_one") is True else f"({many})?"
        if kind not in makers or (kind == "triggered_tags" and not last):
            raise self.wrong(f"{kind!r:.60} is not supported here")
        return makers[kind]()

    def triggered(self, part: dict[str, Any]) -> str:
        """Return an expression of text with tags in it: where a trigger is generated, one of its tags must follow."""
        tags, triggers = self.listed(part, "tags"), self._texts(part, "triggers")
        if not triggers:
            raise self.wrong("there are no triggers")
        options, found = [], set()
        for trigger in triggers:
            bodies = []
            for number, tag in enumerate(tags):
                begin = self._text(tag, "begin")
                if begin.startswith(trigger):
                    found.add(number)
                    bodies.append(f"{self._lark.literal(begin[len(trigger) :])} {self._body(tag, last=False)}")
            special = self._lark.special(trigger)
            if not special:
                raise self.wrong("a trigger is empty")
            if any(special[1:]) and not special[0]:
                raise self.wrong(f"the trigger {trigger!r:.60} has a special token after text")
            if special[0]:
                begin = f"{self._lark.any_text()} {self._lark.literal(trigger)}"
            else:
                begin = self._lark.until([trigger])
            if not bodies:
                raise self.wrong(f"no tag begins with the trigger {trigger!r:.60}")
            options.append(f"{begin} {either(bodies)}")
        if len(found) < len(tags):
            raise self.wrong("the begin of a tag starts with none of the triggers")
        tag_rule, text = self._lark.rule(either(options)), self._lark.any_text(self._texts(part, "excludes"))
        many, one = part.get("at_least_one") is True, part.get("stop_after_first") is True
        if one:
            return tag_rule if many else either([tag_rule, text])
        return f"{tag_rule}{'+' if many else '*'} {text}"

    def _tag(self, tag: dict[str, Any], last: bool) -> str:
        return f"{self._lark.literal(self._text(tag, 'begin'))} {self._body(tag, last)}"

    def _body(self, tag: dict[str, Any], last: bool) -> str:
        """Return an expression of a tag's content and end."""
        ends = self._texts(tag, "end") if isinstance(tag.get("end"), list) else [self._text(tag, "end")]
        content = self._needed(tag, "content")
        if isinstance(content, dict) and content.get("type") == "any_text" and any(ends):
            return self._until(ends)
        closing = either([self._lark.literal(end) for end in ends])
        return f"{self.part(content, last and not any(ends))} {closing}"

    def _until(self, ends: Sequence[str]) -> str:
        for end in ends:
            special = self._lark.special(end)
            if not special or (any(special) and len(special) > 1):
                raise self.wrong(f"any_text cannot end with {end!r:.60}: it must be plain text or one special token")
        return self._lark.until(ends)

    def _sequence(self, part: dict[str, Any], last: bool) -> str:
        elements, found, at = self.listed(part, "elements"), [], 0
        while at < len(elements):
            here, after = elements[at], elements[at + 1] if at + 1 < len(elements) else {}
            if here.get("type") == "any_text" and after.get("type") in ("const_string", "tag"):
                if after["type"] == "tag":
                    found += [
                        self._until([self._text(after, "begin")]),
                        self._body(after, last and at + 2 == len(elements)),
                    ]
                else:
                    found.append(self._until([self._text(after, "value")]))
                at += 2
                continue
            found.append(self.part(here, last and at + 1 == len(elements)))
            at += 1
        return self._lark.rule(" ".join(found) or '""')

    # --- fields

    def listed(self, part: dict[str, Any], key: str) -> list[dict[str, Any]]:
        value = part.get(key)
        if not isinstance(value, list) or not value or not all(isinstance(one, dict) for one in value):
            raise self.wrong(f"{key} must be a list of objects, at least one")
        if len(value) > _MAX_TAGS:
            raise self.wrong(f"{key} has {len(value)} entries; at most {_MAX_TAGS}")
        return value

    def _texts(self, part: dict[str, Any], key: str) -> list[str]:
        value = part.get(key, [])
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value) or len(value) > _MAX_TAGS:
            raise self.wrong(f"{key} must be a list of at most {_MAX_TAGS} strings")
        return value

    def _text(self, part: dict[str, Any], key: str) -> str:
        value = part.get(key)
        if not isinstance(value, str):
            raise self.wrong(f"{key} must be a string, not {value!r:.60}")
        return value

    def _needed(self, part: dict[str, Any], key: str) -> Any:
        if key not in part:
            raise self.wrong(f"{key} is missing")
        return part[key]
