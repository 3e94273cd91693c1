from __future__ import annotations

import re
import threading
from typing import Any

import httpx
import openai
import pytest
from tests.api.server import Server, StartServer, wait_until

from forearm.api.http.foreign_paths import COUNTERPARTS

HELLO: Any = [{"role": "user", "content": "hello"}]


def test_an_error_has_vllms_shape(server: Server) -> None:
    assert server.chat("x", model="no").json() == {
        "error": {
            "message": "The model `no` does not exist. This server has `letters`, `org/letters`.",
            "type": "NotFoundError",
            "param": "model",
            "code": 404,
        }
    }


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nowhere", 404), ("GET", "/v1/completions", 405)])
def test_what_no_route_takes_is_an_error_object_too(server: Server, method: str, path: str, status: int) -> None:
    reply = server.http.request(method, path)

    assert reply.status_code == status
    assert reply.json()["error"]["code"] == status


@pytest.mark.parametrize(
    ("path", "there"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/api/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/tokenize", "/tokenize"),
        ("/nowhere", None),
        ("/v1/moderations", None),
    ],
)
def test_a_wrong_base_url_is_told(server: Server, path: str, there: str | None) -> None:
    message = server.http.post(path, json={}).json()["error"]["message"]

    end = f"; {there} is there: correct the client's base URL" if there else " on this server"
    assert message == f"Not Found: there is no POST {path}{end}"


@pytest.mark.parametrize(
    ("method", "path", "told"),
    [
        ("POST", "/api/chat", "Ollama's API is not served: use /v1/chat/completions"),
        ("GET", "/api/version", "Ollama's API is not served: use GET /version"),  # no wrong base URL of this server's
        ("POST", "/completion", "use /v1/completions, whose limit is max_tokens"),
        ("GET", "/slots", "use GET /load: it tells how many requests are open"),
        ("POST", "/reset_prefix_cache", "start the server with VLLM_SERVER_DEV_MODE=1"),
    ],
)
def test_a_client_of_another_server_is_told_the_counterpart(server: Server, method: str, path: str, told: str) -> None:
    message = server.http.request(method, path).json()["error"]["message"]

    assert message == f"Not Found: there is no {method} {path} on this server; {told}"


def test_counterparts_of_other_servers_paths_are_there_and_the_paths_are_not(server: Server) -> None:
    there = set(server.http.get("/openapi.json").json()["paths"])
    named = {path for told in COUNTERPARTS.values() for path in re.findall(r"(?<![\w-])/[a-z0-9_/]+", told)}

    assert len(COUNTERPARTS) > 40
    assert sorted(set(COUNTERPARTS) & there) == []
    assert sorted(named - there) == []


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (
            '{"prompt": "gr\u00fc\u00dfe"}'.encode("latin-1"),
            "byte 0xfc at position 14",
        ),  # PowerShell 5's Invoke-RestMethod
        ('{"prompt": "a"}'.encode("utf-16"), "byte 0xff at position 0"),
    ],
    ids=["latin-1", "utf-16"],
)
def test_a_body_in_another_encoding_is_told_as_such(server: Server, body: bytes, place: str) -> None:
    reply = server.http.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})

    message = f"Invalid JSON: the body is not UTF-8 ({place}); encode it in UTF-8"
    assert (reply.status_code, reply.json()["error"]["message"]) == (400, message)


@pytest.mark.parametrize(
    ("path", "fields", "told"),
    [
        ("/v1/completions", {"prompt": "a", "stop": ["b", ""]}, "stop.1: String should have at least 1 character"),
        (
            "/v1/completions",
            {"prompt": "a", "stop": 7},
            "stop: Input should be a valid string or a valid array; it is 7",
        ),
        ("/v1/completions", {"prompt": ["a", None]}, "prompt.1: Input should be a valid string; it is null"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [5]}]},
            "messages.0.content.0: Input should be an object or a valid string; it is 5",
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": {"type": "text"}}]},
            "messages.0.content: Input should be a valid string or a valid array; it is an object",
        ),
        (
            "/v1/completions",
            {"prompt": "a", "temperature": 9},
            "temperature: Input should be less than or equal to 2; it is 9",
        ),
        (
            "/v1/completions",
            {"prompt": [5.5]},
            "prompt.0: Input should be a valid integer or a valid string or a valid array; it is 5.5",
        ),
        (
            "/v1/responses",
            {"input": "a", "metadata": {"Team": "a", "Size": 7}},
            "metadata.Size: Input should be a valid string; it is 7",
        ),
        (
            "/v1/completions",
            {"prompt": "a", "seed": "é" * 200},
            f'seed: Input should be a valid integer, unable to parse string as an integer; it is "{"é" * 99}…',
        ),
    ],
)
def test_an_error_names_what_a_field_may_be_and_what_it_is(
    server: Server, path: str, fields: dict[str, Any], told: str
) -> None:
    error = server.http.post(path, json=fields).json()["error"]

    assert (error["message"], error["param"]) == (told, told.split(".")[0].split(":")[0])


def test_every_answer_has_a_request_id(server: Server) -> None:
    own = server.http.get("/version").headers["x-request-id"]
    given = server.http.get("/nowhere", headers={"X-Request-Id": "mine"}).headers["x-request-id"]

    assert len(own) == 32
    assert given == "mine"
    assert (
        server.http.post("/v1/chat/completions", json={"messages": HELLO}, headers={"X-Request-Id": "mine"}).json()[
            "id"
        ]
        == "chatcmpl-mine"
    )


def test_the_client_finds_the_request_id_in_an_error(server: Server) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        server.openai.chat.completions.create(model="letters", messages=[], extra_headers={"X-Request-Id": "mine"})

    assert caught.value.request_id == "mine"
    assert caught.value.param == "messages"


def test_a_full_queue_is_a_429_with_retry_after_before_the_first_byte(start_server: StartServer) -> None:
    server = start_server()
    server.engine.places = 0

    for stream in (False, True):
        reply = server.chat("x", stream=stream)
        assert (reply.status_code, reply.headers["retry-after"]) == (429, "3")
        assert reply.json()["error"]["type"] == "RateLimitError"
    with pytest.raises(openai.RateLimitError):
        server.openai.chat.completions.create(model="letters", messages=HELLO)


def test_of_several_prompts_none_stays_in_the_engine_when_one_is_refused(start_server: StartServer) -> None:
    server = start_server()
    server.engine.places, server.engine.silent = 2, True

    assert server.complete(["a", "b", "c"]).status_code == 429

    wait_until(lambda: not server.engine.running)


def test_without_an_engine_requests_are_503_until_it_is_back(start_server: StartServer) -> None:
    server = start_server()
    server.engine.stop()
    wait_until(lambda: server.http.get("/readyz").status_code == 503)

    for reply in (server.chat("x"), server.complete("x", stream=True), server.http.get("/health")):
        assert reply.status_code == 503
        assert int(reply.headers["retry-after"]) > 0
        assert reply.json()["error"]["type"] == "ServiceUnavailableError"
    assert server.http.get("/livez").status_code == 200
    assert "http_requests_total" in server.http.get("/metrics").text

    server.engine.start()
    wait_until(lambda: server.http.get("/readyz").status_code == 200)
    assert server.chat("x").status_code == 200


def test_an_engine_that_dies_is_a_503_for_requests_without_a_stream(start_server: StartServer) -> None:
    server = start_server()
    server.engine.silent = True
    replies: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: replies.append(server.chat("x")))
    thread.start()
    wait_until(lambda: bool(server.engine.running))

    server.engine.stop()
    thread.join()

    assert replies[0].status_code == 503
    assert "retry-after" in replies[0].headers


def test_an_engine_that_dies_ends_open_streams_with_an_error_object_and_done(start_server: StartServer) -> None:
    server = start_server()
    server.engine.holds_at = 1
    body: dict[str, Any] = {"messages": HELLO, "stream": True, "ignore_eos": True}

    with server.http.stream("POST", "/v1/chat/completions", json=body) as reply:
        lines = reply.iter_lines()
        events = [next(lines)]
        server.engine.stop()
        events += [line for line in lines if line]

    assert '"code":503' in events[-2]
    assert events[-2].startswith('data: {"error":{"message":"the engine stopped')
    assert events[-1] == "data: [DONE]"


def test_the_client_raises_what_a_stream_breaks_off_with(start_server: StartServer) -> None:
    server = start_server()
    server.engine.holds_at = 1

    endless = {"ignore_eos": True}
    with server.openai.chat.completions.create(
        model="letters", messages=HELLO, stream=True, extra_body=endless
    ) as stream:
        next(stream)
        server.engine.stop()
        with pytest.raises(openai.APIError, match="the engine stopped"):
            list(stream)
