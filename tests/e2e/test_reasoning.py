"""Reasoning from the template to the answer, in real processes: the demo model made to think by its chat template."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.served import Served, serve

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking is not false %}{{ '<think>\\n' }}{% else %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
)
MESSAGES: Any = [{"role": "user", "content": "What is a glacier?"}]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    flags = ("--chat-template", TEMPLATE, "--reasoning-parser", "auto", "--generation-config", "vllm")
    flags += ("--served-model-name", "demo")
    with serve(tmp_path_factory.mktemp("reasoning"), *flags) as running:
        yield running


def test_a_budget_ends_thought_and_the_answer_follows(served: Served) -> None:
    fields: dict[str, Any] = {"thinking_token_budget": 12, "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    reply = served.chat(**fields).json()
    stream = served.chat(**fields, stream=True, stream_options={"include_usage": True}).text

    message, usage = reply["choices"][0]["message"], reply["usage"]
    assert message["reasoning"]
    assert message["content"]
    assert "think>" not in message["reasoning"] + message["content"]
    assert 10 <= usage["completion_tokens_details"]["reasoning_tokens"] <= 20  # the end is tokens of its own
    deltas = [json.loads(line[6:]) for line in stream.split("\n\n") if line.startswith("data: {")]
    told = [chunk["choices"][0]["delta"] for chunk in deltas if chunk["choices"]]
    assert "".join(delta.get("reasoning", "") for delta in told) == message["reasoning"]
    assert "".join(delta.get("content", "") for delta in told) == message["content"]
    assert deltas[-1]["usage"] == usage


def test_a_constraint_holds_from_the_end_of_thought_on(served: Served) -> None:
    schema = {"type": "object", "properties": {"ice": {"type": "boolean"}}, "required": ["ice"]}
    form: Any = {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": {**schema, "additionalProperties": False}},
    }

    reply = served.openai.chat.completions.create(
        model="demo",
        messages=MESSAGES,
        response_format=form,
        max_tokens=900,
        temperature=0,
        extra_body={"thinking_token_budget": 8},
    )

    message = reply.choices[0].message
    assert message.model_dump()["reasoning"]
    assert isinstance(json.loads(message.content or "")["ice"], bool)
    assert reply.choices[0].finish_reason == "stop"


def test_a_call_that_must_be_follows_thought_too(served: Served) -> None:
    tool: Any = {"type": "function", "function": {"name": "now"}}

    reply = served.openai.chat.completions.create(
        model="demo",
        messages=MESSAGES,
        tools=[tool],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=200,
        temperature=0,
        extra_body={"thinking_token_budget": 8},
    )

    message = reply.choices[0].message
    assert message.model_dump()["reasoning"]
    assert [call.type for call in message.tool_calls or []] == ["function"]
    assert reply.choices[0].finish_reason == "tool_calls"


def test_without_thought_the_answer_comes_at_once(served: Served) -> None:
    message = served.chat(max_tokens=20, reasoning_effort="none").json()["choices"][0]["message"]

    assert message["reasoning"] is None
    assert message["content"]
