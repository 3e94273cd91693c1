"""`forearm health` against small servers on loopback: its exit status follows /readyz."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from forearm.cli import health
from forearm.cli.main import main


class Readiness(http.server.BaseHTTPRequestHandler):
    """Answers /readyz with the server's `status`, anything else with 404."""

    def do_GET(self) -> None:
        """Answer a GET; the name is http.server's."""
        self.send_response(self.server.status if self.path == "/readyz" else 404)  # type: ignore[attr-defined]
        self.end_headers()
        self.wfile.write(b"so it is")

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def server() -> Iterator[http.server.HTTPServer]:
    """One on a free port, ready."""
    with http.server.HTTPServer(("127.0.0.1", 0), Readiness) as server:
        server.status = 200  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_exit_status_follows_readiness(server: http.server.HTTPServer, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{server.server_port}"
    assert main(["health", "--url", url]) == 0
    assert capsys.readouterr().out == "so it is\n"
    server.status = 503  # type: ignore[attr-defined]
    assert main(["health", "--url", url]) == 1
    assert "so it is" in capsys.readouterr().err


def test_a_port_without_a_server_is_not_ready(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as silent:  # bound, so that no other test's server gets the port, but not listening
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        assert main(["health", "--url", f"http://127.0.0.1:{port}"]) == 1
    assert f"not ready: http://127.0.0.1:{port}: [Errno 111]" in capsys.readouterr().err


def test_a_wrong_address_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", "--url", "localhost:8000"]) == 78
    assert "--url localhost:8000" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (["python", "forearm", "serve", "m"], ("http", "127.0.0.1", 8000)),
        (["python", "forearm", "serve", "m", "--port", "9000", "--host=10.0.0.7"], ("http", "10.0.0.7", 9000)),
        (
            ["python", "forearm", "serve", "--host", "::", "--ssl-certfile", "c", "--ssl-keyfile", "k"],
            ("https", "::1", 8000),
        ),
        (["/sbin/init"], ("http", "127.0.0.1", 8000)),
    ],
)
def test_it_asks_where_process_1_listens(tmp_path: Path, words: list[str], where: tuple[str, str, int]) -> None:
    file = tmp_path / "cmdline"
    file.write_text("".join(f"{word}\0" for word in words))
    assert health.served_address(file) == where
