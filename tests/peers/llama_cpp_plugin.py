"""A pytest plugin for llama.cpp's HTTP tests: ServerProcess starts forearm.

Tests with the same settings share one server. Their models are on no package index: the one that is served is another,
so its words are not compared, and routes of OpenAI's API that the tests ask without /v1 are asked with it.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from served import serve  # tests/e2e, on the path of this process

MODEL = os.environ["PEERS_MODEL"]
NAMES = ("gpt-3.5-turbo", "gpt-3.5-turbo-instruct", "gpt-4.1", "codellama70b", "test")  # llama.cpp checks no key
WITHOUT_VERSION = ("/chat/completions", "/models", "/responses")


class Shared:
    """The one running server and what it was started with."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._flags: list[str] = []
        self._url = ""
        atexit.register(self._open.close)

    def url(self, flags: list[str], key: str) -> str:
        """Return the address of a server with these settings."""
        if flags != self._flags or not self._url:
            self._open.close()
            self._flags, self._url = flags, ""
            folder = Path(self._open.enter_context(tempfile.TemporaryDirectory()))
            self._url = self._open.enter_context(serve(folder, MODEL, *flags, key=key)).url
        return self._url


SHARED = Shared()


def flags(server: Any) -> list[str]:
    """Return a ServerProcess's settings as flags of `forearm serve`."""
    defaults = {"temperature": server.temperature, "max_new_tokens": server.n_predict}
    sampling = {name: value for name, value in defaults.items() if value is not None and value >= 0}
    found = ["--override-generation-config", json.dumps(sampling), "--seed", str(server.seed)]
    found += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    found += ["--fingerprint-mode", "custom", "--fingerprint-value", "b0"]  # llama.cpp's begins with a b
    if server.n_ctx:
        slots = 1 if server.kv_unified else server.n_slots or 1
        found += ["--max-model-len", str(min(server.n_ctx // slots, 8192))]
    if server.n_slots:
        found += ["--max-num-seqs", str(server.n_slots)]
    if server.model_alias:
        found += ["--served-model-name", server.model_alias, *NAMES]
    for flag, value in (
        ("--api-key", server.api_key),
        ("--chat-template", server.chat_template_file or server.chat_template),
    ):
        if value:
            found += [flag, value]
    return found


def start(server: Any, timeout_seconds: int = 0) -> None:
    """Stand in for ServerProcess.start: a server of forearm with the same settings is there."""
    del timeout_seconds  # the timeout of served.serve applies
    url = SHARED.url(flags(server), server.api_key or "none")
    server.server_port = int(url.rpartition(":")[2])
    server.ready = True


def make_url(server: Any, path: str, host: str | None = None) -> str:
    """Stand in for ServerProcess.make_url: OpenAI's routes have their /v1."""
    version = "/v1" if path.partition("?")[0] in WITHOUT_VERSION else ""
    return f"http://{host or server.server_host}:{server.server_port}{version}{path}"


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Change llama.cpp's helpers before its conftest takes them."""
    sys.modules.setdefault("wget", ModuleType("wget"))
    sys.path.insert(0, str(Path.cwd()))
    import utils

    utils.ServerProcess.start = start
    utils.ServerProcess.stop = lambda server: None
    utils.ServerProcess.make_url = make_url
    utils.ServerPreset.load_all = staticmethod(lambda: None)
    utils.match_regex = lambda pattern, text: bool(text)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put tests in the order of their settings' files, as they come; leave those marked slow to llama.cpp."""
    slow = [item for item in items if item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in slow]
