"""One request of a load: its body, and the measurements of its stream."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.bench.raw_server import HANG_UP, chunked, plain, raw_server

from forearm.bench.datasets import Sample
from forearm.bench.http import Http
from forearm.bench.load import Traffic, run
from forearm.bench.request import NO_TOKENS, Listener, RequestForm, ask
from forearm.bench.statistics import RequestOutcome

SAMPLE = Sample("What is a glacier?", 9, 4, "r-1")
COMPLETIONS = RequestForm("/v1/completions", "openai")
CHAT = RequestForm("/v1/chat/completions", "openai-chat")
EMBEDDINGS = RequestForm("/v1/embeddings", "openai-embeddings")


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def text(piece: str | None) -> bytes:
    return event(id="x", choices=[{"index": 0, "text": piece, "logprobs": None, "finish_reason": None}], usage=None)


def delta(**fields: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": fields}])


USAGE = event(choices=[], usage={"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14})
STREAM = [b": keep-alive\n\n", text("a"), text("b"), text(""), USAGE, b"data: [DONE]\n\n"]


def heard(parts: list[tuple[bytes, float]]) -> RequestOutcome:
    outcome = RequestOutcome(9, start_s=10.0)
    listener = Listener(outcome)
    for part, received_s in parts:
        listener.take(part, received_s)
    listener.end()
    return outcome


def test_times_are_those_of_the_events_that_have_a_choice() -> None:
    outcome = heard(list(zip(STREAM, [10.5, 11.0, 11.5, 13.0, 20.0, 21.0], strict=True)))

    assert (outcome.ttft_s, outcome.itl_s, outcome.latency_s) == (1.0, [0.5, 1.5], 3.0)
    assert (outcome.text, outcome.prompt_tokens, outcome.output_tokens, outcome.error) == ("ab", 11, 3, "")
    assert outcome.tpot_s == 1.0


def test_a_stream_cut_at_every_byte_says_the_same() -> None:
    whole = b"".join(STREAM)
    outcome = heard([(whole[i : i + 1], 11.0) for i in range(len(whole))])

    assert (outcome.text, len(outcome.itl_s), outcome.output_tokens, outcome.error) == ("ab", 2, 3, "")


def test_chat_deltas_are_heard_the_first_one_without_text_too() -> None:
    parts = [delta(role="assistant", content=""), delta(content="hello"), delta(content=None, tool_calls=[])]
    outcome = heard([(part, 11.0 + i) for i, part in enumerate(parts)])

    assert (outcome.ttft_s, outcome.itl_s, outcome.text) == (1.0, [1.0, 1.0], "hello")


def test_usage_may_come_with_the_last_choice() -> None:
    last = event(choices=[{"index": 0, "text": "", "finish_reason": "length"}], usage={"completion_tokens": 2})
    outcome = heard([(text("a"), 11.0), (last, 12.0)])

    assert (outcome.output_tokens, outcome.prompt_tokens, outcome.itl_s) == (2, 9, [1.0])


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ([], NO_TOKENS),
        ([USAGE, b"data: [DONE]\n\n"], NO_TOKENS),
        ([text("a"), event(error={"message": "engine stopped"})], "the stream ended with an error"),
        ([text("a"), b"data: {nonsense\n\n"], "that can't be read"),
    ],
)
def test_a_stream_that_goes_wrong_is_a_failure(parts: list[bytes], error: str) -> None:
    assert error in heard([(part, 11.0) for part in parts]).error


def test_a_completion_is_asked_for_as_vllm_does() -> None:
    assert json.loads(COMPLETIONS.body(SAMPLE, "m")) == {
        "model": "m",
        "prompt": "What is a glacier?",
        "repetition_penalty": 1.0,
        "max_tokens": 4,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_chat_is_asked_for_as_vllm_does_with_what_is_added() -> None:
    form = RequestForm(
        "/v1/chat/completions", "openai-chat", logprobs=2, ignore_eos=True, extra={"temperature": 0, "stream": True}
    )

    assert json.loads(form.body(SAMPLE, "m")) == {
        "model": "m",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "What is a glacier?"}]}],
        "max_completion_tokens": 4,
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": True,
        "top_logprobs": 2,
        "ignore_eos": True,
        "temperature": 0,
    }


async def test_a_request_over_http_is_measured_from_when_it_is_sent() -> None:
    async with raw_server(chunked(*STREAM)) as raw:
        http = Http(raw.address)
        outcome = await ask(http, COMPLETIONS, SAMPLE, "m", len)
        http.close()

    assert (outcome.error, outcome.text, outcome.output_tokens) == ("", "ab", 3)
    assert 0.002 < outcome.ttft_s < outcome.latency_s < 5
    assert outcome.latency_s == pytest.approx(outcome.ttft_s + sum(outcome.itl_s))
    assert b"X-Request-Id: r-1" in raw.requests[0][0]


async def test_vectors_are_asked_for_whole_several_texts_at_once() -> None:
    sample = Sample("one", 2, 0, others=("two",))
    async with raw_server(
        plain("200 OK", b'{"data": [], "usage": {"prompt_tokens": 5}}'), plain("200 OK", b"{")
    ) as raw:
        http = Http(raw.address)
        outcome = await ask(http, EMBEDDINGS, sample, "m", len)
        broken = await ask(http, EMBEDDINGS, sample, "m", len)
        http.close()

    body = json.loads(raw.requests[0][0].partition(b"\r\n\r\n")[2])
    assert body == {"model": "m", "input": ["one", "two"], "truncate_prompt_tokens": -1}
    assert (outcome.error, outcome.prompt_tokens, outcome.sequences, outcome.output_tokens) == ("", 5, 2, 0)
    assert 0 < outcome.latency_s == outcome.ttft_s
    assert "the answer can't be read" in broken.error


async def test_tokens_are_counted_here_where_the_server_does_not_tell() -> None:
    async with raw_server(chunked(text("four"))) as raw:
        outcome = await ask(Http(raw.address), COMPLETIONS, SAMPLE, "m", len)

    assert (outcome.output_tokens, outcome.prompt_tokens) == (4, 9)


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (plain("429 Too Many Requests", b'{"error": {"message": "the queue is full"}}'), "HTTP 429: the queue is full"),
        ([*chunked(text("a"))[:-1], HANG_UP], "the connection was lost"),
    ],
)
async def test_a_request_that_fails_says_why(script: list[bytes], error: str) -> None:
    async with raw_server(script) as raw:
        outcome = await ask(Http(raw.address), CHAT, SAMPLE, "m", len)

    assert error in outcome.error


async def test_no_server_is_a_failure_too() -> None:
    assert "[Errno 111]" in (await ask(Http("http://127.0.0.1:9"), CHAT, SAMPLE, "m", len)).error


async def test_a_run_keeps_its_concurrency_limit_and_reports_client_queue_times() -> None:
    ended: list[int] = []
    async with raw_server(*[chunked(*STREAM)] * 6) as raw:
        http = Http(raw.address)

        async def one(number: int, sample: Sample) -> RequestOutcome:
            return await ask(http, COMPLETIONS, sample, "m", len)

        done = await run([SAMPLE] * 6, Traffic(float("inf"), max_concurrency=2), one, lambda: ended.append(1))
        http.close()

    assert raw.most_open == 2
    assert [outcome.error for outcome in done.outcomes] == [""] * 6
    assert len(ended) == 6
    waits = [outcome.queued_s for outcome in done.outcomes]
    assert max(waits[:2]) < min(waits[2:])
    assert done.duration_s >= max(outcome.queued_s + outcome.latency_s for outcome in done.outcomes)
