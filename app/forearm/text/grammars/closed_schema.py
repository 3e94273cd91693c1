"""Objects of a JSON schema that list their properties have no others, unless the schema says otherwise.

vLLM (XGrammar's strict mode) and llama.cpp take schemas so: models write properties of their own without end otherwise.
Where several parts say together what an object has (allOf, or $ref beside properties), it is closed once, around all of
them, as `unevaluatedProperties: false` would.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forearm.json_types import Json

_LISTS = ("allOf", "anyOf", "oneOf")
_SCHEMAS = ("items", "additionalItems", "additionalProperties")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTING = ("properties", "patternProperties")
_MOST_PARTS = 200_000  # schemas and names looked at, copies of definitions among them: 0.2 s
_DEEPEST = 64


class TooLarge(Exception):
    """References within allOf multiply what the schema has."""


def closed(root: Any) -> Any:
    """The same schema with its objects closed. Raises: TooLarge."""
    return _Closing(root).at(root, True)


def target(root: Any, reference: str) -> Any:
    """What a reference within the schema (#/$defs/…) refers to; None where there is nothing."""
    node = root
    for part in reference[1:].split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        node = node.get(part) if isinstance(node, dict) else None
    return node


class _Closing:
    def __init__(self, root: Any) -> None:
        self._root, self._parts_seen = root, 0

    def at(self, node: Any, closing: bool, depth: int = 0) -> Any:
        """`closing`: nothing around this schema has a say in what the object has."""
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
            made = self._opened(made, depth)
        if not closing or everything or "additionalProperties" in made:
            return made
        if alone:
            return self._shut(made) if any(key in made for key in _LISTING) else made
        said = self._said(node)
        if said is not None and any(said[key] for key in _LISTING):
            made["allOf"] = [*made.get("allOf", []), self._shut(said)]
        return made

    def _spend(self, parts: int) -> None:
        self._parts_seen += parts
        if self._parts_seen > _MOST_PARTS:
            raise TooLarge

    def _parts(self, node: Json) -> Iterator[Any]:
        """What may say which properties an object has: the schema itself, and what stands in its place."""
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

    def _opened(self, made: Json, depth: int) -> Json:
        """With a copy of what $ref refers to in its place: the definition itself is closed."""
        found = target(self._root, made["$ref"]) if isinstance(made.get("$ref"), str) else None
        said = self._said(found) if isinstance(found, dict) else None
        if said is None or not any(said.values()) or depth > _DEEPEST:
            return made
        others = {key: value for key, value in made.items() if key != "$ref"}
        return {"allOf": [self.at(found, False, depth + 1), *others.pop("allOf", [])], **others}

    def _shut(self, said: Json) -> Json:
        """What is required and not described may be anything."""
        names = [name for name in said.get("required", ()) if isinstance(name, str)]
        properties = {**dict.fromkeys(names, True), **said.get("properties", {})}
        order = [*said.get("properties", {}), *names]
        return {**said, "properties": {name: properties[name] for name in order}, "additionalProperties": False}

    def _said(self, node: Any, seen: set[int] | None = None) -> Json | None:
        """Names and patterns of properties, and what is required, of all parts; None where one allows others."""
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
            said = self._said(one, seen)
            if said is None:
                return None
            self._spend(len(said["properties"]))
            found["properties"] |= said["properties"]
            found["patternProperties"] |= said["patternProperties"]
        return found
