"""Close the objects of a JSON schema that list their properties, unless the schema says otherwise.

vLLM (XGrammar's strict mode) and llama.cpp read schemas this way: otherwise models invent properties without end. Where
several parts define an object's properties together (allOf, or $ref beside properties), the object is closed once,
around all parts, as `unevaluatedProperties: false` would do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forearm.json_types import Json

_LISTS = ("allOf", "anyOf", "oneOf")
_SCHEMAS = ("items", "additionalItems", "additionalProperties")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTING = ("properties", "patternProperties")
_MOST_PARTS = 200_000  # schemas and names visited, copies of definitions included: 0.2 s
_DEEPEST = 64


class TooLarge(Exception):
    """References within allOf multiply the size of the schema."""


def closed(root: Any) -> Any:
    """Return the schema with its objects closed.

    Raises: TooLarge.
    """
    return _Closing(root).at(root, True)


def target(root: Any, reference: str) -> Any:
    """Return what a reference within the schema (#/$defs/…) refers to, or None if there is nothing."""
    node = root
    for part in reference[1:].split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        node = node.get(part) if isinstance(node, dict) else None
    return node


class _Closing:
    def __init__(self, root: Any) -> None:
        self._root, self._parts_seen = root, 0

    def at(self, node: Any, closing: bool, depth: int = 0) -> Any:
        """Return this schema, closed. closing: no schema around this one defines properties of the same object."""
        if not isinstance(node, dict):
            return node
        self._spend(1)
        alone = len(list(self._parts(node))) < 2
        made = {key: self._below(key, value, closing and alone, depth) for key, value in node.items()}
        everything = (
            made.pop("unevaluatedProperties", None) if isinstance(node.get("unevaluatedProperties"), bool) else None
        )
        if everything and any(key in node for key in _LISTING):
            made.setdefault("additionalProperties", True)
        if not alone or not closing:
            # A copy of the definition replaces $ref, because the definition itself is closed.
            found = target(self._root, made["$ref"]) if isinstance(made.get("$ref"), str) else None
            said = self._properties(found) if isinstance(found, dict) else None
            if said is not None and any(said.values()) and depth <= _DEEPEST:
                others = {key: value for key, value in made.items() if key != "$ref"}
                made = {"allOf": [self.at(found, False, depth + 1), *others.pop("allOf", [])], **others}
        if not closing or everything or "additionalProperties" in made:
            return made
        if alone:
            return self._closed_object(made) if any(key in made for key in _LISTING) else made
        said = self._properties(node)
        if said is not None and any(said[key] for key in _LISTING):
            made["allOf"] = [*made.get("allOf", []), self._closed_object(said)]
        return made

    def _spend(self, parts: int) -> None:
        self._parts_seen += parts
        if self._parts_seen > _MOST_PARTS:
            raise TooLarge

    def _parts(self, node: Json) -> Iterator[Any]:
        """Yield what may define an object's properties: the schema itself, and those that it combines or refers to."""
        if any(key in node for key in (*_LISTING, "additionalProperties")):
            yield node
        for key in ("anyOf", "oneOf"):
            if isinstance(node.get(key), list):
                yield node[key]
        yield from node["allOf"] if isinstance(node.get("allOf"), list) else ()
        if "$ref" in node:
            yield node["$ref"]

    def _below(self, key: str, value: Any, closing: bool, depth: int) -> Any:
        if key in _LISTS and isinstance(value, list):
            return [self.at(one, closing, depth) for one in value]
        if key in ("prefixItems", "items") and isinstance(value, list):
            return [self.at(one, True) for one in value]
        if key in _MAPS and isinstance(value, dict):
            return {name: self.at(one, True) for name, one in value.items()}
        return self.at(value, True) if key in _SCHEMAS else value

    def _closed_object(self, said: Json) -> Json:
        """Return a closed object; a required property without a description may have any value."""
        names = [name for name in said.get("required", ()) if isinstance(name, str)]
        properties = {**dict.fromkeys(names, True), **said.get("properties", {})}
        order = [*said.get("properties", {}), *names]
        return {**said, "properties": {name: properties[name] for name in order}, "additionalProperties": False}

    def _properties(self, node: Any, seen: set[int] | None = None) -> Json | None:
        """Return the names and patterns of properties, and required names; None if a part allows other properties."""
        found: Json = {"properties": {}, "patternProperties": {}, "required": []}
        seen = set() if seen is None else seen
        if not isinstance(node, dict) or id(node) in seen:
            return found
        seen.add(id(node))
        self._spend(1)
        if (
            node.get("additionalProperties", False) is not False
            or node.get("unevaluatedProperties", False) is not False
        ):
            return None
        for key in _LISTING:
            if isinstance(node.get(key), dict):
                self._spend(len(node[key]))
                found[key] |= dict.fromkeys(node[key], True)
        if isinstance(node.get("required"), list):
            found["required"] += node["required"]
        inner = [one for key in _LISTS if isinstance(node.get(key), list) for one in node[key]]
        if isinstance(node.get("$ref"), str):
            inner.append(target(self._root, node["$ref"]))
        for one in inner:
            said = self._properties(one, seen)
            if said is None:
                return None
            self._spend(len(said["properties"]))
            found["properties"] |= said["properties"]
            found["patternProperties"] |= said["patternProperties"]
        return found
