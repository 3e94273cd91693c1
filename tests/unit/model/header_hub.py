"""A hub on loopback that sends files of folders, whole or the ranges that are asked for, and counts the bytes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class HeaderHub(ThreadingHTTPServer):
    """models: folders by id. sent: bytes of each file. ranges: whether it answers with parts."""

    def __init__(self, models: dict[str, Path], ranges: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), _Requests)
        self.models, self.ranges = models, ranges
        self.sent: dict[str, int] = {}

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has read enough goes away."""


@contextlib.contextmanager
def header_hub(models: dict[str, Path], ranges: bool = True) -> Iterator[HeaderHub]:
    """Run a hub until the end of the block."""
    server = HeaderHub(models, ranges)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Requests(BaseHTTPRequestHandler):
    server: HeaderHub

    def do_GET(self) -> None:
        path = unquote(self.path.split("?")[0])
        if path.startswith("/api/models/"):
            owner, name, kind = path.removeprefix("/api/models/").split("/")[:3]
            folder = self.server.models.get(f"{owner}/{name}")
            if folder is None or kind != "tree":
                self._send(404, b'{"error": "not found"}', {"X-Error-Code": "RepoNotFound"})
            else:
                self._send(200, json.dumps([self._entry(folder, file) for file in sorted(folder.rglob("*"))]).encode())
        else:
            owner, name, _, _, file = path[1:].split("/", 4)
            self._send_file(self.server.models[f"{owner}/{name}"] / file, file)

    def _entry(self, folder: Path, file: Path) -> dict[str, object]:
        entry = {"path": file.relative_to(folder).as_posix(), "oid": hashlib.sha1(file.name.encode()).hexdigest()}
        return (
            {"type": "directory", **entry} if file.is_dir() else {"type": "file", **entry, "size": file.stat().st_size}
        )

    def _send_file(self, file: Path, name: str) -> None:
        first, last = (int(part) for part in self.headers["Range"].removeprefix("bytes=").split("-"))
        size = file.stat().st_size
        begin, end = (first, min(last + 1, size)) if self.server.ranges else (0, size)
        self.send_response(206 if self.server.ranges else 200)
        self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        with file.open("rb") as stream:
            stream.seek(begin)
            while begin < end:
                piece = stream.read(min(1 << 16, end - begin))
                self.wfile.write(piece)
                begin += len(piece)
                self.server.sent[name] = self.server.sent.get(name, 0) + len(piece)

    def _send(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for header, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(header, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        """Nothing on stderr."""
