from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.api.letters import write_letters

from forearm.engine.constraints.grammar import Grammars, Matcher
from forearm.text.grammars.constraints import ConstraintRequest, grammar_of
from forearm.text.grammars.lark import warnings_of
from forearm.text.tokenizer.tokenizer import load_tokenizer
from forearm.text.tool_parsers import reasoning
from forearm.text.tool_parsers.call_layouts import CallLayout, layout_of
from forearm.text.tool_parsers.output_parser import OutputParser, ParserOptions, find_dialect
from forearm.text.tool_parsers.parts import CallArguments, CallBegin, TextPart, joined

EOS = 256
ENDS = {*b'"}]', EOS}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 9}, "days": {"type": "integer", "maximum": 99}},
    "required": ["city"],
    "additionalProperties": False,
}
EMPTY: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS: list[Any] = [('get "it"', SCHEMA), ("now", EMPTY)]
PLAIN: list[Any] = [("get_it", SCHEMA), ("now", EMPTY)]
SHAPED = [
    *("deepseek_v3", "deepseek_v31", "granite", "granite-20b-fc", "granite4", "hermes", "jamba", "llama3_json"),
    *("llama4_json", "mistral", "openai", "phi4_mini_json", "ernie45", "nemotron_json", "apertus", "cohere_command3"),
    *("cohere_command4", "gigachat3", "hunyuan_a13b", "inkling", "internlm", "longcat", "qwen3_json"),
]


@pytest.fixture(scope="module")
def grammars(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grammars]:
    """Yield the grammars of a model with one token a byte."""
    made = Grammars(write_letters(tmp_path_factory.mktemp("letters")), 258, [EOS])
    yield made
    made.close()


def spoken(matcher: Matcher, seed: int) -> str:
    """A text that the grammar allows, by chance; it inclines to end what is open."""
    chance, taken = random.Random(seed), bytearray()
    while len(taken) < 4000:
        allowed = np.flatnonzero(np.unpackbits(matcher.mask().view(np.uint8), bitorder="little"))
        ends = [one for one in allowed if one in ENDS]
        token = int(chance.choice(ends if ends and chance.random() < 0.5 else list(allowed)))
        if token == EOS:
            return taken.decode(errors="replace")
        matcher.take(token)
        taken.append(token)
    raise AssertionError(f"no end: {taken!r}")


def layout(name: str) -> CallLayout:
    found = layout_of(name, {"[ARGS]", "<|tool_call|>"})
    assert found is not None
    return found


@pytest.mark.parametrize("name", SHAPED)
def test_what_a_layout_imposes_is_read_as_calls_whose_arguments_fit(name: str, grammars: Grammars) -> None:
    one = layout(name)
    tag = one.required(TOOLS if one.is_json else PLAIN, True)
    start = grammars.start(grammar_of(ConstraintRequest("structural_tag", tag, "tools"), {})).result()

    for seed in range(6):
        text = spoken(start.fork(), seed)
        reader = OutputParser(find_dialect("", name, ""), ParserOptions("auto"))
        parts = joined([*reader.add(text, [0]), *reader.finish()])
        assert not any(isinstance(part, TextPart) for part in parts), text
        begun = [part.name for part in parts if isinstance(part, CallBegin)]
        arguments = [json.loads(part.text) for part in parts if isinstance(part, CallArguments)]
        assert begun
        assert len(begun) == len(arguments)
        for called, given in zip(begun, arguments, strict=True):
            assert called in ('get "it"', "get_it", "now")
            assert isinstance(given.get("city"), str) if called != "now" else given == {}


@pytest.mark.parametrize("name", SHAPED)
def test_one_call_is_imposed_where_more_are_not_wanted(name: str, grammars: Grammars) -> None:
    tag = layout(name).required([("now", EMPTY)], False)

    start = grammars.start(grammar_of(ConstraintRequest("structural_tag", tag, "tools"), {})).result()

    written = 2 if layout(name).is_named else 1
    assert all(spoken(start.fork(), seed).count("now") == written for seed in range(3))


@pytest.mark.parametrize("name", sorted({*SHAPED} - {"inkling", "openai"}))
def test_where_calls_may_come_text_is_free_and_calls_are_not(name: str, grammars: Grammars) -> None:
    one = layout(name)
    tag = one.chosen([("now", EMPTY)], True)
    start = grammars.start(grammar_of(ConstraintRequest("structural_tag", tag, "tools"), {})).result()

    def fits(text: str) -> bool:
        matcher = start.fork()
        return matcher.allowed_prefix([*text.encode(), EOS]) == len(text.encode()) + 1

    call = f"{one.begin}now{one.between}{{}}{one.end}"
    calls = f"{one.marker}{one.opening}{call}{one.separator}{call}{one.last}"
    assert fits("Just text.\n{} [1] <b>")
    assert fits("")
    assert fits(calls)
    assert fits(f"I look.\n{calls}") or not (one.marker or one.trigger)
    assert not fits(calls.replace("{}", '{"a": 1}'))
    assert not fits(calls.replace("now", "never"))


@pytest.mark.parametrize(
    "name",
    [
        *("deepseek_v3", "deepseek_v31", "granite", "mistral", "openai", "phi4_mini_json", "apertus", "gigachat3"),
        *("cohere_command3", "inkling", "internlm", "longcat"),
    ],
)
def test_markers_that_are_special_tokens_are_imposed_as_such(name: str, tmp_path: Path) -> None:
    marks = sorted(find_dialect("", name, "none").marks("auto"))
    tokenizer = load_tokenizer(write_letters(tmp_path, special=marks))
    special = {tokenizer.added[one]: one for one in tokenizer.special_ids}
    made = Grammars(tmp_path, 258 + len(marks), [EOS])
    one = layout(name)

    def fits(text: str, tag: Any) -> bool:
        ids = [*tokenizer.encode(text), EOS]
        start = made.start(grammar_of(ConstraintRequest("structural_tag", tag, "tools"), special)).result()
        return start.allowed_prefix(ids) == len(ids)

    called = f"{'now' if one.is_named else ''}{one.begin}now{one.between}{{}}{one.end}"
    call = f"{one.marker}{one.opening}{called}{one.last}"
    assert len(tokenizer.encode(call)) < len(call.encode()) - 5
    assert fits(call, one.required([("now", EMPTY)], False))
    assert not fits("Text.", one.required([("now", EMPTY)], False))
    if not one.messages:  # test_strict_calls.py has its messages
        chosen = one.chosen([("now", EMPTY)], False)
        assert fits(f"Text. {call}", chosen)
        assert fits("Text.", chosen)
        assert not fits(call.replace("now", "never"), chosen)
    made.close()


def test_gpt_oss_may_think_before_a_call_that_must_be(grammars: Grammars) -> None:
    one = layout("openai")
    assert one.messages is not None
    tag = one.required([("now", EMPTY)], True, one.messages.before([one.messages.reasoning], None))
    start = grammars.start(grammar_of(ConstraintRequest("structural_tag", tag, "tools"), {})).result()
    call = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}"

    for text in (call, f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{call}"):
        assert start.fork().allowed_prefix([*text.encode(), EOS]) == len(text.encode()) + 1
    assert start.fork().allowed_prefix(b"<|channel|>final") < len(b"<|channel|>f")


@pytest.mark.parametrize("name", ["qwen3", "mistral", "granite"])
def test_what_is_imposed_on_an_answer_leaves_the_model_its_thought(name: str, grammars: Grammars) -> None:
    form = reasoning.FORMATS[name]
    imposed = grammar_of(ConstraintRequest("json", EMPTY, "response_format"), {})
    start = grammars.start(form.before(imposed, {})).result()

    def fits(text: str) -> bool:
        return start.fork().allowed_prefix([*text.encode(), EOS]) == len(text.encode()) + 1

    thought = f"{form.begins[0]}\nIs {{}} right? [1] <b> {form.begins[0]}\n{form.ends[0]}"
    assert fits("{}")
    assert fits(thought + "{}")
    assert fits(thought + "\n\n{}")
    assert not fits(thought)
    assert not fits(thought + '{"a": 1}')
    assert not fits("Hm. {}")


def test_what_is_imposed_on_an_answer_leaves_inkling_the_end_of_its_message(grammars: Grammars) -> None:
    form = reasoning.FORMATS["inkling"]
    for kind, value, text in (("json", EMPTY, "{}"), ("regex", "[0-9]+", "12"), ("choice", ["a", "b"], "a")):
        imposed = grammar_of(ConstraintRequest(kind, value, "response_format"), {})
        start = grammars.start(form.closed(imposed, {})).result()
        for written, fits in ((text, True), (f"{text}{form.closes}", True), (f"{text}{form.closes}{text}", False)):
            ids = [*written.encode(), EOS]
            assert (start.fork().allowed_prefix(ids) == len(ids)) is fits, written
    assert reasoning.FORMATS["qwen3"].closed("as it is", {}) == "as it is"


def test_a_grammar_around_another_warns_as_that_one_does() -> None:
    imposed = grammar_of(ConstraintRequest("regex", "(?<=a)b", "structured_outputs"), {})

    for made in (reasoning.FORMATS["qwen3"].before(imposed, {}), reasoning.FORMATS["inkling"].closed(imposed, {})):
        assert len(warnings_of(made)) == 1
        assert warnings_of(made) == warnings_of(imposed)


def test_formats_whose_arguments_are_no_json_have_no_layout() -> None:
    assert [layout_of(name, ()) for name in ("pythonic", "qwen3_coder", "", "none")] == [None] * 4
