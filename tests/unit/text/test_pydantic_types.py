"""Every common type of a pydantic field can be asked for, and what is written fits its schema and the type itself."""

from __future__ import annotations

import enum
import json
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from pathlib import Path
from re import Pattern
from typing import Annotated, Any, Literal, NamedTuple, NotRequired
from uuid import UUID

import jsonschema
import pydantic
import pytest
from openai.lib._pydantic import to_strict_json_schema
from pydantic import BaseModel, ConfigDict, Field, RootModel, computed_field, create_model
from pydantic.dataclasses import dataclass
from tests.masked import Writer
from typing_extensions import TypedDict

from forearm.model.checkpoint.hub import DEMO_MODEL
from forearm.text.grammars.constraints import ConstraintRequest
from forearm.text.grammars.grammar_check import GrammarCheck
from forearm.text.grammars.lark import warnings_of

WRITER = Writer(DEMO_MODEL, 2)
CHECK = GrammarCheck(WRITER.tokenizer)


class Color(enum.Enum):
    red, blue = "red", "blue"


class Number(enum.IntEnum):
    one, two = 1, 2


class Inner(BaseModel):
    x: int
    y: str | None = None


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str = Field(max_length=5)


class Node(BaseModel):
    value: int
    next: Node | None = None


@dataclass
class Place:
    a: int
    b: bool = True


class Keys(TypedDict):
    a: int
    b: NotRequired[bool]


class Pair(NamedTuple):
    a: int
    b: bool


class Root(RootModel[list[int]]):
    pass


class Computed(BaseModel):
    a: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return 2 * self.a


class Alias(BaseModel):
    a: int = Field(alias="theA")


class Derived(Inner):
    z: Literal["z"] = "z"


class Forbidding(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int


class Allowing(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


Short = Annotated[str, Field(max_length=5)]
# Types that accept every value their schemas allow.
SOUND: dict[str, Any] = {
    **{kind.__name__: kind for kind in (str, int, float, bool, bytes, date, datetime, time, timedelta, UUID, Path)},
    **{kind.__name__: kind for kind in (IPv4Address, IPv6Address, IPv4Network, IPv4Interface, IPv6Interface)},
    **{name: getattr(pydantic, name) for name in ("UUID1", "UUID3", "UUID4", "UUID5", "UUID7", "IPvAnyAddress")},
    **{name: getattr(pydantic, name) for name in ("AnyUrl", "AwareDatetime", "SecretStr", "Base64Bytes", "StrictInt")},
    "None": None,
    "Enum": Color,
    "IntEnum": Number,
    "Literal": Literal["a", 1, True],
    "Optional": int | None,
    "Union": int | Short | list[int],
    "discriminated": Annotated[Cat | Dog, Field(discriminator="kind")],
    "list": list[int],
    "set": set[int],
    "set of few": set[Color],
    "frozenset": frozenset[Short],
    "tuple": tuple[int, Short],
    "tuple of any length": tuple[int, ...],
    "Sequence": Sequence[int],
    "dict": dict[Short, int],
    "dict of literals": dict[Literal["a", "b"], int],
    "dict of dates": dict[date, int],
    "dict of UUIDs": dict[UUID, int],
    "dict with a pattern": dict[Annotated[str, Field(pattern="^[a-z]+$")], int],
    "str": Annotated[str, Field(min_length=2, max_length=5, pattern="^[a-z]+$")],
    "bounded int": Annotated[int, Field(gt=3, le=10, multiple_of=2)],
    "bounded float": Annotated[float, Field(ge=0, lt=1)],
    "bounded list": Annotated[list[int], Field(min_length=1, max_length=3)],
    "model": Inner,
    "models": list[Inner],
    "optional model": Inner | None,
    "recursive": Node,
    "dataclass": Place,
    "TypedDict": Keys,
    "NamedTuple": Pair,
    "RootModel": Root,
    "Any": Any,
    "computed": Computed,
    "alias": Alias,
    "derived": Derived,
    "forbid": Forbidding,
    "allow": Allowing,
}
# Types that check more than their schemas say.
LOOSE: dict[str, Any] = {
    "Decimal": Decimal,
    "bounded Decimal": Annotated[Decimal, Field(max_digits=10, decimal_places=2, gt=0)],
    "dict of int": dict[int, Short],
    "Json": pydantic.Json[list[int]],
    "Pattern": Pattern[str],
    "IPv6Network": IPv6Network,
    **{name: getattr(pydantic, name) for name in ("HttpUrl", "PostgresDsn", "Base64Str", "Base64UrlStr", "ByteSize")},
    **{name: getattr(pydantic, name) for name in ("PastDate", "FutureDate", "PastDatetime", "NaiveDatetime")},
    **{name: getattr(pydantic, name) for name in ("IPvAnyNetwork", "FilePath")},
}
WARNED = {"set", "frozenset"}


@pytest.mark.parametrize("name", [*SOUND, *LOOSE])
def test_what_is_written_fits_the_schema_and_the_type(name: str) -> None:
    model = create_model("Model", field=((SOUND | LOOSE)[name], ...))
    schema = model.model_json_schema()
    grammar = CHECK.start(ConstraintRequest("json", schema, "f")).result()

    texts = [text for seed in range(8) if (text := WRITER.text(grammar, seed)) is not None]

    assert texts
    checker = None if name == "Pattern" else jsonschema.Draft202012Validator.FORMAT_CHECKER
    for text in texts:
        jsonschema.Draft202012Validator(schema, format_checker=checker).validate(json.loads(text))
        if name in SOUND:
            model.model_validate_json(text)
    assert bool(warnings_of(grammar)) == (name in WARNED)


@pytest.mark.parametrize("name", [*SOUND, *LOOSE])
def test_the_openai_clients_strict_schema_is_taken(name: str) -> None:
    if name in ("allow", "Any", "RootModel") or name.startswith("dict"):
        pytest.skip("the client itself does not take it, or makes an empty object of it")
    schema = to_strict_json_schema(create_model("Model", field=((SOUND | LOOSE)[name], ...)))
    grammar = CHECK.start(ConstraintRequest("json", schema, "f")).result()

    texts = [text for seed in range(2) if (text := WRITER.text(grammar, seed)) is not None]

    for text in texts:
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))


def test_patterns_of_decimals_as_pydantic_wrote_them_are_imposed() -> None:
    loose = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"
    bounded = r"^(?!^[-+.]*$)[+-]?0*(?:\d{0,8}|(?=[\d.]{1,11}0*$)\d{0,8}\.\d{0,2}0*)$"
    for pattern in (loose, bounded):
        schema = {"anyOf": [{"type": "number"}, {"type": "string", "pattern": pattern}]}
        grammar = CHECK.start(ConstraintRequest("json", schema, "f")).result()
        texts = [text for seed in range(20) if (text := WRITER.text(grammar, seed)) is not None]

        assert warnings_of(grammar) == []
        assert any(text.startswith('"') for text in texts)
        for text in texts:
            Decimal(json.loads(text))
