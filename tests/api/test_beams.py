"""use_beam_search over the echo engine.

Its most likely token after any prompt is the prompt's first one, and the next letters follow at -1, -2, …
"""

from __future__ import annotations

import json

import pytest
from tests.api.server import Server, StartServer, wait_until

BEAMS = {"use_beam_search": True, "n": 2, "max_tokens": 3}


def test_beams_come_best_first_with_their_logprobs(server: Server) -> None:
    reply = server.complete("hello", logprobs=1, **BEAMS).json()
    first, second = reply["choices"]
    assert (first["text"], second["text"]) == ("hhh", "hhi")
    assert first["logprobs"]["token_logprobs"] == [-0.5, -0.5, -0.5]
    assert second["logprobs"]["token_logprobs"] == [-0.5, -0.5, -1.0]
    assert second["logprobs"]["top_logprobs"][2] == {"h": -0.5, "i": -1.0}
    assert [choice["finish_reason"] for choice in reply["choices"]] == ["length", "length"]
    assert reply["usage"] == {
        "prompt_tokens": 5,
        "total_tokens": 11,
        "completion_tokens": 6,
        "prompt_tokens_details": None,
    }
    wait_until(lambda: not server.engine.running)


def test_each_prompt_has_its_own_beams(server: Server) -> None:
    reply = server.complete(["ab", "xyz"], **BEAMS).json()
    assert [choice["text"] for choice in reply["choices"]] == ["aaa", "aab", "xxx", "xxy"]
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]


def test_a_stop_token_ends_a_beam(server: Server) -> None:
    reply = server.complete("hello", stop_token_ids=[ord("i")], **BEAMS).json()
    ends = [(choice["text"], choice["finish_reason"], choice["stop_reason"]) for choice in reply["choices"]]
    assert ends == [("hhh", "length", None), ("", "stop", ord("i"))]  # -1.5 in 8 tokens, -1 in 5


def test_a_chat_and_a_stream_have_beams_too(server: Server) -> None:
    chat = server.chat("hello", **BEAMS).json()
    assert [choice["message"]["content"] for choice in chat["choices"]] == ["hhh", "hhi"]
    lines = server.complete("hello", stream=True, **BEAMS).text.split("\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["hhh", "hhi"]


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("n", {"n": 11}),
        ("min_tokens", {"min_tokens": 1}),
        ("logit_bias", {"logit_bias": {"1": 1.0}}),
        ("presence_penalty", {"presence_penalty": 1}),
        ("repetition_penalty", {"repetition_penalty": 1.5}),
        ("bad_words", {"bad_words": ["x"]}),
        ("allowed_token_ids", {"allowed_token_ids": [1]}),
        ("prompt_logprobs", {"prompt_logprobs": 1}),
        ("use_beam_search", {"response_format": {"type": "json_object"}}),
        ("length_penalty", {"length_penalty": 11}),
    ],
)
def test_what_a_search_cannot_impose_is_refused(server: Server, field: str, fields: dict[str, object]) -> None:
    error = server.complete("hello", **{**BEAMS, **fields}).json()["error"]
    assert (error["code"], error["param"]) == (400, field)


def test_what_asks_for_nothing_may_stand_beside(server: Server) -> None:
    neutral = {"temperature": 0.7, "top_p": 0.9, "seed": 3, "presence_penalty": 0, "repetition_penalty": 1.0}
    assert server.complete("hello", **BEAMS, **neutral, bad_words=[], length_penalty=0.5).status_code == 200


def test_a_client_that_leaves_ends_the_search(start_server: StartServer) -> None:
    server = start_server()
    server.engine.pause_s = 0.02
    body = {"prompt": "hello", **BEAMS, "max_tokens": 500, "stream": True}
    with server.http.stream("POST", "/v1/completions", json=body) as reply:
        assert reply.status_code == 200
        wait_until(lambda: len(server.engine.submits) > 4)
    wait_until(lambda: 'http_requests_total{handler="/v1/completions"' in server.http.get("/metrics").text)
    server.complete("x", max_tokens=1)  # reaches the engine behind all that the search has sent
    rounds = len(server.engine.submits)
    assert server.complete("x", max_tokens=1).status_code == 200
    assert len(server.engine.submits) == rounds + 1
    wait_until(lambda: not server.engine.running)


def test_a_full_queue_refuses_the_search(start_server: StartServer) -> None:
    server = start_server()
    server.engine.places = 1  # enough only for the first round, which has one beam
    assert server.complete("hello", **BEAMS).status_code == 429
    wait_until(lambda: not server.engine.running)
