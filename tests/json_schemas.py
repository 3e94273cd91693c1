"""Random JSON schemas of all that can be imposed, and recorded ones that are hard."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

# Values for const and enum, among them some that are easily confused.
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-10_000, 10_000),
    st.decimals(-100, 100, places=2).map(float),
    st.text(st.characters(codec="utf-8"), max_size=6),
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
)
names = st.one_of(
    st.sampled_from(["a", "b", "name", "a b", 'quote"', "back\\slash", "sl/ash", "é", "日本", "😀", "\n", "", "0"]),
    st.text(st.characters(codec="utf-8"), max_size=5),
)


@st.composite
def _between(draw: st.DrawFn, low: str, high: str, numbers: st.SearchStrategy[Any]) -> dict[str, Any]:
    """Bounds that leave something between them, either of which may be missing."""
    bounds = sorted([draw(numbers), draw(numbers)])
    given = {low: bounds[0], high: bounds[1]}
    return {key: given[key] for key in draw(st.sets(st.sampled_from([low, high])))}


integers = st.builds(
    lambda bounds, multiple: {"type": "integer", **bounds, **multiple},
    _between("minimum", "maximum", st.integers(-5000, 5000)),
    st.sampled_from([{}, {}, {"multipleOf": 1}, {"multipleOf": 7}, {"multipleOf": 100}]),
)
numbers = st.builds(
    lambda bounds, multiple: {"type": "number", **bounds, **multiple},
    st.one_of(
        _between("minimum", "maximum", st.decimals(-1000, 1000, places=2).map(float)),
        _between("exclusiveMinimum", "exclusiveMaximum", st.integers(-1000, 1000)),
    ),
    st.sampled_from([{}, {}, {"multipleOf": 0.5}, {"multipleOf": 0.25}]),
)
strings = st.one_of(
    st.builds(lambda bounds: {"type": "string", **bounds}, _between("minLength", "maxLength", st.integers(0, 12))),
    st.sampled_from(["^[a-z]{2,4}$", "ab+c", "^(x|yy)*$", r"^\d{3}-\d{4}$", "^é[^a-y]?$", r'^"\\$']).map(
        lambda pattern: {"type": "string", "pattern": pattern, "maxLength": 20}
    ),
    st.sampled_from(["date", "uuid", "ipv4", "date-time", "email"]).map(
        lambda form: {"type": "string", "format": form}
    ),
)
leaves = st.one_of(
    st.sampled_from(
        [{"type": "null"}, {"type": "boolean"}, {"type": ["integer", "null"]}, {"type": ["string", "boolean"]}]
    ),
    integers,
    numbers,
    strings,
    values.map(lambda value: {"const": value}),
    st.lists(values, min_size=1, max_size=4).map(lambda listed: {"enum": listed}),
)


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    """Properties, some of them required; others forbidden, free, or of a schema."""
    properties = draw(st.dictionaries(names, inner, max_size=4))
    required = [name for name in properties if draw(st.booleans())]
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
    additional = draw(st.sampled_from(["no", "no", "free", "schema"]))
    if additional == "no":
        schema["additionalProperties"] = False
    elif additional == "schema":
        schema["additionalProperties"] = draw(inner)
    return schema


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    """Items, the first ones with schemas of their own; their count bounded or not."""
    schema: dict[str, Any] = {"type": "array", "items": draw(inner), "minItems": draw(st.integers(0, 2))}
    if draw(st.booleans()):
        schema["maxItems"] = schema["minItems"] + draw(st.integers(0, 2))
    if draw(st.booleans()):
        schema["prefixItems"] = draw(st.lists(inner, min_size=1, max_size=2))
    return schema


def _compound(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    options = st.lists(inner, min_size=1, max_size=3).map(lambda listed: {"anyOf": listed})
    tagged = st.lists(inner, min_size=2, max_size=3).map(_tagged)
    return objects(inner) | arrays(inner) | options | tagged


def _tagged(listed: list[Any]) -> dict[str, Any]:
    """oneOf whose options are told apart by a property."""
    return {
        "oneOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": f"kind {number}"}, "value": one},
                "required": ["kind", "value"],
                "additionalProperties": False,
            }
            for number, one in enumerate(listed)
        ]
    }


schemas = st.recursive(leaves, _compound, max_leaves=8)

_TREE = {
    "type": "object",
    "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    "required": ["value", "next"],
    "additionalProperties": False,
}
HARD: dict[str, Any] = {
    "unicode": {"type": "string", "pattern": "^[äöü😀日]{1,3}$"},
    "escapes": {"enum": ['"', "\\", "\n\t\x07", "\u2028", "/", "</s>"]},
    "keys to escape": {"type": "object", "properties": {'"\\\n': {"type": "null"}}, "required": ['"\\\n']},
    "multiples": {"type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 3},
    "a narrow range": {"type": "number", "exclusiveMinimum": 1.25, "exclusiveMaximum": 1.26},
    "a negative range": {"type": "integer", "minimum": -1003, "maximum": -998},
    "one number": {"type": "integer", "minimum": 7, "maximum": 7},
    "mixed constants": {"enum": [1, "1", None, True, 1.5, [], {"a": {}}]},
    "anyOf of objects": {
        "anyOf": [
            {
                "type": "object",
                "properties": {"a": {"type": "integer"}},
                "required": ["a"],
                "additionalProperties": False,
            },
            {"type": "object", "properties": {"b": {"type": "string", "maxLength": 3}}, "required": ["b"]},
        ]
    },
    "a list by recursion": _TREE,
    "mutual recursion": {
        "$ref": "#/$defs/a",
        "$defs": {
            "a": {"type": "array", "items": {"$ref": "#/$defs/b"}, "maxItems": 2},
            "b": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "boolean"}]},
        },
    },
    "an empty object": {"type": "object", "additionalProperties": False},
    "an empty array": {"type": "array", "maxItems": 0},
    "allOf": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]},
            {"properties": {"a": {"maximum": 9}, "b": {"type": "boolean"}}, "additionalProperties": False},
        ]
    },
    "patternProperties": {
        "type": "object",
        "patternProperties": {"^n_": {"type": "integer"}},
        "additionalProperties": False,
    },
    "a tuple": {
        "type": "array",
        "prefixItems": [{"type": "string", "maxLength": 2}, {"type": "integer"}],
        "items": False,
        "minItems": 2,
    },
    "anything": {},
}


def loaded(text: str) -> Any:
    """Parse JSON as a client does. Raises: ValueError."""
    return json.loads(text)
