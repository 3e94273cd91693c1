"""LangChain, LlamaIndex and LiteLLM against a running server. Runs in .venv-clients, where they are installed.

    python tests/clients/frameworks.py FRAMEWORK URL KEY

Prints one line of JSON: {check: "" or how it failed}.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Literal

URL, KEY = sys.argv[2], sys.argv[3]
MODEL = "demo_model"
CITY = {
    "title": "City",
    "description": "A city.",
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "large": {"type": "boolean"}},
    "required": ["name", "large"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 8}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
Checks = dict[str, Callable[[], None]]


def chat_openai(**fields: object) -> object:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model=MODEL, base_url=f"{URL}/v1", api_key=KEY, max_retries=0, temperature=0, **fields)


def langchain() -> Checks:
    model = chat_openai

    def invoke() -> None:
        answer = model(max_tokens=6).invoke("What is ice?")
        assert answer.content
        assert answer.usage_metadata["output_tokens"] == 6
        assert answer.response_metadata["finish_reason"] == "length"

    def stream() -> None:
        pieces = list(model(max_tokens=6, stream_usage=True).stream("What is ice?"))
        whole = pieces[0]
        for piece in pieces[1:]:
            whole += piece
        assert len(pieces) > 2
        assert whole.usage_metadata["output_tokens"] == 6
        assert whole.content == model(max_tokens=6).invoke("What is ice?").content

    def batch() -> None:
        answers = model(max_tokens=4).batch(["What is ice?", "What is a dog?", "What is ice?"])
        assert answers[0].content == answers[2].content
        assert len(answers) == 3

    def asynchronous() -> None:
        async def ask() -> str:
            return "".join([piece.content async for piece in model(max_tokens=6).astream("What is ice?")])

        assert asyncio.run(ask()) == model(max_tokens=6).invoke("What is ice?").content

    texts = {"invoke": invoke, "stream": stream, "batch": batch, "async": asynchronous}
    return {**texts, **langchain_imposed()}


def langchain_imposed() -> Checks:
    model = chat_openai

    def structured(method: str) -> Callable[[], None]:
        def check() -> None:
            found = model(max_tokens=1000).with_structured_output(CITY, method=method).invoke("A city, please.")
            assert set(found) == {"name", "large"}
            assert isinstance(found["large"], bool)

        return check

    def tools() -> None:
        bound = model(max_tokens=1000).bind_tools([WEATHER], tool_choice="weather")
        (call,) = bound.invoke("The weather in Rome?").tool_calls
        assert call["name"] == "weather"
        assert isinstance(call["args"]["city"], str)

    def tools_streamed() -> None:
        bound = model(max_tokens=1000).bind_tools([WEATHER], tool_choice="required", parallel_tool_calls=False)
        pieces = list(bound.stream("The weather in Rome?"))
        whole = pieces[0]
        for piece in pieces[1:]:
            whole += piece
        assert [call["name"] for call in whole.tool_calls] == ["weather"]

    def errors() -> None:
        import openai

        try:
            model(max_tokens=100_000).invoke("x")
        except openai.BadRequestError as error:
            said = str(error)
        assert "100000" in said

    return {
        **{f"structured, {method}": structured(method) for method in ("json_schema", "function_calling")},
        "tools": tools,
        "tools, streamed": tools_streamed,
        "errors": errors,
    }


def langchain_embeddings() -> Checks:
    from langchain_openai import OpenAIEmbeddings

    def embed() -> None:
        model = OpenAIEmbeddings(model="minilm", base_url=f"{URL}/v1", api_key=KEY, check_embedding_ctx_length=False)
        ice, snow, tax = model.embed_documents(["ice", "frozen snow", "a tax office"])
        again = model.embed_query("ice")
        assert ice == again
        assert sum(a * b for a, b in zip(ice, snow, strict=True)) > sum(a * b for a, b in zip(ice, tax, strict=True))

    return {"embed": embed}


def litellm_embeddings() -> Checks:
    import litellm

    def embed() -> None:
        reply = litellm.embedding("hosted_vllm/minilm", ["ice", "snow"], api_base=f"{URL}/v1", api_key=KEY)
        assert [len(row["embedding"]) for row in reply.data] == [384, 384]

    return {"embed": embed}


def llamaindex() -> Checks:
    from llama_index.core.llms import ChatMessage
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike
    from pydantic import create_model

    def asker(max_tokens: int) -> OpenAILike:
        return OpenAILike(
            model=MODEL, api_base=f"{URL}/v1", api_key=KEY, max_tokens=max_tokens, temperature=0, max_retries=0,
            is_chat_model=True, is_function_calling_model=True, context_window=2048,
        )  # fmt: skip

    model = asker(6)
    question = [ChatMessage(role="user", content="What is ice?")]

    def chat() -> None:
        assert model.chat(question).message.content

    def complete() -> None:
        plain = OpenAILike(model=MODEL, api_base=f"{URL}/v1", api_key=KEY, max_tokens=6, max_retries=0)
        assert plain.complete("Ice is").text

    def stream() -> None:
        pieces = list(model.stream_chat(question))
        assert "".join(piece.delta or "" for piece in pieces) == model.chat(question).message.content

    def tools() -> None:
        def weather(city: str) -> str:
            """Weather of a city."""
            return city

        asked = create_model("asked", city=(Literal["Rome", "Oslo"], ...))
        called = asker(max_tokens=1000).chat_with_tools(
            [FunctionTool.from_defaults(weather, fn_schema=asked)], "The weather in Rome?", tool_required=True
        )
        assert model.get_tool_calls_from_response(called)[0].tool_name == "weather"

    return {"chat": chat, "complete": complete, "stream": stream, "tools": tools}


def refused(kind: type[Exception], model: str = MODEL, **fields: object) -> Callable[[], None]:
    import litellm

    question = [{"role": "user", "content": "What is ice?"}]
    there = {"api_base": f"{URL}/v1", "api_key": KEY, "num_retries": 0}

    def check() -> None:
        try:
            litellm.completion(f"hosted_vllm/{model}", question, **{**there, **fields})
        except kind:
            return
        raise AssertionError(f"no {kind.__name__}")

    return check


def lite() -> Checks:
    import litellm

    question = [{"role": "user", "content": "What is ice?"}]
    there = {"api_base": f"{URL}/v1", "api_key": KEY, "num_retries": 0, "temperature": 0}

    def complete(prefix: str) -> Callable[[], None]:
        def check() -> None:
            reply = litellm.completion(f"{prefix}/{MODEL}", question, max_tokens=6, **there)
            assert reply.choices[0].message.content
            assert reply.usage.completion_tokens == 6
            pieces = litellm.completion(f"{prefix}/{MODEL}", question, max_tokens=6, stream=True, **there)
            text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
            assert text == reply.choices[0].message.content

        return check

    def tools() -> None:
        reply = litellm.completion(
            f"hosted_vllm/{MODEL}",
            question,
            tools=[WEATHER],
            tool_choice="required",
            parallel_tool_calls=False,
            max_tokens=1000,
            **there,
        )
        assert reply.choices[0].message.tool_calls[0].function.name == "weather"

    return {
        **{prefix: complete(prefix) for prefix in ("hosted_vllm", "openai")},
        "tools": tools,
        "bad request": refused(litellm.BadRequestError, max_tokens=100_000),
        "bad key": refused(litellm.AuthenticationError, api_key="wrong"),
        "no such model": refused(litellm.NotFoundError, "nothing"),
    }


def main() -> None:
    """Every check of one framework, whatever the others do."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise it asks the internet three times
    made = {
        "langchain": langchain, "langchain_embeddings": langchain_embeddings, "llamaindex": llamaindex,
        "litellm": lite, "litellm_embeddings": litellm_embeddings,
    }[sys.argv[1]]()  # fmt: skip
    ended = {}
    for name, check in made.items():
        try:
            check()
            ended[name] = ""
        except Exception:  # noqa: PERF203  (the next one is done whatever this one did)
            ended[name] = traceback.format_exc(limit=-4)[-2000:]
    print(json.dumps(ended))


if __name__ == "__main__":
    main()
