"""Thinking, tools, schemas and errors of /v1/messages. The echo engine says what the chat says, as a model would."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pydantic
import pytest
from anthropic.types import Message
from anthropic.types.shared import ErrorResponse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.api.server import Server, StartServer, started
from tests.api.test_messages import HELLO, events_of, say
from tests.api.test_responses_tools import CALLED, SAID, TEMPLATE, prompt_of

SCHEMA: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {"name": "get_weather", "description": "of a city", "input_schema": SCHEMA}
NOW: Any = {"name": "now", "input_schema": {"type": "object"}}
TOOLS: Any = [WEATHER, NOW]
USER: Any = [{"role": "user", "content": SAID}]


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {"chat_template": TEMPLATE, "reasoning_parser": "qwen3", "tool_call_parser": "hermes"}
    with started(tmp_path_factory.mktemp("agent"), **settings) as running:
        yield running


@pytest.fixture
def claude(agent: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=agent.url, api_key="none", max_retries=0) as client:
        yield client


def test_what_a_model_says_comes_as_blocks(agent: Server) -> None:
    reply = say(agent, USER, tools=TOOLS, max_tokens=500).json()

    Message.model_validate(reply, strict=True)
    thought, said, first, second = reply["content"]
    assert (thought["type"], thought["thinking"]) == ("thinking", "Hm, yes.\n")
    assert thought["signature"]
    assert (said["type"], said["text"].strip()) == ("text", "I look.")
    assert (first["type"], first["name"], first["input"]) == ("tool_use", "get_weather", {"city": "Oslo"})
    assert (second["name"], second["input"]) == ("now", {})
    assert reply["stop_reason"] == "tool_use"
    assert 0 < reply["usage"]["output_tokens_details"]["thinking_tokens"] < reply["usage"]["output_tokens"]


def test_a_stream_comes_to_the_same_message(agent: Server, claude: anthropic.Anthropic) -> None:
    whole = say(agent, USER, tools=TOOLS, max_tokens=500).json()
    with claude.messages.stream(model="letters", max_tokens=500, messages=USER, tools=TOOLS) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()

    ids = {"id": ""}
    told = [{**block.to_dict(), **ids} for block in final.content]
    assert told == [{**block, **ids} for block in whole["content"]]
    assert (final.stop_reason, final.usage.output_tokens) == ("tool_use", whole["usage"]["output_tokens"])
    assert {"thinking", "signature", "text", "input_json"} <= set(kinds)


@pytest.mark.parametrize(
    ("kind", "name", "told"),
    [
        ("bash_20250124", "bash", "bash session"),
        ("text_editor_20250728", "str_replace_based_edit_tool", "old_str"),
        ("memory_20250818", "memory", "/memories"),
        ("computer_20250124", "computer", "screen"),
    ],
)
def test_a_tool_that_clients_run_is_offered_without_a_schema(agent: Server, kind: str, name: str, told: str) -> None:
    call = f'Hm.\n</think>\n\n<tool_call>\n{{"name": "{name}", "arguments": {{"command": "ls"}}}}\n</tool_call>'
    tool = {"type": kind, "name": name, "cache_control": {"type": "ephemeral"}}
    reply = say(agent, [{"role": "user", "content": call}], tools=[tool], max_tokens=200).json()

    used = [block for block in reply["content"] if block["type"] == "tool_use"]
    assert [(block["name"], block["input"]) for block in used] == [(name, {"command": "ls"})]
    assert told in prompt_of(agent)


def test_blocks_are_numbered_and_never_overlap(agent: Server) -> None:
    events = events_of(say(agent, USER, tools=TOOLS, max_tokens=500, stream=True).text)

    open_block, seen = None, []
    for event in events:
        if event["type"] == "content_block_start":
            assert open_block is None
            open_block = event["index"]
            seen.append(open_block)
        elif event["type"] == "content_block_delta":
            assert event["index"] == open_block
        elif event["type"] == "content_block_stop":
            assert event["index"] == open_block
            open_block = None
    assert (seen, open_block) == ([0, 1, 2, 3], None)


def test_a_round_of_tools_goes_on(agent: Server, claude: anthropic.Anthropic) -> None:
    first = claude.messages.create(model="letters", max_tokens=500, messages=USER, tools=TOOLS)
    calls = [block for block in first.content if block.type == "tool_use"]
    results: Any = [
        {"type": "tool_result", "tool_use_id": calls[0].id, "content": [{"type": "text", "text": "[sun]"}]},
        {"type": "tool_result", "tool_use_id": calls[1].id, "content": "[late]", "is_error": True},
        {"type": "text", "text": "and?"},
    ]

    messages: Any = [*USER, first.to_param(), {"role": "user", "content": results}]
    claude.messages.create(model="letters", max_tokens=500, messages=messages, tools=TOOLS)

    prompt = prompt_of(agent)
    assert "aHm, yes.\nI look.\n" in prompt
    assert '(get_weather {"city": "Oslo"})(now {})' in prompt
    assert "t[sun]get_weathertError: [late]nowuand?" in prompt


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_a_call_can_be_required(agent: Server, choice: Any) -> None:
    called: Any = [{"role": "user", "content": CALLED}]

    reply = say(agent, called, tools=TOOLS, tool_choice=choice, thinking={"type": "disabled"}).json()

    assert agent.engine.submits[-1].params.grammar is not None
    assert [(one["name"], one["input"]) for one in reply["content"]] == [("get_weather", {"city": "Oslo"})]
    assert reply["stop_reason"] == "tool_use"


def test_one_call_at_a_time_or_none(agent: Server) -> None:
    one = say(agent, USER, tools=TOOLS, max_tokens=500, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    none = say(agent, USER, tools=TOOLS, max_tokens=500, tool_choice={"type": "none"})

    assert [block["type"] for block in one.json()["content"]] == ["thinking", "text", "tool_use"]
    assert [block["type"] for block in none.json()["content"]] == ["thinking", "text"]
    assert none.json()["stop_reason"] == "end_turn"


def test_input_that_was_cut_off_is_what_can_be_read_of_it(agent: Server) -> None:
    reply = say(agent, USER, tools=TOOLS, max_tokens=SAID.index("Oslo") + 20).json()

    assert reply["stop_reason"] == "max_tokens"
    assert reply["content"][-1]["input"] in ({"city": "Oslo"}, {"city": "Os"}, {})
    Message.model_validate(reply, strict=True)


@pytest.mark.parametrize(("written", "read"), [(f'{{"city": {10**30}}}', {"city": 10**30}), ('{"city": NaN}', {})])
def test_numbers_in_a_call_may_have_any_length(agent: Server, written: str, read: Any) -> None:
    said = f'</think><tool_call>\n{{"name": "get_weather", "arguments": {written}}}\n</tool_call>'

    reply = say(agent, [{"role": "user", "content": said}], tools=TOOLS, max_tokens=200)

    assert reply.status_code == 200
    assert [block["input"] for block in reply.json()["content"] if block["type"] == "tool_use"] == [read]


def test_thinking_has_a_budget_or_is_off(agent: Server) -> None:
    say(agent, USER, max_tokens=2000, thinking={"type": "enabled", "budget_tokens": 1024})
    budget = agent.engine.submits[-1].params.thinking_token_budget
    opened = prompt_of(agent).endswith("<think>")
    off = say(agent, [{"role": "user", "content": CALLED}], thinking={"type": "disabled"}).json()

    assert (budget, opened) == (1024, True)
    assert not prompt_of(agent).endswith("<think>")
    assert [block["type"] for block in off["content"]] == ["text"]


def test_thinking_that_is_not_shown_still_comes_back(agent: Server) -> None:
    adaptive: Any = {"type": "adaptive", "display": "omitted"}
    reply = say(agent, USER, thinking=adaptive, tools=TOOLS, max_tokens=500).json()
    events = events_of(say(agent, USER, thinking=adaptive, tools=TOOLS, max_tokens=500, stream=True).text)

    assert reply["content"][0]["thinking"] == ""
    assert not [event for event in events if event.get("delta", {}).get("type") == "thinking_delta"]
    say(agent, [*USER, {"role": "assistant", "content": reply["content"][:2]}, *HELLO])
    assert "aHm, yes.\nI look." in prompt_of(agent)


@pytest.mark.parametrize(
    ("keep", "left"), [("all", "ABC"), ({"type": "thinking_turns", "value": 2}, "BC"), (None, "C")]
)
def test_thinking_is_cleared_from_old_turns_as_asked(agent: Server, keep: Any, left: str) -> None:
    turns: list[Any] = []
    for name in "ABC":
        blocks = [{"type": "thinking", "thinking": f"<{name}>", "signature": ""}, {"type": "text", "text": "ok"}]
        turns += [*HELLO, {"role": "assistant", "content": blocks}]
    edit = {"type": "clear_thinking_20251015", **({} if keep is None else {"keep": keep})}

    say(agent, [*turns, *HELLO], context_management={"edits": [edit]})

    assert [name for name in "ABC" if f"<{name}>" in prompt_of(agent)] == list(left)


def test_a_schema_is_kept_and_parsed(agent: Server, claude: anthropic.Anthropic) -> None:
    class Trip(pydantic.BaseModel):
        city: str

    reply = claude.messages.parse(
        model="letters",
        max_tokens=100,
        messages=[{"role": "user", "content": '{"city": "Oslo"}'}],
        output_format=Trip,
        thinking={"type": "disabled"},
    )

    assert agent.engine.submits[-1].params.grammar is not None
    assert reply.parsed_output == Trip(city="Oslo")


def test_effort_reaches_the_template(start_server: StartServer) -> None:
    server = start_server(chat_template="{{ messages[0].content }}{{ reasoning_effort }}{{ eos_token }}")

    say(server, output_config={"effort": "high"})

    assert prompt_of(server) == "hellohigh"


# --- errors


def kind_of(reply: httpx.Response) -> str:
    ErrorResponse.model_validate(reply.json(), strict=True)
    assert reply.json()["request_id"] == reply.headers["request-id"]
    return str(reply.json()["error"]["type"])


def test_errors_have_anthropics_form(start_server: StartServer) -> None:
    server = start_server(api_key=("secret",), max_body_bytes=3000)

    assert kind_of(say(server, model="nobody")) == "not_found_error"
    assert kind_of(say(server, max_tokens=0)) == "invalid_request_error"
    assert kind_of(server.http.get("/v1/messages")) == "invalid_request_error"
    assert kind_of(server.http.get("/v1/messages/batches")) == "not_found_error"
    assert kind_of(server.http.post("/v1//messages/", content=b"{")) == "invalid_request_error"
    unknown = server.http.post("/v1/messages/count_tokens", json={}, headers={"Authorization": "Bearer no"})
    assert kind_of(unknown) == "authentication_error"
    assert say(server, [{"role": "user", "content": "x" * 4000}]).status_code == 413
    assert "error" in server.http.get("/v1/models", headers={"Authorization": "Bearer no"}).json()
    server.engine.places = 0
    assert kind_of(say(server)) == "rate_limit_error"
    server.engine.stop()
    assert kind_of(say(server, model="nobody")) == "overloaded_error", "before the body is read"


def test_anthropics_client_raises_what_it_should(start_server: StartServer) -> None:
    server = start_server(api_key=("secret",))
    create: Any = {"model": "letters", "max_tokens": 9, "messages": HELLO}
    with anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0) as client:
        with pytest.raises(anthropic.AuthenticationError):
            client.messages.create(**create)
        client.api_key = "secret"
        client.messages.create(**create)
        with pytest.raises(anthropic.NotFoundError, match="nobody"):
            client.messages.create(**{**create, "model": "nobody"})
        create["messages"] = [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]
        with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\].content\[0\]: blocks of type 'image'"):
            client.messages.create(**create)


def test_anthropics_client_tries_again_when_there_is_no_room(start_server: StartServer) -> None:
    server = start_server()
    server.engine.places = 0
    seen: list[int] = []

    def make_room(response: Any) -> None:
        seen.append(response.status_code)
        server.engine.places = 10

    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=2) as client:
        client._client.event_hooks = {"request": [], "response": [make_room]}
        reply = client.messages.create(model="letters", max_tokens=9, messages=HELLO)

    assert seen == [429, 200]
    assert reply.content[0].to_dict()["text"] == "hello"


def test_an_engine_that_dies_ends_the_stream_with_an_error(start_server: StartServer) -> None:
    server = start_server()
    server.engine.holds_at = 1
    long: Any = [{"role": "user", "content": "x" * 90}]
    with (
        anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client,
        client.messages.stream(model="letters", max_tokens=900, messages=long) as stream,
    ):
        next(iter(stream.text_stream))
        server.engine.stop()
        with pytest.raises(anthropic.APIStatusError, match="the engine stopped"):
            stream.until_done()


def test_a_stream_that_waits_is_pinged(start_server: StartServer) -> None:
    server = start_server(sse_keep_alive_interval_s=0.05)
    server.engine.silent = True
    body = {"messages": HELLO, "max_tokens": 9, "stream": True}
    with (
        httpx.Client(base_url=server.url, timeout=60) as client,
        client.stream("POST", "/v1/messages", json=body) as reply,
    ):
        lines = reply.iter_lines()
        assert next(lines) == "event: ping"
        server.engine.silent = False
        assert 'data: {"type":"message_stop"}' in list(lines)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role: 'tool'"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": []}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "'document'"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "'tool_use'"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}]}, "'t'"),
        (
            {"messages": [*HELLO, {"role": "assistant", "content": [{"type": "tool_use", "id": "t"}]}]},
            "messages[1].content[0]",
        ),
        (
            {
                "messages": [
                    *HELLO,
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "n", "input": {}}]},
                ]
            },
            "tool_result",
        ),
        ({"messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": 5}]}]}, "thinking"),
        ({"system": [{"type": "image"}]}, "system[0]"),
        ({"system": 5}, "system"),
        (
            {"tools": [{"type": "oven_20250124", "name": "oven"}]},
            "tools[0]: tools of type 'oven_20250124'",
        ),
        ({"tools": [{"name": "x"}]}, "input_schema"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name: 'g'"),
        ({"tool_choice": {"type": "any"}}, "tools"),
        ({"tool_choice": {"type": "all"}}, "tool_choice"),
        ({"thinking": {"type": "enabled"}}, "budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 100}}, "budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "less than max_tokens"),
        ({"thinking": {"type": "between_tools"}}, "thinking"),
        ({"output_config": {"effort": "huge"}}, "effort"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "nothing"}}}}, ""),
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"context_management": {"edits": [{"type": "x"}]}}, "context_management"),
        ({"stop_sequences": list("abcde")}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop": "x"}, "stop_sequences"),
        ({"temperature": -1}, "temperature"),
        ({"logprobs": True}, "logprobs"),
        ({"n": 2}, "n is no field"),
        ({"metadata": {"user_id": "x" * 1000}}, "metadata"),
    ],
)
def test_it_is_told_what_is_wrong(agent: Server, fields: dict[str, Any], said: str) -> None:
    reply = say(agent, **{"messages": HELLO, **fields})

    assert (reply.status_code, kind_of(reply)) == (400, "invalid_request_error")
    assert said in reply.json()["error"]["message"], reply.text
    assert len(reply.text) < 1000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
BLOCK = st.dictionaries(
    st.sampled_from(
        ["type", "text", "id", "name", "input", "tool_use_id", "content", "thinking", "signature", "is_error"]
    ),
    st.sampled_from(["text", "thinking", "tool_use", "tool_result", "redacted_thinking", "forearm-1:!"]) | JSON,
    max_size=5,
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system"]) | JSON, "content": st.lists(BLOCK, max_size=3) | JSON}
)
FIELDS = st.sampled_from(
    ["system", "tools", "tool_choice", "thinking", "output_config", "metadata", "stop_sequences", "top_k"]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    messages=st.lists(MESSAGE, max_size=4) | JSON,
    fields=st.dictionaries(FIELDS, JSON | st.lists(BLOCK, max_size=2), max_size=2),
)
def test_no_body_breaks_the_server(agent: Server, messages: Any, fields: dict[str, Any]) -> None:
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        reply = agent.http.post(path, json={"messages": messages, "max_tokens": 2, **fields})

        assert reply.status_code in (200, 400), reply.text
        if reply.status_code == 400:
            json.dumps(kind_of(reply))
