"""Schemas as they are read here: closed objects, formats, unique items, names of properties."""

from __future__ import annotations

import json
import time
from typing import Any

import jsonschema
import pytest
from tests.masked import Writer

from forearm.errors import InvalidRequest
from forearm.model.checkpoint.hub import DEMO_MODEL
from forearm.text.grammars.constraints import ConstraintRequest
from forearm.text.grammars.grammar_check import GrammarCheck
from forearm.text.grammars.lark import warnings_of

WRITER = Writer(DEMO_MODEL, 2)
CHECK = GrammarCheck(WRITER.tokenizer)


def fits(schema: Any, value: Any) -> bool:
    grammar = CHECK.start(ConstraintRequest("json", schema, "f")).result()
    tokens = [*WRITER.tokenizer.encode(json.dumps(value, ensure_ascii=False), add_special_tokens=False), 2]
    return WRITER.grammars.start(grammar).result().allowed_prefix(tokens) == len(tokens)


def warned(schema: Any) -> list[str]:
    return warnings_of(CHECK.start(ConstraintRequest("json", schema, "f")).result())


A: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
B: dict[str, Any] = {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}
DEFS = {"A": A, "B": B}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (A, {"a": 1}, {"a": 1, "x": 1}),
        ({"type": "array", "items": A}, [{"a": 1}], [{"a": 1, "x": 1}]),
        ({"anyOf": [A, B]}, {"b": 1}, {"b": 1, "x": 1}),
        ({"$ref": "#/$defs/A", "description": "d", "$defs": DEFS}, {"a": 1}, {"a": 1, "x": 1}),
        (
            {"allOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}], "$defs": DEFS},
            {"a": 1, "b": 2},
            {"a": 1, "b": 2, "x": 1},
        ),
        ({"allOf": [A], **B}, {"a": 1, "b": 2}, {"a": 1, "b": 2, "x": 1}),
        ({"allOf": [{"allOf": [A]}, B]}, {"a": 1, "b": 2}, {"a": 1, "b": 2, "x": 3}),
        ({"$ref": "#/$defs/A", "properties": {"b": {}}, "$defs": DEFS}, {"a": 1, "b": 2}, {"a": 1, "x": 1}),
        ({**A, "anyOf": [B, {"required": ["a"]}]}, {"a": 1, "b": 2}, {"a": 1, "b": 2, "x": 1}),
        ({**A, "unevaluatedProperties": False}, {"a": 1}, {"a": 1, "x": 1}),
        ({"type": "object", "properties": {"a": {}}, "required": ["c"]}, {"c": [1]}, {"c": 1, "x": 1}),
        ({"type": "object", "patternProperties": {"^x": {}}}, {"x1": 1}, {"y": 1}),
    ],
)
def test_an_object_that_lists_its_properties_has_no_others(schema: Any, good: Any, bad: Any) -> None:
    assert fits(schema, good)
    assert not fits(schema, bad)


@pytest.mark.parametrize(
    "schema",
    [
        {**A, "additionalProperties": True},
        {**A, "additionalProperties": {"type": "integer"}},
        {**A, "unevaluatedProperties": True},
        {"allOf": [{**A, "additionalProperties": True}, {"required": ["a"]}]},
        {"type": "object", "required": ["a"]},
        {"type": "object"},
        {},
    ],
)
def test_the_schema_may_say_otherwise(schema: Any) -> None:
    assert fits(schema, {"a": 1, "x": 1})


def test_references_that_double_at_each_level_are_not_followed_without_end() -> None:
    defs: dict[str, Any] = {"d0": A}
    for n in range(40):
        defs[f"d{n + 1}"] = {"allOf": [{"$ref": f"#/$defs/d{n}"}, {"$ref": f"#/$defs/d{n}"}]}

    begun_s = time.monotonic()
    with pytest.raises(InvalidRequest, match="too large"):
        fits({"$ref": "#/$defs/d40", "$defs": defs}, {"a": 1})
    with pytest.raises(InvalidRequest):
        fits({"$ref": "#/$defs/d", "properties": {}, "$defs": {"d": {**A, "allOf": [{"$ref": "#/$defs/d"}] * 2}}}, {})
    assert time.monotonic() - begun_s < 10


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("date", ["2024-02-29", "2000-02-29", "0004-12-31"], ["2023-02-29", "1900-02-29", "0000-01-01", "2024-04-31"]),
        ("date-time", ["2024-02-29T23:59:59.5Z", "2024-01-01T00:00:00-03:30"], ["2024-01-01T24:00:00Z", "2024-01-01"]),
        ("time", ["12:30:00Z"], ["12:60:00Z"]),
        ("duration", ["P1Y2M3DT4H", "PT5S", "P3W"], ["P", "PT", "P1H"]),
        ("uuid", ["123e4567-e89b-12d3-a456-426614174000"], ["123e4567"]),
        ("uuid4", ["123e4567-e89b-42d3-a456-426614174000"], ["123e4567-e89b-12d3-a456-426614174000"]),
        ("ipvanyaddress", ["10.0.0.1", "::1", "fe80::1:2"], ["10.0.0.256", "1::2::3"]),
        ("ipv4network", ["10.0.16.0/20", "0.0.0.0/0", "1.2.3.4/32"], ["10.0.16.1/20", "10.0.0.0/33"]),
        ("base64", ["", "YQ==", "YWI=", "YWJj"], ["YQ=", "Y", "Y-=="]),
        ("email", ["a.b@c.org"], ["a b@c", "@"]),
        ("hostname", ["a-b.org"], ["-a"]),
        ("colour", ["any thing"], []),
        ("int32", ["any thing"], []),
    ],
)
def test_a_known_format_is_imposed_and_another_is_a_remark(name: str, good: list[str], bad: list[str]) -> None:
    schema = {"type": ["string", "null"], "format": name}

    assert [one for one in good if not fits(schema, one)] == []
    assert [one for one in bad if fits(schema, one)] == []
    assert fits(schema, None)


def test_format_and_pattern_hold_together() -> None:
    schema = {"type": "string", "format": "date", "pattern": "^2024"}

    assert fits(schema, "2024-02-29")
    assert not fits(schema, "2023-02-28")


def test_items_of_few_values_differ_and_others_are_told_to_be_free() -> None:
    few = {"type": "array", "items": {"$ref": "#/$defs/e"}, "uniqueItems": True, "minItems": 1}
    few["$defs"] = {"e": {"enum": ["a", "b", "c"]}}
    many: dict[str, Any] = {"type": "array", "items": {"enum": [*"abcdef"]}, "uniqueItems": True}
    free = {"type": "object", "properties": {"f": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}}}

    assert fits(few, ["c", "a"])
    assert not any(fits(few, value) for value in ([], ["a", "a"], [*"abca"]))
    assert warned(few) == []
    assert not fits(many, [*"abcdefa"])
    assert "at properties/f: uniqueItems is not imposed" in warned(free)[0]
    assert "uniqueItems" in warned(many)[0]


@pytest.mark.parametrize(
    ("names", "good", "bad"),
    [
        ({"enum": ["a", "b.c"]}, ["a", "b.c"], ["bxc", "c"]),
        ({"pattern": "^x-"}, ["x-1"], ["y"]),
        ({"pattern": "^(?!x)[a-z]+$"}, ["a"], ["xa"]),
        ({"format": "date"}, ["2024-01-01"], ["2024"]),
        ({"minLength": 2, "maxLength": 3}, ["ab"], ["a", "abcd"]),
        ({"type": "string"}, ["anything"], []),
        (False, [], ["a"]),
    ],
)
def test_names_of_properties_fit_their_schema(names: Any, good: list[str], bad: list[str]) -> None:
    schema = {"type": "object", "propertyNames": names, "additionalProperties": {"type": "integer"}}

    assert fits(schema, {})
    assert [one for one in good if not fits(schema, {one: 1})] == []
    assert [one for one in bad if fits(schema, {one: 1})] == []
    assert not any(fits(schema, {one: "x"}) for one in good)


def test_look_ahead_is_imposed_and_what_is_too_complex_is_told() -> None:
    password = {"type": "string", "pattern": r"^(?=.*[A-Z])(?=.*\d)(?!.*secret)[A-Za-z\d]{8,12}$"}
    complex_ = {"type": "string", "pattern": r"^((?!ab).)*$"}

    assert fits(password, "Abcdefg1")
    assert not any(fits(password, text) for text in ("abcdefg1", "Abcdefgh", "Asecret1", "Ab1"))
    assert warned(password) == []
    assert "pattern: ^((?!ab).)*$ is imposed without its look-around" in warned(complex_)[0]
    for seed in range(10):
        text = WRITER.text(CHECK.start(ConstraintRequest("json", password, "f")).result(), seed)
        if text is not None:
            jsonschema.validate(json.loads(text), password)


def test_a_regular_expression_may_look_ahead() -> None:
    grammar = CHECK.start(ConstraintRequest("regex", r"(?!no)[a-z]{2,4}(?=1)\d+", "f")).result()
    matcher = WRITER.grammars.start(grammar).result()

    assert [matcher.allowed_prefix([*WRITER.tokenizer.encode(text), 2]) for text in ("yes12", "nob12")][1] < 4
    for seed in range(10):
        text = WRITER.text(grammar, seed)
        assert text is not None
        assert not text.startswith("no")
        assert text.lstrip("abcdefghijklmnopqrstuvwxyz").startswith("1")
