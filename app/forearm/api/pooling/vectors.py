"""Submission of texts to a pooling engine, and the vectors that it returns."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from forearm import wire
from forearm.api.engine_client.connection import EngineConnection
from forearm.api.engine_client.engine_client import EngineClient
from forearm.api.http.caller import Observer
from forearm.api.http.errors import error_of
from forearm.errors import ForearmError


class Vectors:
    """The texts of one HTTP request in a pooling engine; `all` returns their vectors. Only one task may wait."""

    def __init__(self, connection: EngineConnection, request: wire.Embed, observers: Sequence[Observer]) -> None:
        self._connection = connection
        self._request = request
        self._found: list[wire.Embedded | None] = [None] * len(request.prompts)
        self._left = len(request.prompts)
        self._events: asyncio.Queue[wire.Accepted | ForearmError | None] = asyncio.Queue()
        self._observers = observers

    async def accepted(self) -> None:
        """Wait until the engine has accepted the texts.

        Raises: the error with which it refused them.
        """
        await self._connection.drained()
        event = await self._events.get()
        if isinstance(event, ForearmError):
            raise event

    async def all(self) -> list[wire.Embedded]:
        """Return the output of each text, in order.

        Raises: EngineFailed, EngineUnavailable if the request or its engine failed.
        """
        event = await self._events.get()
        if isinstance(event, ForearmError):
            raise event
        return [one for one in self._found if one is not None]

    def take(self, message: wire.Accepted | wire.Refused | wire.Tokens | wire.Embedded) -> None:
        """Receive a message from the engine."""
        if isinstance(message, wire.Accepted):
            self._events.put_nowait(message)
            for observer in self._observers:  # at once, as Generation does
                observer.submitted([prompt.token_ids for prompt in self._request.prompts], None)
        elif isinstance(message, wire.Refused):
            self.fail(error_of(message))
        elif isinstance(message, wire.Embedded):
            self._left -= self._found[message.index] is None
            self._found[message.index] = message
            if not self._left:
                self._connection.open.pop(self._request.request_id, None)
                self._events.put_nowait(None)

    def fail(self, error: ForearmError) -> None:
        """Raise this error in the task that waits."""
        self._events.put_nowait(error)

    def close(self) -> None:
        """Abort the texts in the engine. May be called at any time, and again."""
        if self._connection.open.pop(self._request.request_id, None) is not None:
            self._connection.send(wire.Abort(request_id=self._request.request_id))
        observers, self._observers = self._observers, ()
        for observer in observers:
            observer.over()


async def embed(engines: EngineClient, request: wire.Embed, observers: Sequence[Observer]) -> Vectors:
    """Submit texts to one engine; returns when it has accepted them.

    Raises: InvalidRequest, Overloaded, EngineUnavailable.
    """
    return await engines.hand(engines.least_loaded, lambda one: Vectors(one, request, observers), [request])
