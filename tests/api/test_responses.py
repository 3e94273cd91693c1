from __future__ import annotations

import json
import re
import threading
from typing import Any

import openai
import pydantic
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from tests.api.server import Server, StartServer, wait_until

from forearm.api.generation import usage
from forearm.api.generation.output_stream import Tally
from forearm.api.responses.output_items import ResponseProgress


class Exact:
    """A model that checks strictly what the openai client reads leniently."""

    event: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(ResponseStreamEvent)

    @staticmethod
    def response(reply: Any) -> Response:
        return Response.model_validate(reply, strict=True)


def respond(server: Server, given: Any = "hello", **fields: Any) -> Any:
    return server.http.post("/v1/responses", json={"input": given, **fields})


def events_of(text: str) -> list[dict[str, Any]]:
    """Return the events of a stream, each one checked against the client's types and its own event line."""
    found = []
    for block in text.split("\n\n")[:-1]:
        if block.startswith(":"):
            continue
        first, second = block.split("\n")
        event = json.loads(second.removeprefix("data: "))
        assert first == f"event: {event['type']}"
        Exact.event.validate_python(event)
        found.append(event)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def test_a_response_has_the_shape_that_clients_know(server: Server) -> None:
    reply = respond(server, "hello", model="letters", metadata={"trip": "7"}).json()

    Exact.response(reply)
    assert re.fullmatch("resp_[0-9a-f]{32}", reply.pop("id"))
    (item,) = reply.pop("output")
    assert re.fullmatch("msg_[0-9a-f]{32}", item.pop("id"))
    part = {"type": "output_text", "text": "hello", "annotations": [], "logprobs": []}
    assert item == {"type": "message", "status": "completed", "role": "assistant", "content": [part]}
    assert reply.pop("created_at") <= reply.pop("completed_at")
    assert reply == {
        "object": "response",
        "status": "completed",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "metadata": {"trip": "7"},
        "model": "letters",
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": "default",
        "store": True,
        "temperature": 0.7,  # the model's default
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": {
            "input_tokens": 6,
            "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
            "output_tokens": 6,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 12,
        },
        "user": None,
    }


def test_the_events_of_a_stream_come_in_order(server: Server) -> None:
    events = events_of(respond(server, "hi", stream=True).text)

    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event["delta"] for event in events[4:6]] == ["h", "i"]
    assert events[6]["text"] == "hi"
    assert events[0]["response"]["status"] == "in_progress"
    final = Exact.response(events[-1]["response"])
    assert (final.status, final.output_text) == ("completed", "hi")
    assert final.output[0].to_dict() == events[-2]["item"]


def test_the_openai_client_streams_to_the_same_response(server: Server) -> None:
    with server.openai.responses.stream(model="letters", input="naïve 🙂!") as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()

    assert text == final.output_text == "naïve 🙂!"
    assert server.openai.responses.retrieve(final.id).output_text == text


def test_a_response_cut_at_max_output_tokens_is_incomplete(server: Server) -> None:
    reply = Exact.response(respond(server, "hello", max_output_tokens=3).json())
    events = events_of(respond(server, "hello", max_output_tokens=3, stream=True).text)

    assert (reply.status, reply.output_text, reply.output[0].to_dict()["status"]) == ("incomplete", "hel", "incomplete")
    assert reply.incomplete_details is not None
    assert reply.incomplete_details.reason == "max_output_tokens"
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


def test_more_output_than_the_context_leaves_is_a_bound_and_no_mistake(server: Server) -> None:
    reply = respond(server, "hello", max_output_tokens=100_000).json()

    assert (reply["status"], reply["max_output_tokens"]) == ("completed", 100_000)
    assert server.engine.submits[-1].params.max_tokens == 1000 - 6


def test_items_become_messages(server: Server) -> None:
    reply = respond(
        server,
        [
            {"role": "developer", "content": "b "},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "c "}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "not said"}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "d ", "annotations": []}]},
            {"role": "user", "content": "e"},
        ],
        instructions="a ",
    ).json()

    assert reply["output"][0]["content"][0]["text"] == "a \n\nb c d e"


def test_a_conversation_goes_on_from_a_stored_response(server: Server) -> None:
    first = server.openai.responses.create(model="letters", input="one ", instructions="briefly: ")
    second = server.openai.responses.create(model="letters", input="two ", previous_response_id=first.id)
    third = server.openai.responses.create(model="letters", input="three", previous_response_id=second.id)

    assert first.output_text == "briefly: one "
    assert second.output_text == "one briefly: one two "  # instructions are not carried over
    assert third.output_text == "one briefly: one two one briefly: one two three"


def test_log_probabilities_come_where_they_are_asked_for(server: Server) -> None:
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    reply = Exact.response(respond(server, "hé", **fields).json())
    events = events_of(respond(server, "hé", stream=True, **fields).text)

    told = reply.output[0].to_dict()["content"][0]["logprobs"]  # type: ignore[index]
    assert [len(one["top_logprobs"]) for one in told] == [2, 2, 2]  # é has two tokens
    assert bytes(byte for one in told for byte in one["bytes"]).decode() == "hé"
    deltas = [event["logprobs"] for event in events if event["type"] == "response.output_text.delta"]
    assert [one for delta in deltas for one in delta] == told


@pytest.mark.parametrize("stream", [False, True])
def test_the_end_of_an_answer_with_many_log_probabilities_is_written_beside_the_event_loop(
    server: Server, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "stream": stream}
    threads: list[str] = []
    end = ResponseProgress.end

    def watched(self: ResponseProgress, reason: str | None, tally: Tally) -> list[bytes]:
        threads.append(threading.current_thread().name)
        return end(self, reason, tally)

    monkeypatch.setattr(ResponseProgress, "end", watched)
    monkeypatch.setattr(usage, "_SCORED_AT_ONCE", 10)
    short = respond(server, "hello", **fields)
    long = respond(server, "hello" * 3, **fields)

    assert (short.status_code, long.status_code) == (200, 200)
    assert threads[0] == "uvicorn"  # the thread of the event loop
    assert threads[1] != "uvicorn"


def test_obfuscation_hides_the_length_of_deltas(server: Server) -> None:
    events = events_of(respond(server, "hello", stream=True, stream_options={"include_obfuscation": True}).text)

    sizes = {len(event["delta"] + event["obfuscation"]) % 16 for event in events if event["type"].endswith(".delta")}
    assert sizes == {0}


def test_a_long_conversation_is_cut_from_its_beginning_where_truncation_is_auto(start_server: StartServer) -> None:
    server = start_server()
    server.engine.max_model_len = 100
    server.http.get("/readyz")
    wait_until(lambda: respond(server, "x" * 99).status_code == 400)
    items = [
        {"role": "system", "content": "S "},
        *({"role": "user", "content": f"{n:02} " + "." * 17} for n in range(9)),
    ]

    refused = respond(server, items)
    cut = respond(server, items, truncation="auto", max_output_tokens=2)
    hopeless = respond(server, "y" * 5000, truncation="auto")
    endless = [{"role": "user", "content": "z" * 3000}] * 9000 + items

    assert refused.status_code == hopeless.status_code == 400
    assert refused.json()["error"]["param"] == "input"
    prompt = bytes(token for token in server.engine.submits[-1].prompt_token_ids if token < 256).decode()
    assert cut.status_code == 200
    assert prompt == "S " + "".join(f"{n:02} " + "." * 17 for n in range(5, 9))
    assert respond(server, endless, truncation="auto", max_output_tokens=2).status_code == 200
    assert server.engine.submits[-1].prompt_token_ids == server.engine.submits[-2].prompt_token_ids


def test_the_input_is_counted(server: Server) -> None:
    assert server.openai.responses.input_tokens.count(model="letters", input="hello").input_tokens == 6


def test_the_openai_client_tries_again_when_there_is_no_room(start_server: StartServer) -> None:
    server = start_server()
    server.engine.places = 0
    seen: list[int] = []

    def make_room(response: Any) -> None:
        seen.append(response.status_code)
        server.engine.places = 10

    with server.openai.with_options(max_retries=2) as client:
        client._client.event_hooks = {"request": [], "response": [make_room]}
        reply = client.responses.create(model="letters", input="hello")

    assert (seen, reply.output_text) == ([429, 200], "hello")


def test_a_full_engine_refuses_before_anything_is_stored_or_sent(start_server: StartServer) -> None:
    server = start_server()
    server.engine.places = 0

    for fields in ({}, {"stream": True}, {"background": True}):
        reply = respond(server, "hello", **fields)
        assert (reply.status_code, reply.headers["retry-after"]) == (429, "3")
        assert reply.json()["error"]["message"] == "the queue is full"


def test_openapi_describes_all_of_it(server: Server) -> None:
    paths = server.http.get("/openapi.json").json()["paths"]

    assert {"input", "previous_response_id", "background"} <= set(
        paths["/v1/responses"]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
    )
    assert set(paths["/v1/responses/{response_id}"]) == {"get", "delete"}
    assert "/v1/messages/count_tokens" in paths


def test_the_async_client_reads_responses(server: Server) -> None:
    import asyncio

    async def ask() -> str:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            stream = await client.responses.create(model="letters", input="hello", stream=True)
            return "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])

    assert asyncio.run(ask()) == "hello"


@pytest.mark.parametrize(
    "fields", [{"max_tool_calls": 3}, {"truncation": "auto"}, {"service_tier": "auto"}, {"seed": 3}]
)
def test_what_needs_nothing_is_accepted(server: Server, fields: dict[str, Any]) -> None:
    assert respond(server, "hello", **fields).json()["output"][0]["content"][0]["text"] == "hello"


def test_vllms_sampling_fields_reach_the_engine(server: Server) -> None:
    respond(
        server,
        "hello",
        temperature=0.3,
        top_p=0.5,
        top_k=7,
        min_p=0.1,
        seed=11,
        repetition_penalty=1.1,
        stop=["xy"],
        stop_token_ids=[3],
        ignore_eos=True,
        max_output_tokens=4,
        logit_bias={"5": 1.5},
        priority=0,
    )

    params = server.engine.submits[-1].params
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.3, 0.5, 7, 0.1)
    assert (params.seed, params.repetition_penalty, params.stop_token_ids) == (11, 1.1, [3])
    assert (params.ignore_eos, params.max_tokens, params.logit_bias) == (True, 4, {5: 1.5})
