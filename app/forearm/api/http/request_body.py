"""Read a request's body and check its type, size and schema. Every error here is one that the client can fix."""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Coroutine
from functools import cache
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException

from forearm.api.http.body_memory import BodyMemory
from forearm.api.http.caller import caller_of
from forearm.api.http.json_size import MOST_MEMBERS, JsonStructure
from forearm.errors import BodyTooLarge, InvalidRequest

Model = TypeVar("Model", bound=BaseModel)
MOST_UNKNOWN = 256  # each one is counted, and logged once
# pydantic's names for the members of a union: str, list[int], constrained-str; or the class name of a body.
_TYPE = re.compile(r"str|int|float|bool|dict|constrained-\w+|[\w-]+\[.*\]")
_SHOULD_BE = "Input should be "  # how pydantic's messages about types and ranges begin
_JSON = re.compile(r"application/([\w.-]+\+)?json", re.IGNORECASE)


def json_body(model: type[Model]) -> Callable[[Request], Coroutine[Any, Any, Model]]:
    """Return a dependency that reads the body as this model.

    It is a coroutine: for a generator FastAPI would import anyio's backend with the first request, which takes 0.015 s.
    Raises (when called): InvalidRequest, BodyTooLarge.
    """

    async def read(request: Request) -> Model:
        content_type = request.headers.get("content-type", "")
        if not _JSON.fullmatch(content_type.partition(";")[0].strip()):
            raise InvalidRequest("Unsupported Media Type: Only 'application/json' is allowed")
        content = await content_of(request)
        try:
            # Parsing the bytes, not a parsed value, also refuses lone surrogates and endless nesting.
            body = model.model_validate_json(content)
        except ValidationError as error:
            try:
                content.decode()
            except UnicodeDecodeError as wrong:  # PowerShell 5 sends ISO-8859-1, and UTF-16 comes from files
                found = f"byte 0x{content[wrong.start]:02x} at position {wrong.start}"
                message = f"Invalid JSON: the body is not UTF-8 ({found}); encode it in UTF-8"
                raise InvalidRequest(message) from None
            raise invalid(error) from None
        if len(body.model_extra or ()) > MOST_UNKNOWN:
            raise InvalidRequest(
                f"the body has {len(body.model_extra or ())} unknown fields; the limit is {MOST_UNKNOWN}"
            )
        return body

    return read


class BodyDescription(dict[str, Any]):
    """The OpenAPI description of a body read by `json_body`, made when the document is: all take 0.1 s together."""

    def __init__(self, model: type[BaseModel]) -> None:
        super().__init__(requestBody=None)
        self._model = model

    def items(self) -> Any:
        """Return the description, as FastAPI reads it."""
        schema = self._model.model_json_schema()
        schema = _inlined(schema, schema.pop("$defs", {}))
        body = {"required": True, "content": {"application/json": {"schema": schema}}}
        return {"requestBody": body}.items()


def _inlined(node: Any, parts: dict[str, Any], above: tuple[str, ...] = ()) -> Any:
    """Return the schema with definitions in place of references, because a route's body cannot hold definitions.

    A definition inside itself becomes a schema without restrictions.
    """
    if isinstance(node, list):
        return [_inlined(one, parts, above) for one in node]
    if not isinstance(node, dict):
        return node
    reference = node.get("$ref")
    if not isinstance(reference, str):
        return {key: _inlined(one, parts, above) for key, one in node.items() if key != "discriminator"}
    name = reference.removeprefix("#/$defs/")
    said = {key: one for key, one in node.items() if key != "$ref"}
    return said if name in above else {**_inlined(parts[name], parts, (*above, name)), **said}


async def content_of(request: Request) -> bytearray:
    """Read the whole body. Its bytes, and values made of them, count as held until the request ends (access_log.py).

    Raises: HTTPException for a compressed body, BodyTooLarge, BodyMemoryFull, InvalidRequest for too many values;
    all of them before more than the limit is in memory.
    """
    services = request.app.state.services
    limit: int = services.config.max_body_bytes
    memory: BodyMemory = services.body_memory
    caller = caller_of(request.scope)
    too_large = BodyTooLarge(f"the request body is larger than {limit} bytes (FOREARM_MAX_BODY_BYTES)")
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise HTTPException(415, f"Content-Encoding {encoding[:100]!r} is not supported; send the body uncompressed")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal():
        if int(declared) > limit:
            raise too_large
        memory.check(int(declared))
    content, structure = bytearray(), JsonStructure()
    async for part in request.stream():
        if len(content) + len(part) > limit:
            raise too_large
        memory.hold(len(part), caller)
        content += part
        if len(content) > MOST_MEMBERS:
            structure.read(content)
    if content.startswith(BOM_UTF8):  # which Windows' tools write before UTF-8, and RFC 8259 allows to ignore
        del content[: len(BOM_UTF8)]
    return content


def invalid(error: ValidationError) -> InvalidRequest:
    """Return the first error: its place, what may stand there, and what does.

    Where a field may have several types, it is the error of those that agree longest with the client's value.
    """
    found = error.errors(include_url=False, include_context=False)
    first = found[0]["loc"]
    field = first[: next((at for at, part in enumerate(first) if _is_type(part)), len(first))]
    by_type: dict[tuple[int | str, ...], ErrorDetails] = {}
    for one in found:
        if one["loc"][: len(field)] == field:
            by_type.setdefault(one["loc"][len(field) : len(field) + 1], one)
    # Each type ranks by how far the client's value agrees with it in lists, and whether it is only too long.
    meant = max(
        by_type.values(),
        key=lambda one: ([p if isinstance(p, int) else 0 for p in _place(one)], one["type"].endswith("too_long")),
    )
    wrong_types = [one["msg"] for one in found if one["type"].endswith("_type") and _place(one) == _place(meant)]
    others = [message.removeprefix(_SHOULD_BE) for message in wrong_types if message != meant["msg"]]
    first_type = meant["msg"].partition(", ")[0] if others else meant["msg"]  # without what was wrong for this one
    message = " or ".join(dict.fromkeys([first_type, *others]))
    if meant["type"] == "string_too_long":
        message += f", and it has {len(meant['input'])}"
    elif message.startswith(_SHOULD_BE):
        message += f"; it is {_shown(meant['input'])}"
    place = [str(part) for part in _place(meant)]
    return InvalidRequest(f"{'.'.join(place)}: {message}" if place else message, place[0] if place else None)


def _shown(value: Any) -> str:
    """Return a value as JSON has it, its first 100 characters; of a list or an object what it is alone."""
    if not isinstance(value, str | int | float | None):
        return "an array" if isinstance(value, list) else "an object"
    text = json.dumps(value[:100] if isinstance(value, str) else value, ensure_ascii=False)
    return text if len(text) <= 100 else f"{text[:100]}…"


def _place(error: ErrorDetails) -> list[int | str]:
    """Return the keys and indices, without the names of types that pydantic puts between them."""
    return [part for part in error["loc"] if not _is_type(part)]


def _is_type(part: int | str) -> bool:
    return isinstance(part, str) and (_TYPE.fullmatch(part) is not None or part in _names(BaseModel))


@cache
def _names(model: type[BaseModel]) -> frozenset[str]:
    """Return the names of this class's subclasses, at any depth."""
    below = model.__subclasses__()
    return frozenset(one.__name__ for one in below).union(*map(_names, below))
