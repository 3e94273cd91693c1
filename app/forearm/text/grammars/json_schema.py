"""Check and prepare a client's JSON schema before it becomes a grammar.

What llguidance cannot impose is refused by name, never dropped. Keywords that JSON Schema does not know are annotations
without effect, as in the specification.
Source: json-schema.org, drafts 4 to 2020-12; docs/json_schema.md of guidance-ai/llguidance.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from itertools import combinations, permutations
from math import lcm
from typing import Any

from forearm.errors import InvalidRequest
from forearm.text.grammars.closed_schema import TooLarge, closed, target
from forearm.text.grammars.schema_strings import FORMAT_PATTERNS, SchemaStrings

MAX_CHARACTERS = 256 << 10  # of a schema as JSON; larger ones take seconds to compile
MAX_DEPTH = 64  # of nested containers
# Every remainder is a state of the number's automaton: 10,000 take 0.02 s, 1,234,567 take 20 s and 700 MB.
MAX_MULTIPLE, MAX_DECIMALS = 10_000, 15
_ANNOTATIONS = ("contentSchema", "deprecated", "discriminator")  # without effect, and unknown to llguidance
_MAX_ORDERS = 4  # values whose permutations are listed: 64 permutations
_NODES = 20_000
_MAX_PATTERNS = 32  # of one patternProperties, compared in pairs; 8 times as many in the whole schema: 0.3 s
_MAX_OPTIONAL = 1000  # properties of one object: the parser follows all of them at once, in 1.5 ms

_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_SINGLE = ("additionalProperties", "items", "additionalItems")
_UNSUPPORTED = frozenset(
    (
        *("not", "if", "then", "else", "contains", "minContains", "maxContains"),
        *("dependencies", "dependentRequired", "dependentSchemas", "unevaluatedItems", "unevaluatedProperties"),
        *("$dynamicRef", "$recursiveRef", "extends", "disallow", "divisibleBy", "x-guidance"),
    )
)


def prepared(schema: Any, field: str, strings: SchemaStrings) -> Any:
    """Return the schema in the form that llguidance takes.

    Raises: InvalidRequest naming the field, the place in the schema and what is wrong.
    """
    if isinstance(schema, str):
        if len(schema) > MAX_CHARACTERS:
            raise InvalidRequest(f"{field}: {len(schema)} characters; at most {MAX_CHARACTERS} are taken", field)
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"{field}: it is not valid JSON: {error}", field) from error
    if not isinstance(schema, dict | bool):
        raise InvalidRequest(f"{field}: a JSON schema must be an object, not {_shown(schema)}", field)
    level: list[Any] = [schema]
    depth = nodes = 0
    while level:
        depth += 1
        nodes += len(level)
        if depth > MAX_DEPTH:
            raise InvalidRequest(f"{field}: the schema is nested deeper than {MAX_DEPTH} levels", field)
        if nodes > _NODES:
            raise InvalidRequest(f"{field}: the schema has more than {_NODES} parts", field)
        values = [node.values() if isinstance(node, dict) else node for node in level if not isinstance(node, bool)]
        level = [child for one in values for child in one if isinstance(child, dict | list)]
    characters = len(json.dumps(schema))
    if characters > MAX_CHARACTERS:
        raise InvalidRequest(f"{field}: the schema has {characters} characters; at most {MAX_CHARACTERS}", field)
    try:
        shut = closed(schema)
    except TooLarge:
        raise InvalidRequest(f"{field}: references within allOf make the schema too large", field) from None
    return _Schema(shut, field, strings).prepared()


class _Schema:
    """One schema document of a request."""

    def __init__(self, root: Any, field: str, strings: SchemaStrings) -> None:
        self._root, self._field, self._strings = root, field, strings
        self._multiples: list[int] = []
        self._patterns = 0

    def prepared(self) -> Any:
        made = self._at(self._root, "")
        product = lcm(*self._multiples)  # of all of them: the lexer may have to follow several at one place
        if product > MAX_MULTIPLE:
            raise self._wrong("", f"multipleOf comes to {product}; at most {MAX_MULTIPLE} can be imposed")
        return made

    def _wrong(self, path: str, what: str) -> InvalidRequest:
        where = f" at {path[1:]}" if path else ""
        return InvalidRequest(f"{self._field}: the JSON schema{where}: {what}", self._field)

    def _at(self, node: Any, path: str) -> Any:
        """Return this schema, prepared with all schemas in it.

        Raises: InvalidRequest.
        """
        if isinstance(node, bool):
            return node
        if not isinstance(node, dict):
            raise self._wrong(path, f"a schema must be an object, not {_shown(node)}")
        self._check_keywords(node, path)
        made = {key: self._below(key, value, f"{path}/{key}") for key, value in node.items()}
        made = {key: value for key, value in made.items() if key not in _ANNOTATIONS}
        if made.pop("uniqueItems", None) is True:
            made = self._unique(made, path)
        if "propertyNames" in made:
            made = self._named(made, path)
        made = self._strings.prepared(made, self._field, path)
        if isinstance(node.get("oneOf"), list) and "anyOf" not in made and self._apart(node["oneOf"]):
            made["anyOf"] = made.pop("oneOf")  # equivalent where no value can fit two options
        return made

    def _below(self, key: str, value: Any, path: str) -> Any:
        """Return a keyword's value with the schemas in it prepared."""
        if key in _LISTS or (key == "items" and isinstance(value, list)):
            if not isinstance(value, list):
                raise self._wrong(path, f"it must be a list of schemas, not {_shown(value)}")
            return [self._at(one, f"{path}/{i}") for i, one in enumerate(value)]
        if key in _MAPS:
            if not isinstance(value, dict):
                raise self._wrong(path, f"it must be an object of schemas, not {_shown(value)}")
            return {name: self._at(one, f"{path}/{name}") for name, one in value.items()}
        return self._at(value, path) if key in _SINGLE else value

    def _check_keywords(self, node: Mapping[str, Any], path: str) -> None:
        """Refuse keywords that cannot be imposed.

        Raises: InvalidRequest naming the keyword.
        """
        for keyword in sorted(_UNSUPPORTED & node.keys()):
            raise self._wrong(path, f"the keyword {keyword!r} is not supported; leave it out")
        if "$ref" in node and not (isinstance(node["$ref"], str) and node["$ref"].startswith("#")):
            raise self._wrong(path, f"$ref is {_shown(node['$ref'])}; only references within the schema (#/…) are read")
        patterns = len(_mapping(node.get("patternProperties")))
        self._patterns += patterns
        if patterns > _MAX_PATTERNS or self._patterns > 8 * _MAX_PATTERNS:
            raise self._wrong(
                path, f"patternProperties has {patterns} patterns; at most {_MAX_PATTERNS} can be imposed"
            )
        optional = len(_mapping(node.get("properties")).keys() - set(_strings(node.get("required"))))
        if optional > _MAX_OPTIONAL:
            raise self._wrong(path, f"{optional} properties are not required; at most {_MAX_OPTIONAL} can be imposed")
        if "multipleOf" not in node:
            return
        value = node["multipleOf"]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e300:
            raise self._wrong(path, f"multipleOf is {_shown(value)}; it must be a number greater than 0")
        number = Decimal(str(value)).normalize()
        exponent = number.as_tuple().exponent
        assert isinstance(exponent, int)  # it is finite
        digits = int(number.scaleb(-min(exponent, 0)))  # as an integer: the number of states of its automaton
        if digits > MAX_MULTIPLE or -exponent > MAX_DECIMALS:
            raise self._wrong(path, f"multipleOf is {_shown(value)}; at most {MAX_MULTIPLE} can be imposed")
        self._multiples.append(digits)

    def _warn(self, path: str, what: str) -> None:
        where = f" at {path[1:]}" if path else ""
        self._strings.warnings.append(f"{self._field}: the JSON schema{where}: {what}"[:500])

    def _unique(self, made: dict[str, Any], path: str) -> dict[str, Any]:
        """Return an array whose items differ; if only a few values are possible, their permutations are listed."""
        items = self._resolved(made.get("items"))
        values = [False, True] if items.get("type") == "boolean" else _values(items)
        if values is not None:  # each of them once
            values = list({json.dumps(one, sort_keys=True): one for one in values}.values())
        if values is None or "prefixItems" in made:
            if not (isinstance(made.get("maxItems"), int) and made["maxItems"] < 2):
                self._warn(path, "uniqueItems is not imposed; items may be the same")
            return made
        least, most = made.get("minItems", 0), min(made.get("maxItems", len(values)), len(values))
        if len(values) > _MAX_ORDERS or made.get("type") != "array" or not isinstance(least, int):
            self._warn(path, f"uniqueItems is not imposed on more than {_MAX_ORDERS} values; items may be the same")
            return {**made, "maxItems": most}
        orders = [order for size in range(least, most + 1) for order in permutations(values, size)]
        listed = [{"const": list(order)} for order in orders]
        others = {key: value for key, value in made.items() if key not in ("type", "items", "minItems", "maxItems")}
        return {**others, "allOf": [*made.get("allOf", []), {"anyOf": listed}]}

    def _named(self, made: dict[str, Any], path: str) -> dict[str, Any]:
        """Return an object whose property names must fit a schema, as patterns of names."""
        given = made.pop("propertyNames")
        names = self._resolved(given)
        if "properties" in made or "patternProperties" in made or made.get("additionalProperties") is False:
            self._warn(path, "propertyNames is not imposed beside properties, patternProperties or closed objects")
            return made
        values = _values(names)
        if values is not None:
            patterns = [f"^(?:{'|'.join(re.escape(one) for one in values if isinstance(one, str))})$"]
        else:
            patterns = [FORMAT_PATTERNS[names["format"]]] if names.get("format") in FORMAT_PATTERNS else []
            if isinstance(names.get("pattern"), str):
                patterns += self._strings.read(names["pattern"], self._field, path)
            if "minLength" in names or "maxLength" in names:
                patterns.append(f"^(?s:.{{{names.get('minLength', 0)},{names.get('maxLength', '')}}})$")
        if patterns:
            if len(patterns) > 1:
                self._warn(path, f"propertyNames is imposed in part: {patterns[0][:100]}")
            listed = {patterns[0]: made.pop("additionalProperties", True)}
            return {**made, "patternProperties": listed, "additionalProperties": False}
        return made if given is not False else {**made, "additionalProperties": False}

    def _apart(self, options: list[Any]) -> bool:
        """Return whether no value can fit two options of oneOf.

        That is so where any two differ in type, or in the strings of a property that both require.
        """
        for a, b in combinations([self._resolved(option) for option in options], 2):
            types_a, types_b = _types(a), _types(b)
            if types_a is not None and types_b is not None and not types_a & types_b:
                continue
            if types_a != {"object"} or types_b != {"object"}:
                return False
            for name in set(_strings(a.get("required"))) & set(_strings(b.get("required"))):
                of_a, of_b = (_values(self._resolved(_mapping(one.get("properties")).get(name))) for one in (a, b))
                if of_a and of_b and all(isinstance(v, str) for v in (*of_a, *of_b)) and not set(of_a) & set(of_b):
                    break
            else:
                return False
        return True

    def _resolved(self, schema: Any) -> dict[str, Any]:
        """Return the schema, or the one that a lone $ref refers to; {} if it is unknown."""
        for _ in range(MAX_DEPTH):
            if not isinstance(schema, dict):
                return {}
            if not isinstance(schema.get("$ref"), str) or len(schema) > 1:
                return schema
            schema = target(self._root, schema["$ref"])
        return {}


def _values(schema: Mapping[str, Any]) -> list[Any] | None:
    """Return the values that the schema lists, if it lists any."""
    if "const" in schema:
        return [schema["const"]]
    return schema["enum"] if isinstance(schema.get("enum"), list) else None


def _types(schema: Mapping[str, Any]) -> set[str] | None:
    """Return the JSON types that values may have; None: any type."""
    listed = schema.get("type")
    if isinstance(listed, str):
        return {listed.replace("integer", "number")}
    if isinstance(listed, list) and all(isinstance(one, str) for one in listed):
        return {one.replace("integer", "number") for one in listed}
    return None


def _strings(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:60]}…"
