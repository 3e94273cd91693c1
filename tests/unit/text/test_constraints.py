"""Texts that a grammar allows satisfy its constraint: random schemas, random texts, without a model."""

from __future__ import annotations

import ast
import json
import re
import time
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from hypothesis_jsonschema import from_schema
from tests.json_schemas import HARD, integers, loaded, scalars, schemas, strings
from tests.masked import Writer

from forearm.errors import InvalidRequest
from forearm.model.checkpoint.hub import DEMO_MODEL
from forearm.text.grammars.constraints import ConstraintRequest, constraint_request, grammar_of, schema_expression
from forearm.text.grammars.grammar_check import GrammarCheck
from forearm.text.grammars.lark import Lark

WRITER = Writer(DEMO_MODEL, 2)
CHECK = GrammarCheck(WRITER.tokenizer)


def validate(text: str, schema: Any) -> None:
    jsonschema.Draft202012Validator(schema).validate(loaded(text))


def _listed(schema: Any) -> Any:
    return {"type": "array", "items": schema, "maxItems": 3}


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(schema=schemas, seed=st.integers(0, 2**32))
def test_every_text_of_a_random_schema_validates(schema: Any, seed: int) -> None:
    try:
        grammar = CHECK.start(ConstraintRequest("json", schema, "f")).result()
    except InvalidRequest as error:
        event(f"refused: {str(error)[:80]}")
        return
    text = WRITER.text(grammar, seed)
    event("cut" if text is None else "whole")

    if text is not None:
        validate(text, schema)


@pytest.mark.parametrize("name", HARD)
def test_every_text_of_a_hard_schema_validates(name: str) -> None:
    grammar = CHECK.start(ConstraintRequest("json", HARD[name], "f")).result()
    texts = [WRITER.text(grammar, seed) for seed in range(25)]

    whole = [text for text in texts if text is not None]
    for text in whole:
        validate(text, HARD[name])
    assert len(whole) >= 10, "most are cut: this shows nothing"


# With today's hypothesis, hypothesis-jsonschema 0.23.1 draws no objects (they are written above), does not know all
# formats, and takes $ as Python does: before a last newline as well.
_PLAIN = st.one_of(
    strings.filter(lambda schema: "format" not in schema and "$" not in schema.get("pattern", "")),
    integers,
    scalars.map(lambda one: {"const": one}),
)
_DRAWN = _PLAIN | _PLAIN.map(_listed)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_fits_a_schema_can_be_written(data: st.DataObject) -> None:
    schema = data.draw(_DRAWN)
    value = data.draw(from_schema(schema))
    # llguidance accepts it only when it is escaped
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", r"\u007f")

    matcher = WRITER.grammars.start(grammar_of(ConstraintRequest("json", schema, "f"), {})).result()
    tokens = [*WRITER.tokenizer.encode(text, add_special_tokens=False), 2]

    assert matcher.allowed_prefix(tokens) == len(tokens)


@pytest.mark.parametrize(
    "pattern",
    [r"\d{3}-\d{4}", "^(red|green|blue)$", "[a-f]+x?", r"(\w+ ){0,3}end\.", 'a"b\\\\', "[^a]é?", "(?i)yes|no"],
)
def test_every_text_of_a_regular_expression_matches_whole(pattern: str) -> None:
    grammar = CHECK.start(ConstraintRequest("regex", pattern, "f")).result()
    texts = [text for seed in range(30) if (text := WRITER.text(grammar, seed)) is not None]

    assert len(texts) >= 10
    for text in texts:
        assert re.fullmatch(pattern, text), text


def test_every_text_of_a_choice_is_one_of_it_and_each_comes() -> None:
    choices = ["yes", "yes please", "no", 'said "no"\n', "é😀", "<|im_end|>", " "]
    grammar = CHECK.start(ConstraintRequest("choice", choices, "f")).result()

    assert {WRITER.text(grammar, seed) for seed in range(300)} == set(choices)


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "(" list ")"\nlist ::= item ("," item)*\nitem ::= [1-9]+ | root',
        'start: "(" list ")"\nlist: item ("," item)*\nitem: /[1-9]+/ | start',
    ],
)
def test_every_text_of_a_grammar_is_of_its_language(grammar: str) -> None:
    made = CHECK.start(ConstraintRequest("grammar", grammar, "f")).result()
    texts = [text for seed in range(40) if (text := WRITER.text(made, seed)) is not None]

    assert len(texts) >= 10
    for text in texts:
        assert re.fullmatch(r"[()1-9,]+", text)
        assert isinstance(ast.literal_eval(text), int | tuple), "brackets match"


def test_white_space_between_the_parts_of_json_has_an_end() -> None:
    grammar = grammar_of(ConstraintRequest("json", {"type": "array", "items": {"type": "null"}}, "f"), {})
    matcher = WRITER.grammars.start(grammar).result()
    for space, most in ((" ", 1), ("\n", 2), ("\t", 0)):
        (token,) = WRITER.tokenizer.encode(space, add_special_tokens=False)
        assert matcher.allowed_prefix([*WRITER.tokenizer.encode("["), *[token] * 100]) == 1 + most


@pytest.mark.parametrize(("pattern", "spaces"), [("", 0), ("[ ]{0,3}", 3), (None, 1)])
def test_a_pattern_of_white_space_replaces_the_rule_and_an_empty_one_allows_none(
    pattern: str | None, spaces: int
) -> None:
    asked = {"json": {"type": "array", "items": {"type": "null"}}, "whitespace_pattern": pattern}
    matcher = WRITER.grammars.start(grammar_of(constraint_request(asked, "f"), {})).result()
    (token,) = WRITER.tokenizer.encode(" ", add_special_tokens=False)

    assert matcher.allowed_prefix([*WRITER.tokenizer.encode("["), *[token] * 10]) == 1 + spaces


def test_json_may_be_printed_over_lines() -> None:
    value = {"a": [{"b": [1, {"c": None}]}], "d": {"e": "x"}}
    for text in (
        json.dumps(value),
        json.dumps(value, indent=2),
        json.dumps(value, indent=4),
        json.dumps(value, indent="\t"),
    ):
        matcher = WRITER.grammars.start(grammar_of(ConstraintRequest("json", {"type": "object"}, "f"), {})).result()
        tokens = WRITER.tokenizer.encode(text, add_special_tokens=False)

        assert matcher.allowed_prefix(tokens) == len(tokens)


def test_a_schema_can_be_a_part_of_a_grammar() -> None:
    lark = Lark(CHECK.special)
    body = schema_expression(lark, {"type": "integer", "minimum": 1, "maximum": 9}, "tools", any_whitespace=False)
    grammar = lark.text(f"{lark.literal('<|im_start|>call ')} {body} {lark.literal('!')}")

    text = WRITER.text(CHECK.start(grammar, "tools").result(), 3)

    assert text is not None
    assert re.fullmatch(r"<\|im_start\|>call [1-9]!", text)
    tokens = [1, *WRITER.tokenizer.encode("call 7!", add_special_tokens=False)]
    assert WRITER.grammars.start(grammar).result().allowed_prefix(tokens) == len(tokens), "its name is one token"


@pytest.mark.parametrize(
    "keyword", ["not", "if", "contains", "dependentRequired", "unevaluatedProperties", "$dynamicRef"]
)
def test_a_keyword_that_cannot_be_imposed_is_named_with_its_place(keyword: str) -> None:
    schema = {"type": "object", "properties": {"a": {"anyOf": [{"type": "null"}, {keyword: {}}]}}}

    with pytest.raises(InvalidRequest, match=f"properties/a/anyOf/1: the keyword '{re.escape(keyword)}'") as caught:
        grammar_of(ConstraintRequest("json", schema, "response_format"), {})
    assert caught.value.param == "response_format"


def test_what_takes_too_long_to_compile_is_refused_by_its_size() -> None:
    fields = {"a": {"multipleOf": 9973}, "b": {"multipleOf": 9967}}
    too_large: list[tuple[str, Any]] = [
        ("json", {"properties": fields}),
        ("json", {"patternProperties": {f"^{number}_": {} for number in range(33)}}),
        ("json", {"properties": {f"p{number}": {} for number in range(1001)}}),
        ("grammar", 'start: %json {"multipleOf": 9973} | %json {"multipleOf": 9967}'),
        (
            "structural_tag",
            {"format": {"type": "or", "elements": [{"type": "const_string", "value": "x" * 1_100_000}]}},
        ),
    ]
    for kind, value in too_large:
        start_s = time.monotonic()
        with pytest.raises(InvalidRequest, match="at most"):
            CHECK.start(ConstraintRequest(kind, value, "f")).result()
        assert time.monotonic() - start_s < 2


def test_a_property_may_be_called_like_a_keyword() -> None:
    schema = {"type": "object", "properties": {"not": {"const": 1}, "$ref": {"const": 2}}, "required": ["not", "$ref"]}
    text = WRITER.text(CHECK.start(ConstraintRequest("json", schema, "f")).result(), 0)

    assert text is None or loaded(text)["not"] == 1


def test_options_that_may_both_hold_are_refused_and_those_that_cannot_are_not() -> None:
    apart: dict[str, Any] = {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}, {"type": "null"}], "$defs": {}}
    for name in "ab":
        properties = {"kind": {"const": name}, "n": {"type": "integer"}}
        apart["$defs"][name] = {"type": "object", "properties": properties, "required": ["kind"]}

    CHECK.start(ConstraintRequest("json", apart, "f")).result()
    both: list[Any]
    for both in ([{"type": "integer"}, {"type": "number"}], [{"const": 1}, {"type": "integer"}], [{}, {}]):
        with pytest.raises(InvalidRequest, match="oneOf"):
            CHECK.start(ConstraintRequest("json", {"oneOf": both}, "f")).result()
