from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.api.server import Server, StartServer, started


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield one server for all tests of a module, which must not change it."""
    with started(tmp_path_factory.mktemp("api")) as running:
        yield running


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Return a function that starts a server with settings of its own."""
    with contextlib.ExitStack() as stack:
        yield lambda **settings: stack.enter_context(started(tmp_path, **settings))
