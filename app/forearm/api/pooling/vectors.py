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
    """The texts of one HTTP request in a pooling engine. Only one task may wait for them.

    found: their outputs, in order; or EngineFailed, EngineUnavailable if the request or its engine failed.
    """

    def __init__(self, connection: EngineConnection, request: wire.Embed, observers: Sequence[Observer]) -> None:
        loop = asyncio.get_running_loop()
        self.accepted: asyncio.Future[None] = loop.create_future()
        self.found: asyncio.Future[list[wire.Embedded]] = loop.create_future()
        self._connection = connection
        self._request = request
        self._outputs: dict[int, wire.Embedded] = {}
        self._observers = observers

    def take(self, message: wire.Accepted | wire.Refused | wire.Tokens | wire.Embedded) -> None:
        """Receive a message from the engine."""
        if isinstance(message, wire.Accepted):
            if not self.accepted.done():
                self.accepted.set_result(None)
            for observer in self._observers:  # at once, as Generation does
                observer.submitted([prompt.token_ids for prompt in self._request.prompts], None)
        elif isinstance(message, wire.Refused):
            self.fail(error_of(message))
        elif isinstance(message, wire.Embedded):
            self._outputs[message.index] = message
            if len(self._outputs) == len(self._request.prompts):
                self._connection.open.pop(self._request.request_id, None)
                if not self.found.done():
                    self.found.set_result([self._outputs[index] for index in range(len(self._outputs))])

    def fail(self, error: ForearmError) -> None:
        """Raise this error in the task that waits."""
        waited_for = self.found if self.accepted.done() else self.accepted
        if not waited_for.done():
            waited_for.set_exception(error)

    def close(self) -> None:
        """Abort the texts in the engine. May be called at any time, and again."""
        if self._connection.open.pop(self._request.request_id, None) is not None:
            self._connection.send(wire.Abort(request_id=self._request.request_id))
        if not self.found.cancel() and not self.found.cancelled():
            self.found.exception()  # asyncio logs an error that is never retrieved
        observers, self._observers = self._observers, ()
        for observer in observers:
            observer.over()


async def embed(engines: EngineClient, request: wire.Embed, observers: Sequence[Observer]) -> Vectors:
    """Submit texts to one engine; returns when it has accepted them.

    Raises: InvalidRequest, Overloaded, EngineUnavailable.
    """
    return await engines.hand(engines.least_loaded, lambda one: Vectors(one, request, observers), [request])
