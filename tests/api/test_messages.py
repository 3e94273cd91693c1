"""/v1/messages with Anthropic's own client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pydantic
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from tests.api.server import Server, StartServer, wait_until

EVENT: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(RawMessageStreamEvent)
HELLO: list[Any] = [{"role": "user", "content": "hello"}]


@pytest.fixture
def claude(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def say(server: Server, messages: Any = HELLO, **fields: Any) -> httpx.Response:
    return server.http.post("/v1/messages", json={"messages": messages, "max_tokens": 100, **fields})


def events_of(text: str) -> list[dict[str, Any]]:
    """Return the events of a stream, each checked against the client's types and its own event line."""
    found = []
    for block in text.split("\n\n")[:-1]:
        first, second = block.split("\n")
        event = json.loads(second.removeprefix("data: "))
        assert first == f"event: {event['type']}"
        if event["type"] != "ping":
            EVENT.validate_python(event)
        found.append(event)
    return found


def prompt_of(server: Server) -> str:
    """Return the last prompt that the engine has received."""
    return bytes(token for token in server.engine.submits[-1].prompt_token_ids if token < 256).decode()


def test_a_message_has_the_shape_that_clients_know(server: Server) -> None:
    reply = say(server).json()

    Message.model_validate(reply, strict=True)
    assert reply.pop("id").startswith("msg_")
    assert reply == {
        "type": "message",
        "role": "assistant",
        "model": "letters",
        "content": [{"type": "text", "text": "hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 3,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 3,
            "output_tokens": 6,
            "output_tokens_details": {"thinking_tokens": 0},
        },
    }


def test_the_events_of_a_stream_come_in_order(server: Server) -> None:
    events = events_of(say(server, [{"role": "user", "content": "hi"}], stream=True).text)

    assert [event["type"] for event in events] == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert events[0]["message"]["content"] == []
    assert events[0]["message"]["usage"]["cache_read_input_tokens"] == 1
    assert events[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == 3


def test_anthropics_client_reads_whole_and_streamed_messages(claude: anthropic.Anthropic) -> None:
    whole = claude.messages.create(model="letters", max_tokens=50, messages=[{"role": "user", "content": "naïve 🙂"}])
    with claude.messages.stream(
        model="letters", max_tokens=50, messages=[{"role": "user", "content": "naïve 🙂"}]
    ) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()

    assert whole.content[0].to_dict() == final.content[0].to_dict()
    assert text == "naïve 🙂"
    assert (whole.usage, whole.stop_reason) == (final.usage, final.stop_reason)
    assert whole._request_id


def test_the_beta_client_is_answered_too(claude: anthropic.Anthropic) -> None:
    fields: Any = {
        "model": "letters",
        "max_tokens": 50,
        "messages": HELLO,
        "betas": ["interleaved-thinking-2025-05-14"],
    }

    assert claude.beta.messages.create(**fields).content[0].to_dict()["text"] == "hello"
    assert claude.beta.messages.count_tokens(model="letters", messages=HELLO).input_tokens == 6


async def test_the_async_client_streams(server: Server) -> None:
    async with (
        anthropic.AsyncAnthropic(base_url=server.url, auth_token="none") as client,
        client.messages.stream(model="letters", max_tokens=50, messages=HELLO) as stream,
    ):
        assert "".join([text async for text in stream.text_stream]) == "hello"


def test_tokens_are_counted_as_they_are_billed(claude: anthropic.Anthropic) -> None:
    count = claude.messages.count_tokens(model="letters", system="be brief. ", messages=HELLO)
    usage = claude.messages.create(model="letters", max_tokens=9, system="be brief. ", messages=HELLO).usage

    assert count.input_tokens == 16 == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_system_messages_and_blocks_become_the_prompt(server: Server) -> None:
    say(
        server,
        [
            {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
            {"role": "user", "content": "b"},
            {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": "…", "signature": "x"}, {"type": "text", "text": "c"}],
            },
            {"role": "user", "content": [{"type": "text", "text": "d"}, {"type": "text", "text": "e"}]},
        ],
        system=[{"type": "text", "text": "x-anthropic-billing-header: cc=1"}, {"type": "text", "text": "S "}],
    )

    assert prompt_of(server) == "S a\nbcd\ne"


def test_the_model_goes_on_with_a_prefilled_answer(server: Server) -> None:
    say(server, [*HELLO, {"role": "assistant", "content": "I"}])

    assert prompt_of(server) == "helloI"
    assert server.engine.submits[-1].prompt_token_ids[-1] == ord("I")


@pytest.mark.parametrize(
    ("fields", "reason", "sequence"),
    [
        ({"max_tokens": 3}, "max_tokens", None),
        ({"stop_sequences": ["xx", "ll"]}, "stop_sequence", "ll"),
        ({"max_tokens": 100_000}, "end_turn", None),
    ],
)
def test_it_is_told_why_a_message_ended(server: Server, fields: Any, reason: str, sequence: str | None) -> None:
    whole = say(server, **fields).json()
    events = events_of(say(server, stream=True, **fields).text)

    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)
    assert events[-2]["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


def test_a_full_context_is_told_apart_from_max_tokens(start_server: StartServer) -> None:
    server = start_server()
    server.engine.max_model_len = 20
    server.http.get("/readyz")
    wait_until(lambda: server.chat("y" * 50).status_code == 400)

    reply = say(server, max_tokens=100, ignore_eos=True).json()

    assert reply["stop_reason"] == "model_context_window_exceeded"
    assert reply["usage"]["output_tokens"] == 14


def test_sampling_fields_reach_the_engine(server: Server) -> None:
    say(server, temperature=0.5, top_k=3, top_p=0.25, metadata={"user_id": "u"}, seed=4)

    params = server.engine.submits[-1].params
    assert (params.temperature, params.top_k, params.top_p, params.seed) == (0.5, 3, 0.25, 4)


@pytest.mark.parametrize(
    ("block", "told"),
    [
        (5, 'messages[0].content[0]: write an object with a type, as {"type": "text", "text": "Hello"}'),
        ({"text": "a"}, 'messages[0].content[0]: write an object with a type, as {"type": "text", "text": "Hello"}'),
        ({"type": "text"}, "messages[0].content[0].text: it must be a string"),
    ],
)
def test_a_wrong_block_is_told_what_stands_there(server: Server, block: Any, told: str) -> None:
    reply = say(server, [{"role": "user", "content": [block]}])

    assert (reply.status_code, reply.json()["error"]["message"]) == (400, told)
