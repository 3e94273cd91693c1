"""The app on a loopback port, as uvicorn serves it, over the echo engine; clients are the real ones."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import uvicorn
from tests.api.echo_engine import EchoEngine, echo_engine
from tests.api.letters import write_letters

from forearm.api.app import create_app
from forearm.config.api_config import ApiConfig


@dataclass
class Server:
    """A running app: the engine behind it, and clients in front of it."""

    url: str
    engine: EchoEngine
    http: httpx.Client
    openai: openai.OpenAI

    def chat(self, content: Any = "hello", **fields: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": content}], **fields}
        return self.http.post("/v1/chat/completions", json=body)

    def complete(self, prompt: Any = "hello", **fields: Any) -> httpx.Response:
        return self.http.post("/v1/completions", json={"prompt": prompt, **fields})


StartServer = Callable[..., Server]


@contextlib.contextmanager
def serving(config: ApiConfig) -> Iterator[str]:
    """Run uvicorn on a free port. Yields: the URL."""
    app = create_app(config)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none", timeout_graceful_shutdown=1))
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="uvicorn")
    thread.start()
    try:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        wait_until(lambda: server.started)
        yield url
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


@contextlib.contextmanager
def started(folder: Path, **settings: Any) -> Iterator[Server]:
    """Yield the running engine, app and clients."""
    model = folder / "letters"
    if not model.exists():
        model.mkdir()
        write_letters(model)
    path = folder / "engine.sock"
    settings = {"model_folder": str(model), "served_model_name": ("letters", "org/letters"), **settings}
    config = ApiConfig(engine_sockets=(str(path),), **settings)
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(echo_engine(path))
        url = stack.enter_context(serving(config))
        key = next(iter(config.api_key), "none")
        headers = {"Authorization": f"Bearer {key}"}
        # verify: to read the certificates of authorities takes each client 20 ms.
        http = stack.enter_context(httpx.Client(base_url=url, headers=headers, timeout=60, verify=False))
        wait_until(lambda: http.get("/readyz").status_code == 200)
        plain = openai.DefaultHttpxClient(verify=False)
        sdk = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=60, http_client=plain)
        stack.callback(sdk.close)
        yield Server(url, engine, http, sdk)


def wait_until(holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Wait until a condition holds. Raises: AssertionError after a time that only a failure takes."""
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end, f"not so after {timeout_s} s"
        time.sleep(0.005)
