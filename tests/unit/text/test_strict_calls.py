"""Strict calls where the model chooses to call, in the formats that are no JSON object: keywords, tags, messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.api.letters import write_letters
from tests.unit.text.test_call_layouts import EMPTY, EOS, spoken

from forearm.engine.constraints.grammar import Grammars, Matcher
from forearm.errors import InvalidRequest
from forearm.text.grammars.constraints import ConstraintRequest, grammar_of
from forearm.text.grammars.lark import Lark
from forearm.text.tokenizer.tokenizer import load_tokenizer
from forearm.text.tool_parsers.call_layouts import CallLayout, Tool, layout_of
from forearm.text.tool_parsers.harmony import INKLING_MARKS, MARKS
from forearm.text.tool_parsers.output_parser import OutputParser, ParserOptions, find_dialect
from forearm.text.tool_parsers.parts import AnswerPart, CallArguments, CallBegin, ReasoningPart, joined
from forearm.text.tool_parsers.strict_calls import STRICT_CALLS

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 9},
        "days": {"type": "integer", "minimum": 0, "maximum": 99},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "dry": {"$ref": "#/$defs/Dry"},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
    },
    "required": ["days", "dry"],
    "additionalProperties": False,
    "$defs": {"Dry": {"type": "boolean"}},
}
TOOLS: list[Tool] = [("get_it", SCHEMA), ("now", EMPTY), ("free", {"type": "object"})]
FORMATS = ("pythonic", "qwen3_coder")


@pytest.fixture(scope="module")
def grammars(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grammars]:
    """Yield the grammars of a model with one token a byte."""
    made = Grammars(write_letters(tmp_path_factory.mktemp("letters")), 258, [EOS])
    yield made
    made.close()


def matcher(grammars: Grammars, name: str, tools: list[Tool], parallel: bool = True) -> Matcher:
    form, lark = STRICT_CALLS.get(name), Lark({})
    assert form is not None
    return grammars.start(lark.text(form(lark, tools, parallel))).result()


def fits(start: Matcher, text: str) -> bool:
    ids = [*text.encode(), EOS]
    return start.fork().allowed_prefix(ids) == len(ids)


def read(name: str, text: str, tools: list[Tool] = TOOLS) -> list[AnswerPart]:
    reader = OutputParser(find_dialect("", name, ""), ParserOptions("auto", dict(tools)))
    return joined([*reader.add(text, [0]), *reader.finish()])


def tag(name: str, **values: str) -> str:
    """A call as Qwen 3 Coder writes it."""
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pythonic", ""),
        ("pythonic", "Just text. [1] <b>\n(x)"),
        ("pythonic", "<b>"),
        ("pythonic", "[now()]"),
        ("pythonic", '[get_it(days=3, dry=true), free(a=[1, "b"], c=null)]'),
        ("pythonic", '[get_it(city="x", days=3, unit="F", dry=false, tags=["a", "b"])]'),
        ("pythonic", "<|python_start|>[now()]<|python_end|>"),
        ("qwen3_coder", ""),
        ("qwen3_coder", "Just text. {} [1] <b> </b>\n"),
        ("qwen3_coder", f"I look.\n{tag('now')}\n{tag('now')}"),
        ("qwen3_coder", "<function=now>\n</function>"),
        ("qwen3_coder", tag("get_it", days="3", dry="true")),
        ("qwen3_coder", tag("get_it", city="<b>\n", days="3", unit="F", dry="false", tags='["a", "b<p>"]')),
        ("qwen3_coder", tag("free", a="1", b="any\n\ntext")),
    ],
)
def test_text_and_calls_that_fit_are_free(name: str, text: str, grammars: Grammars) -> None:
    assert fits(matcher(grammars, name, TOOLS), text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pythonic", "[never()]"),
        ("pythonic", "[now(a=1)]"),
        ("pythonic", "[get_it(days=3)]"),
        ("pythonic", "[get_it(days=100, dry=true)]"),
        ("pythonic", '[get_it(days=3, unit="K", dry=true)]'),
        ("pythonic", "[now()] and more"),
        ("pythonic", "<|python_start|>text"),
        ("qwen3_coder", tag("never")),
        ("qwen3_coder", tag("now", a="1")),
        ("qwen3_coder", "<function=never>\n</function>"),
        ("qwen3_coder", tag("get_it", days="3")),
        ("qwen3_coder", tag("get_it", days="three", dry="true")),
        ("qwen3_coder", tag("get_it", days="3", unit="K", dry="true")),
        ("qwen3_coder", tag("get_it", city="0123456789", days="3", dry="true")),
        ("qwen3_coder", tag("get_it", city="</function>", days="3", dry="true")),
        ("qwen3_coder", tag("get_it", days="3", dry="true", tags='["</tool_call>"]')),
        ("qwen3_coder", tag("get_it", days="3", dry="true", tags='["<<parameter="]')),
    ],
)
def test_calls_that_do_not_fit_cannot_be_written(name: str, text: str, grammars: Grammars) -> None:
    assert not fits(matcher(grammars, name, TOOLS), text)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", FORMATS)
def test_what_may_be_written_is_read_as_arguments_that_fit(name: str, seed: int, grammars: Grammars) -> None:
    start = matcher(grammars, name, TOOLS[:2])
    begun = b"[get_it(" if name == "pythonic" else b"<function=get_it>"
    for token in begun:
        start.take(token)

    text = begun.decode() + spoken(start, seed)

    first, given = read(name, text)[:2]
    assert isinstance(first, CallBegin)
    assert isinstance(given, CallArguments)
    found = json.loads(given.text)
    assert first.name == "get_it"
    assert found.keys() >= {"days", "dry"}
    assert found.keys() <= SCHEMA["properties"].keys()
    assert (type(found["dry"]), found.get("unit", "C") in ("C", "F")) == (bool, True)
    assert 0 <= found["days"] <= 99
    assert len(found.get("city", "")) <= 9
    assert all(isinstance(one, str) for one in found.get("tags", []))


@pytest.mark.parametrize(("name", "twice"), [("pythonic", "[now(), now()]"), ("qwen3_coder", tag("now") * 2)])
def test_one_call_is_left_where_more_are_not_wanted(name: str, twice: str, grammars: Grammars) -> None:
    assert fits(matcher(grammars, name, TOOLS), twice)
    assert not fits(matcher(grammars, name, TOOLS, parallel=False), twice)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"anyOf": [EMPTY]}, "anyOf"),
        ({"type": "array"}, "array"),
        ({"type": "object", "properties": {}, "required": ["a"]}, "required has 'a'"),
        ({"type": "object", "properties": {"a": {"$ref": "#/properties/b"}, "b": {}}}, "does not refer to \\$defs"),
        ({"type": "object", "properties": {"a > b": {"type": "integer"}}}, "a > b"),
        ({"type": "object", "properties": {"a": {"type": "array", "contains": {}}}}, "contains"),
    ],
)
def test_what_cannot_be_imposed_is_refused_by_name(name: str, schema: dict[str, Any], why: str) -> None:
    form, lark = STRICT_CALLS.get(name), Lark({})
    assert form is not None

    with pytest.raises(InvalidRequest, match=why) as refused:
        form(lark, [("f", schema)], True)

    assert refused.value.param == "tools"


@pytest.mark.parametrize("rule", [{"pattern": "a+"}, {"format": "date"}, {"enum": ["</parameter>"]}])
def test_qwens_text_is_refused_rules_that_need_quotes(rule: dict[str, Any]) -> None:
    form, lark = STRICT_CALLS.get("qwen3_coder"), Lark({})
    assert form is not None

    with pytest.raises(InvalidRequest):
        form(lark, [("f", {"type": "object", "properties": {"a": {"type": "string", **rule}}})], True)


@pytest.fixture(scope="module")
def channels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Grammars, Any]]:
    """A model whose marks are special tokens, as gpt-oss' and Inkling's are, and its tokenizer."""
    folder: Path = tmp_path_factory.mktemp("channels")
    marks = sorted({*MARKS, *INKLING_MARKS})
    tokenizer = load_tokenizer(write_letters(folder, special=marks))
    made = Grammars(folder, 258 + len(marks), [EOS])
    yield made, tokenizer
    made.close()


def messages(name: str) -> CallLayout:
    layout = layout_of(name, ())
    assert layout is not None
    return layout


def fits_messages(channels: tuple[Grammars, Any], tag: Any, text: str) -> bool:
    grammars, tokenizer = channels
    special = {tokenizer.added[one]: one for one in tokenizer.special_ids}
    start = grammars.start(grammar_of(ConstraintRequest("structural_tag", tag, "tools"), special)).result()
    ids = [*tokenizer.encode(text), EOS]
    return start.allowed_prefix(ids) == len(ids)


THOUGHT = "<|channel|>analysis<|message|>Is it? {}<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.get_it <|constrain|>json<|message|>{"days": 3, "dry": true}'
SAID = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>"


@pytest.mark.parametrize(
    ("text", "plain", "budget", "json"),
    [
        (CALL, True, True, True),
        (SAID + CALL, True, True, True),
        (THOUGHT + THOUGHT + SAID + CALL, True, False, True),
        (f"{FINAL}Text.", True, True, False),
        (f"{THOUGHT}{FINAL}Text.", True, False, False),
        (FINAL + "{}", True, True, True),
        (CALL.replace("3", "300"), False, False, False),
        (THOUGHT + CALL.replace("true", "1"), False, False, False),
        (CALL.replace("get_it", "never"), False, False, False),
        ("Text.", False, False, False),
    ],
)
def test_gpt_oss_messages_are_free_but_for_strict_calls(
    text: str, plain: bool, budget: bool, json: bool, channels: tuple[Grammars, Any]
) -> None:
    """Send three requests: text as the answer, a reasoning budget (it does not reason), and JSON as the answer."""
    tags = [
        messages("openai").chosen_messages(TOOLS[:1], True, True),
        messages("openai").chosen_messages(TOOLS[:1], True, False),
        messages("openai").chosen_messages(TOOLS[:1], True, True, None, EMPTY),
    ]

    assert [fits_messages(channels, tag, text) for tag in tags] == [plain, budget, json]


HM = "<|content_thinking|>Is it? {}<|end_message|><|message_model|>"
LOOK = "<|content_text|>I look.<|end_message|>"
NAMED = 'get_it<|content_invoke_tool_json|>{"name":"get_it","args":{"days": 3, "dry": true}}<|end_message|>'
TWO_NAMED = f"{NAMED}<|message_model|>{NAMED}"


@pytest.mark.parametrize(
    ("text", "plain", "budget", "json"),
    [
        (NAMED, True, True, True),
        (TWO_NAMED, True, True, True),
        (f"{HM}{HM}{NAMED}", True, False, True),
        (f"{HM}{LOOK}<|message_model|>{NAMED}", True, False, False),
        (LOOK, True, True, False),
        (f"{HM}<|content_text|>{{}}<|end_message|>", True, False, True),
        (f"{HM}<|content_text|>[]<|end_message|>", True, False, False),
        (LOOK.removesuffix("<|end_message|>"), False, False, False),
        (NAMED.replace("3", "300"), False, False, False),
        (NAMED.replace("get_it", "never"), False, False, False),
        (NAMED.replace('"get_it', '"now'), False, False, False),
        (NAMED.removeprefix("get_it"), False, False, False),
        (f"{NAMED}{NAMED}", False, False, False),
        ("Text.", False, False, False),
    ],
)
def test_inklings_messages_are_free_but_for_strict_calls(
    text: str, plain: bool, budget: bool, json: bool, channels: tuple[Grammars, Any]
) -> None:
    """Send three requests: text as the answer, a reasoning budget (it does not reason), and JSON as the answer."""
    tags = [
        messages("inkling").chosen_messages(TOOLS[:1], True, True),
        messages("inkling").chosen_messages(TOOLS[:1], True, False),
        messages("inkling").chosen_messages(TOOLS[:1], True, True, None, EMPTY),
    ]

    assert [fits_messages(channels, tag, text) for tag in tags] == [plain, budget, json]


def test_one_call_of_inkling_is_left_where_more_are_not_wanted(channels: tuple[Grammars, Any]) -> None:
    one = messages("inkling").chosen_messages(TOOLS[:1], False, True)

    assert fits_messages(channels, one, NAMED)
    assert not fits_messages(channels, one, TWO_NAMED)


@pytest.mark.parametrize("name", ["openai", "inkling"])
def test_a_message_that_the_prompt_opened_ends_before_a_call(name: str, channels: tuple[Grammars, Any]) -> None:
    layout = messages(name)
    marks = layout.messages
    assert marks is not None
    call, rest = CALL if name == "openai" else NAMED, f"Hm.{marks.end}{marks.next}"

    def fits(text: str, opened: bool | None, thinks: bool) -> tuple[bool, bool]:
        required = layout.required(TOOLS[:1], True, marks.before([marks.reasoning] if thinks else [], opened))
        chosen = layout.chosen_messages(TOOLS[:1], True, thinks, opened)
        return fits_messages(channels, required, text), fits_messages(channels, chosen, text)

    thought = f"{marks.reasoning}Hm.{marks.end}{marks.next}"
    ended = f"{marks.end}{marks.next}"
    assert fits(rest + call, True, True) == fits(rest + thought + call, True, True) == (True, True)
    assert fits(rest + call, True, False) == (False, False)  # with a budget there is no reasoning
    assert fits(ended + call, True, False) == (True, True)
    assert fits(rest + call, False, False) == (True, True)
    assert fits(call, True, True) == fits(rest + call, None, True) == (False, False)
    assert fits("So." + (marks.end if marks.closes else ""), False, True) == (False, True)
    assert fits("So." + (marks.end if marks.closes else ""), True, True) == (False, False)


def test_an_answer_of_json_that_the_prompt_opened_is_json_to_its_end(channels: tuple[Grammars, Any]) -> None:
    opened = messages("inkling").chosen_messages(TOOLS[:1], True, True, False, EMPTY)

    assert fits_messages(channels, opened, "{}<|end_message|>")
    assert not fits_messages(channels, opened, "So.<|end_message|>")
    assert not fits_messages(channels, opened, f"So.<|end_message|><|message_model|>{NAMED}")


def test_inklings_required_calls_are_read_as_calls(channels: tuple[Grammars, Any]) -> None:
    layout = messages("inkling")
    assert layout.messages is not None
    tag = layout.required(TOOLS, True, layout.messages.before([layout.messages.reasoning], None))
    text = f'{HM}{TWO_NAMED}<|message_model|>now<|content_invoke_tool_json|>{{"name":"now","args":{{}}}}<|end_message|>'

    assert fits_messages(channels, tag, text)
    assert not fits_messages(channels, tag, LOOK)
    assert not fits_messages(channels, tag, HM)
    parts = read("inkling", text)
    assert [part.name for part in parts if isinstance(part, CallBegin)] == ["get_it", "get_it", "now"]
    assert [part.text for part in parts if isinstance(part, CallArguments)] == ['{"days": 3, "dry": true}'] * 2 + ["{}"]
    assert [type(part) for part in parts] == [ReasoningPart, *[CallBegin, CallArguments] * 3]
