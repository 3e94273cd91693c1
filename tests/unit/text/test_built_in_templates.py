"""Chat templates that are built in, for models that are published without one. Expected prompts were made by DeepSeek's
encoding_dsv32.py as vLLM 0.32 has it, and its encoding_dsv4.py as vLLM 0.33 has it."""

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
CALLS_4 = CALLS.replace("function_calls", "tool_calls")
SUNNY, LATER = {**SUN, "tool_call_id": "a"}, {**NOON, "tool_call_id": "b"}
RESULTS_4 = "<tool_result>sun</tool_result>\n\n<tool_result>12:00</tool_result>"
EFFORT_HIGH = (
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the "
    "root cause, rigorously stress-testing your logic against all potential paths, edge cases, and "
    "adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, "
    "considered alternative, and rejected hypothesis to ensure absolutely no assumption is left "
    "unchecked.\n"
    "\n"
)
EFFORT_MAX = (
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively "
    "decompose the problem into its most fundamental components, trace every causal chain to its root, "
    "and resolve the underlying cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles and "
    "are certain that no assumption remains unchecked and no error remains undiscovered.\n"
    "\n"
)
TOLD_4 = (
    "## Tools\n"
    "\n"
    "You have access to a set of tools to help answer the user's question. You can invoke tools by "
    'writing a "<｜DSML｜tool_calls>" block like the following:\n'
    "\n"
    "<｜DSML｜tool_calls>\n"
    '<｜DSML｜invoke name="$TOOL_NAME">\n'
    '<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>\n'
    "...\n"
    "</｜DSML｜invoke>\n"
    '<｜DSML｜invoke name="$TOOL_NAME2">\n'
    "...\n"
    "</｜DSML｜invoke>\n"
    "</｜DSML｜tool_calls>\n"
    "\n"
    'String parameters should be specified as is and set `string="true"`. For all other types (numbers, '
    'booleans, arrays, objects), pass the value in JSON format and set `string="false"`.\n'
    "\n"
    "If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside "
    "<think>...</think> BEFORE any tool calls or final response.\n"
    "\n"
    "Otherwise, output directly after </think> with tool calls or final response.\n"
    "\n"
    "### Available Tool Schemas\n"
    "\n"
    "@\n"
    "\n"
    "You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n"
)


def said(content: str | None, *calls: dict[str, Any], reasoning: str | None = None) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content, "reasoning": reasoning}
    return message | ({"tool_calls": list(calls)} if calls else {})


def built_in(folder: Path, model_type: str) -> ChatTemplate:
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    source = find_chat_template(folder, None, None)
    assert source is not None
    return ChatTemplate(source, {})


@pytest.fixture
def template(tmp_path: Path) -> ChatTemplate:
    return built_in(tmp_path, "deepseek_v32")


@pytest.fixture
def fourth(tmp_path: Path) -> ChatTemplate:
    return built_in(tmp_path, "deepseek_v4")


def prompt(template: ChatTemplate, *messages: dict[str, Any], thinking: bool = False, **options: Any) -> str:
    asked = {"kwargs": {"thinking": thinking}, "tools": None} | options
    return render_chat(template, messages, **{"add_generation_prompt": True, "continue_final_message": False} | asked)


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
            (USER, said("I look.", WEATHER, NOW, reasoning="Hm."), LATER, SUNNY),
            f"<｜User｜>hi<｜Assistant｜></think>I look.{CALLS_4}{EOS}<｜User｜>{RESULTS_4}<｜Assistant｜></think>",
            f"<｜User｜>hi<｜Assistant｜></think>I look.{CALLS_4}{EOS}<｜User｜>{RESULTS_4}<｜Assistant｜><think>",
        ),
        (
            (USER, AGAIN, said("Sun.", reasoning="Hm.")),
            f"<｜User｜>hi\n\nbye<｜Assistant｜></think>Sun.{EOS}",
            f"<｜User｜>hi\n\nbye<｜Assistant｜><think>Hm.</think>Sun.{EOS}",
        ),
        (
            (USER, said(None, WEATHER, NOW), SUNNY, LATER, AGAIN, SYSTEM),
            f"<｜User｜>hi<｜Assistant｜></think>{CALLS_4}{EOS}<｜User｜>{RESULTS_4}\n\nbyeBe brief."
            "<｜Assistant｜></think>",
            f"<｜User｜>hi<｜Assistant｜></think>{CALLS_4}{EOS}<｜User｜>{RESULTS_4}\n\nbyeBe brief.<｜Assistant｜>"
            "<think>",
        ),
    ],
    ids=["one question", "a chat", "results in the order of calls", "two questions, answered", "a later instruction"],
)
def test_prompts_of_deepseek_v4_are_those_of_its_own_program(
    messages: tuple[dict[str, Any], ...], plain: str, thinking: str, fourth: ChatTemplate
) -> None:
    assert prompt(fourth, *messages) == BOS + plain
    assert prompt(fourth, *messages, kwargs={"reasoning_effort": "none"}) == BOS + plain
    assert prompt(fourth, *messages, kwargs={"reasoning_effort": "low"}) == BOS + thinking


def test_deepseek_v4_is_told_how_much_to_reason(fourth: ChatTemplate) -> None:
    asked = "<｜User｜>hi<｜Assistant｜><think>"

    for kwargs in ({}, {"thinking": True}, {"reasoning_effort": "xhigh", "enable_thinking": True}):
        assert prompt(fourth, USER, kwargs=kwargs) == BOS + EFFORT_HIGH + asked
    assert prompt(fourth, USER, kwargs={"reasoning_effort": "max"}) == BOS + EFFORT_MAX + asked
    assert prompt(fourth, USER, kwargs={"reasoning_effort": "medium"}) == BOS + asked


def test_tools_of_deepseek_v4_stand_behind_the_first_system_prompt_and_keep_earlier_reasoning(
    fourth: ChatTemplate,
) -> None:
    listed = "\n\n" + TOLD_4.replace("@", "\n".join(json.dumps(one["function"], ensure_ascii=False) for one in TOOLS))
    chat = (USER, said("Hello.", reasoning="Hm."), SYSTEM, AGAIN)
    low = {"reasoning_effort": "low"}

    assert prompt(fourth, USER, tools=TOOLS) == f"{BOS}{listed}<｜User｜>hi<｜Assistant｜></think>"
    assert prompt(fourth, *chat, tools=TOOLS, kwargs=low) == (
        f"{BOS}<｜User｜>hi<｜Assistant｜><think>Hm.</think>Hello.{EOS}Be brief.{listed}"
        "<｜User｜>bye<｜Assistant｜><think>"
    )
    kept = f"{BOS}<｜User｜>hi<｜Assistant｜><think>Hm.</think>Hello.{EOS}Be brief.<｜User｜>bye<｜Assistant｜><think>"
    assert prompt(fourth, *chat, kwargs=low | {"drop_thinking": False}) == kept


def test_parts_of_a_text_stand_apart_in_deepseek_v4(fourth: ChatTemplate) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

    made = prompt(fourth, {"role": "user", "content": parts}, as_parts=True)

    assert made == f"{BOS}<｜User｜>a\n\nb<｜Assistant｜></think>"


@pytest.mark.parametrize("model_type", ["deepseek_v32", "deepseek_v4"])
def test_an_answer_can_be_continued_and_a_question_left_without_one(model_type: str, tmp_path: Path) -> None:
    template = built_in(tmp_path, model_type)
    continued = {"add_generation_prompt": False, "continue_final_message": True}

    assert prompt(template, USER, said("Hel"), **continued) == f"{BOS}<｜User｜>hi<｜Assistant｜></think>Hel"
    assert prompt(template, USER, add_generation_prompt=False) == f"{BOS}<｜User｜>hi"


@pytest.mark.parametrize("model_type", ["deepseek_v32", "deepseek_v4"])
def test_calls_that_the_template_writes_are_the_ones_that_are_read(model_type: str, tmp_path: Path) -> None:
    template = built_in(tmp_path, model_type)
    dialect = find_dialect(template.source, reasoning_name="auto")
    text = prompt(template, USER, said("I look.", WEATHER, NOW)).partition("</think>")[2].removesuffix(EOS)
    parser = OutputParser(dialect, ParserOptions(calls="auto"))

    parts = joined([*parser.add(text, [0]), *parser.finish()])

    assert dialect.calls is FORMATS[model_type]
    assert dialect.reasoning is not None
    assert dialect.reasoning.opened(prompt(template, USER, tools=TOOLS)) is False
    assert dialect.reasoning.opened(prompt(template, USER, tools=TOOLS, thinking=True)) is True
    assert parts[0] == TextPart("I look.\n\n")
    assert [part.name for part in parts if isinstance(part, CallBegin)] == ["get_weather", "now"]
    assert [json.loads(part.text) for part in parts if isinstance(part, CallArguments)] == [ARGUMENTS, {}]


@pytest.mark.parametrize("model_type", ["deepseek_v32", "deepseek_v4"])
def test_another_role_is_refused(model_type: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no such role: critic"):
        prompt(built_in(tmp_path, model_type), {"role": "critic", "content": "Bad."})


@pytest.mark.parametrize(
    "config", ['{"model_type": "../x"}', '{"model_type": ["deepseek_v32"]}', "[]", "{", "[" * 9999]
)
def test_other_types_have_no_template_built_in(config: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(config)

    assert find_chat_template(tmp_path, None, None) is None


def test_a_models_own_template_goes_before_the_one_built_in(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "deepseek_v32"}')

    assert find_chat_template(tmp_path, None, "its own") == "its own"
