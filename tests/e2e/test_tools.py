"""Calls that must be, as users ask for them: the OpenAI client, `forearm serve`, and a model that knows no tools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest
from openai.types.chat import ChatCompletionMessageFunctionToolCall as FunctionCall
from tests.e2e.served import UNLIMITED, Served, serve

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of the next days",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 30},
                "unit": {"enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "unit", "days"],
            "additionalProperties": False,
        },
    },
}
NOW: Any = {"type": "function", "function": {"name": "now", "description": "The time"}}
MESSAGES: Any = [{"role": "user", "content": "What is the weather in Oslo?"}]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("tools"), "--served-model-name", "demo", *UNLIMITED) as running:
        yield running


def check(name: str, text: str) -> None:
    arguments = json.loads(text)
    if name == "now":
        assert arguments == {}
    else:
        assert set(arguments) == {"city", "unit", "days"}
        assert isinstance(arguments["city"], str)
        assert arguments["unit"] in ("celsius", "fahrenheit")
        assert 1 <= arguments["days"] <= 9


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_call_that_must_be_is_made_and_its_arguments_fit(served: Served, choice: Any, seed: int) -> None:
    reply = served.openai.chat.completions.create(
        model="demo",
        messages=MESSAGES,
        tools=[WEATHER, NOW],
        tool_choice=choice,
        parallel_tool_calls=False,
        temperature=1,
        seed=seed,
        max_tokens=300,
    )

    [choice_made] = reply.choices
    [call] = choice_made.message.tool_calls or []
    assert isinstance(call, FunctionCall)
    assert choice_made.finish_reason == "tool_calls"
    assert choice_made.message.content is None
    assert call.function.name in ("get_weather", "now") if choice == "required" else "get_weather"
    check(call.function.name, call.function.arguments)


def test_a_stream_says_what_the_whole_answer_says(served: Served) -> None:
    fields: Any = {"model": "demo", "messages": MESSAGES, "tools": [WEATHER, NOW], "max_tokens": 300}
    fields |= {"tool_choice": "required", "parallel_tool_calls": False, "temperature": 0}
    whole = served.openai.chat.completions.create(**fields)
    with served.openai.chat.completions.stream(**fields) as stream:
        final = stream.get_final_completion()

    [one], [other] = whole.choices[0].message.tool_calls or [], final.choices[0].message.tool_calls or []
    assert isinstance(one, FunctionCall)
    assert (one.function.name, one.function.arguments) == (other.function.name, other.function.arguments)
    assert final.choices[0].finish_reason == "tool_calls"
    check(one.function.name, one.function.arguments)


def test_a_conversation_goes_on_with_the_tools_result(served: Served) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "Sunny."},
    ]

    reply = served.openai.chat.completions.create(model="demo", messages=messages, tools=[WEATHER], max_tokens=20)

    assert reply.choices[0].message.content is not None


def test_several_calls_may_come_at_once(served: Served) -> None:
    reply = served.openai.chat.completions.create(
        model="demo", messages=MESSAGES, tools=[NOW], tool_choice="required", temperature=1, seed=3, max_tokens=400
    )

    calls = reply.choices[0].message.tool_calls or []
    assert calls
    assert len({call.id for call in calls}) == len(calls)
    for call in calls[:-1]:
        assert isinstance(call, FunctionCall)
        check(call.function.name, call.function.arguments)


def test_a_wrong_parser_is_told_before_anything_starts(tmp_path: Any) -> None:
    with (
        pytest.raises(AssertionError, match=r"--tool-call-parser .*hermes"),
        serve(tmp_path, "--tool-call-parser", "nonsense"),
    ):
        pass


class Weather(pydantic.BaseModel):
    """The weather of a day."""

    city: str = pydantic.Field(max_length=20)
    rain: bool


def test_the_client_parses_a_pydantic_tools_arguments(served: Served) -> None:
    reply = served.openai.chat.completions.parse(
        model="demo",
        messages=MESSAGES,
        tools=[openai.pydantic_function_tool(Weather)],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=300,
    )

    [call] = reply.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Weather)


async def test_the_async_client_streams_many_calls_at_a_time(served: Served) -> None:
    async def called(client: openai.AsyncOpenAI, seed: int) -> str:
        stream = await client.chat.completions.create(
            model="demo",
            messages=MESSAGES,
            tools=[WEATHER, NOW],
            tool_choice="required",
            parallel_tool_calls=False,
            max_tokens=300,
            seed=seed,
            stream=True,
        )
        name, arguments = "", ""
        async for chunk in stream:
            for call in chunk.choices[0].delta.tool_calls or []:
                assert call.function is not None
                name, arguments = name or call.function.name or "", arguments + (call.function.arguments or "")
        check(name, arguments)
        return name

    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        names = await asyncio.gather(*(called(client, seed) for seed in range(12)))

    assert set(names) <= {"get_weather", "now"}
