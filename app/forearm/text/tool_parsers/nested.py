"""Read the calls of MiniMax M3: an element for each argument, named after it, which may have elements itself.

Source: vLLM 0.33's parser minimax_m3.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forearm.text.tool_parsers.incremental import Steps, TextStream, upto
from forearm.text.tool_parsers.json_calls import Calls, answer, attempt
from forearm.text.tool_parsers.parts import CallArguments
from forearm.text.tool_parsers.qwen_coder import parameter, schemas_of, types_of

NAMESPACE = "]<]minimax[>["  # one token, before each tag
BEGIN, END = f"{NAMESPACE}<tool_call>", f"{NAMESPACE}</tool_call>"
INVOKE, INVOKE_END = f"{NAMESPACE}<invoke name=", f"{NAMESPACE}</invoke>"
_TAG = re.compile(re.escape(NAMESPACE) + r"<(/?)([^<>]+)>")
_MIXED = "$text"  # the name of text beside elements
_DEEPEST = 50


def minimax_m3(source: TextStream, calls: Calls) -> Steps[None]:
    """Read text and calls. The tags around all calls are dropped."""
    while marker := (yield from answer(source, calls, BEGIN, INVOKE, END)):
        if marker == INVOKE:
            source.record(marker)
            yield from attempt(source, _call(source, calls))


def _call(source: TextStream, calls: Calls) -> Steps[bool]:
    """Read the name and the elements. Arguments come all at once: the values of a repeated name are a list."""
    name, found = yield from upto(source, ">")
    name = name.strip().strip("\"'")
    if not found or not name:
        return False
    source.recorded()
    call = calls.begin(name)
    yield call
    text, marker = yield from upto(source, INVOKE_END, INVOKE, END)
    written = _object(_elements(text), schemas_of(calls, name), None)
    yield CallArguments(call.index, written if marker else written.removesuffix("}"))
    if marker != INVOKE_END:
        source.back(marker)
    return True


@dataclass
class _Element:
    name: str
    text: str = ""
    children: list[_Element] = field(default_factory=list)


def _elements(text: str) -> list[_Element]:
    """Return the outer elements up to the first that is malformed, cut off or too deep."""
    opened = [_Element("")]
    _, *rest = _TAG.split(text)
    for slash, name, behind in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        if not slash and len(opened) <= _DEEPEST:
            opened.append(_Element(name))
        elif slash and name == opened[-1].name:
            closed = opened.pop()
            opened[-1].children.append(closed)
        else:
            break
        opened[-1].text += behind
    return opened[0].children


def _object(elements: Sequence[_Element], properties: Mapping[str, Any], others: Any) -> str:
    """Return elements as a JSON object. others: the schema of those that are not among the properties."""
    values: dict[str, list[str]] = {}
    for element in elements:
        values.setdefault(element.name, []).append(_value(element, properties.get(element.name, others)))
    members = (
        f"{json.dumps(name, ensure_ascii=False)}: {found[0] if len(found) == 1 else _list(found)}"
        for name, found in values.items()
    )
    return "{" + ", ".join(members) + "}"


def _list(values: Sequence[str]) -> str:
    return "[" + ", ".join(values) + "]"


def _value(element: _Element, schema: Any) -> str:
    """Return an element as JSON: an object or a list if it has elements or its schema is of one, or else its text."""
    container = next(_containers(schema), {})
    types = types_of(container)
    is_list = "array" in types or "items" in container
    if not element.children:
        if container and "string" not in types and not element.text.strip():
            return "[]" if is_list else "{}"
        return parameter(element.text, schema, True, verbatim=True)
    if is_list:
        return _list([_value(child, container.get("items")) for child in element.children])
    text = [_Element(_MIXED, element.text)] if element.text.strip() else []
    properties = container.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    return _object([*element.children, *text], known, container.get("additionalProperties"))


def _containers(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the schemas among this one and its alternatives that are of lists or objects."""
    if not isinstance(schema, Mapping):
        return
    if _is_container(schema) or schema.keys() & {"items", "properties"}:
        yield schema
    for key in ("anyOf", "oneOf"):
        options = schema.get(key)
        for one in options if isinstance(options, list) else ():
            if isinstance(one, Mapping) and _is_container(one):
                yield one


def _is_container(schema: Mapping[str, Any]) -> bool:
    return any(kind in ("array", "object") for kind in types_of(schema))
