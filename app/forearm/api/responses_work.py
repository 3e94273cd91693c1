"""Responses as they are computed: while the client waits, or in the background for whoever asks later."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import dataclass

from forearm.api.faults import error_reply
from forearm.api.replies import encoder
from forearm.api.response_store import ResponseStore, Stored
from forearm.api.responses_output import Growing, Json
from forearm.api.turn import Turn
from forearm.errors import ForearmError, InvalidRequest

log = logging.getLogger(__name__)

# How long a background response's news may wait until it is in the store, and a reader until it looks there again.
_NEWS_S = 0.1


@dataclass(frozen=True)
class Job:
    """One response to be computed, whose it is, and where it is kept (None: nowhere)."""

    turn: Turn
    growing: Growing
    owner: str
    items: list[Json]
    store: ResponseStore | None

    @property
    def id(self) -> str:
        """The response's."""
        return str(self.growing.reply["id"])

    def stored(self) -> Stored:
        """As it now is."""
        reply = self.growing.reply
        items = json.dumps(self.items).encode()
        return Stored(self.id, self.growing.status, encoder.encode(reply), items, reply["previous_response_id"])

    async def keep(self, events: list[bytes]) -> None:
        """Store it, done. An answer is not lost because it cannot be stored."""
        if self.store is None:
            return
        try:
            await self.store.add(self.stored(), self.owner, events)
        except (sqlite3.Error, InvalidRequest) as error:
            log.warning("response %s is not stored: %s", self.id, error)


async def told(job: Job) -> AsyncIterator[bytes]:
    """The events of a response from first to last. It is stored before the last ones are told: whoever reads that it
    is complete can fetch it."""
    events = job.growing.begin()
    yield b"".join(events)
    async for new in _computed(job):
        events += new
        if job.growing.reply["usage"] is not None:  # the end
            await job.keep(events)
        yield b"".join(new)


async def whole(job: Job) -> Json:
    """The response once it is complete.

    Raises: EngineFailed, EngineUnavailable.
    """
    reason = None
    async for piece in job.turn.parts():
        job.growing.take(piece)
        reason = piece.finish_reason
    _finish(job, reason)
    await job.keep([])
    return job.growing.reply


async def _computed(job: Job) -> AsyncIterator[list[bytes]]:
    """Events of one message of the engine after the other; what breaks off is told too."""
    reason = None
    try:
        async for piece in job.turn.parts():
            new = job.growing.take(piece)
            reason = piece.finish_reason
            if new:
                yield new
        yield _finish(job, reason)
    except ForearmError as error:
        yield job.growing.fail(str(error), job.turn.tally)


def _finish(job: Job, reason: str | None) -> list[bytes]:
    if reason in (None, "abort"):
        return job.growing.fail("the engine ended this request", job.turn.tally)
    return job.growing.end(reason, job.turn.tally)


class Background:
    """The responses that this worker computes while nobody waits for them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, job: Job) -> None:
        """Returns once it is stored, and can be fetched.

        Raises: InvalidRequest if it is too large for the store.
        """
        assert job.store is not None
        first = job.growing.begin()
        try:
            await job.store.add(job.stored(), job.owner, first)
        except BaseException:
            job.turn.close()
            raise
        task = asyncio.create_task(self._run(job, job.store, len(first)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """This worker ends, and what it computes with it."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, job: Job, store: ResponseStore, number: int) -> None:
        """Until it is complete, or cancelled or deleted by whichever worker was asked to."""
        news: list[bytes] = []
        computing = asyncio.create_task(_collect(job, news))
        status = job.growing.status
        try:
            wanted = True
            while wanted:
                await asyncio.wait([computing], timeout=_NEWS_S)
                over, now, new = computing.done(), job.growing.status, news[:]
                del news[: len(new)]
                reply = b"" if now == status else encoder.encode(job.growing.reply)
                wanted = await store.update(job.id, number, new, None if now == status else now, reply) and not over
                number, status = number + len(new), now
        except sqlite3.Error:
            log.exception("background response %s is given up", job.id)
        finally:
            computing.cancel()
            await asyncio.gather(computing, return_exceptions=True)
            job.turn.close()


async def _collect(job: Job, news: list[bytes]) -> None:
    try:
        async for new in _computed(job):
            news += new
    except Exception as error:
        news += job.growing.fail(error_reply(error).error.message, job.turn.tally)


async def followed(store: ResponseStore, response_id: str, owner: str, after: int) -> AsyncIterator[bytes]:
    """The events with numbers greater than `after` of a response that perhaps another worker still computes.

    Raises: ResponseNotFound should it be deleted meanwhile.
    """
    while True:
        events, more = await store.events(response_id, owner, after)
        if events:
            after += len(events)
            yield b"".join(events)
        elif more:
            await asyncio.sleep(_NEWS_S)
        else:
            return
