from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from tests.api.server import Server, StartServer

from forearm.api.generation.request_bodies import ChatRequest, CompletionRequest
from forearm.api.generation.unsupported import COUNTERPARTS, ClientWarnings
from forearm.api.pooling.pooled import ServingPooling
from forearm.api.pooling.request_bodies import EmbeddingRequest
from forearm.errors import InvalidRequest
from forearm.model.pooling.adapters import Adapter
from forearm.model.pooling.plan import PoolingPlan

TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
IMAGE = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}]


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("tools", {"tools": []}),
        ("tools", {"tools": [{"type": "web_search"}]}),
        ("tools", {"tools": [{"type": "function", "function": {"parameters": {}}}]}),
        ("tools", {"tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}]}),
        ("tools", {"tools": [TOOL] * 1025}),
        ("messages", {"messages": [{"role": "user", "content": "a"}] * 10_001}),
        ("stop", {"stop": "x" * 4097}),
        ("stop_token_ids", {"stop_token_ids": [1] * ((1 << 18) + 1)}),
        ("allowed_token_ids", {"allowed_token_ids": [1] * ((1 << 18) + 1)}),
        ("tool_choice", {"tool_choice": "required"}),
        ("tool_choice", {"tools": [TOOL], "tool_choice": "sometimes"}),
        ("tool_choice", {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}),
        ("tool_choice", {"tools": [TOOL], "tool_choice": {"type": "function"}}),
        ("tool_choice", {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}),
        ("functions", {"functions": [{"name": "f"}]}),
        ("logits_processors", {"logits_processors": ["x"]}),
        ("logprob_token_ids", {"logprob_token_ids": [1]}),
        ("logprob_token_ids", {"logprobs": True, "logprob_token_ids": [1] * 129}),
        ("thinking_token_budget", {"thinking_token_budget": 5}),
        ("repetition_detection", {"repetition_detection": {"min_count": 3}}),
        ("modalities", {"modalities": ["text", "audio"]}),
        ("chat_template", {"chat_template": "{{ 1 }}"}),
        ("messages", {"messages": [{"role": "user", "content": IMAGE}]}),
        ("messages", {"messages": [{"role": "tyrant", "content": "x"}]}),
        ("messages", {"messages": []}),
        ("chat_template_kwargs", {"chat_template_kwargs": {"messages": []}}),
        ("chat_template_kwargs", {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}),
        ("chat_template_kwargs", {"chat_template_kwargs": {"tokenize": True}}),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "text", "text": None}]}]}),
        ("messages", {"messages": "hello"}),
        ("messages", {"messages": [{"role": "assistant", "tool_calls": [{"function": 1}]}]}),
        ("stream_options", {"stream_options": {"include_usage": True}}),
        ("prompt_logprobs", {"prompt_logprobs": 1, "stream": True}),
        ("top_logprobs", {"top_logprobs": 2}),
        ("top_logprobs", {"logprobs": True, "top_logprobs": 21}),
        ("top_logprobs", {"logprobs": True, "top_logprobs": -1}),
        ("prompt_logprobs", {"prompt_logprobs": 21}),
        ("stop", {"stop": ["a", "b", "c", "d", "e"]}),
        ("stop", {"stop": ""}),
        ("bad_words", {"bad_words": ["x"] * 129}),
        ("n", {"n": 16385}),
        ("temperature", {"temperature": 2.1}),
        ("temperature", {"temperature": -1}),
        ("temperature", {"temperature": "hot"}),
        ("seed", {"seed": 1 << 64}),
        ("cache_salt", {"cache_salt": "a/b"}),
        ("cache_salt", {"cache_salt": ""}),
        ("request_id", {"request_id": "two words"}),
        ("add_generation_prompt", {"add_generation_prompt": True, "continue_final_message": True}),
        ("max_tokens", {"max_tokens": 998}),
        ("max_completion_tokens", {"max_completion_tokens": 998}),
        ("max_completion_tokens", {"max_completion_tokens": 0}),
        ("max_completion_tokens", {"max_completion_tokens": -1, "max_tokens": 5}),
    ],
)
def test_a_chat_that_asks_for_what_there_is_not_is_a_400_naming_the_field(
    server: Server, param: str, fields: dict[str, Any]
) -> None:
    before = len(server.engine.submits)

    reply = server.http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "abc"}], **fields})

    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert (error["param"], error["type"], error["code"]) == (param, "BadRequestError", 400)
    assert error["message"]
    assert len(server.engine.submits) == before


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("prompt", {"prompt": None}),
        ("prompt", {"prompt": []}),
        ("prompt", {"prompt": ""}),
        ("prompt", {"prompt": ["a", ""]}),
        ("prompt", {"prompt": [-1]}),
        ("prompt", {"prompt": [1 << 40]}),
        ("prompt", {"prompt": {"text": "a"}}),
        ("prompt", {"prompt": ["a"] * 1025}),
        ("prompt", {"prompt": "x" * 1000}),
        ("suffix", {"suffix": "x"}),
        ("prompt_embeds", {"prompt_embeds": "AAAA"}),
        ("best_of", {"best_of": 3}),
        ("logprobs", {"logprobs": 21}),
        ("max_tokens", {"max_tokens": 0}),
        ("max_tokens", {"max_tokens": 996}),
        ("truncate_prompt_tokens", {"truncate_prompt_tokens": -2}),
    ],
)
def test_a_completion_that_asks_for_what_there_is_not_is_a_400_naming_the_field(
    server: Server, param: str, fields: dict[str, Any]
) -> None:
    reply = server.http.post("/v1/completions", json={"prompt": "hello", **fields})

    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("fields", "instead"),
    [
        ({"logits_processors": ["x"]}, "use logit_bias, allowed_token_ids, bad_words or structured_outputs"),
        ({"prompt_embeds": "AAAA"}, "send texts or token ids as prompt"),
    ],
)
def test_a_field_that_is_not_supported_is_told_what_does_the_same(
    server: Server, fields: dict[str, Any], instead: str
) -> None:
    reply = server.http.post("/v1/completions", json={"prompt": "hello", **fields})

    assert reply.json()["error"]["message"].endswith(f"is not supported by this server; {instead}")


def test_a_prompt_that_is_too_long_is_told_the_numbers(server: Server) -> None:
    message = server.chat("x" * 1200).json()["error"]["message"]
    assert "1000 tokens" in message
    assert "1201 input tokens" in message

    with pytest.raises(openai.BadRequestError, match=r"990 > 1000 - 21"):
        server.openai.chat.completions.create(
            model="letters", messages=[{"role": "user", "content": "x" * 20}], max_tokens=990, stream=True
        )


@pytest.mark.parametrize(
    ("content", "content_type"),
    [
        (b"", "application/json"),
        (b"{", "application/json"),
        (b"[]", "application/json"),
        (b"null", "application/json"),
        (b'{"prompt": "\\ud800"}', "application/json"),
        (b'{"prompt": "\xff"}', "application/json"),
        (b'{"prompt": "a", "temperature": NaN}', "application/json"),
        (b'{"prompt": ' + b"[" * 100_000, "application/json"),
        (b'{"prompt": "a"}', "text/plain"),
        (b'{"prompt": "a"}', "application/x-www-form-urlencoded"),
        (b'{"prompt": "a"}', ""),
    ],
)
def test_a_body_that_is_not_json_is_a_400(server: Server, content: bytes, content_type: str) -> None:
    reply = server.http.post("/v1/completions", content=content, headers={"Content-Type": content_type})

    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["code"] == 400


def test_a_body_has_a_limit_however_it_is_sent(start_server: StartServer) -> None:
    server = start_server(max_body_bytes=1000)

    declared = server.complete("x" * 1000)
    chunked = server.http.post(
        "/v1/completions", content=iter([b'{"prompt": "', b"x" * 2000]), headers={"Content-Type": "application/json"}
    )

    assert (declared.status_code, chunked.status_code) == (413, 413)
    assert declared.json()["error"]["message"] == "the request body is larger than 1000 bytes (FOREARM_MAX_BODY_BYTES)"


def test_a_text_that_is_hopelessly_long_is_not_even_tokenized(server: Server) -> None:
    reply = server.complete("x" * 30_000, truncate_prompt_tokens=5)  # 4 x 1000 tokens x 5 characters ("<eos>")

    assert reply.status_code == 400
    assert "30000 characters" in reply.json()["error"]["message"]
    assert server.complete("x" * 10_000, truncate_prompt_tokens=5).status_code == 200


def test_an_unknown_model_is_a_404(server: Server) -> None:
    with pytest.raises(openai.NotFoundError, match=r"The model `gpt-9` does not exist\."):
        server.openai.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "x"}])


def test_an_empty_model_is_the_served_one_as_in_vllm(server: Server) -> None:
    assert server.chat("x", model="").json()["model"] == "letters"


def test_unknown_fields_are_let_be_logged_once_and_counted(
    start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server()

    for _ in range(2):
        assert server.chat("x", user="me", frobnicate=True).status_code == 200

    assert [record.getMessage() for record in caplog.records if "frobnicate" in record.getMessage()] == [
        "requests have a field 'frobnicate', which this server does not know and ignores"
    ]
    assert 'forearm:unknown_request_fields_total{field="frobnicate"} 2.0' in server.http.get("/metrics").text


def test_an_unknown_field_of_another_server_is_logged_with_its_counterpart(
    start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server()

    server.chat(n_predict=5)
    server.complete(repeat_penalty=1.1)

    unknown = "which this server does not know and ignores"
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        f"requests have a field 'n_predict', {unknown}; write max_tokens",
        f"requests have a field 'repeat_penalty', {unknown}; write repetition_penalty",
    ]


def test_counterparts_of_unknown_fields_are_known() -> None:
    known = {name for kind in (ChatRequest, CompletionRequest) for name in kind.model_fields}
    named = {told.split(",")[0] for told in COUNTERPARTS.values()}

    assert sorted(named - known) == ["a message whose role is system", "fields beside it"]
    assert sorted(set(COUNTERPARTS) & set(ChatRequest.model_fields) & set(CompletionRequest.model_fields)) == []


def test_a_tool_that_is_no_function_is_refused_by_what_is_wrong_with_it(server: Server) -> None:
    other = server.chat("x", tools=[{"type": "web_search"}]).json()["error"]["message"]
    bare = server.chat("x", tools=[TOOL, {"type": "function"}]).json()["error"]["message"]

    assert other == "tools[0].type is 'web_search'; only 'function' is offered"
    assert bare == "tools[1].function must be an object with a name"


def test_tools_are_allowed_where_none_is_to_be_called(server: Server) -> None:
    assert server.chat("x", tools=[TOOL], tool_choice="none").status_code == 200


def test_without_a_template_a_chat_is_a_400_that_says_what_to_do(start_server: StartServer, tmp_path: Any) -> None:
    from tests.api.letters import write_letters

    (tmp_path / "letters").mkdir()
    write_letters(tmp_path / "letters", template=None)
    server = start_server()

    reply = server.chat("x")

    assert reply.status_code == 400
    assert "--chat-template" in reply.json()["error"]["message"]
    assert server.complete("x").status_code == 200


def test_a_task_of_jina_embeddings_v3_is_refused_because_its_adapters_are_not_there() -> None:
    config = SimpleNamespace(chat_template=None)
    plan = PoolingPlan("embed", "mean", "normalize", model_type="jina_embeddings_v3")
    known, warnings = SimpleNamespace(name=lambda name: name), ClientWarnings(SimpleNamespace(count=lambda *_: None))
    pooling = ServingPooling(config, plan, known, SimpleNamespace(), SimpleNamespace(), warnings)

    assert pooling.plan_of(EmbeddingRequest(input="x"), "Embeddings") is plan
    with pytest.raises(InvalidRequest, match=r"task is 'retrieval\.query': jina-embeddings-v3 is served"):
        pooling.plan_of(EmbeddingRequest(input="x", task="retrieval.query"), "Embeddings")

    pooling.plan = replace(plan, model_type="xlm-roberta", adapter=Adapter("text-matching", 1, 2, 0.25))
    assert pooling.plan_of(EmbeddingRequest(input="x", task="text-matching"), "Embeddings") is pooling.plan
    with pytest.raises(InvalidRequest, match=r"task is 'retrieval\.query': this server has the adapter of text-match"):
        pooling.plan_of(EmbeddingRequest(input="x", task="retrieval.query"), "Embeddings")


@pytest.mark.parametrize("call", [{}, {"function": None}, {"function": "weather"}, {"id": "1", "type": "function"}])
def test_a_call_without_a_function_is_told_in_words(server: Server, call: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "abc"}, {"role": "assistant", "tool_calls": [call]}]

    error = server.http.post("/v1/chat/completions", json={"messages": messages}).json()["error"]

    assert error["message"] == (
        "messages[1].tool_calls: a call has no function; write an object with its name and arguments"
    )
    assert error["param"] == "messages"
