"""Answers in Inkling's messages over HTTP, its marks special tokens. The echo engine says what the chat says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.api.letters import write_letters
from tests.api.server import Server, started

from forearm.text.tokenizer.tokenizer import Tokenizer, load_tokenizer
from forearm.text.tool_parsers.harmony import INKLING_MARKS

# Written as the model's template: its messages' marks, the effort, and the mark that opens the answer.
TEMPLATE = (
    "{% for m in messages %}{{ m.content or '' }}"
    "{% for call in m.get('tool_calls') or [] %}{{ call.function.name }}<|content_invoke_tool_json|>{% endfor %}"
    "{% if m.get('reasoning_content') %}<|content_thinking|>{{ m.reasoning_content }}{% endif %}{% endfor %}"
    "{{ eos_token }}{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if tells %}<|content_text|>Thinking effort level: {{ reasoning_effort | default(0.9) }}{% endif %}"
    "<|message_model|>{% if opens %}{{ opens }}{% endif %}"
)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
NOW: Any = {"type": "function", "function": {"name": "now"}}
CALLS = (
    'get_weather<|content_invoke_tool_json|>{"name":"get_weather","args":{"city":"Oslo"}}<|end_message|>'
    '<|message_model|>now<|content_invoke_tool_json|>{"args":{},"name":"now"}<|end_message|>'
)
THOUGHT = "<|content_thinking|>Hm.<|end_message|><|message_model|>"
ALL = f"{THOUGHT}<|content_text|>I look.<|end_message|><|message_model|>{CALLS}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = write_letters(tmp_path_factory.mktemp("letters"), TEMPLATE, ["<|other|>", *sorted(INKLING_MARKS)])
    return str(made)


@pytest.fixture(scope="module")
def tokenizer(folder: str) -> Tokenizer:
    return load_tokenizer(Path(folder))


@pytest.fixture(scope="module")
def inkling(folder: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with started(tmp_path_factory.mktemp("inkling"), model_folder=folder) as running:
        yield running


def test_the_template_tells_the_format_and_messages_come_apart(inkling: Server) -> None:
    reply = inkling.chat(f"<|other|>{ALL}", tools=[WEATHER, NOW]).json()

    [choice] = reply["choices"]
    message = choice["message"]
    assert (message["reasoning"], message["content"], choice["finish_reason"]) == ("Hm.", "I look.", "tool_calls")
    called = [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]
    assert called == [("get_weather", '{"city":"Oslo"}'), ("now", "{}")]
    assert reply["usage"]["completion_tokens_details"] == {"reasoning_tokens": len("Hm.")}


def test_messages_are_streamed_token_by_token(inkling: Server) -> None:
    text = inkling.chat(ALL, tools=[WEATHER, NOW], stream=True).text

    chunks = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    parts = [call for delta in deltas for call in delta.get("tool_calls") or []]
    arguments = [[one["function"].get("arguments") or "" for one in parts if one["index"] == i] for i in (0, 1)]
    assert "".join(delta.get("reasoning") or "" for delta in deltas) == "Hm."
    assert "".join(delta.get("content") or "" for delta in deltas) == "I look."
    assert [one["function"]["name"] for one in parts if one.get("id")] == ["get_weather", "now"]
    assert ["".join(one) for one in arguments] == ['{"city":"Oslo"}', "{}"]
    assert len(arguments[0]) > 3
    assert "<|" not in text


def test_an_answer_without_tools_has_its_reasoning_apart_too(inkling: Server) -> None:
    said = f"{THOUGHT}<|content_text|>So.<|end_message|>"

    message = inkling.chat(said).json()["choices"][0]["message"]
    hidden = inkling.chat(said, include_reasoning=False).json()["choices"][0]["message"]
    cut = inkling.chat(said, max_tokens=3).json()["choices"][0]

    assert (message["reasoning"], message["content"]) == ("Hm.", "So.")
    assert (hidden["reasoning"], hidden["content"]) == (None, "So.")
    assert (cut["message"]["reasoning"], cut["message"]["content"], cut["finish_reason"]) == ("Hm", None, "length")


def test_a_prompt_may_open_reasoning_or_the_answer(inkling: Server) -> None:
    def said(opens: str) -> tuple[str | None, str | None]:
        fields = {"chat_template_kwargs": {"opens": opens}}
        message = inkling.chat("Hm.<|end_message|><|message_model|><|content_text|>So.", **fields).json()
        found = message["choices"][0]["message"]
        return found["reasoning"], found["content"]

    assert said("<|content_thinking|>") == ("Hm.", "So.")
    assert said("<|content_text|>") == (None, "Hm.So.")
    assert said("") == (None, "Hm.So.")  # text without its mark is the answer's


def test_the_template_gets_the_effort_and_earlier_messages(inkling: Server, tokenizer: Tokenizer) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "reasoning": "Hm.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "b"},
    ]

    def prompt(**fields: Any) -> str:
        body = {"messages": messages, "max_tokens": 1, **fields}
        body["chat_template_kwargs"] = {"tells": True, **fields.get("chat_template_kwargs", {})}
        assert inkling.http.post("/v1/chat/completions", json=body).status_code == 200
        return tokenizer.decode(inkling.engine.submits[-1].prompt_token_ids, False)

    told = "anow<|content_invoke_tool_json|><|content_thinking|>Hm.b<eos><|content_text|>Thinking effort level: {}{}"
    assert prompt() == told.format(0.9, "<|message_model|>")
    assert prompt(reasoning_effort="low") == told.format("low", "<|message_model|>")
    assert prompt(chat_template_kwargs={"reasoning_effort": 0.5}) == told.format(0.5, "<|message_model|>")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_required_call_is_imposed_in_the_models_own_format(
    inkling: Server, tokenizer: Tokenizer, choice: Any
) -> None:
    reply = inkling.chat(ALL, tools=[WEATHER, NOW], tool_choice=choice).json()["choices"][0]
    params = inkling.engine.submits[-1].params

    rules = json.loads(params.grammar or "")["grammars"][0]["lark_grammar"]
    ids = {mark: f"<[{tokenizer.encode(mark)[0]}]>" for mark in INKLING_MARKS}
    assert params.grammar_after is None
    for mark in ("<|content_thinking|>", "<|content_invoke_tool_json|>", "<|end_message|>", "<|message_model|>"):
        assert ids[mark] in rules
    assert '"get_weather" <[' in rules
    assert ('"now" <[' in rules) is (choice == "required")
    assert reply["message"]["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": '{"city":"Oslo"}'}


def test_what_is_imposed_on_the_answer_begins_with_its_message(inkling: Server, tokenizer: Tokenizer) -> None:
    def asked(**fields: Any) -> Any:
        reply = inkling.chat("{}", response_format={"type": "json_object"}, **fields)
        assert reply.status_code == 200, reply.text
        return inkling.engine.submits[-1].params

    free = asked()
    budget = asked(thinking_token_budget=7)
    opened = asked(chat_template_kwargs={"opens": "<|content_text|>"})
    strict = asked(tools=[{**WEATHER, "function": {**WEATHER["function"], "strict": True}}])

    end, text = tokenizer.encode("<|end_message|>"), tokenizer.encode("<|content_text|>")
    start = json.loads(free.grammar)["grammars"][0]["lark_grammar"]
    assert start == f"start: @answer (<[{end[0]}]>)?\n"
    assert (list(free.grammar_after), free.thinking_token_budget) == (text, None)
    assert (list(budget.grammar_after), list(budget.thinking_end)) == (text, end)
    assert (opened.grammar, opened.grammar_after) == (free.grammar, None)
    assert strict.grammar_after is None
    assert "get_weather" in strict.grammar


def test_other_structure_cannot_go_with_a_strict_tool(inkling: Server) -> None:
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}

    error = inkling.chat("x", tools=[strict], structured_outputs={"regex": "a+"}).json()["error"]

    assert (error["code"], error["param"]) == (400, "structured_outputs")
    assert "Inkling" in error["message"]
