"""A client's mistake is never the server's: whatever a field says, the answer is 200 or a 4xx with an error object."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from pydantic import BaseModel
from tests.e2e.served import Served, serve

from forearm.api.generation.request_bodies import ChatRequest, CompletionRequest

ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 3, 1 << 31, 1 << 63, -(1 << 64), 0.5, -0.001, 1e308, 1e-300),
    *("", "x", "\x00", "🙂", "x" * 5000, "NaN"),
    *([], [0], [-1], [1 << 40], ["x"], [""], [None], [[1]], ["a", "b", "c", "d"]),
    *({}, {"0": 1}, {"-1": 1}, {"99999999": 5}, {"type": "text"}, {"include_usage": True}, {"x": {"y": []}}),
)
BODIES: dict[str, tuple[type[BaseModel], dict[str, Any]]] = {
    "/v1/chat/completions": (ChatRequest, {"messages": [{"role": "user", "content": "What is ice?"}]}),
    "/v1/completions": (CompletionRequest, {"prompt": "Ice is"}),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("mistakes"), "--trust-request-chat-template") as running:
        yield running


@pytest.mark.parametrize(
    ("path", "field"), [(path, name) for path, (model, _) in BODIES.items() for name in model.model_fields]
)
def test_no_value_of_any_field_is_a_servers_error(served: Served, path: str, field: str) -> None:
    # n: 16384 outputs are allowed, and take their time.
    values = [odd for odd in ODD if field != "n" or odd in (None, 0, -1, 1, 3)]

    def ask(odd: Any) -> httpx.Response:
        body = {**BODIES[path][1], "max_tokens": 2, field: odd}
        return served.http.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})

    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(ask, values))

    for odd, reply in zip(values, replies, strict=True):
        assert reply.status_code == 200 or 400 <= reply.status_code < 500, (odd, reply.text)
        if reply.status_code != 200:
            assert reply.json()["error"]["code"] == reply.status_code
    assert served.http.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("n", {"n": 2, "temperature": 0}),
        ("n", {"n": 0}),
        ("temperature", {"temperature": -0.1}),
        ("temperature", {"temperature": 2.1}),
        ("top_p", {"top_p": 0}),
        ("top_p", {"top_p": 1.1}),
        ("top_k", {"top_k": -2}),
        ("min_p", {"min_p": 2}),
        ("presence_penalty", {"presence_penalty": 2.1}),
        ("frequency_penalty", {"frequency_penalty": -3}),
        ("repetition_penalty", {"repetition_penalty": 0}),
        ("min_tokens", {"min_tokens": 9, "max_tokens": 8}),
        ("max_tokens", {"max_tokens": 0}),
        ("max_tokens", {"max_tokens": 5000}),
        ("allowed_token_ids", {"allowed_token_ids": []}),
        ("allowed_token_ids", {"allowed_token_ids": [1 << 30]}),
        ("logit_bias", {"logit_bias": {"99999999": 1}}),
        ("stop_token_ids", {"stop_token_ids": [99999999]}),
        ("priority", {"priority": 1}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_value_out_of_range_is_a_400_naming_the_field_before_the_first_byte(
    served: Served, param: str, fields: dict[str, Any], stream: bool
) -> None:
    reply = served.chat(**fields, stream=stream)

    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param
