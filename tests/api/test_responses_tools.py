"""Reasoning and calls of tools in responses. The echo engine says what the input says, as a model would."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.api.server import Server, started
from tests.api.test_responses import Exact, events_of, respond

TEMPLATE = (
    "{% for message in messages %}{{ message.role[0] if loop.length > 1 }}{{ message.reasoning_content }}"
    "{{ message.content }}{% for call in message.tool_calls or [] %}({{ call.function.name }} "
    "{{ call.function.arguments | tojson }}){% endfor %}{{ message.name }}{% endfor %}{{ eos_token }}"
    "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}{% if enable_thinking is not false %}<think>{% endif %}"
)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": True}
NOW: Any = {"type": "function", "name": "now", "parameters": None, "strict": None}
CALLED = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
SAID = f"Hm, yes.\n</think>\n\nI look.\n{CALLED}\n" + '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
TOOLS = {"tools": [WEATHER, NOW]}


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {"chat_template": TEMPLATE, "reasoning_parser": "qwen3", "tool_call_parser": "hermes"}
    with started(tmp_path_factory.mktemp("agent"), **settings) as running:
        yield running


def prompt_of(server: Server) -> str:
    """Return the last prompt that the engine has received, up to the beginning of the answer."""
    return bytes(token for token in server.engine.submits[-1].prompt_token_ids if token < 256).decode()


def test_what_a_model_says_comes_as_items(agent: Server) -> None:
    reply = Exact.response(respond(agent, SAID, **TOOLS).json())

    thought, _, first, second = [item.to_dict() for item in reply.output]
    assert (thought["type"], thought["content"]) == ("reasoning", [{"type": "reasoning_text", "text": "Hm, yes.\n"}])
    assert reply.output_text.strip() == "I look."
    assert (first["type"], first["name"], first["arguments"]) == ("function_call", "get_weather", '{"city": "Oslo"}')
    assert (second["name"], second["arguments"], second["status"]) == ("now", "{}", "completed")
    assert first["call_id"] != second["call_id"]
    assert reply.usage is not None
    assert 0 < reply.usage.output_tokens_details.reasoning_tokens < reply.usage.output_tokens
    assert reply.tools[0].to_dict() == WEATHER


def test_the_events_of_all_items_come_in_order_and_come_to_the_same(agent: Server) -> None:
    events = events_of(respond(agent, SAID, stream=True, **TOOLS).text)

    kinds = [event["type"].removeprefix("response.") for event in events]
    without_deltas = [kind for kind in kinds if not kind.endswith(".delta")]
    call = ["output_item.added", "function_call_arguments.done", "output_item.done"]
    assert without_deltas == [
        "created",
        "in_progress",
        *("output_item.added", "content_part.added", "reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.done", "content_part.done", "output_item.done"),
        *call,
        *call,
        "completed",
    ]
    for index, item in enumerate(events[-1]["response"]["output"]):
        mine = [event for event in events if event.get("output_index") == index]
        assert mine[0]["item"]["id"] == mine[-1]["item"]["id"] == item["id"]
        assert all(event["item_id"] == item["id"] for event in mine[1:-1])
        assert mine[-1]["item"] == item
        told = "".join(event["delta"] for event in mine if event["type"].endswith(".delta"))
        assert told == (item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])


def test_the_openai_client_accumulates_all_items(agent: Server) -> None:
    loose: Any = {**WEATHER, "strict": False}
    with agent.openai.responses.stream(model="letters", input=SAID, tools=[loose]) as stream:
        arguments = [e.snapshot for e in stream if e.type == "response.function_call_arguments.delta"]
        final = stream.get_final_response()

    assert arguments[-1] == "{}"
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call", "function_call"]


@pytest.mark.parametrize("effort", ["low", "none"])
def test_reasoning_may_be_summarized_which_is_its_text(agent: Server, effort: str) -> None:
    fields = {"reasoning": {"effort": effort, "summary": "auto"}}
    said = SAID if effort == "low" else SAID.partition("</think>")[2]

    reply = Exact.response(respond(agent, said, **fields, **TOOLS).json())
    events = events_of(respond(agent, said, stream=True, **fields, **TOOLS).text)

    assert reply.reasoning is not None
    assert (reply.reasoning.effort, reply.reasoning.summary) == (effort, "auto")
    summaries = [item.to_dict()["summary"] for item in reply.output if item.type == "reasoning"]
    assert summaries == ([[{"type": "summary_text", "text": "Hm, yes.\n"}]] if effort == "low" else [])
    kinds = {event["type"] for event in events if "reasoning" in event["type"]}
    whole = {f"response.reasoning_summary_{k}" for k in ("part.added", "text.delta", "text.done", "part.done")}
    assert kinds == (whole if effort == "low" else set())


def test_reasoning_comes_back_packed(agent: Server) -> None:
    fields = {"store": False, "include": ["reasoning.encrypted_content"]}
    reply = respond(agent, SAID, **fields, **TOOLS).json()
    thought = reply["output"][0]
    assert thought["encrypted_content"]

    bare = {"type": "reasoning", "id": thought["id"], "summary": [], "encrypted_content": thought["encrypted_content"]}
    respond(agent, [{"role": "user", "content": "x"}, bare, {"role": "assistant", "content": "y"}])

    assert prompt_of(agent).startswith("uxaHm, yes.\ny")


@pytest.mark.parametrize("summary", [[], [{"type": "summary_text", "text": "Hm."}]])
def test_reasoning_that_another_server_packed_is_left_out_and_told(agent: Server, summary: list[Any]) -> None:
    sealed = {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "gAAAAABo_-x5"}
    reply = respond(agent, [{"role": "user", "content": "x"}, sealed, {"role": "assistant", "content": "y"}])

    assert reply.status_code == 200
    assert reply.json()["warnings"] == [
        "input: encrypted_content of reasoning comes from another server; it was left out"
    ]
    assert prompt_of(agent).startswith("uxaHm.y" if summary else "uxay")


def test_a_round_of_calls_goes_on_in_one_conversation(agent: Server) -> None:
    first = agent.openai.responses.create(model="letters", input=SAID, tools=[WEATHER, NOW])
    calls = [item for item in first.output if item.type == "function_call"]
    results: list[Any] = [
        {"type": "function_call_output", "call_id": call.call_id, "output": f"[{n}]"} for n, call in enumerate(calls)
    ]

    stored = agent.openai.responses.create(
        model="letters", input=results, previous_response_id=first.id, tools=[WEATHER, NOW]
    )
    by_stored = prompt_of(agent)
    items: list[Any] = [{"role": "user", "content": SAID}, *[item.to_dict() for item in first.output], *results]
    agent.openai.responses.create(model="letters", input=items, tools=[WEATHER, NOW], store=False)

    assert stored.previous_response_id == first.id
    assert prompt_of(agent) == by_stored
    told = 'I look.\n(get_weather {"city": "Oslo"})(now {})t[0]get_weathert[1]now'
    assert told in by_stored.replace("\n(", "(").replace("I look.(", "I look.\n(")


def test_thoughts_of_earlier_turns_are_left_out_where_only_the_current_ones_are_wanted(agent: Server) -> None:
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "THOUGHT"}]}
    items = [
        {"role": "user", "content": "a"},
        thought,
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]

    respond(agent, items, reasoning={"context": "current_turn"})
    without = prompt_of(agent)
    respond(agent, items, reasoning={"context": "all_turns"})

    assert "THOUGHT" not in without
    assert prompt_of(agent).count("THOUGHT") == 1


def test_arguments_that_the_model_got_wrong_do_not_end_the_conversation(agent: Server) -> None:
    items = [
        {"role": "user", "content": "a"},
        {"type": "function_call", "call_id": "c1", "name": "now", "arguments": '{"cut'},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "error"}]},
    ]

    assert respond(agent, items).status_code == 200
    assert '(now {"invalid": "{\\"cut"})terrornow' in prompt_of(agent)


def test_required_and_named_calls_are_constrained(agent: Server) -> None:
    fields: Any = {"reasoning": {"effort": "none"}, **TOOLS}
    required = respond(agent, CALLED, tool_choice="required", **fields).json()
    constrained = agent.engine.submits[-1].params.grammar
    named = respond(agent, CALLED, tool_choice={"type": "function", "name": "get_weather"}, **fields).json()

    assert constrained is not None
    for reply in (required, named):
        calls = [(item["name"], json.loads(item["arguments"])) for item in reply["output"]]
        assert calls == [("get_weather", {"city": "Oslo"})]
    assert named["tool_choice"] == {"type": "function", "name": "get_weather"}


def test_only_allowed_tools_are_shown(agent: Server) -> None:
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "now"}]}

    reply = respond(agent, "x", tool_choice=allowed, **TOOLS).json()

    Exact.response(reply)
    assert '"now"' in prompt_of(agent)
    assert "get_weather" not in prompt_of(agent)


def test_one_call_at_a_time(agent: Server) -> None:
    reply = respond(agent, SAID, parallel_tool_calls=False, **TOOLS).json()

    assert [item["type"] for item in reply["output"]] == ["reasoning", "message", "function_call"]
    assert reply["parallel_tool_calls"] is False


def test_a_call_cut_off_is_incomplete(agent: Server) -> None:
    reply = Exact.response(respond(agent, SAID, max_output_tokens=SAID.index("Oslo") + 2, **TOOLS).json())

    last = reply.output[-1].to_dict()
    assert (reply.status, last["type"], last["status"]) == ("incomplete", "function_call", "incomplete")


def test_a_schema_constrains_the_text_and_is_parsed(agent: Server) -> None:
    import pydantic

    class Trip(pydantic.BaseModel):
        city: str

    reply = agent.openai.responses.parse(
        model="letters", input='{"city": "Oslo"}', text_format=Trip, reasoning={"effort": "none"}
    )
    grammar = agent.engine.submits[-1].params.grammar
    respond(agent, "{}", text={"format": {"type": "json_object"}}, reasoning={"effort": "none"})

    assert reply.output_parsed == Trip(city="Oslo")
    assert grammar is not None
    assert "city" in grammar
    assert agent.engine.submits[-1].params.grammar not in (None, grammar)
