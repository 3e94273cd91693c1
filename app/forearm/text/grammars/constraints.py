"""What a client asks an answer to look like, as one grammar of llguidance: a schema, a regular expression, a choice.

Nothing that is asked for is dropped: what cannot be imposed is refused by name.
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
from forearm.text.grammars.schema_strings import Strings, plain_patterns
from forearm.text.grammars.structural_tags import structural_tag

# In the order in which they are looked for.
KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")

MAX_REGEX_CHARACTERS, MAX_GRAMMAR_CHARACTERS = 16 << 10, 64 << 10
MAX_CHOICES, MAX_CHOICE_CHARACTERS = 10_000, 256 << 10
# Between the parts of JSON. Models have lost themselves in endless white space; no layout needs so much in a row.
# llama.cpp's: one space, or one or two ends of lines and what the next one is indented by.
_WHITE_SPACE = r"\x20|\n{1,2}[\x20\t]{0,20}"
_LARK = re.compile(r"^\s*\??start\s*:(?!:=)", re.MULTILINE)


@dataclass(frozen=True)
class ConstraintRequest:
    """One constraint. `kind` of KINDS; `field` is the request's, for errors.

    any_whitespace: JSON may have white space between its parts; white_space: a regular expression for it, or "".
    """

    kind: str
    value: Any
    field: str
    any_whitespace: bool = True
    white_space: str = ""

    def options(self) -> dict[str, Any]:
        """llguidance's, for JSON."""
        if self.white_space:
            return {"whitespace_pattern": self.white_space}
        return {"whitespace_pattern": _WHITE_SPACE} if self.any_whitespace else {"whitespace_flexible": False}


def constraint_request(given: Mapping[str, Any], field: str) -> ConstraintRequest:
    """What vLLM's structured outputs ask for; `given` has their fields by name. None and json_object False ask nothing.

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
        white_space=given.get("whitespace_pattern") or "",
    )


def grammar_of(asked: ConstraintRequest, special: Mapping[str, int]) -> str:
    """The grammar of the whole answer. `special`: the tokenizer's special tokens, text to id.

    Raises: InvalidRequest naming the field. What only compiling shows is left to GrammarCheck.
    """
    lark = Lark(special)
    return lark.text(_expression(asked, lark))


def schema_grammar(schema: Any, field: str, *, any_whitespace: bool = True) -> str:
    """The grammar of JSON that fits this schema.

    Raises: InvalidRequest naming the field, and what cannot be imposed.
    """
    return grammar_of(ConstraintRequest("json", schema, field, any_whitespace), {})


def schema_expression(
    lark: Lark, schema: Any, field: str, *, any_whitespace: bool = True, white_space: str = ""
) -> str:
    """JSON that fits this schema, as a part of the grammar that `lark` makes (the arguments of a function call, say).

    Raises: InvalidRequest naming the field, and what cannot be imposed.
    """
    return lark.rule(_expression(ConstraintRequest("json", schema, field, any_whitespace, white_space), lark))


def _expression(asked: ConstraintRequest, lark: Lark) -> str:
    makers = {
        "json": _json,
        "json_object": _json_object,
        "regex": _regex,
        "choice": _choice,
        "grammar": _grammar,
        "structural_tag": _structural_tag,
    }
    return makers[asked.kind](asked, lark)


def _json(asked: ConstraintRequest, lark: Lark) -> str:
    schema = json_schema.prepared(asked.value, asked.field, lark.strings)
    if schema is False:
        raise InvalidRequest(f"{asked.field}: the schema false has no values", asked.field)
    if asked.white_space:
        _check_regex(asked.white_space, asked.field)
    return lark.schema({**({} if schema is True else schema), "x-guidance": asked.options()})


def _json_object(asked: ConstraintRequest, lark: Lark) -> str:
    if asked.value is not True:
        raise InvalidRequest(f"{asked.field}: json_object must be true, not {asked.value!r:.60}", asked.field)
    return lark.schema({"type": "object", "x-guidance": asked.options()})


def _regex(asked: ConstraintRequest, lark: Lark) -> str:
    if not isinstance(asked.value, str):
        raise InvalidRequest(f"{asked.field}: a regular expression is a text, not {asked.value!r:.60}", asked.field)
    _check_regex(asked.value, asked.field)
    patterns, exact = plain_patterns(asked.value, whole=True)
    if not exact:
        lark.strings.warnings.append(f"{asked.field}: the regular expression is imposed without its look-around")
    return lark.regex(patterns[0]) if len(patterns) == 1 else lark.all_of(patterns)


def _check_regex(pattern: str, field: str) -> None:
    if not 0 < len(pattern) <= MAX_REGEX_CHARACTERS:
        raise InvalidRequest(
            f"{field}: the regular expression has {len(pattern)} characters; it must have 1 to {MAX_REGEX_CHARACTERS}",
            field,
        )


def _choice(asked: ConstraintRequest, lark: Lark) -> str:
    options = asked.value
    if not isinstance(options, list) or not options or not all(isinstance(one, str) for one in options):
        raise InvalidRequest(f"{asked.field}: choice must be a list of texts, at least one", asked.field)
    characters = sum(map(len, options))
    if len(options) > MAX_CHOICES or characters > MAX_CHOICE_CHARACTERS:
        raise InvalidRequest(
            f"{asked.field}: choice has {len(options)} texts of {characters} characters; at most {MAX_CHOICES} of "
            f"{MAX_CHOICE_CHARACTERS} are taken",
            asked.field,
        )
    return either([lark.plain(one) for one in dict.fromkeys(options)])


def _grammar(asked: ConstraintRequest, lark: Lark) -> str:
    """Lark as it stands (it has a rule `start`), EBNF with a rule `root ::=` (llama.cpp's GBNF) converted."""
    from llguidance.gbnf_to_lark import any_to_lark

    text = asked.value
    if not isinstance(text, str) or not 0 < len(text) <= MAX_GRAMMAR_CHARACTERS:
        raise InvalidRequest(
            f"{asked.field}: a grammar is a text of 1 to {MAX_GRAMMAR_CHARACTERS} characters", asked.field
        )
    try:
        converted = text if _LARK.search(text) else any_to_lark(text)
    except RecursionError:
        raise InvalidRequest(f"{asked.field}: the grammar is nested too deeply", asked.field) from None
    except Exception as error:  # the converter raises plain ones
        raise InvalidRequest(
            f"{asked.field}: this is neither Lark (a rule `start: …`) nor EBNF (a rule `root ::= …`): {error}",
            asked.field,
        ) from error
    _check_schemas(converted, asked.field)
    return lark.grammar(converted)


def _check_schemas(lark: str, field: str) -> None:
    """Schemas in the grammar (`%json {…}`) are looked through as those of requests are.

    Raises: InvalidRequest.
    """
    decoder, schemas = json.JSONDecoder(), []
    for match in re.finditer(r"%json\s*", lark):
        # Else it stands in a comment or a text, or the compiler says what is wrong.
        with contextlib.suppress(ValueError, RecursionError):
            schemas.append(decoder.raw_decode(lark, match.end())[0])
    if schemas:
        json_schema.prepared({"anyOf": schemas}, field, Strings())  # all at once: their multiples may meet at one place


def _structural_tag(asked: ConstraintRequest, lark: Lark) -> str:
    tag = asked.value
    if isinstance(tag, str):
        try:
            tag = json.loads(tag)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"{asked.field}: structural_tag is no JSON: {error}", asked.field) from error

    def inner(kind: str, value: Any) -> str:
        return _expression(ConstraintRequest(kind, value, asked.field, asked.any_whitespace, asked.white_space), lark)

    return structural_tag(tag, lark, inner, asked.field)
