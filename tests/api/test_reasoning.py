"""Reasoning over HTTP. The echo engine says what the chat says, so a test writes what the model writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.api.server import Server, StartServer, started

OPENS = (
    "{% if tools %}{% endif %}{{ messages[0].content }}{{ eos_token }}"
    "{% if enable_thinking is not false %}<think>\n{% else %}</think>{% endif %}"
)
THOUGHT = "<think>\nHm, yes.\n</think>\n\nBlue."


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with started(tmp_path_factory.mktemp("reasoning"), reasoning_parser="qwen3") as running:
        yield running


def test_reasoning_and_answer_come_apart_under_both_names(thinking: Server) -> None:
    reply = thinking.chat(THOUGHT).json()

    message = reply["choices"][0]["message"]
    assert (message["reasoning"], message["reasoning_content"], message["content"]) == ("Hm, yes.\n",) * 2 + ("Blue.",)
    # "<think>" is seven letters and as many tokens here; the last letter of "</think>" ends it.
    assert reply["usage"]["completion_tokens_details"] == {"reasoning_tokens": len("\nHm, yes.\n</think")}


def test_reasoning_is_streamed_before_the_answer(thinking: Server) -> None:
    with thinking.openai.chat.completions.create(
        model="letters",
        messages=[{"role": "user", "content": THOUGHT}],
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        chunks = list(stream)

    deltas = [chunk.choices[0].delta.model_dump() for chunk in chunks if chunk.choices]
    for name in ("reasoning", "reasoning_content"):
        assert "".join(delta.get(name) or "" for delta in deltas) == "Hm, yes.\n"
    assert "".join(delta["content"] or "" for delta in deltas) == "Blue."
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens == 17


def test_reasoning_is_left_out_where_it_is_not_wanted(thinking: Server) -> None:
    message = thinking.chat(THOUGHT, include_reasoning=False).json()["choices"][0]["message"]
    stream = thinking.chat(THOUGHT, include_reasoning=False, stream=True).text

    assert (message["reasoning"], message["content"]) == (None, "Blue.")
    assert "reasoning" not in stream


def test_an_answer_cut_while_it_thinks_has_no_content(thinking: Server) -> None:
    choice = thinking.chat(THOUGHT, max_tokens=12).json()["choices"][0]

    assert (choice["message"]["content"], choice["message"]["reasoning"]) == (None, "Hm, ")
    assert choice["finish_reason"] == "length"


def test_a_template_that_opens_reasoning_begins_in_it(start_server: StartServer) -> None:
    server = start_server(chat_template=OPENS, reasoning_parser="auto")

    def message(**fields: Any) -> tuple[str | None, str | None]:
        found = server.chat("Hm.</think>Blue.", **fields).json()["choices"][0]["message"]
        return found["reasoning"], found["content"]

    assert message() == ("Hm.", "Blue.")
    assert message(chat_template_kwargs={"enable_thinking": False}) == (None, "Hm.</think>Blue.")
    assert message(reasoning_effort="none") == (None, "Hm.</think>Blue.")


@pytest.mark.parametrize("settings", [{}, {"reasoning_parser": "none"}])
def test_no_parser_leaves_reasoning_in_the_text(start_server: StartServer, settings: dict[str, str]) -> None:
    """R1's template opens reasoning, and an answer that is cut off within it has content, as with vLLM."""
    server = start_server(chat_template=OPENS, **settings)

    reply = server.chat("Hm.</think>Blue.").json()
    cut = server.chat("Hm.</think>Blue.", max_tokens=3).json()["choices"][0]

    assert reply["choices"][0]["message"]["content"] == "Hm.</think>Blue."
    assert reply["choices"][0]["message"]["reasoning_content"] is None
    assert "completion_tokens_details" not in reply["usage"]
    assert (cut["message"]["content"], cut["finish_reason"]) == ("Hm.", "length")


def test_a_budget_and_what_ends_it_reach_the_engine(thinking: Server, server: Server) -> None:
    thinking.chat("x", thinking_token_budget=7)
    params = thinking.engine.submits[-1].params
    refused = server.chat("x", thinking_token_budget=7).json()["error"]

    assert (params.thinking_token_budget, bytes(params.thinking_end or ())) == (7, b"</think>")
    assert (refused["code"], refused["param"]) == (400, "thinking_token_budget")


def test_what_constrains_the_answer_waits_for_the_end_of_reasoning(start_server: StartServer) -> None:
    server = start_server(chat_template=OPENS, reasoning_parser="auto")
    tool = {"type": "function", "function": {"name": "f"}}

    reply = server.chat("Hm.</think>[]", tools=[tool], tool_choice="required").json()
    opened = server.engine.submits[-1].params
    server.chat("[]", tools=[tool], tool_choice="required", reasoning_effort="none")
    closed = server.engine.submits[-1].params

    assert reply["choices"][0]["message"]["reasoning"] == "Hm."
    assert bytes(opened.grammar_after or ()) == b"</think>"
    assert (closed.grammar is not None, closed.grammar_after) == (True, None)


def test_where_the_model_itself_opens_reasoning_the_constraint_allows_it(thinking: Server, server: Server) -> None:
    def starts(one: Server, **fields: Any) -> str:
        assert one.chat("{}", response_format={"type": "json_object"}, **fields).status_code == 200
        params = one.engine.submits[-1].params
        assert params.grammar_after is None
        return str(json.loads(params.grammar or "")["grammars"][0]["lark_grammar"].splitlines()[0])

    assert starts(thinking).startswith('start: (("<think>") ')
    assert "think" not in starts(thinking, thinking_token_budget=5)
    assert "think" not in starts(server)


def test_reasoning_of_earlier_turns_has_both_names_for_templates(start_server: StartServer) -> None:
    shown = (
        "{% for m in messages %}{{ m.reasoning }}|{{ m.reasoning_content }}|{{ m.role }};{% endfor %}{{ eos_token }}"
    )
    server = start_server(chat_template=shown)
    messages = [
        {"role": "developer", "content": "x"},
        {"role": "assistant", "content": "x", "reasoning_content": "a"},
        {"role": "assistant", "content": "x", "reasoning": "b"},
    ]

    reply = server.http.post("/v1/chat/completions", json={"messages": messages}).json()

    assert reply["choices"][0]["message"]["content"] == "||system;a|a|assistant;b|b|assistant;"


def test_harmonys_channels_are_told_apart(start_server: StartServer) -> None:
    server = start_server(
        chat_template="{% if tools %}{% endif %}{{ messages[0].content }}{{ eos_token }}", tool_call_parser="openai"
    )
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
        '<|constrain|>json<|message|>{"a": 1}<|call|>'
    )

    message = server.chat(text, tools=[{"type": "function", "function": {"name": "f"}}]).json()["choices"][0]["message"]

    assert message["reasoning"] == "Hm."
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"a": 1}
