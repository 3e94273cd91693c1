"""--trust-request-chat-template: templates of anybody have limits of time and memory, and hold nobody up."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from tests.api.server import Server, started

from forearm.text.template_process import RENDER_S

SPIN = "{% for a in range(99999) %}{% for b in range(99999) %}{% set c = a * b %}{% endfor %}{% endfor %}"
GROWS = "{% set ns = namespace(x='xxxxxxxx') %}{% for a in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"
OWN = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with started(tmp_path_factory.mktemp("templates"), trust_request_chat_template=True) as running:
        assert running.chat(chat_template=OWN).status_code == 200  # the process for them is there
        yield running


def refused(reply: httpx.Response) -> dict[str, Any]:
    assert reply.status_code == 400, reply.text
    error: dict[str, Any] = reply.json()["error"]
    assert "Traceback" not in error["message"]
    return error


def test_a_requests_own_template_is_rendered(server: Server) -> None:
    server.chat("hi", chat_template=OWN)

    assert bytes(server.engine.submits[-1].prompt_token_ids) == b"<user>hi"


@pytest.mark.parametrize(
    ("template", "param", "words"),
    [
        (SPIN, "chat_template", f"longer than {RENDER_S:g} s"),
        (GROWS, "chat_template", "MB"),
        ("{% for %}", "chat_template", "malformed"),
        ("{{ messages.x.y }}", "messages", "cannot render"),
        ("{{ raise_exception('no') }}", "messages", "no"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "messages", "unsafe"),
        ("x" * 70_000, "chat_template", "at most 65536"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "messages", "recursion"),
    ],
    ids=["time", "memory", "malformed", "wrong", "raises", "escapes", "long", "recursion"],
)
def test_what_a_template_must_not_do_is_a_400(server: Server, template: str, param: str, words: str) -> None:
    begun_s = time.monotonic()
    error = refused(server.chat(chat_template=template))

    assert error["param"] == param
    assert words in error["message"]
    assert time.monotonic() - begun_s < RENDER_S + 10


def test_other_requests_go_on_beside_bombs(server: Server) -> None:
    with ThreadPoolExecutor(8) as pool:
        bombs = [pool.submit(server.chat, chat_template=SPIN + str(number)) for number in range(8)]
        time.sleep(1)
        begun_s = time.monotonic()
        assert server.chat("hello").status_code == 200
        assert server.chat("hello", chat_template=OWN).status_code == 200
        assert time.monotonic() - begun_s < 2
        for bomb in bombs:
            refused(bomb.result())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
def test_a_long_conversation_holds_no_stream_up(server: Server, path: str) -> None:
    """A ping every few milliseconds measures how long the event loop has time for nobody."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": f"message {i} of many"} for i in range(10_000)]
    body = {"messages": messages, "max_tokens": 1}
    waits: list[float] = []
    over = threading.Event()

    def ping() -> None:
        with httpx.Client(base_url=server.url) as client:
            while not over.is_set():
                begun_s = time.monotonic()
                client.get("/livez")
                waits.append(time.monotonic() - begun_s)

    thread = threading.Thread(target=ping)
    thread.start()
    time.sleep(1)
    quiet, waits[:] = sorted(waits), []
    for _ in range(3):
        server.http.post(path, json=body)
    over.set()
    thread.join()

    print(f"{path}: quiet {1e3 * quiet[-1]:.0f} ms at most, beside rendering {1e3 * max(waits):.0f} ms")
    assert max(waits) < quiet[-1] + 0.5  # on a quiet machine: see the figures printed
