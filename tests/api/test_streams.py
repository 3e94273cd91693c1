from __future__ import annotations

import asyncio
import socket
import sys
import time
from typing import Any

import httpx
import openai
import pytest
from tests.api.server import Server, StartServer, wait_until

ENDLESS: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "ignore_eos": True}


def test_a_client_that_leaves_its_stream_frees_its_place(server: Server) -> None:
    server.engine.holds_at = 1
    with server.http.stream("POST", "/v1/chat/completions", json={**ENDLESS, "stream": True, "n": 3}) as reply:
        lines = reply.iter_lines()  # kept, because dropping the generator closes the connection
        next(lines)
        assert len(server.engine.running) == 3

    wait_until(lambda: not server.engine.running)
    server.engine.holds_at = sys.maxsize


def test_a_client_that_leaves_before_the_first_token_frees_its_place(server: Server) -> None:
    server.engine.silent = True
    with server.http.stream("POST", "/v1/chat/completions", json={**ENDLESS, "stream": True}):
        assert len(server.engine.running) == 1

    wait_until(lambda: not server.engine.running)
    server.engine.silent = False


async def test_a_client_that_does_not_wait_for_its_whole_answer_frees_its_place(server: Server) -> None:
    server.engine.silent = True
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=ENDLESS))
        await asyncio.to_thread(wait_until, lambda: bool(server.engine.running))
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    await asyncio.to_thread(wait_until, lambda: not server.engine.running)
    server.engine.silent = False
    await asyncio.to_thread(wait_until, lambda: 'status="4xx"' in server.http.get("/metrics").text)


async def test_the_async_client_streams_many_answers_at_a_time(server: Server) -> None:
    async def answer(client: openai.AsyncOpenAI, text: str) -> str:
        stream = await client.chat.completions.create(
            model="letters", messages=[{"role": "user", "content": text}], stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    questions = [f"question {i} 🙂" for i in range(50)]
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        answers = await asyncio.gather(*(answer(client, question) for question in questions))

    assert answers == questions


def test_a_silent_stream_is_kept_alive_by_comments(start_server: StartServer) -> None:
    server = start_server(sse_keep_alive_interval_s=0.05)
    server.engine.silent = True

    begun = time.monotonic()
    with server.http.stream("POST", "/v1/chat/completions", json={**ENDLESS, "stream": True, "max_tokens": 2}) as reply:
        lines = (line for line in reply.iter_lines() if line)
        assert [next(lines) for _ in range(3)] == [": keep-alive"] * 3
        assert 0.1 < time.monotonic() - begun < 40  # three of the default's intervals are 45 s
        server.engine.silent = False
        rest = [line for line in lines if line.startswith("data: ")]

    assert len(rest) == 4  # role, two tokens of which the last has the finish reason, [DONE]
    assert rest[-1] == "data: [DONE]"


def test_the_openai_client_reads_past_comments(start_server: StartServer) -> None:
    server = start_server(sse_keep_alive_interval_s=0.02)
    server.engine.pause_s = 0.1

    with server.openai.chat.completions.create(
        model="letters", messages=[{"role": "user", "content": "hi"}], stream=True
    ) as stream:
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "hi"


def test_a_client_that_leaves_while_it_sends_is_no_error(
    start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server()
    with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port or 0)) as half:
        half.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n{"
        )

    wait_until(lambda: 'handler="/v1/completions",method="POST",status="4xx"' in server.http.get("/metrics").text)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
