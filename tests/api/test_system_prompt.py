"""The length of a chat's system prompt in tokens, which the engine is told if layers keep states."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.api.server import Server, StartServer, started, wait_until

SYSTEM, USER = {"role": "system", "content": "été"}, {"role": "user", "content": "hello"}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def keeping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a server of a model that keeps states."""
    with started(tmp_path_factory.mktemp("keeping")) as server:
        keep_states(server)
        yield server


def keep_states(server: Server) -> None:
    server.engine.keeps_states = True
    server.http.get("/readyz")  # asks the engine for its state


def told(server: Server, messages: list[dict[str, Any]], **fields: Any) -> int:
    """Return the length of the system prompt that came with a chat's prompt."""
    before = len(server.engine.submits)
    reply = server.http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1, **fields})
    assert reply.status_code == 200, reply.text
    wait_until(lambda: len(server.engine.submits) > before)
    return server.engine.submits[-1].system_tokens


@pytest.mark.parametrize(
    ("messages", "tokens"),
    [
        ([SYSTEM, USER], 5),
        ([SYSTEM, SYSTEM, USER], 10),
        ([{"role": "developer", "content": "été"}, USER], 5),
        ([SYSTEM, USER, {"role": "assistant", "content": "hi"}, SYSTEM, USER], 5),
        ([SYSTEM, {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], 5),
        ([{"role": "system", "content": ""}, USER], 0),
        ([USER], 0),
        ([USER, SYSTEM], 0),
    ],
)
def test_it_is_what_stands_before_the_first_other_message(
    keeping: Server, messages: list[dict[str, Any]], tokens: int
) -> None:
    assert told(keeping, messages) == tokens


def test_tools_are_part_of_it(keeping: Server) -> None:
    alone = told(keeping, [USER], tools=[TOOL], tool_choice="required")

    assert alone > len("weather")
    assert keeping.engine.submits[-1].prompt_token_ids[alone:] == [*b"hello", 256]
    assert told(keeping, [SYSTEM, USER], tools=[TOOL], tool_choice="required") > alone


def test_the_other_chat_endpoints_tell_it_too(keeping: Server) -> None:
    message = {"model": "letters", "system": "été", "messages": [USER], "max_tokens": 1}
    assert keeping.http.post("/v1/messages", json=message).status_code == 200
    response = {"model": "letters", "instructions": "été", "input": "hello", "store": False, "max_output_tokens": 16}
    assert keeping.http.post("/v1/responses", json=response).status_code == 200

    assert [one.system_tokens for one in keeping.engine.submits[-2:]] == [5, 5]


def test_a_truncated_prompt_has_none(keeping: Server) -> None:
    assert told(keeping, [SYSTEM, USER], truncate_prompt_tokens=8) == 0
    assert told(keeping, [SYSTEM, USER], truncate_prompt_tokens=11) == 5


def test_a_template_that_refuses_another_chat_tells_none(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(
        "{% if messages[-1].content != 'hello' %}{{ raise_exception('say hello') }}{% endif %}"
        "{% for message in messages %}{{ message.content }}{% endfor %}"
    )
    with started(tmp_path, chat_template=str(template)) as server:
        keep_states(server)
        assert told(server, [SYSTEM, USER]) == 0


def test_a_template_that_writes_the_last_message_first_tells_what_is_the_same_in_all_chats(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("a chat: {{ messages[-1].content }}{{ messages[0].content }}")
    with started(tmp_path, chat_template=str(template)) as server:
        keep_states(server)
        assert told(server, [SYSTEM, USER]) == len("a chat: ")


def test_models_without_states_and_requests_with_their_own_template_do_without(start_server: StartServer) -> None:
    server = start_server(trust_request_chat_template=True)

    assert told(server, [SYSTEM, USER]) == 0
    keep_states(server)
    assert told(server, [SYSTEM, USER]) == 5
    assert told(server, [SYSTEM, USER], chat_template="{{ messages[0].content }}{{ messages[1].content }}") == 0
