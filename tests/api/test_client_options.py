"""openai-python's with_options against the server: time limits that free the engine, retries that come to an answer."""

from __future__ import annotations

import time
from typing import Any

import openai
import pytest
from tests.api.server import Server, StartServer, wait_until

HELLO: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture
def own(start_server: StartServer) -> Server:
    """Yield a server whose engine a test may change."""
    return start_server()


class Patience:
    """A hook of the HTTP client: the time limit of a request begins when the engine has it, on a slow machine too."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.requests = 0

    def __call__(self, request: Any) -> None:
        self.requests += 1
        request.extensions["timeout"] |= dict.fromkeys(("connect", "write", "pool"), 60.0)
        request.extensions["trace"] = self._wait

    def _wait(self, event: str, fields: dict[str, Any]) -> None:
        if event == "http11.receive_response_headers.started":
            wait_until(lambda: len(self._server.engine.submits) == self.requests)

    async def of_async_client(self, request: Any) -> None:
        """Do the same in an asynchronous client."""

        async def wait(event: str, fields: dict[str, Any]) -> None:
            self._wait(event, fields)

        self(request)
        request.extensions["trace"] = wait


@pytest.mark.parametrize("stream", [False, True])
def test_a_timeout_ends_the_request_and_frees_the_engine(own: Server, stream: bool) -> None:
    own.engine.silent = True
    own.openai._client.event_hooks = {"request": [patience := Patience(own)]}
    begun_s = time.monotonic()

    with own.openai.with_options(timeout=0.3, max_retries=0) as client, pytest.raises(openai.APITimeoutError):
        list(client.chat.completions.create(model="letters", messages=HELLO, stream=stream))

    assert time.monotonic() - begun_s < 40  # the client's own limit is 60 s
    assert len(own.engine.submits) == patience.requests == 1
    wait_until(lambda: not own.engine.running)


def test_a_timeout_of_one_request_goes_before_the_clients(own: Server) -> None:
    own.engine.silent = True
    own.openai._client.event_hooks = {"request": [Patience(own)]}
    begun_s = time.monotonic()

    with own.openai.with_options(timeout=600) as client, pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.3).completions.create(model="letters", prompt="hello")

    assert time.monotonic() - begun_s < 300
    wait_until(lambda: not own.engine.running)


def test_retries_are_made_as_often_as_was_asked(own: Server) -> None:
    own.engine.silent = True
    own.openai._client.event_hooks = {"request": [patience := Patience(own)]}

    with own.openai.with_options(timeout=0.3, max_retries=2) as client, pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(model="letters", messages=HELLO)

    assert len(own.engine.submits) == patience.requests == 3
    wait_until(lambda: not own.engine.running)


def test_a_full_queue_is_tried_again_after_the_time_it_named(own: Server) -> None:
    own.engine.places = 0
    begun_s = time.monotonic()

    with own.openai.with_options(max_retries=1) as client, pytest.raises(openai.RateLimitError) as refused:
        client.chat.completions.create(model="letters", messages=HELLO)

    assert refused.value.response.headers["retry-after"] == "3"
    assert time.monotonic() - begun_s >= 3
    assert len(own.engine.submits) == 2


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"model": "no"}, openai.NotFoundError),
        ({"temperature": 9}, openai.BadRequestError),
        ({"max_tokens": 100_000}, openai.BadRequestError),
    ],
)
def test_what_the_client_did_wrong_is_not_tried_again(
    own: Server, fields: dict[str, Any], error: type[openai.APIStatusError]
) -> None:
    def answered() -> float:
        text = own.http.get("/metrics").text
        lines = [line for line in text.splitlines() if line.startswith("http_requests_total{") and "chat" in line]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    before = answered()
    with own.openai.with_options(max_retries=5) as client, pytest.raises(error):
        client.chat.completions.create(**{"model": "letters", "messages": HELLO, **fields})

    assert answered() == before + 1


async def test_the_async_clients_timeout_does_the_same(own: Server) -> None:
    own.engine.silent = True
    async with openai.AsyncOpenAI(base_url=f"{own.url}/v1", api_key="none") as client:
        client._client.event_hooks = {"request": [(patience := Patience(own)).of_async_client], "response": []}
        with pytest.raises(openai.APITimeoutError):
            await client.with_options(timeout=0.3, max_retries=1).chat.completions.create(
                model="letters", messages=HELLO
            )

    assert len(own.engine.submits) == patience.requests == 2
    wait_until(lambda: not own.engine.running)
