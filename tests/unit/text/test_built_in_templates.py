"""Chat templates that are built in, for models that are published without one. Expected prompts were made by DeepSeek's
encoding_dsv32.py as vLLM 0.32 has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forearm.errors import InvalidRequest
from forearm.text.templates.chat_template import ChatTemplate, find_chat_template
from forearm.text.templates.messages import render_chat
from forearm.text.tool_parsers import FORMATS
from forearm.text.tool_parsers.output_parser import OutputParser, ParserOptions, find_dialect
from forearm.text.tool_parsers.parts import CallArguments, CallBegin, TextPart, joined

USER, AGAIN = {"role": "user", "content": "hi"}, {"role": "user", "content": "bye"}
SYSTEM = {"role": "system", "content": "Be brief."}
ARGUMENTS = {"city": 'Oslo é\n"x"', "days": 3, "units": ["C", {"a": None}], "now": True}
WEATHER = {"type": "function", "id": "a", "function": {"name": "get_weather", "arguments": json.dumps(ARGUMENTS)}}
NOW = {"type": "function", "id": "b", "function": {"name": "now", "arguments": "{}"}}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("é", "now")]
SUN, NOON = {"role": "tool", "content": "sun"}, {"role": "tool", "content": "12:00"}
BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
CALLS = (
    '\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n'
    '<｜DSML｜parameter name="city" string="true">Oslo é\n"x"</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="units" string="false">["C", {"a": null}]</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="now" string="false">true</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
    '<｜DSML｜invoke name="now">\n\n</｜DSML｜invoke>\n</｜DSML｜function_calls>'
)
RESULTS = "\n\n<function_results>\n<result>sun</result>\n<result>12:00</result>\n</function_results>\n\n"


def said(content: str | None, *calls: dict[str, Any], reasoning: str | None = None) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content, "reasoning": reasoning}
    return message | ({"tool_calls": list(calls)} if calls else {})


@pytest.fixture
def template(tmp_path: Path) -> ChatTemplate:
    (tmp_path / "config.json").write_text('{"model_type": "deepseek_v32"}')
    source = find_chat_template(tmp_path, None, None)
    assert source is not None
    return ChatTemplate(source, {})


def prompt(template: ChatTemplate, *messages: dict[str, Any], thinking: bool = False, **options: Any) -> str:
    asked = {"tools": None, "add_generation_prompt": True, "continue_final_message": False} | options
    return render_chat(template, messages, kwargs={"thinking": thinking}, **asked)


@pytest.mark.parametrize(
    ("messages", "plain", "thinking"),
    [
        ((USER,), "<｜User｜>hi<｜Assistant｜></think>", "<｜User｜>hi<｜Assistant｜><think>"),
        (
            (SYSTEM, USER, said("Hello.", reasoning="Hm."), AGAIN),
            f"Be brief.<｜User｜>hi<｜Assistant｜></think>Hello.{EOS}<｜User｜>bye<｜Assistant｜></think>",
            f"Be brief.<｜User｜>hi<｜Assistant｜></think>Hello.{EOS}<｜User｜>bye<｜Assistant｜><think>",
        ),
        (
            (USER, said("I look.", WEATHER, NOW, reasoning="Hm."), SUN, NOON),
            f"<｜User｜>hi<｜Assistant｜></think>I look.{CALLS}{EOS}{RESULTS}</think>",
            f"<｜User｜>hi<｜Assistant｜><think>Hm.</think>I look.{CALLS}{EOS}{RESULTS}<think>",
        ),
        (
            (USER, said(None, WEATHER, NOW), SUN, NOON, said("Sun."), AGAIN),
            f"<｜User｜>hi<｜Assistant｜></think>{CALLS}{EOS}{RESULTS}</think>Sun.{EOS}<｜User｜>bye<｜Assistant｜></think>",
            f"<｜User｜>hi<｜Assistant｜></think>{CALLS}{EOS}{RESULTS}</think>Sun.{EOS}<｜User｜>bye<｜Assistant｜><think>",
        ),
        (
            (USER, AGAIN),
            "<｜User｜>hi<｜Assistant｜></think><｜User｜>bye<｜Assistant｜></think>",
            "<｜User｜>hi<｜Assistant｜></think><｜User｜>bye<｜Assistant｜><think>",
        ),
    ],
    ids=["one question", "a chat", "results", "results before", "two questions"],
)
def test_prompts_of_deepseek_v32_are_those_of_its_own_program(
    messages: tuple[dict[str, Any], ...], plain: str, thinking: str, template: ChatTemplate
) -> None:
    assert prompt(template, *messages) == BOS + plain
    assert prompt(template, *messages, thinking=True) == BOS + thinking


def test_tools_of_deepseek_v32_stand_behind_the_system_prompt(template: ChatTemplate) -> None:
    alone, behind = prompt(template, USER, tools=TOOLS), prompt(template, SYSTEM, USER, SYSTEM, tools=TOOLS)

    told = alone.removeprefix(BOS).removesuffix("<｜User｜>hi<｜Assistant｜></think>")
    listed = "".join(json.dumps(tool["function"], ensure_ascii=False) + "\n" for tool in TOOLS)
    assert told.startswith("\n\n## Tools\n\nYou have access")
    assert told.endswith(f"<functions>\n{listed}</functions>\n")
    assert behind == f"{BOS}Be brief.{told}<｜User｜>hi<｜Assistant｜></think>Be brief."


def test_an_answer_of_deepseek_v32_can_be_continued_and_a_question_left_without_one(template: ChatTemplate) -> None:
    continued = {"add_generation_prompt": False, "continue_final_message": True}

    assert prompt(template, USER, said("Hel"), **continued) == f"{BOS}<｜User｜>hi<｜Assistant｜></think>Hel"
    assert prompt(template, USER, add_generation_prompt=False) == f"{BOS}<｜User｜>hi"


def test_calls_that_the_template_writes_are_the_ones_that_are_read(template: ChatTemplate) -> None:
    dialect = find_dialect(template.source, reasoning_name="auto")
    text = prompt(template, USER, said("I look.", WEATHER, NOW)).partition("</think>")[2].removesuffix(EOS)
    parser = OutputParser(dialect, ParserOptions(calls="auto"))

    parts = joined([*parser.add(text, [0]), *parser.finish()])

    assert dialect.calls is FORMATS["deepseek_v32"]
    assert dialect.reasoning is not None
    assert dialect.reasoning.opened(prompt(template, USER, tools=TOOLS)) is False
    assert dialect.reasoning.opened(prompt(template, USER, tools=TOOLS, thinking=True)) is True
    assert parts[0] == TextPart("I look.\n\n")
    assert [part.name for part in parts if isinstance(part, CallBegin)] == ["get_weather", "now"]
    assert [json.loads(part.text) for part in parts if isinstance(part, CallArguments)] == [ARGUMENTS, {}]


def test_another_role_is_refused(template: ChatTemplate) -> None:
    with pytest.raises(InvalidRequest, match="no such role: critic"):
        prompt(template, {"role": "critic", "content": "Bad."})


@pytest.mark.parametrize(
    "config", ['{"model_type": "../x"}', '{"model_type": ["deepseek_v32"]}', "[]", "{", "[" * 9999]
)
def test_other_types_have_no_template_built_in(config: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(config)

    assert find_chat_template(tmp_path, None, None) is None


def test_a_models_own_template_goes_before_the_one_built_in(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "deepseek_v32"}')

    assert find_chat_template(tmp_path, None, "its own") == "its own"
