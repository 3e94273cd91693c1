"""A server that says exactly what a test tells it to, byte for byte, a connection at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from tests.listening import listening

HANG_UP = b""  # in place of a part: the server closes the connection


@dataclass
class RawServer:
    """`scripts`: for each request in turn, the parts of its response. `requests`: what came, by connection."""

    scripts: list[Sequence[bytes]]
    requests: list[list[bytes]] = field(default_factory=list)
    address: str = ""
    most_open: int = 0
    _open: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection, until it is closed."""
        mine: list[bytes] = []
        self.requests.append(mine)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (int(h.split(b":")[1]) for h in head.split(b"\r\n") if h.startswith(b"Content-Length")), 0
                )
                mine.append(head + await reader.readexactly(length))
                self._open += 1
                self.most_open = max(self.most_open, self._open)
                for part in self.scripts.pop(0):
                    if part == HANG_UP:
                        return
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0.002)  # each part is a packet of its own
                self._open -= 1


@contextlib.asynccontextmanager
async def raw_server(*scripts: Sequence[bytes]) -> AsyncIterator[RawServer]:
    """Listens on a loopback port."""
    raw = RawServer(list(scripts))
    async with listening(raw.serve) as server:
        raw.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield raw


def chunked(*parts: bytes) -> list[bytes]:
    """A response whose body comes in these parts."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return [head, *(f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in parts), b"0\r\n\r\n"]


def plain(status: str, body: bytes) -> list[bytes]:
    """A response in one piece."""
    return [f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body]
