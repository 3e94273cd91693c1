"""The users of a server that `forearm run` has started: it ends when the last of them has ended, for whatever reason.

Each `forearm run` is connected to the server while it uses it: the one that starts it by a socket that the server
inherits, others by one in the run folder. The kernel closes the connection of a process that is killed, too. The
server answers a new connection with one byte; the end of the last one it does not answer until it has ended itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

from forearm.errors import ConfigError

SOCKET = "users.sock"
_JOINED, KEEP = b"j", b"k"


class ServerUsers:
    """The server's ends of the connections. The last user waits until `close` for the end of its own."""

    def __init__(self, first: int | None) -> None:
        """Take the inherited descriptor of the first connection; None: the server is independent of users.

        Raises: ConfigError if it is no socket.
        """
        self._users: set[socket.socket] = set()
        if first is not None:
            try:
                self._users.add(socket.socket(fileno=first))
            except OSError as error:
                raise ConfigError(f"--user-fd {first}: {error.strerror}; forearm run gives it") from None
        self._listener = socket.socket(socket.AF_UNIX)
        self._kept = False

    async def during(self, server: Coroutine[Any, Any, int], folder: Path) -> int:
        """Run the server; SIGTERM ends it when no user is left. Returns: its exit status.

        folder: its run folder. The socket there is older than the configs, by which others find the server.
        Raises: as the server; ConfigError if the socket can't be made.
        """
        if not self._users:
            return await server
        try:
            self._listener.bind(str(folder / SOCKET))
            self._listener.listen()
        except OSError as error:
            server.close()
            raise ConfigError(f"TMPDIR: {folder / SOCKET}: {error}; choose a shorter one") from None
        loop = asyncio.get_running_loop()
        loop.add_reader(self._listener, self._join)
        for user in self._users:
            loop.add_reader(user, self._read, user)
        return await server

    def close(self) -> None:
        """Close all connections, once the server has ended."""
        for one in (self._listener, *self._users):
            one.close()

    def _join(self) -> None:
        user, _ = self._listener.accept()
        with contextlib.suppress(OSError):  # it has left already, which is read next
            user.send(_JOINED)
        self._users.add(user)
        asyncio.get_running_loop().add_reader(user, self._read, user)

    def _read(self, user: socket.socket) -> None:
        """Read a user's wish to keep the server, or its end."""
        with contextlib.suppress(OSError):
            if user.recv(1) == KEEP:
                self._kept = True
                return
        loop = asyncio.get_running_loop()
        loop.remove_reader(user)
        if self._kept or len(self._users) > 1:
            self._users.remove(user)
            user.close()
        else:
            loop.remove_reader(self._listener)
            self._listener.close()  # a command that comes now starts a server of its own
            os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def used(folder: Path, keep: bool) -> Iterator[bool]:
    """Be a user of the server with this run folder. Yields: False if it ends just now.

    keep: it does not end without users any more. A server that `forearm run` has not started does so never.
    """
    if not (folder / SOCKET).exists():
        yield folder.exists()
        return
    server, joined = socket.socket(socket.AF_UNIX), b""
    with contextlib.suppress(OSError):
        server.connect(str(folder / SOCKET))
        joined = server.recv(1)
        if joined and keep:
            server.send(KEEP)
    try:
        yield bool(joined)
    finally:
        leave(server)


def leave(server: socket.socket) -> None:
    """End this process's connection to a server; wait for the server's end if no other user is left."""
    with server, contextlib.suppress(OSError):  # it has ended
        server.shutdown(socket.SHUT_WR)
        server.recv(1)
