"""Stored responses: fetched, followed, cancelled, deleted, and computed in the background."""

from __future__ import annotations

import json
import sys

import httpx
import openai
import pytest
from tests.api.server import Server, StartServer, wait_until
from tests.api.test_responses import Exact, events_of, respond


@pytest.fixture
def slow(start_server: StartServer) -> Server:
    """Yield a server whose engine waits before each token."""
    server = start_server()
    server.engine.pause_s = 0.1
    return server


def status(server: Server, response_id: str) -> str:
    return str(server.http.get(f"/v1/responses/{response_id}").json()["status"])


def test_a_background_response_goes_from_queued_to_completed(slow: Server) -> None:
    slow.engine.silent = True
    begun = Exact.response(respond(slow, "hello", background=True).json())
    assert (begun.status, begun.output) == ("queued", [])
    assert status(slow, begun.id) == "queued"

    slow.engine.holds_at, slow.engine.silent = 1, False
    wait_until(lambda: status(slow, begun.id) == "in_progress")
    slow.engine.holds_at = sys.maxsize
    wait_until(lambda: status(slow, begun.id) == "completed")

    found = slow.openai.responses.retrieve(begun.id)
    assert (found.output_text, found.background) == ("hello", True)
    assert found.usage is not None
    assert found.usage.output_tokens == 6


def test_a_background_response_is_cancelled(slow: Server) -> None:
    slow.engine.holds_at = 1
    begun = slow.openai.responses.create(model="letters", input="hello", background=True)
    wait_until(lambda: status(slow, begun.id) == "in_progress")

    cancelled = slow.openai.responses.cancel(begun.id)

    assert cancelled.status == "cancelled"
    wait_until(lambda: not slow.engine.running)
    assert slow.openai.responses.cancel(begun.id).status == "cancelled"
    assert events_of(slow.http.get(f"/v1/responses/{begun.id}?stream=true").text)[-1]["type"].endswith(".delta")


def test_a_background_response_that_is_deleted_ends(slow: Server) -> None:
    slow.engine.holds_at = 1
    begun = respond(slow, "hello", background=True).json()
    wait_until(lambda: bool(slow.engine.running))

    assert slow.http.delete(f"/v1/responses/{begun['id']}").json() == {
        "id": begun["id"],
        "object": "response",
        "deleted": True,
    }

    wait_until(lambda: not slow.engine.running)
    assert slow.http.get(f"/v1/responses/{begun['id']}").status_code == 404


def test_a_background_stream_goes_on_without_its_client_and_is_followed_again(slow: Server) -> None:
    body = {"input": "hello, world", "background": True, "stream": True}
    with (
        httpx.Client(base_url=slow.url, timeout=60) as client,
        client.stream("POST", "/v1/responses", json=body) as reply,
    ):
        lines = (line for line in reply.iter_lines() if line.startswith("data: "))
        seen = [json.loads(next(lines).removeprefix("data: ")) for _ in range(6)]
    response_id = seen[0]["response"]["id"]
    assert [event["type"] for event in seen[:3]] == ["response.created", "response.queued", "response.in_progress"]

    with slow.openai.responses.stream(response_id=response_id, starting_after=seen[-1]["sequence_number"]) as stream:
        later = list(stream)
        final = stream.get_final_response()

    assert later[0].sequence_number == seen[-1]["sequence_number"] + 1
    assert final.output_text == "hello, world"
    whole = events_of(slow.http.get(f"/v1/responses/{response_id}?stream=true").text)
    assert whole[:6] == seen
    assert whole[-1]["type"] == "response.completed"


def test_a_stored_stream_is_told_again_word_for_word(server: Server) -> None:
    text = respond(server, "hello", stream=True).text
    response_id = events_of(text)[0]["response"]["id"]

    assert server.http.get(f"/v1/responses/{response_id}?stream=true").text == text
    assert (
        server.http.get(f"/v1/responses/{response_id}?stream=true&starting_after=4").text
        == text[text.index("event: response.output_text.delta\n") :].split("\n\n", 1)[1]
    )
    assert server.http.get(f"/v1/responses/{response_id}?stream=true&starting_after=9999").text == ""


def test_a_client_that_disconnects_ends_a_response_in_the_foreground(slow: Server) -> None:
    slow.engine.holds_at = 1
    body = {"input": "hello", "stream": True}
    with (
        httpx.Client(base_url=slow.url, timeout=60) as client,
        client.stream("POST", "/v1/responses", json=body) as reply,
    ):
        lines = reply.iter_lines()  # kept, because dropping it closes the stream
        next(lines)
        wait_until(lambda: bool(slow.engine.running))

    wait_until(lambda: not slow.engine.running)


def test_an_engine_that_dies_fails_the_response(slow: Server) -> None:
    slow.engine.holds_at = 1
    background = respond(slow, "hello", background=True).json()
    body = {"input": "hello", "stream": True}
    with (
        httpx.Client(base_url=slow.url, timeout=20) as client,
        client.stream("POST", "/v1/responses", json=body) as reply,
    ):
        lines = reply.iter_lines()
        next(lines)
        slow.engine.stop()
        rest = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]

    assert rest[-1]["type"] == "response.failed"
    assert rest[-1]["response"]["error"] == {
        "code": "server_error",
        "message": "the engine stopped; it is being restarted",
    }
    Exact.event.validate_python(rest[-1])
    wait_until(lambda: status(slow, background["id"]) == "failed")
    assert Exact.response(slow.http.get(f"/v1/responses/{background['id']}").json()).error is not None


def test_nothing_is_stored_where_the_client_does_not_want_it(server: Server) -> None:
    reply = respond(server, "hello", store=False).json()

    assert reply["store"] is False
    assert server.http.get(f"/v1/responses/{reply['id']}").status_code == 404


def test_a_server_may_store_nothing(start_server: StartServer) -> None:
    server = start_server(responses_store=False)

    reply = respond(server, "hello").json()
    assert (reply["status"], reply["store"]) == ("completed", False)
    for fields in ({"background": True}, {"previous_response_id": reply["id"]}):
        refused = respond(server, "hello", **fields)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, next(iter(fields)))
    for path in ("", "/input_items", "?stream=true"):
        assert server.http.get(f"/v1/responses/{reply['id']}{path}").status_code == 404


def test_a_key_never_sees_another_keys_responses(start_server: StartServer) -> None:
    server = start_server(api_key=("first", "second"))
    mine = respond(server, "hello").json()
    item = mine["output"][0]["id"]
    other = {"Authorization": "Bearer second"}

    for method, path in (
        ("GET", ""),
        ("GET", "/input_items"),
        ("GET", "?stream=true"),
        ("POST", "/cancel"),
        ("DELETE", ""),
    ):
        assert server.http.request(method, f"/v1/responses/{mine['id']}{path}", headers=other).status_code == 404
    for body in ({"previous_response_id": mine["id"]}, {"input": [{"type": "item_reference", "id": item}]}):
        refused = server.http.post("/v1/responses", json={"input": "x", **body}, headers=other)
        assert refused.status_code == 404
        assert "hello" not in refused.text
    assert server.http.get(f"/v1/responses/{mine['id']}").status_code == 200
    with httpx.Client(base_url=server.url, headers={"x-api-key": "first"}, timeout=60) as same:
        assert same.get(f"/v1/responses/{mine['id']}").status_code == 200


def test_input_items_are_listed_in_pages(server: Server) -> None:
    items = [{"role": "user", "content": f"{number}"} for number in range(7)]
    made = server.openai.responses.create(model="letters", input=items)  # type: ignore[arg-type]

    newest = [item.content[0].text for item in server.openai.responses.input_items.list(made.id, limit=3)]  # type: ignore[union-attr, index]
    oldest = list(server.openai.responses.input_items.list(made.id, order="asc"))

    assert newest == list("6543210")  # the client fetches page after page
    assert [item.content[0].text for item in oldest] == list("0123456")  # type: ignore[union-attr, index]
    page = server.http.get(f"/v1/responses/{made.id}/input_items?limit=3").json()
    assert (len(page["data"]), page["has_more"]) == (3, True)
    assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][2]["id"])


def test_an_item_is_referred_to_by_its_id(server: Server) -> None:
    first = respond(server, "hello").json()

    reply = respond(
        server,
        [
            {"role": "user", "content": "a "},
            {"type": "item_reference", "id": first["output"][0]["id"]},
            {"role": "user", "content": " b"},
        ],
    ).json()

    assert reply["output"][0]["content"][0]["text"] == "a hello b"
    assert [one["type"] for one in server.http.get(f"/v1/responses/{reply['id']}/input_items").json()["data"]] == [
        "message"
    ] * 3


def test_a_response_still_computed_cannot_be_gone_on_from(slow: Server) -> None:
    begun = respond(slow, "hello" * 20, background=True).json()

    refused = respond(slow, "more", previous_response_id=begun["id"])

    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "previous_response_id")


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("?stream=maybe", "stream"),
        ("?stream=true", "stream"),
        ("?stream=true&include_obfuscation=true", "include_obfuscation"),
        ("?starting_after=1", "starting_after"),
        ("?stream=true&starting_after=x", "starting_after"),
        ("?stream=true&starting_after=--5", "starting_after"),
        (f"?stream=true&starting_after={'9' * 500}", "starting_after"),
        ("?include=file_search_call.results", "include"),
        ("?include[]=message.output_text.logprobs", "include"),
        ("/input_items?limit=0", "limit"),
        ("/input_items?limit=101", "limit"),
        ("/input_items?order=up", "order"),
        ("/input_items?after=msg_x", "after"),
        ("/input_items?include=x", "include"),
    ],
)
def test_a_wrong_query_is_told_by_its_name(server: Server, path: str, param: str) -> None:
    made = respond(server, "hello").json()

    reply = server.http.get(f"/v1/responses/{made['id']}{path}")

    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param
    assert len(reply.content) < 1000


def test_only_background_responses_can_be_cancelled(server: Server) -> None:
    made = server.openai.responses.create(model="letters", input="hello")

    with pytest.raises(openai.BadRequestError, match="background"):
        server.openai.responses.cancel(made.id)


@pytest.mark.parametrize("name", ["resp_0", "x" * 5000, "%00", "%F0%9F%99%82", "..%2F..", "'", "%ff%fe", "{}"])
def test_an_unknown_id_is_not_found(server: Server, name: str) -> None:
    for method, path in (("GET", ""), ("GET", "/input_items"), ("POST", "/cancel"), ("DELETE", "")):
        reply = server.http.request(method, f"/v1/responses/{name}{path}")
        assert reply.status_code == 404
        assert len(reply.content) < 500


def test_a_store_that_is_full_lets_the_oldest_go(start_server: StartServer) -> None:
    server = start_server(responses_store_count=3)
    ids = [respond(server, "hello").json()["id"] for _ in range(6)]

    assert [server.http.get(f"/v1/responses/{one}").status_code for one in ids] == [404, 404, 404, 200, 200, 200]


def test_an_answer_is_not_lost_because_it_cannot_be_stored(start_server: StartServer) -> None:
    server = start_server(responses_store_bytes=1 << 16)
    server.engine.max_model_len = 100_000
    server.http.get("/readyz")
    wait_until(lambda: respond(server, "x" * 30_000, store=False).status_code == 200)

    large = respond(server, "x" * 40_000, max_output_tokens=40_001)
    larger = respond(server, "x" * 70_000)

    assert large.json()["status"] == "completed"
    assert server.http.get(f"/v1/responses/{large.json()['id']}").status_code == 404
    assert (larger.status_code, larger.json()["error"]["param"]) == (400, "store")


def test_a_stream_that_waits_gives_signs_of_life(start_server: StartServer) -> None:
    server = start_server(sse_keep_alive_interval_s=0.05)
    server.engine.silent = True
    body = {"input": "hi", "background": True, "stream": True}
    with (
        httpx.Client(base_url=server.url, timeout=60) as client,
        client.stream("POST", "/v1/responses", json=body) as reply,
    ):
        lines = iter(reply.iter_lines())
        while not next(lines).startswith(":"):
            pass  # the first events; comments come until the engine speaks, or the client's time is over
        server.engine.silent = False
        assert any("response.completed" in line for line in lines)
