"""The main job, as users see it: the unmodified OpenAI client against `forearm serve` with two workers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import openai
import psutil
import pytest
from tests.e2e.served import ENDLESS, Served, series, serve, wait_until

GLACIER = "What is a glacier?"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("e2e"), "--api-server-count", "2", "--served-model-name", "demo") as running:
        yield running


def test_the_first_request_of_the_graviton_guide_is_answered(served: Served) -> None:
    body = {
        "model": "demo",
        "messages": [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": "Why is the sky blue?"},
        ],
        "max_tokens": 100,
        "ignore_eos": True,
    }

    reply = served.http.post("/v1/chat/completions", json=body).json()

    assert re.fullmatch("chatcmpl-[0-9a-f]{32}", reply["id"])
    choice, usage = reply["choices"][0], reply["usage"]
    assert (choice["finish_reason"], choice["stop_reason"], usage["completion_tokens"]) == ("length", None, 100)
    assert usage["total_tokens"] == usage["prompt_tokens"] + 100
    assert choice["message"]["content"]


def test_the_model_is_listed(served: Served) -> None:
    assert [model.id for model in served.openai.models.list()] == ["demo"]
    assert served.openai.models.retrieve("demo").id == "demo"


def test_a_stream_says_what_the_whole_answer_says(served: Served) -> None:
    whole = served.openai.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": GLACIER}], temperature=0, max_tokens=60
    )
    with served.openai.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": GLACIER}],
        temperature=0,
        max_tokens=60,
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        chunks = list(stream)

    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage


def test_every_worker_gives_the_same_answers(served: Served) -> None:
    greedy = [served.chat(temperature=0, max_tokens=20, logprobs=True).json() for _ in range(12)]
    seeded = [served.chat(temperature=1, seed=7, max_tokens=20, logprobs=True).json() for _ in range(12)]

    for replies in (greedy, seeded):
        assert len({repr(reply["choices"]) for reply in replies}) == 1
        assert len({reply["system_fingerprint"] for reply in replies}) == 1


async def test_the_async_client_streams_many_answers_at_a_time(served: Served) -> None:
    async def answer(client: openai.AsyncOpenAI, number: int) -> int:
        stream = await client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": GLACIER}],
            seed=number,
            max_tokens=30,
            stream=True,
            extra_body={"ignore_eos": True},
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        usage = chunks[-1].usage
        assert usage is not None
        return usage.completion_tokens

    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        counts = await asyncio.gather(*(answer(client, number) for number in range(32)))

    assert counts == [30] * 32


def test_a_completion_echoes_and_scores(served: Served) -> None:
    reply = served.openai.completions.create(
        model="demo", prompt="A glacier is", echo=True, logprobs=2, max_tokens=4, temperature=0
    )

    choice = reply.choices[0]
    assert choice.text.startswith("A glacier is")
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs is not None
    assert choice.logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in choice.logprobs.token_logprobs[1:])
    assert "".join(choice.logprobs.tokens or []).removesuffix("<|im_end|>") == choice.text


def test_a_stop_string_across_tokens_ends_the_answer(served: Served) -> None:
    whole = served.chat(temperature=0, max_tokens=60).json()["choices"][0]["message"]["content"]
    stop = whole[3:9]  # within it, wherever its tokens end

    choice = served.chat(temperature=0, max_tokens=60, stop=stop).json()["choices"][0]

    assert (choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]) == (whole[:3], "stop", stop)


def test_n_answers_differ_and_come_together(served: Served) -> None:
    reply = served.openai.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": GLACIER}],
        n=3,
        temperature=2,  # the model knows this answer by heart
        top_p=1,
        seed=1,
        max_tokens=20,
        extra_body={"top_k": 0},
    )

    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in reply.choices}) > 1


def test_a_prompt_that_is_too_long_is_a_400(served: Served) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        served.openai.chat.completions.create(model="demo", messages=[{"role": "user", "content": "ice " * 5000}])


def test_a_client_that_leaves_frees_its_sequences(served: Served) -> None:
    before = counted(served)
    with served.endless(n=64):  # several seconds of work
        wait_until(lambda: served.running() == 64)

    wait_until(lambda: served.running() == 0)
    after = counted(served)
    assert after["aborted"] == before["aborted"] + 1
    assert after["tokens"] - before["tokens"] < 64 * ENDLESS["max_tokens"] / 2


def counted(served: Served) -> dict[str, float]:
    """Aborted requests, and tokens generated, so far."""
    values = series(served.http.get("/metrics").text)
    return {
        "aborted": sum(v for k, v in values.items() if k.startswith("vllm:request_success") and "abort" in k),
        "tokens": sum(v for k, v in values.items() if k.startswith("vllm:generation_tokens_total")),
    }


def test_a_hundred_scrapes_in_a_row_never_fall(served: Served) -> None:
    before: dict[str, float] = {}
    for number in range(100):
        if number % 10 == 0:
            served.chat(max_tokens=2)
        now = {
            name: value
            for name, value in series(served.http.get("/metrics").text).items()
            if re.search(r"(_total|_bucket|_count|_sum)(\{|$)", name)
        }
        assert before.keys() <= now.keys()
        fallen = {name: (before[name], now[name]) for name in before if now[name] < before[name]}
        assert not fallen
        before = now

    assert len(before) > 100
    answered = sum(v for k, v in before.items() if k.startswith("http_requests_total") and "chat" in k)
    assert answered >= 10


def test_workers_may_have_as_many_streams_as_the_system_allows(served: Served) -> None:
    for worker in served.workers():
        soft, hard = worker.rlimit(psutil.RLIMIT_NOFILE)
        assert soft == hard


def test_beams_are_the_best_continuations_that_a_client_finds_by_itself(served: Served) -> None:
    """vLLM's search, with a request for each step of each beam, against one request with use_beam_search."""
    width, tokens, length = 3, 6, 4
    prompt = [20, 30, 40, 50]
    live: list[tuple[list[int], float]] = [([], 0.0)]
    for _ in range(tokens):
        body = {"prompt": [prompt + beam for beam, _ in live], "max_tokens": 1, "logprobs": 2 * width, "temperature": 0}
        reply = served.http.post("/v1/completions", json={**body, "return_tokens_as_token_ids": True}).json()
        grown = [
            ([*beam, int(name.removeprefix("token_id:"))], total + logprob)
            for (beam, total), choice in zip(live, reply["choices"], strict=True)
            for name, logprob in choice["logprobs"]["top_logprobs"][0].items()
        ]
        live = sorted(grown, key=lambda one: one[1] / (length + len(one[0])), reverse=True)[:width]

    fields = {"max_tokens": tokens, "n": width, "use_beam_search": True, "ignore_eos": True, "return_token_ids": True}
    reply = served.http.post("/v1/completions", json={"prompt": prompt, "logprobs": 0, **fields}).json()

    assert [choice["token_ids"] for choice in reply["choices"]] == [beam for beam, _ in live]
    found = [sum(choice["logprobs"]["token_logprobs"]) for choice in reply["choices"]]
    assert found == pytest.approx([total for _, total in live], abs=1e-4)
    assert reply["usage"]["completion_tokens"] == width * tokens
    assert served.running() == 0
