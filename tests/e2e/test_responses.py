"""/v1/responses and /v1/messages against `forearm serve` with two workers: each request may reach either of them."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import pydantic
import pytest
from tests.e2e.served import Served, serve, stop, wait_until

GLACIER = "What is a glacier?"
GREEDY: Any = {"model": "demo", "temperature": 0, "max_output_tokens": 30}
LONG: Any = {"model": "demo", "input": GLACIER, "max_output_tokens": 1500, "ignore_eos": True}
MESSAGES: Any = [{"role": "user", "content": GLACIER}]
TOOL: Any = {
    "name": "look_up",
    "parameters": {
        "type": "object",
        "properties": {"word": {"type": "string", "maxLength": 20}},
        "required": ["word"],
        "additionalProperties": False,
    },
}


class Entry(pydantic.BaseModel):
    """The model that a constrained answer is parsed into."""

    model_config = pydantic.ConfigDict(extra="forbid")
    kind: bool
    words: list[bool] = pydantic.Field(max_length=3)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("e2e")
    (folder / "run").mkdir()
    flags = ("--api-server-count", "2", "--served-model-name", "demo", "--generation-config", "vllm")
    with serve(folder, *flags, env={"TMPDIR": str(folder / "run")}) as running:
        yield running


@pytest.fixture
def claude(served: Served) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0) as client:
        yield client


def post(served: Served, **fields: Any) -> dict[str, Any]:
    reply = served.http.post("/v1/responses", json=fields)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def get(served: Served, response_id: str) -> dict[str, Any]:
    reply = served.http.get(f"/v1/responses/{response_id}")
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def text_of(reply: dict[str, Any]) -> str:
    return "".join(item["content"][0]["text"] for item in reply["output"] if item["type"] == "message")


def test_what_one_worker_answers_every_worker_knows(served: Served) -> None:
    made = [post(served, input=GLACIER, **GREEDY) for _ in range(6)]
    chat = served.chat(model="demo", temperature=0, max_tokens=30).json()["choices"][0]["message"]["content"]

    assert {text_of(reply) for reply in made} == {chat}
    for reply in made:
        for _ in range(4):
            assert get(served, reply["id"]) == reply


def test_a_conversation_goes_on_whichever_worker_is_asked(served: Served) -> None:
    first = post(served, input=GLACIER, **GREEDY)
    turns: Any = [
        {"role": "user", "content": GLACIER},
        {"role": "assistant", "content": text_of(first)},
        {"role": "user", "content": "And ice?"},
    ]
    body = {"model": "demo", "messages": turns, "temperature": 0, "max_tokens": 30}
    chat = served.http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]

    later = [post(served, input="And ice?", previous_response_id=first["id"], **GREEDY) for _ in range(6)]

    assert {text_of(reply) for reply in later} == {chat}


def test_background_responses_are_cancelled_by_whichever_worker_is_asked(served: Served) -> None:
    with served.endless(n=64):  # beside it none of them ends by itself within seconds
        made = [post(served, background=True, **LONG) for _ in range(4)]
        wait_until(lambda: served.running() == 64 + 4)

        for reply in made:
            assert served.http.post(f"/v1/responses/{reply['id']}/cancel").json()["status"] == "cancelled"

        wait_until(lambda: served.running() <= 64)
    assert {get(served, reply["id"])["status"] for reply in made for _ in range(3)} == {"cancelled"}


def test_a_background_stream_is_followed_at_any_worker(served: Served) -> None:
    body = {
        **GREEDY,
        "input": GLACIER,
        "background": True,
        "stream": True,
        "max_output_tokens": 200,
        "ignore_eos": True,
    }
    streams = [served.http.post("/v1/responses", json=body).text]
    response_id = json.loads(streams[0].split("data: ", 1)[1].split("\n")[0])["response"]["id"]

    streams += [served.http.get(f"/v1/responses/{response_id}?stream=true").text for _ in range(4)]

    assert len(set(streams)) == 1
    assert streams[0].count("event: response.output_text.delta\n") > 100
    assert "event: response.completed" in streams[0] or "event: response.incomplete" in streams[0]


def test_many_background_responses_at_a_time_all_end(served: Served) -> None:
    body = {**GREEDY, "input": GLACIER, "background": True}
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: post(served, **body)["id"], range(32)))

    def ended() -> bool:
        return all(get(served, one)["status"] in ("completed", "incomplete") for one in made)

    wait_until(ended, 60)
    assert len({text_of(get(served, one)) for one in made}) == 1


def test_the_openai_client_parses_what_a_schema_constrains(served: Served) -> None:
    for temperature in (0.0, 1.0, 1.5):
        reply = served.openai.responses.parse(
            model="demo", input=GLACIER, text_format=Entry, temperature=temperature, extra_body={"seed": 3}
        )
        assert isinstance(reply.output_parsed, Entry)


@pytest.mark.parametrize("field", ["structured_outputs", "guided_choice"])
def test_vllms_constraints_hold(served: Served, field: str) -> None:
    choices = ["snow and ice", "warm sand"]
    body = {field: {"choice": choices} if field == "structured_outputs" else choices}
    for seed in range(3):
        reply = served.openai.responses.create(model="demo", input=GLACIER, extra_body={**body, "seed": seed})
        assert (reply.output_text in choices, reply.status) == (True, "completed")


def test_a_required_call_is_called(served: Served, claude: anthropic.Anthropic) -> None:
    tool: Any = {"type": "function", "strict": True, **TOOL}
    with served.openai.responses.stream(model="demo", input=GLACIER, tools=[tool], tool_choice="required") as stream:
        calls = [item for item in stream.get_final_response().output if item.type == "function_call"]
    message = claude.messages.create(
        model="demo",
        max_tokens=300,
        messages=MESSAGES,
        tools=[{"name": "look_up", "input_schema": TOOL["parameters"]}],
        tool_choice={"type": "tool", "name": "look_up", "disable_parallel_tool_use": True},
    )

    assert calls
    assert all(call.name == "look_up" and set(json.loads(call.arguments)) == {"word"} for call in calls)
    [used] = [block for block in message.content if block.type == "tool_use"]
    assert (used.name, list(used.input)) == ("look_up", ["word"])
    assert message.stop_reason == "tool_use"


def test_anthropics_client_is_answered(served: Served, claude: anthropic.Anthropic) -> None:
    chat = served.chat(model="demo", temperature=0, max_tokens=30).json()
    fields: Any = {"model": "demo", "max_tokens": 30, "messages": MESSAGES, "extra_body": {"temperature": 0}}

    whole = claude.messages.create(**fields)
    with claude.messages.stream(**fields) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    counted = claude.messages.count_tokens(model="demo", messages=MESSAGES).input_tokens

    assert text == chat["choices"][0]["message"]["content"]
    assert whole.content[0].to_dict() == final.content[0].to_dict() == {"type": "text", "text": text}
    usage = final.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted == chat["usage"]["prompt_tokens"]
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        claude.messages.create(**{**fields, "max_tokens": 0})
    with pytest.raises(anthropic.BadRequestError, match="context length"):
        claude.messages.create(**{**fields, "messages": [{"role": "user", "content": "ice " * 5000}]})


def test_a_worker_that_dies_takes_no_stored_response_along(served: Served) -> None:
    made = [post(served, input=GLACIER, **GREEDY) for _ in range(4)]
    worker = served.workers()[0]

    worker.kill()
    wait_until(lambda: len(served.workers()) == 2 and worker.pid not in {one.pid for one in served.workers()})

    wait_until(lambda: served.connections() == 2)
    for reply in made:
        for _ in range(4):
            assert get(served, reply["id"]) == reply


def test_what_is_stored_is_private_and_goes_with_the_server(tmp_path: Path, short: Path) -> None:
    flags = ("--served-model-name", "demo", "--api-server-count", "2")
    with serve(tmp_path, *flags, env={"TMPDIR": str(short)}) as running:
        running.openai.responses.create(model="demo", input=GLACIER, max_output_tokens=5)
        files = list(short.rglob("responses.sqlite*"))
        assert files
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
        assert {stat.S_IMODE(file.parent.stat().st_mode) for file in files} == {0o700}
        stop(running.process)
    assert not list(short.iterdir())
