"""Convert one output constraint (a schema, a regular expression, a choice …) to a grammar for llguidance.

No part of a constraint is dropped silently: what cannot be imposed is refused by name.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forearm.errors import InvalidRequest
from forearm.text.grammars import json_schema
from forearm.text.grammars.lark import Lark, either
from forearm.text.grammars.schema_strings import SchemaStrings, plain_patterns
from forearm.text.grammars.structural_tags import structural_tag

KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")

MAX_REGEX_CHARACTERS, MAX_GRAMMAR_CHARACTERS = 16 << 10, 64 << 10
MAX_CHOICES, MAX_CHOICE_CHARACTERS = 10_000, 256 << 10
# White space between the parts of JSON. Without a bound, models sometimes generate white space without end. This is
# llama.cpp's rule: one space, or one or two newlines and the indentation of the next line.
_WHITE_SPACE = r"\x20|\n{1,2}[\x20\t]{0,20}"
_LARK = re.compile(r"^\s*\??start\s*:(?!:=)", re.MULTILINE)


@dataclass(frozen=True)
class ConstraintRequest:
    """One constraint of a request. kind: one of KINDS. field: the request's field, for error messages.

    any_whitespace: JSON may have white space between its parts. white_space: a regular expression for it, where the
    request has one; "" allows none.
    """

    kind: str
    value: Any
    field: str
    any_whitespace: bool = True
    white_space: str | None = None

    def json_options(self) -> dict[str, Any]:
        """Return llguidance's options for JSON."""
        if self.white_space == "":
            return {"whitespace_flexible": False}
        if self.white_space is not None:
            return {"whitespace_pattern": self.white_space}
        return {"whitespace_pattern": _WHITE_SPACE} if self.any_whitespace else {"whitespace_flexible": False}


def constraint_request(given: Mapping[str, Any], field: str) -> ConstraintRequest:
    """Return the constraint that vLLM's structured outputs describe; `given` has their fields by name.

    None and `json_object: false` mean no constraint.

    Raises: InvalidRequest if there is no constraint, or more than one.
    """
    found = [kind for kind in KINDS if given.get(kind) is not None and (kind, given[kind]) != ("json_object", False)]
    if len(found) != 1:
        raise InvalidRequest(
            f"{field}: exactly one of {', '.join(KINDS)} must be given; there are {', '.join(found) or 'none'}", field
        )
    return ConstraintRequest(
        found[0],
        given[found[0]],
        field,
        any_whitespace=not given.get("disable_any_whitespace"),
        white_space=given.get("whitespace_pattern"),
    )


def grammar_of(asked: ConstraintRequest, special: Mapping[str, int]) -> str:
    """Return the grammar of the whole answer. special: the ids of the tokenizer's special tokens by their text.

    Raises: InvalidRequest naming the field. Errors that only compiling reveals are left to GrammarCheck.
    """
    lark = Lark(special)
    return lark.text(_expression(asked, lark))


def schema_expression(
    lark: Lark, schema: Any, field: str, *, any_whitespace: bool = True, white_space: str | None = None
) -> str:
    """Return a rule for JSON that fits this schema, as a part of the grammar in `lark` (for arguments of a call, say).

    Raises: InvalidRequest naming the field, and the keyword that cannot be imposed.
    """
    return lark.rule(_expression(ConstraintRequest("json", schema, field, any_whitespace, white_space), lark))


def _expression(asked: ConstraintRequest, lark: Lark) -> str:
    makers = {
        "json": _json,
        "json_object": _json,
        "regex": _regex,
        "choice": _choice,
        "grammar": _grammar,
        "structural_tag": _structural_tag,
    }
    return makers[asked.kind](asked, lark)


def _json(asked: ConstraintRequest, lark: Lark) -> str:
    if asked.kind == "json_object":
        if asked.value is not True:
            raise InvalidRequest(f"{asked.field}: json_object must be true, not {asked.value!r:.60}", asked.field)
        return lark.schema({"type": "object", "x-guidance": asked.json_options()})
    schema = json_schema.prepared(asked.value, asked.field, lark.strings)
    if schema is False:
        raise InvalidRequest(f"{asked.field}: the schema false has no values", asked.field)
    if asked.white_space:
        _check_regex(asked.white_space, asked.field)
    return lark.schema({**({} if schema is True else schema), "x-guidance": asked.json_options()})


def _regex(asked: ConstraintRequest, lark: Lark) -> str:
    if not isinstance(asked.value, str):
        raise InvalidRequest(
            f"{asked.field}: a regular expression must be a string, not {asked.value!r:.60}", asked.field
        )
    _check_regex(asked.value, asked.field)
    patterns, exact = plain_patterns(asked.value, whole=True)
    if not exact:
        lark.strings.warnings.append(f"{asked.field}: the regular expression is imposed without its look-around")
    if len(patterns) == 1:
        return lark.regex(patterns[0])
    return lark.rule(lark.terminal(" & ".join(map(lark.regex, patterns))))  # all of them must match


def _check_regex(pattern: str, field: str) -> None:
    if not 0 < len(pattern) <= MAX_REGEX_CHARACTERS:
        raise InvalidRequest(
            f"{field}: the regular expression has {len(pattern)} characters; it must have 1 to {MAX_REGEX_CHARACTERS}",
            field,
        )


def _choice(asked: ConstraintRequest, lark: Lark) -> str:
    options = asked.value
    if not isinstance(options, list) or not options or not all(isinstance(one, str) for one in options):
        raise InvalidRequest(f"{asked.field}: choice must be a list of at least one string", asked.field)
    characters = sum(map(len, options))
    if len(options) > MAX_CHOICES or characters > MAX_CHOICE_CHARACTERS:
        raise InvalidRequest(
            f"{asked.field}: choice has {len(options)} strings of {characters} characters; at most {MAX_CHOICES} of "
            f"{MAX_CHOICE_CHARACTERS} are taken",
            asked.field,
        )
    return either([lark.plain(one) for one in dict.fromkeys(options)])


def _grammar(asked: ConstraintRequest, lark: Lark) -> str:
    """Return the expression of a Lark grammar (with a rule `start`), or of EBNF (`root ::=`, as llama.cpp's GBNF)."""
    from llguidance.gbnf_to_lark import any_to_lark

    text = asked.value
    if not isinstance(text, str) or not 0 < len(text) <= MAX_GRAMMAR_CHARACTERS:
        raise InvalidRequest(
            f"{asked.field}: a grammar must be a string of 1 to {MAX_GRAMMAR_CHARACTERS} characters", asked.field
        )
    try:
        converted = text if _LARK.search(text) else any_to_lark(text)
    except RecursionError:
        raise InvalidRequest(f"{asked.field}: the grammar is nested too deeply", asked.field) from None
    except Exception as error:  # the converter raises Exception itself
        raise InvalidRequest(
            f"{asked.field}: this is neither Lark (a rule `start: …`) nor EBNF (a rule `root ::= …`): {error}",
            asked.field,
        ) from error
    schemas = []  # schemas in the grammar (`%json {…}`) have the same limits as schemas of requests
    for match in re.finditer(r"%json\s*", converted):
        # No JSON follows in a comment or a literal; what else is wrong, the compiler reports.
        with contextlib.suppress(ValueError, RecursionError):
            schemas.append(json.JSONDecoder().raw_decode(converted, match.end())[0])
    if schemas:  # all at once, because their multiples may meet at one place
        json_schema.prepared({"anyOf": schemas}, asked.field, SchemaStrings())
    return lark.grammar(converted)


def _structural_tag(asked: ConstraintRequest, lark: Lark) -> str:
    tag = asked.value
    if isinstance(tag, str):
        try:
            tag = json.loads(tag)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"{asked.field}: structural_tag is not valid JSON: {error}", asked.field) from error

    def inner(kind: str, value: Any) -> str:
        return _expression(ConstraintRequest(kind, value, asked.field, asked.any_whitespace, asked.white_space), lark)

    return structural_tag(tag, lark, inner, asked.field)
