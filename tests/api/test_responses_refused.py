"""A field that /v1/responses does not support, or that makes no sense, is a 400 that names it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.api.server import Server
from tests.api.test_responses import respond

MESSAGE = {"role": "user", "content": "x"}
TOOL = {"type": "function", "name": "f", "parameters": {}}


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"input": None}, "input", "required"),
        ({"input": 5}, "input", ""),
        ({"input": ["x"]}, "input", ""),
        ({"input": [{"type": "computer_call_output"}]}, "input", "input[0]: items of type 'computer_call_output'"),
        ({"input": [MESSAGE, {"role": "tool", "content": "x"}]}, "input", "input[1].role: 'tool'"),
        ({"input": [{"role": "user", "content": 5}]}, "input", "input[0].content"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input",
            "input[0].content[0]: parts of type 'input_image'",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": 5}]}]},
            "input",
            "input[0].content[0].text",
        ),
        (
            {"input": [{"role": "user", "content": ["x"]}]},
            "input",
            'input[0].content[0]: write an object with a type, as {"type": "text", "text": "Hello"}',
        ),
        ({"input": [{"type": ["x"], "role": "user"}]}, "input", "input[0]"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input", "call_id 'c'"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": 5, "arguments": ""}]}, "input", "input[0].name"),
        ({"input": [{"type": "reasoning", "encrypted_content": 5}]}, "input", "encrypted_content"),
        ({"input": [{"type": "reasoning", "content": [{"text": 5}]}]}, "input", "input[0].content"),
        ({"input": [{"type": "item_reference", "id": "x"}] * 101}, "input", "100"),
        ({"input": [MESSAGE] * 10_001}, "input", "10000"),
        ({"tools": [{"type": "funktion"}]}, "tools", "tools[0]: tools of type 'funktion'"),
        ({"tools": [{"type": "namespace", "name": "n"}]}, "tools", "tools[0].tools"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "x"}]}]}, "tools", "tools[0].tools[0]"),
        ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice", "web_search"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice", "tools"),
        ({"tools": [{"type": "function"}]}, "tools", "tools[0].name"),
        ({"tools": [{**TOOL, "defer_loading": True}]}, "tools", "defer_loading"),
        ({"tools": [{**TOOL, "allowed_callers": [["x"]]}]}, "tools", "allowed_callers"),
        ({"tool_choice": "required"}, "tool_choice", "tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "file_search"}}, "tool_choice", "file_search"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice", "g"),
        (
            {
                "tools": [TOOL],
                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]},
            },
            "tool_choice",
            "",
        ),
        ({"include": ["file_search_call.results"]}, "include", "file_search_call.results"),
        ({"prompt": {"id": "p"}}, "prompt", "prompt"),
        ({"conversation": "c"}, "conversation", "previous_response_id"),
        ({"context_management": [{"type": "compaction"}]}, "context_management", "truncation"),
        ({"moderation": {"model": "m"}}, "moderation", ""),
        ({"reasoning": {"summary": "concise"}}, "reasoning.summary", "auto"),
        ({"reasoning": {"mode": "pro"}}, "reasoning", ""),
        ({"reasoning": {"effort": "huge"}}, "reasoning", ""),
        ({"text": {"format": {"type": "xml"}}}, "text.format", "xml"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format", "schema"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "nothing"}}}}, "text.format", ""),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "low"),
        ({"truncation": "middle"}, "truncation", ""),
        ({"metadata": {"k" * 65: "v"}}, "metadata", ""),
        ({"metadata": {"k": "v" * 513}}, "metadata", ""),
        ({"metadata": {str(n): "v" for n in range(17)}}, "metadata", ""),
        ({"max_output_tokens": 0}, "max_output_tokens", ""),
        ({"max_tool_calls": 0}, "max_tool_calls", ""),
        ({"top_logprobs": 21}, "top_logprobs", ""),
        ({"temperature": 3}, "temperature", ""),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options", "stream"),
        ({"background": True, "store": False}, "background", "store"),
        ({"max_tokens": 5}, "max_tokens", "max_output_tokens"),
        ({"messages": [MESSAGE]}, "messages", "input"),
        ({"response_format": {"type": "json_object"}}, "response_format", "text.format"),
        ({"n": 2}, "n", "chat/completions"),
        ({"echo": True}, "echo", ""),
        ({"stop": [""]}, "stop", ""),
        ({"stop": list("abcde")}, "stop", "4"),
        ({"chat_template_kwargs": 5}, "chat_template_kwargs", ""),
        ({"logit_bias": {"x": 1}}, "logit_bias", ""),
        ({"input": "x" * 2000}, "input", "1000"),
    ],
)
def test_it_is_told_what_is_wrong(server: Server, fields: dict[str, Any], param: str, said: str) -> None:
    for stream in (False, True):
        body = {"input": "hello", **fields}
        if stream and "stream_options" not in body:
            body["stream"] = True
        reply = server.http.post("/v1/responses", json=body)

        assert reply.status_code == 400, reply.text
        error = reply.json()["error"]
        assert error["param"] == param, error
        assert said in error["message"]
        assert len(error["message"]) < 1000


def respond_raw(server: Server, parameters: str) -> httpx.Response:
    """Send a request that contains this JSON unchanged."""
    body = {"input": "hello", "tools": [{**TOOL, "parameters": "HERE"}], "tool_choice": "none"}
    content = json.dumps(body).replace('"HERE"', parameters)
    return server.http.post("/v1/responses", content=content, headers={"Content-Type": "application/json"})


@pytest.mark.parametrize("number", ["1" + "0" * 30, "1" * 4000, "1" * 5000, "1e400", "NaN", "-Infinity"])
def test_numbers_of_any_size_are_told_back_or_refused(server: Server, number: str) -> None:
    reply = respond_raw(server, f'{{"maximum": {number}}}')

    assert reply.status_code in (200, 400), reply.text
    if reply.status_code == 200:
        assert server.http.get(f"/v1/responses/{reply.json()['id']}").content == reply.content


def test_what_is_nested_too_deeply_is_refused(server: Server) -> None:
    for depth, allowed in ((50, 200), (100_000, 400)):
        nested = '{"a":' * depth + "1" + "}" * depth
        reply = respond_raw(server, nested)

        assert reply.status_code == allowed, reply.text[:1000]


def test_what_is_not_there_is_not_found(server: Server) -> None:
    with pytest.raises(openai.NotFoundError, match="nobody"):
        server.openai.responses.create(model="nobody", input="x")
    with pytest.raises(openai.NotFoundError, match="resp_1"):
        server.openai.responses.create(model="letters", input="x", previous_response_id="resp_1")
    with pytest.raises(openai.NotFoundError, match="msg_1"):
        server.openai.responses.create(model="letters", input=[{"type": "item_reference", "id": "msg_1"}])


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    ["type", "role", "content", "text", "id", "call_id", "name", "arguments", "output", "summary", "encrypted_content"]
)
KINDS = st.sampled_from(
    [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "item_reference",
        "input_text",
        "user",
        "assistant",
    ]
)
ITEMS = st.lists(st.dictionaries(KEYS, KINDS | JSON, max_size=6) | JSON, max_size=4)
FIELDS = st.sampled_from(
    [
        *("instructions", "previous_response_id", "background", "include", "metadata", "reasoning", "text", "tools"),
        *(
            "tool_choice",
            "top_logprobs",
            "truncation",
            "stream_options",
            "max_output_tokens",
            "store",
            "stop",
            "prompt",
        ),
        *("structured_outputs", "chat_template_kwargs", "prompt_cache_options", "service_tier", "seed", "logit_bias"),
    ]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(items=ITEMS | JSON, fields=st.dictionaries(FIELDS, JSON | ITEMS, max_size=3))
def test_no_body_breaks_the_server(server: Server, items: Any, fields: dict[str, Any]) -> None:
    reply = respond(server, items, **{"max_output_tokens": 2, **fields})

    assert reply.status_code in (200, 400, 404), reply.text
