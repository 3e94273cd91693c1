"""Every field of every body has a bound, and what a client is told of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from pydantic import AfterValidator, BaseModel, Field, StringConstraints
from pydantic.fields import FieldInfo
from tests.api.server import Server

from forearm.api.anthropic import request_bodies as anthropic_bodies
from forearm.api.generation import request_bodies
from forearm.api.http.json_size import MOST_BYTES, MOST_CHARACTERS, MOST_MEMBERS, MOST_VALUES, JsonStructure, short_json
from forearm.api.pooling import request_bodies as pooling_bodies
from forearm.api.responses import request_bodies as responses_bodies
from forearm.errors import InvalidRequest

MODULES = (request_bodies, pooling_bodies, responses_bodies, anthropic_bodies)
MODELS = sorted(
    {one for module in MODULES for one in vars(module).values() if isinstance(one, type) and issubclass(one, BaseModel)}
    - {BaseModel},
    key=lambda one: one.__name__,
)


def unbounded(kind: Any, constraints: tuple[Any, ...] = ()) -> Iterator[str]:
    """Yield the unbounded parts of a type. Contents of bounded lists of objects count as prompt."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        yield from unbounded(parts[0], (*parts[1:], *constraints))
    elif origin in (Union, UnionType):
        for part in parts:
            yield from unbounded(part, constraints)
    elif kind is str:
        if not any(has_length(one) for one in constraints):
            yield "str"
    elif origin is list:
        if not any(has_length(one) for one in constraints):
            yield "list"
        if not any(has(one, "fail_fast") for one in constraints):
            yield "list that goes on after its first error"
        for part in get_args(parts[0]) if get_origin(parts[0]) in (Union, UnionType) else parts:
            if get_origin(part) is not dict:
                yield from unbounded(part)
    elif origin is dict:
        if not any(has_length(one) or is_short(one) for one in constraints):
            yield "dict"
        elif parts[1] is not Any:
            yield from (*unbounded(parts[0]), *unbounded(parts[1]))
    elif kind is int:
        if not (
            any(has_limit(one, "ge", "gt") for one in constraints)
            and any(has_limit(one, "le", "lt") for one in constraints)
        ):
            yield "int"
    elif not (origin is Literal or kind in (bool, float, NoneType) or issubclass(kind, BaseModel)):
        yield str(kind)


def has_limit(constraint: Any, *names: str) -> bool:
    inner = constraint.metadata if isinstance(constraint, FieldInfo) else [constraint]
    return any(getattr(one, name, None) is not None for one in inner for name in names)


def has_length(constraint: Any) -> bool:
    return has(constraint, "max_length")


def has(constraint: Any, name: str) -> bool:
    inner = constraint.metadata if isinstance(constraint, FieldInfo) else [constraint]
    return any(getattr(one, name, None) for one in inner)


def is_short(constraint: Any) -> bool:
    return isinstance(constraint, AfterValidator) and constraint.func is short_json


def test_the_walk_finds_what_has_no_bound() -> None:
    text = Annotated[str, StringConstraints(max_length=1)]
    assert list(unbounded(text | None)) == []
    assert list(unbounded(request_bodies.Some[text])) == []
    assert list(unbounded(request_bodies.Some[dict[str, Any] | text])) == []
    assert list(unbounded(request_bodies.JsonObject)) == []

    assert list(unbounded(request_bodies.Int64 | None)) == []

    assert list(unbounded(str)) == ["str"]
    assert list(unbounded(int | None)) == ["int"]
    assert list(unbounded(Annotated[int, Field(ge=0)])) == ["int"]
    assert list(unbounded(request_bodies.Some[str])) == ["str"]
    assert list(unbounded(request_bodies.Some[dict[str, Any] | str])) == ["str"]
    assert "list" in list(unbounded(list[text]))
    assert list(unbounded(dict[str, Any] | None)) == ["dict"]


@pytest.mark.parametrize("model", MODELS, ids=lambda one: one.__name__)
def test_every_field_has_a_bound(model: type[BaseModel]) -> None:
    found = {
        name: problems
        for name, field in model.model_fields.items()
        if (problems := list(unbounded(field.annotation, tuple(field.metadata))))
    }

    assert not found


def counted(content: bytes, part: int) -> JsonStructure:
    structure, came = JsonStructure(), bytearray()
    for at in range(0, len(content), part):
        came += content[at : at + part]
        structure.read(came)
    return structure


@pytest.mark.parametrize("part", [1, 2, 3, 7, 1 << 17])
def test_structure_is_counted_outside_of_strings_however_a_body_is_cut(part: int) -> None:
    value = {"a": ['x,y:"[', "\\", '\\",', "é,\u2028", [1, 2, {"b": {}}]], '"k\\': 'z,[{:"'}
    content = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

    structure = counted(content, part)

    assert (structure._values, structure._members) == (4 + 2 + 1, 3 + 2 + 3)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[" + "1," * (MOST_VALUES + 1), f"more than {MOST_VALUES} values"),
        ("[" * (MOST_MEMBERS + 1), f"more than {MOST_MEMBERS} lists"),
        ('{"a":' * MOST_MEMBERS, f"more than {MOST_MEMBERS} lists"),
    ],
    ids=["values", "lists", "members"],
)
def test_more_structure_than_can_be_parsed_in_time_is_refused(content: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        counted(content.encode(), 1 << 18)


@pytest.mark.parametrize(
    ("path", "fields", "param", "said"),
    [
        (
            "chat/completions",
            {"bad_words": ["x" * 257]},
            "bad_words",
            "bad_words.0: String should have at most 256",
        ),
        ("chat/completions", {"bad_words": ["x" * 257]}, "bad_words", "and it has 257"),
        ("chat/completions", {"bad_words": ["x"] * 129}, "bad_words", "has 129 bad words; the limit is 128"),
        ("chat/completions", {"stop": ["x"] * 10_001}, "stop", "10000"),
        ("chat/completions", {"n": -(1 << 63) - 1}, "n", "greater than or equal to -9223372036854775808"),
        ("completions", {"n": 1 << 63}, "n", "less than or equal to 9223372036854775807"),
        ("chat/completions", {"model": "m" * 1025}, "model", "1025"),
        ("chat/completions", {"tools": [{"a": "x" * MOST_CHARACTERS}]}, "tools", str(MOST_CHARACTERS)),
        ("chat/completions", {"chat_template_kwargs": {"a": [0] * 50_000}}, "chat_template_kwargs", "as JSON"),
        ("chat/completions", {f"k{i}": 1 for i in range(257)}, None, "257 unknown fields"),
        ("chat/completions", {"structured_outputs": {f"k{i}": 1 for i in range(200)}}, "structured_outputs", "200"),
        ("chat/completions", {"logit_bias": {f"x{i}": 1 for i in range(100_000)}}, "logit_bias", "x0"),
        (
            "completions",
            {"prompt": ["a"] * 11, "logit_bias": {str(i): 1 for i in range(100_000)}},
            "logit_bias",
            "100000 entries, and prompt has 11 prompts",
        ),
        (
            "chat/completions/batch",
            {"messages": [[{"role": "user", "content": "a"}]] * 1000, "user": "x" * 100_000},
            "messages",
            "too long for 1000 conversations",
        ),
    ],
)
def test_what_is_too_long_is_named_with_its_limit(
    server: Server, path: str, fields: dict[str, Any], param: str | None, said: str
) -> None:
    body = {"prompt": "a"} if path == "completions" else {"messages": [{"role": "user", "content": "a"}]}

    reply = server.http.post(f"/v1/{path}", json={**body, **fields})

    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param
    assert said in reply.json()["error"]["message"]


def test_long_logit_bias_is_taken(server: Server) -> None:
    assert server.chat(logit_bias={"65": 1.0, "66": -1}, max_tokens=1).status_code == 200
    reply = server.chat(logit_bias={str(i): 1 for i in range(100_000)}, max_tokens=1)
    assert reply.status_code in (200, 400)
    assert "vocab" in reply.text or reply.status_code == 200


def test_long_arguments_of_a_call_are_refused(server: Server) -> None:
    call = {
        "id": "a",
        "type": "function",
        "function": {"name": "f", "arguments": f'{{"a": "{"x" * MOST_CHARACTERS}"}}'},
    }
    messages = [{"role": "assistant", "tool_calls": [call]}, {"role": "user", "content": "a"}]

    reply = server.http.post("/v1/chat/completions", json={"messages": messages})

    assert reply.status_code == 400
    assert f"the limit is {MOST_CHARACTERS}" in reply.json()["error"]["message"]


def test_long_numbers_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="outside of strings"):
        counted(b"[" + b"1" * MOST_BYTES + b"]", 1 << 18)
