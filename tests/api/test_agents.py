"""Requests of agents with default settings: Codex CLI 0.169 and Claude Code 2.1, as recorded, with fewer tools."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from openai.types.responses import ResponseCustomToolCall, ResponseFunctionToolCall
from tests.api.server import Server, started
from tests.api.test_messages import say
from tests.api.test_responses import events_of, respond
from tests.api.test_responses_tools import TEMPLATE, prompt_of

STRING: Any = {"type": "object", "properties": {"command": {"type": "string"}}}
PATCH_FORMAT = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
CODEX: dict[str, Any] = {
    "tools": [
        {"type": "function", "name": "exec_command", "description": "Run.", "strict": False, "parameters": STRING},
        {
            "type": "namespace",
            "name": "multi_agent_v1",
            "description": "Agents.",
            "tools": [{"type": "function", "name": "spawn_agent", "strict": False, "parameters": STRING}],
        },
        {"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": PATCH_FORMAT},
        {"type": "local_shell"},
        {"type": "web_search", "external_web_access": False},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "01a20f95",
    "client_metadata": {"x-codex-window-id": "01a20f95:0"},
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a server whose model calls tools and does not reason."""
    template = TEMPLATE.replace("{% if enable_thinking is not false %}<think>{% endif %}", "")
    with started(tmp_path_factory.mktemp("plain"), chat_template=template, tool_call_parser="hermes") as running:
        yield running


def called(name: str, arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def test_codex_is_answered_and_told_what_was_left_out(plain: Server) -> None:
    reply = respond(plain, "hello", **CODEX)
    assert reply.status_code == 200, reply.text
    assert reply.json()["warnings"] == [
        "the format of custom tool 'apply_patch' is told to the model, and not imposed",
        "this server does not run tools of type local_shell; they were left out",
        "this server does not run tools of type web_search; they were left out",
    ]
    assert [tool["type"] for tool in reply.json()["tools"]] == [tool["type"] for tool in CODEX["tools"]]
    prompt = prompt_of(plain)
    assert '"multi_agent_v1__spawn_agent"' in prompt
    assert "start: /.+/" in prompt
    assert "web_search" not in prompt
    assert "warnings" not in respond(plain, "hello").json()


def test_a_call_comes_back_in_its_namespace(plain: Server) -> None:
    arguments = {"command": "ls"}
    [item] = respond(plain, called("multi_agent_v1__spawn_agent", arguments), **CODEX).json()["output"]
    assert (item["type"], item["name"], item["namespace"]) == ("function_call", "spawn_agent", "multi_agent_v1")
    assert json.loads(ResponseFunctionToolCall.model_validate(item).arguments) == arguments
    history = [{"role": "user", "content": "a"}, item, _output("function_call_output", item)]
    assert respond(plain, history, **CODEX).status_code == 200
    assert "(multi_agent_v1__spawn_agent" in prompt_of(plain)


def test_a_custom_tool_is_given_text_and_its_call_comes_back_with_the_conversation(plain: Server) -> None:
    text = '*** Begin Patch\n+"é"'
    said = called("apply_patch", {"input": text})
    [item] = respond(plain, said, **CODEX).json()["output"]
    assert ResponseCustomToolCall.model_validate(item).input == text
    assert (item["type"], item["name"], item["status"]) == ("custom_tool_call", "apply_patch", "completed")

    events = events_of(respond(plain, said, stream=True, **CODEX).text)
    told = [event for event in events if "custom_tool_call_input" in event["type"]]
    assert [(event["type"].rpartition(".")[2], event.get("delta", event.get("input"))) for event in told] == [
        ("delta", text),
        ("done", text),
    ]
    history = [{"role": "user", "content": "a"}, item, _output("custom_tool_call_output", item)]
    assert respond(plain, history, **CODEX).status_code == 200
    assert "(apply_patch" in prompt_of(plain)
    assert "Begin Patch" in prompt_of(plain)


@pytest.mark.parametrize("length", [40, 60, 75])
def test_a_custom_call_that_is_cut_off_has_what_there_is(plain: Server, length: int) -> None:
    said = called("apply_patch", {"input": "0123456789" * 5})
    reply = respond(plain, said, max_output_tokens=length, **CODEX).json()
    assert reply["status"] == "incomplete"
    for item in reply["output"]:
        if item["type"] == "custom_tool_call":
            assert ("0123456789" * 5).startswith(item["input"])


def test_a_custom_tool_can_be_required(plain: Server) -> None:
    choice = {"type": "custom", "name": "apply_patch"}
    reply = respond(plain, called("apply_patch", {"input": "x"}), **{**CODEX, "tool_choice": choice}).json()
    assert [item["type"] for item in reply["output"]] == ["custom_tool_call"]


def test_what_others_ran_in_earlier_turns_is_taken(plain: Server) -> None:
    history = [
        {"role": "user", "content": "a"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "local_shell_call", "call_id": "c", "status": "completed", "action": {"command": ["ls", "-l"]}},
        {"type": "local_shell_call_output", "id": "c", "output": "total 0"},
        {"type": "shell_call", "call_id": "d", "action": {"commands": ["pwd"]}},
        {"type": "shell_call_output", "call_id": "d", "output": [{"stdout": "/home", "stderr": ""}]},
        {"role": "user", "content": "go on"},
    ]
    reply = respond(plain, history, **CODEX)
    assert reply.status_code == 200, reply.text
    prompt = prompt_of(plain)
    assert all(part in prompt for part in ("(local_shell", '"-l"', "total 0", "(shell", "/home", "go on"))
    assert '"q"' not in prompt


def test_claude_code_may_enable_thinking_where_the_model_has_none(
    plain: Server, caplog: pytest.LogCaptureFixture
) -> None:
    fields: dict[str, Any] = {
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1;"},
            {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
        ],
        "metadata": {"user_id": "{}"},
        "max_tokens": 32000,
        "thinking": {"budget_tokens": 31999, "type": "enabled"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "tools": [
            {"name": "Bash", "description": "Run.", "input_schema": STRING},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        ],
    }
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            reply = say(plain, [{"role": "user", "content": "hello"}], **fields)
            assert reply.status_code == 200, reply.text
    assert reply.json()["content"][0]["type"] == "text"
    assert plain.engine.submits[-1].params.thinking_token_budget is None
    assert "web_search" not in prompt_of(plain)
    lines = [record.getMessage() for record in caplog.records]
    assert len([line for line in lines if "enable thinking" in line]) == 1
    assert len([line for line in lines if "web_search_20250305" in line]) == 1


def _output(kind: str, item: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "call_id": item["call_id"], "output": "done"}
