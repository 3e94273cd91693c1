"""The format of an answer, under any client's name of it, reaches the engine as a grammar, or is refused by name."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest
from pydantic import BaseModel
from tests.api.letters import write_letters
from tests.api.server import Server, StartServer

from forearm.engine.constraints.grammar import Grammars

_EOS = 256
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
NAMED = {"name": "person", "description": "one", "schema": PERSON, "strict": True}
TAG = {"structures": [{"begin": "<f=a>", "schema": {"type": "integer"}, "end": "</f>"}], "triggers": ["<f="]}
PERSONS_TEXT, NO_PERSON = '{"name": "Ada", "age": 36}', '{"name": "Ada"}'


@pytest.fixture(scope="module")
def grammars(tmp_path_factory: pytest.TempPathFactory) -> Grammars:
    """Return the engine's grammars for the letters model."""
    return Grammars(write_letters(tmp_path_factory.mktemp("letters")), 258, [_EOS])


def fits(grammars: Grammars, grammar: str | None, text: str) -> bool:
    """Return whether the masks allow the whole text, token by token."""
    assert grammar is not None, "the engine got no grammar"
    matcher = grammars.start(grammar).result()
    for token in [*text.encode(), _EOS]:
        if not matcher.mask()[token // 32] >> token % 32 & 1:
            return False
        if token != _EOS:
            matcher.take(token)
    return True


@pytest.mark.parametrize(
    ("fields", "right", "wrong"),
    [
        ({"response_format": {"type": "json_object"}}, '{"a": [1]}', "[1]"),
        ({"response_format": {"type": "json_schema", "json_schema": NAMED}}, PERSONS_TEXT, NO_PERSON),
        ({"response_format": {"type": "json_object", "schema": PERSON}}, PERSONS_TEXT, NO_PERSON),
        ({"response_format": {"type": "structural_tag", **TAG}}, "so <f=a>12</f>.", "so <f=a>x</f>"),
        ({"structured_outputs": {"json": PERSON}}, PERSONS_TEXT, NO_PERSON),
        ({"structured_outputs": {"json": json.dumps(PERSON)}}, PERSONS_TEXT, NO_PERSON),
        ({"structured_outputs": {"json": {}}}, "[1, 2]", "[1, 2"),
        ({"structured_outputs": {"json": PERSON, "disable_any_whitespace": True}}, '{"name":"","age":0}', PERSONS_TEXT),
        (
            {"structured_outputs": {"json": PERSON, "whitespace_pattern": "_"}},
            '{"name":_"","age":_0}',
            '{"name": "","age":0}',
        ),
        (
            {"structured_outputs": {"json": {"properties": {"a": {}}}, "disable_additional_properties": True}},
            '{"a": 1}',
            '{"a": 1, "b": 2}',
        ),
        ({"structured_outputs": {"regex": "^a+b?$"}}, "aab", "b"),
        ({"structured_outputs": {"choice": ["yes", 'no "?"\n']}}, 'no "?"\n', "no"),
        ({"structured_outputs": {"grammar": 'root ::= "a" [0-9]{2}'}}, "a12", "a1"),
        ({"structured_outputs": {"grammar": 'start: "a" number\nnumber: /[0-9]+/'}}, "a12", "a"),
        ({"structured_outputs": {"json_object": True}}, "{}", "1"),
        ({"structured_outputs": {"structural_tag": json.dumps(TAG)}}, "<f=a>-1</f>", "<f=b>1</f>"),
        ({"guided_json": PERSON}, PERSONS_TEXT, NO_PERSON),
        ({"guided_json": {}}, "1", "one"),
        ({"guided_json": PERSON, "guided_whitespace_pattern": "_"}, '{_"name":"","age":0}', PERSONS_TEXT),
        ({"guided_regex": "[ab]{2}"}, "ab", "abc"),
        ({"guided_choice": ["x", "y"], "guided_decoding_backend": "outlines"}, "y", "z"),
        ({"guided_grammar": 'root ::= "q"'}, "q", "r"),
        ({"guided_json_object": True}, "{}", "[]"),
        ({"grammar": 'root ::= "q"'}, "q", "r"),
        ({"json_schema": PERSON}, PERSONS_TEXT, NO_PERSON),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else None,
)
def test_a_format_reaches_the_engine_as_its_grammar(
    server: Server, grammars: Grammars, fields: dict[str, Any], right: str, wrong: str
) -> None:
    for ask in (server.chat, server.complete):
        assert ask(**fields).status_code == 200
        grammar = server.engine.submits[-1].params.grammar

        assert fits(grammars, grammar, right)
        assert not fits(grammars, grammar, wrong)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": {"type": "text"}},
        {"response_format": None, "structured_outputs": None, "guided_json": None},
        {"guided_json_object": False, "guided_decoding_backend": "auto"},
    ],
)
def test_a_request_without_a_format_gets_no_grammar(server: Server, fields: dict[str, Any]) -> None:
    assert server.chat(**fields).status_code == 200

    assert server.engine.submits[-1].params.grammar is None


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"response_format": {"type": "xml"}}, "response_format", "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "schema is missing"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format", "is missing"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, "response_format", "name"),
        ({"response_format": {"type": "structural_tag"}}, "response_format", "structures"),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "regex, choice"),
        ({"structured_outputs": {"regexp": "a"}}, "structured_outputs", "regexp"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs", "none"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs", "at least one"),
        ({"structured_outputs": {"choice": ["x"] * 10_001}}, "structured_outputs", "10000"),
        ({"structured_outputs": {"regex": "(?=a)b"}}, "structured_outputs", "no text fits"),
        ({"structured_outputs": {"regex": r"(a)\1"}}, "structured_outputs", "backreferences"),
        ({"structured_outputs": {"regex": "a" * 16_385}}, "structured_outputs", "16384"),
        ({"structured_outputs": {"grammar": "root = a"}}, "structured_outputs", "EBNF"),
        ({"structured_outputs": {"grammar": "start: nobody"}}, "structured_outputs", "nobody"),
        ({"structured_outputs": {"grammar": 'start: %json {"not": {}}'}}, "structured_outputs", "'not'"),
        (
            {"structured_outputs": {"json": {"$ref": "http://example.com/x.json"}}},
            "structured_outputs",
            "within the sch",
        ),
        ({"structured_outputs": {"json": {"$ref": "#"}}}, "structured_outputs", "no text fits"),
        ({"guided_json": {"type": "object", "dependentRequired": {}}}, "guided_json", "'dependentRequired'"),
        ({"guided_json": {"properties": {"a": {"items": {"contains": True}}}}}, "guided_json", "a/items"),
        ({"guided_json": {"multipleOf": 1234567}}, "guided_json", "multipleOf"),
        ({"guided_json": {"x-guidance": {"lenient": True}}}, "guided_json", "x-guidance"),
        ({"guided_json": "{"}, "guided_json", "JSON"),
        ({"guided_json": {"enum": ["x" * 300_000]}}, "guided_json", "262144"),
        ({"guided_choice": "yes"}, "guided_choice", "array"),
        ({"guided_regex": "("}, "guided_regex", "unclosed"),
        ({"grammar": "x"}, "grammar", "EBNF"),
        ({"json_schema": {"type": "nothing"}}, "json_schema", "nothing"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex", "one format"),
        ({"guided_choice": ["a"], "guided_json": {}}, "guided_choice", "one format"),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else None,
)
def test_a_format_that_cannot_be_imposed_is_a_400_that_names_it(
    server: Server, fields: dict[str, Any], param: str, said: str
) -> None:
    before = len(server.engine.submits)
    for ask, stream in itertools.product((server.chat, server.complete), (False, True)):
        reply = ask(**fields, stream=stream)

        assert reply.status_code == 400, reply.text
        assert reply.json()["error"]["param"] == param
        assert said in reply.json()["error"]["message"]
        assert len(reply.json()["error"]["message"]) < 1000
    assert len(server.engine.submits) == before


def test_the_operator_may_forbid_white_space_and_more_properties(start_server: StartServer, grammars: Grammars) -> None:
    rules = {"disable_any_whitespace": True, "disable_additional_properties": True}
    server = start_server(structured_outputs_config=rules)

    server.chat(guided_json={"properties": {"a": {}}})

    grammar = server.engine.submits[-1].params.grammar
    assert fits(grammars, grammar, '{"a":1}')
    assert not fits(grammars, grammar, '{"a": 1}')
    assert not fits(grammars, grammar, '{"b":1}')


def test_a_schema_nested_without_end_is_a_400(server: Server) -> None:
    schema: dict[str, Any] = {}
    for _ in range(70):
        schema = {"items": schema}

    reply = server.chat(guided_json=schema)

    assert reply.status_code == 400
    assert "deeper than 64" in reply.json()["error"]["message"]


def test_the_openai_clients_parse_sends_a_schema_that_is_taken(server: Server, grammars: Grammars) -> None:
    class Person(BaseModel):
        name: str
        age: int

    person = Person(name="Ada", age=36).model_dump_json()
    completion = server.openai.chat.completions.parse(
        model="letters", messages=[{"role": "user", "content": person}], response_format=Person
    )

    assert fits(grammars, server.engine.submits[-1].params.grammar, person)
    assert completion.choices[0].message.content == person


def test_random_bytes_as_formats_never_break_the_server(server: Server) -> None:
    rng = random.Random(5)
    words = [
        "root ::= ",
        "start: ",
        '"a"',
        "[",
        "(",
        ")",
        "|",
        "*",
        "{9,}",
        "\n",
        "/",
        "%json {",
        "}",
        "<[",
        "\\",
        "é",
        "~",
    ]
    for _ in range(60):
        text = "".join(rng.choices(words, k=rng.randint(1, 12)))
        for field in ("guided_grammar", "guided_regex", "guided_json"):
            assert server.chat(**{field: text}).status_code in (200, 400)
