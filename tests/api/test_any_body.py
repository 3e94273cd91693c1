"""Any request body is answered or refused by name, and is never an error of the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.api.server import Server, started

from forearm.api.generation.request_bodies import ChatRequest, CompletionRequest

TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% for call in m.tool_calls or [] %}{{ call.function.name }}"
    "{{ call.function.arguments | tojson }}{% endfor %}{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
    "{{ eos_token }}{% if enable_thinking %}<think>{% endif %}</think><tool_call>"
)
WORDS = st.sampled_from(
    [
        *("", "auto", "none", "required", "function", "text", "user", "assistant", "system", "tool", "developer", "f"),
        *(
            "json_object",
            "json_schema",
            "structural_tag",
            "string",
            "object",
            "array",
            "<think>",
            "</think>",
            "{",
            "\u0000",
        ),
        *("allowed_tools", "tool_calls", "arguments", "<tool_call>", '{"a": 1}', "[", "é", "\U0001f642"),
    ]
)
KEYS = st.sampled_from(
    [
        *("type", "function", "name", "parameters", "strict", "role", "content", "tool_calls", "tool_call_id", "id"),
        *("arguments", "reasoning", "reasoning_content", "json_schema", "schema", "allowed_tools", "mode", "tools"),
        *("properties", "$ref", "$defs", "items", "anyOf", "enum", "required", "enable_thinking", "regex", "choice"),
    ]
)
SCALARS = st.none() | st.booleans() | st.integers(-3, 300) | st.floats(-2, 3) | WORDS
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=8
)
FUNCTION = st.fixed_dictionaries(
    {"name": WORDS}, optional={"parameters": JSON, "strict": SCALARS, "description": SCALARS}
)
TOOL = st.fixed_dictionaries({"type": st.just("function"), "function": FUNCTION})
CALL = st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": WORDS, "arguments": WORDS | JSON})})
MESSAGE = st.fixed_dictionaries(
    {"role": WORDS, "content": WORDS | JSON},
    optional={"tool_calls": st.lists(CALL | JSON, max_size=2), "reasoning": JSON},
)
CHOICE = JSON | st.fixed_dictionaries({"type": st.just("function"), "function": st.fixed_dictionaries({"name": WORDS})})
FIELDS = {
    "tools": st.lists(TOOL | JSON, max_size=3) | JSON,
    "tool_choice": CHOICE,
    "messages": st.lists(MESSAGE, max_size=4),
}
EXTRA = [
    "modalities",
    "functions",
    "verbosity",
    "guided_json",
    "frobnicate",
    "suffix",
    "audio",
    "thinking_token_budget",
]


def bodies(model: type[ChatRequest] | type[CompletionRequest]) -> st.SearchStrategy[dict[str, Any]]:
    # the echo engine is slow with long prompts
    names = sorted({*model.model_fields, *EXTRA} - {"n", "max_tokens", "max_completion_tokens"})
    chosen = st.lists(st.sampled_from(names), max_size=4, unique=True)
    return chosen.flatmap(lambda some: st.fixed_dictionaries({name: FIELDS.get(name, JSON) for name in some}))


@pytest.fixture(scope="module", params=["", "pythonic"])
def thinking(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("any")
    with started(folder, chat_template=TEMPLATE, tool_call_parser=request.param) as running:
        yield running


def check(server: Server, path: str, body: dict[str, Any]) -> None:
    body = {"max_tokens": 3, **body}
    reply = server.http.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert reply.status_code in (200, 400, 404), f"{body}\n{reply.text}"
    if reply.status_code == 400:
        assert reply.json()["error"]["message"]


@given(body=bodies(ChatRequest))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_chat_is_answered_or_refused(thinking: Server, body: dict[str, Any]) -> None:
    check(thinking, "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], **body})


@given(body=bodies(CompletionRequest))
@settings(max_examples=30, deadline=None)
def test_any_completion_is_answered_or_refused(thinking: Server, body: dict[str, Any]) -> None:
    check(thinking, "/v1/completions", {"prompt": "hi", **body})
