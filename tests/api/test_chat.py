from __future__ import annotations

import json
import re
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.api.letters import write_letters
from tests.api.server import Server, StartServer, wait_until

from forearm.api.openai.chat import chat_choice
from forearm.errors import ConfigError


def test_the_answer_has_exactly_the_shape_that_clients_know(server: Server) -> None:
    reply = server.chat("hello", model="letters", max_tokens=100).json()

    assert re.fullmatch("chatcmpl-[0-9a-f]{32}", reply.pop("id"))
    assert re.fullmatch(r"forearm-[\d.]+-[0-9a-f]{8}", reply.pop("system_fingerprint"))
    assert reply.pop("created") > 1_700_000_000
    assert reply == {
        "object": "chat.completion",
        "model": "letters",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "hello",
                    "refusal": None,
                    "annotations": None,
                    "audio": None,
                    "function_call": None,
                    "reasoning": None,
                    "reasoning_content": None,
                },
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": None,
            }
        ],
        "service_tier": None,
        "usage": {"prompt_tokens": 6, "total_tokens": 12, "completion_tokens": 6, "prompt_tokens_details": None},
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "kv_transfer_params": None,
    }


def test_a_chat_cut_at_max_tokens_says_length(server: Server) -> None:
    reply = server.chat("hello", max_tokens=3).json()

    choice = reply["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]) == ("hel", "length", None)
    assert reply["usage"]["completion_tokens"] == 3
    assert reply["model"] == "letters"


def test_the_openai_client_reads_a_chat(server: Server) -> None:
    reply = server.openai.chat.completions.create(
        model="org/letters",
        messages=[{"role": "system", "content": "be brief. "}, {"role": "user", "content": "naïve 🙂"}],
        max_completion_tokens=100,
    )

    assert reply.choices[0].message.content == "be brief. naïve 🙂"
    assert reply.choices[0].message.tool_calls is None
    assert reply.model == "org/letters"
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_the_openai_client_reads_a_stream(server: Server) -> None:
    with server.openai.chat.completions.create(
        model="letters",
        messages=[{"role": "user", "content": "naïve 🙂!"}],
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        chunks = list(stream)

    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    pieces = [chunk.choices[0].delta.content for chunk in chunks[1:-1]]
    assert pieces == ["n", "a", "ï", "v", "e", " ", "🙂", "!", ""]
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 13
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_events_of_a_stream_are_as_vllm_writes_them(server: Server) -> None:
    reply = server.chat("hi", stream=True, stream_options={"include_usage": True}, request_id="mine")

    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.text.endswith("}\n\ndata: [DONE]\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in reply.text.split("\n\n")[:-2]]
    head = {key: events[0].pop(key) for key in ("id", "object", "created", "model", "system_fingerprint")}
    assert head["id"] == "chatcmpl-mine"
    assert head["object"] == "chat.completion.chunk"
    tails = [events[0], *({k: v for k, v in event.items() if k not in head} for event in events[1:])]
    assert tails == [
        {"choices": [_choice(role="assistant", content="")]},
        {"choices": [_choice(content="h")]},
        {"choices": [_choice(content="i")]},
        {"choices": [{**_choice(content=""), "finish_reason": "stop", "stop_reason": None}]},
        {"choices": [], "usage": {"prompt_tokens": 3, "total_tokens": 6, "completion_tokens": 3,
                                  "prompt_tokens_details": None}},
    ]  # fmt: skip


def _choice(**delta: str) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}


def test_usage_comes_with_every_chunk_where_asked_for(server: Server) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    reply = server.chat("hi", stream=True, stream_options=options)

    counts = [json.loads(line[6:])["usage"]["completion_tokens"] for line in reply.text.split("\n\n")[:-2]]
    assert counts == [0, 1, 2, 3, 3]


def test_several_tokens_can_go_into_one_chunk(server: Server) -> None:
    reply = server.chat("hello", stream=True, stream_interval=2, return_token_ids=True)

    choices = [json.loads(line[6:])["choices"][0] for line in reply.text.split("\n\n")[:-2]]
    assert [choice["delta"]["content"] for choice in choices] == ["", "h", "el", "lo", ""]
    assert [choice.get("token_ids") for choice in choices] == [None, [104], [101, 108], [108, 111], [256]]
    assert server.chat("hello", stream=True, stream_interval=0).status_code == 400


def test_n_choices_come_side_by_side(server: Server) -> None:
    whole = server.openai.chat.completions.create(
        model="letters", messages=[{"role": "user", "content": "abc"}], n=3, temperature=1
    )
    texts = ["", "", ""]
    with server.openai.chat.completions.create(
        model="letters", messages=[{"role": "user", "content": "abc"}], n=3, stream=True
    ) as stream:
        for chunk in stream:
            texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""

    assert [choice.message.content for choice in whole.choices] == ["abc", "bc", "c"]
    assert texts == ["abc", "bc", "c"]


def test_a_stop_string_ends_the_answer_and_the_engines_work_on_it(server: Server) -> None:
    server.engine.holds_at = 30  # past the stop string: the engine's work does not end by itself
    reply = server.chat("the quick brown fox", stop=["ick b", "zzz"], ignore_eos=True, max_tokens=900).json()
    server.engine.holds_at = sys.maxsize

    choice = reply["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]) == ("the qu", "stop", "ick b")
    assert reply["usage"]["completion_tokens"] == len("the quick b")
    wait_until(lambda: not server.engine.running)


def test_a_streamed_stop_string_is_never_shown_in_part(server: Server) -> None:
    with server.openai.chat.completions.create(
        model="letters", messages=[{"role": "user", "content": "the quick brown fox"}], stop="quick b", stream=True
    ) as stream:
        chunks = list(stream)

    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "the "
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert chunks[-1].choices[0].model_dump()["stop_reason"] == "quick b"


def test_a_stop_string_can_be_part_of_the_answer(server: Server) -> None:
    reply = server.chat("the quick", stop=" q", include_stop_str_in_output=True).json()

    assert reply["choices"][0]["message"]["content"] == "the q"


def test_log_probabilities_have_openais_shape(server: Server) -> None:
    reply = server.openai.chat.completions.create(
        model="letters", messages=[{"role": "user", "content": "é"}], logprobs=True, top_logprobs=2, max_tokens=2
    )

    assert reply.choices[0].logprobs is not None
    content = reply.choices[0].logprobs.content or []
    assert [(one.bytes, one.logprob) for one in content] == [([0xC3], -0.5), ([0xA9], -0.5)]
    assert [(one.bytes, one.logprob) for one in content[0].top_logprobs] == [([0xC3], -0.5), ([0xC4], -1.0)]


def test_tokens_can_be_written_as_ids(server: Server) -> None:
    reply = server.chat("a", logprobs=True, return_tokens_as_token_ids=True, return_token_ids=True).json()

    assert reply["choices"][0]["logprobs"]["content"][0]["token"] == "token_id:97"
    assert reply["choices"][0]["token_ids"] == [97, 256]
    assert reply["prompt_token_ids"] == [97, 256]


def test_prompt_log_probabilities_are_by_id(server: Server) -> None:
    reply = server.chat("ab", prompt_logprobs=1, return_prompt_text=True).json()

    assert reply["prompt_logprobs"][0] is None
    assert reply["prompt_logprobs"][1] == {"98": {"logprob": -0.5, "rank": 1, "decoded_token": "b"}}
    assert reply["prompt_text"] == "ab<eos>"


def test_contents_may_come_in_parts_of_text(server: Server) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

    assert server.chat(parts).json()["choices"][0]["message"]["content"] == "a\nb"
    # vLLM takes texts themselves, too.
    assert server.chat(["a", "b"]).json()["choices"][0]["message"]["content"] == "a\nb"
    mixed = ["a", {"type": "text", "text": "b"}, "c"]
    assert server.chat(mixed).json()["choices"][0]["message"]["content"] == "a\nb\nc"
    assert server.chat([5]).status_code == 400


def test_an_answer_can_go_on_from_the_last_message(server: Server) -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "yz"}]
    body = {"messages": messages, "continue_final_message": True, "echo": True, "max_tokens": 3}

    reply = server.http.post("/v1/chat/completions", json=body).json()

    assert reply["usage"]["prompt_tokens"] == 3
    assert reply["choices"][0]["message"]["content"] == "yz" + "xyz"


def test_the_models_and_the_requests_sampling_reach_the_engine(server: Server) -> None:
    server.chat("a", top_p=0.5, seed=-1, stop_token_ids=[98], bad_words=["no"], logit_bias={"97": 200.0}, priority=3)
    params = server.engine.submits[-1].params
    server.chat("a", temperature=0, cache_salt="mine", truncate_prompt_tokens=1)
    last = server.engine.submits[-1]

    assert (params.temperature, params.top_k, params.top_p, params.seed) == (0.7, 20, 0.5, None)
    assert (params.stop_token_ids, params.logit_bias) == ([98], {97: 100.0})
    assert params.bad_words_token_ids == ((110, 111),)
    assert server.engine.submits[-2].priority == 3
    assert (last.params.temperature, last.cache_salt, last.prompt_token_ids) == (0, "mine", [256])


def test_the_operators_defaults_stand_over_the_models(start_server: StartServer) -> None:
    changes = {"temperature": 0.1, "max_new_tokens": 2}
    server = start_server(override_generation_config=changes, force_include_usage=True, prompt_tokens_details=True)

    reply = server.chat("hello").json()
    stream = server.chat("hello", stream=True).text

    assert server.engine.submits[-1].params.temperature == 0.1
    assert reply["choices"][0]["message"]["content"] == "he"
    assert reply["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    counts = [json.loads(line[6:])["usage"]["completion_tokens"] for line in stream.split("\n\n")[:-2]]
    assert counts == [0, 1, 2, 2], "usage is in every chunk"


def test_no_defaults_but_vllms_where_asked_for(start_server: StartServer) -> None:
    server = start_server(generation_config="vllm")

    server.chat("hello")

    assert (server.engine.submits[-1].params.temperature, server.engine.submits[-1].params.top_k) == (1.0, 0)


def test_a_request_may_bring_its_template_where_that_is_trusted(start_server: StartServer) -> None:
    server = start_server(trust_request_chat_template=True, default_chat_template_kwargs={"b": "B"})

    template = "{{ a }}{{ b }}{{ reasoning_effort }}{{ eos_token }}"
    reply = server.chat("x", chat_template=template, chat_template_kwargs={"a": "A"}, reasoning_effort="low").json()

    assert reply["choices"][0]["message"]["content"] == "ABlow"


@pytest.mark.parametrize("message", [{"role": "assistant", "content": None}, {"role": "assistant"}])
def test_a_message_without_content_is_an_empty_one(server: Server, message: dict[str, Any]) -> None:
    """An answer that max_tokens cut within its reasoning comes back so, in the next turn of most clients."""
    talk = [{"role": "user", "content": "ab"}, message, {"role": "user", "content": "c"}]

    reply = server.http.post("/v1/chat/completions", json={"messages": talk})

    assert reply.json()["choices"][0]["message"]["content"] == "abc"


def test_parts_of_a_message_without_content_are_none(start_server: StartServer) -> None:
    template = "{% for one in messages %}{{ one.content | length }}{% endfor %}"
    server = start_server(chat_template=template, chat_template_content_format="openai")

    talk = [{"role": "assistant", "content": None}]
    reply = server.http.post("/v1/chat/completions", json={"messages": talk, "max_tokens": 1})

    assert reply.json()["choices"][0]["message"]["content"] == "0"


def test_a_body_may_begin_with_a_byte_order_mark(server: Server) -> None:
    """PowerShell writes it before UTF-8."""
    body = b'\xef\xbb\xbf{"messages": [{"role": "user", "content": "ab"}]}'

    reply = server.http.post("/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})

    assert reply.json()["choices"][0]["message"]["content"] == "ab"


@pytest.mark.parametrize("name", ["messages", "chat_template", "tokenize"])
def test_a_default_variable_that_every_request_would_be_refused_for_ends_the_start(
    name: str, start_server: StartServer
) -> None:
    with pytest.raises(ConfigError, match=f"--default-chat-template-kwargs: .{name}. is reserved"):
        start_server(default_chat_template_kwargs={name: 1})


def test_several_conversations_are_answered_in_one_request(server: Server) -> None:
    def batch(**fields: Any) -> httpx.Response:
        talks = [[{"role": "user", "content": text}] for text in ("abc", "de")]
        return server.http.post("/v1/chat/completions/batch", json={"messages": talks, **fields})

    reply = batch().json()
    assert [(choice["index"], choice["message"]["content"]) for choice in reply["choices"]] == [(0, "abc"), (1, "de")]
    assert reply["usage"]["prompt_tokens"] == 7
    assert reply["usage"]["completion_tokens"] == 7
    wait_until(lambda: not server.engine.running)
    refused = {"stream": True, "n": 2, "tools": [{}], "temperature": 9, "messages": [[]], "prompt_logprobs": 0}
    for field, value in refused.items():
        error = batch(**{field: value}).json()["error"]
        assert (error["code"], error["param"]) == (400, field)
    long = [[{"role": "user", "content": "a"}], [{"role": "user", "content": "x" * 2000}]]
    assert batch(messages=long).status_code == 400
    wait_until(lambda: not server.engine.running)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("max_tokens", 2), ("max_completion_tokens", 3), ("min_tokens", 1), ("ignore_eos", True), ("seed", 1)),
        *(("logprobs", True), ("stop", "c"), ("stop_token_ids", [98]), ("bad_words", ["z"]), ("logit_bias", {"1": 1})),
        *(("include_stop_str_in_output", True), ("skip_special_tokens", False), ("return_token_ids", True)),
        *(("truncate_prompt_tokens", 2), ("response_format", {"type": "json_object"}), ("cache_salt", "a")),
        *(("chat_template_kwargs", {"a": 1}), ("reasoning_effort", "low"), ("add_generation_prompt", False)),
        *(("documents", [{"a": 1}]), ("request_id", "x"), ("user", "y"), ("parallel_tool_calls", True)),
        *(("temperature", 0.5), ("top_p", 0.5), ("top_k", 3), ("frequency_penalty", 1), ("repetition_penalty", 1.1)),
        *(("max_tokens", 5000), ("max_tokens", 0), ("max_tokens", None), ("top_logprobs", 2), ("stream_options", {})),
    ],
)
def test_a_field_does_in_a_batch_what_it_does_in_a_chat(server: Server, field: str, value: Any) -> None:
    fields = {"max_tokens": 9, field: value}
    talk = [{"role": "user", "content": "abcdef"}]
    alone = server.http.post("/v1/chat/completions", json={"messages": talk, **fields})
    batch = server.http.post("/v1/chat/completions/batch", json={"messages": [talk, talk], **fields})
    assert batch.status_code == alone.status_code
    if alone.status_code == 200:
        [choice] = alone.json()["choices"]
        assert batch.json()["choices"] == [choice, {**choice, "index": 1}]
    else:
        assert batch.json() == alone.json()


def test_many_log_probabilities_of_a_batch_are_written_beside_the_event_loop(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def noted(*given: Any) -> Any:
        threads.append(threading.current_thread().name)
        return chat_choice(*given)

    monkeypatch.setattr("forearm.api.openai.chat_batch.chat_choice", noted)
    talks = [[{"role": "user", "content": "abcdef"}]] * 4
    for tokens in (2, 300):
        body = {"messages": talks, "max_tokens": tokens, "logprobs": True, "ignore_eos": True}
        choices = server.http.post("/v1/chat/completions/batch", json=body).json()["choices"]
        assert [len(choice["logprobs"]["content"]) for choice in choices] == [tokens] * 4

    assert [name == "uvicorn" for name in threads] == [True] * 4 + [False] * 4


@pytest.mark.parametrize(("model_type", "tag"), [("deepseek_v32", "function_calls"), ("deepseek_v4", "tool_calls")])
def test_a_type_that_is_published_without_a_template_chats_and_calls_tools(
    model_type: str, tag: str, start_server: StartServer, tmp_path: Path
) -> None:
    folder = write_letters(tmp_path / "without", template=None)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    server = start_server(model_folder=str(folder), trust_request_chat_template=True)
    tools = [{"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}]
    call = f'<｜DSML｜{tag}>\n<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n</｜DSML｜{tag}>'

    reply = server.chat("Hi.", return_prompt_text=True, max_tokens=1, reasoning_effort="none").json()
    called = server.chat(call, tools=tools, chat_template="{{ messages[0].content }}{{ eos_token }}{{ tools }}").json()

    assert reply["prompt_text"] == "<｜begin▁of▁sentence｜><｜User｜>Hi.<｜Assistant｜></think>"
    assert [one["function"]["name"] for one in called["choices"][0]["message"]["tool_calls"]] == ["now"]
