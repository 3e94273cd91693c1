"""Responses in progress: computed while the client waits, or in the background to be fetched later."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

from forearm.api.generation.chat_turn import Turn
from forearm.api.generation.output_stream import spaced
from forearm.api.generation.response_bodies import encoder
from forearm.api.generation.usage import written
from forearm.api.http.errors import error_body
from forearm.api.responses.output_items import ResponseProgress
from forearm.api.responses.store import ResponseStore
from forearm.api.responses.store_schema import RUNNING, ResponseUpdate, StoredResponse
from forearm.errors import EngineFailed, InvalidRequest, StoreFull
from forearm.json_types import Json

log = logging.getLogger(__name__)

# The interval at which new events of background responses go to the store, and at which a reader polls it.
_UPDATE_S = 0.1


@dataclass(frozen=True)
class Job:
    """One response to be computed, with its owner and the store that keeps it (None: it is not kept)."""

    turn: Turn
    progress: ResponseProgress
    owner: str
    items: list[Json]
    store: ResponseStore | None
    request_id: str

    @property
    def id(self) -> str:
        """Return the id of the response."""
        return str(self.progress.reply["id"])

    @property
    def scored(self) -> int:
        """Return how many positions' log-probabilities the response holds."""
        return self.turn.tally.completion_tokens if self.turn.body.logprobs else 0

    def stored(self) -> StoredResponse:
        """Return the response in its present state, as a row of the store."""
        reply = self.progress.reply
        items = json.dumps(self.items).encode()
        return StoredResponse(
            self.id, self.progress.status, encoder.encode(reply), items, reply["previous_response_id"]
        )

    async def keep(self, events: list[bytes]) -> None:
        """Store the finished response. If that fails, the failure is logged, and the client still gets its answer."""
        if self.store is None:
            return
        try:
            await self.store.add(await written(self.stored, self.scored), self.owner, events)
        except (StoreFull, InvalidRequest) as error:
            log.warning("response %s is not stored: %s", self.id, error, extra={"request_id": self.request_id})


async def told(job: Job) -> AsyncIterator[bytes]:
    """Yield all events of a response, which is stored before the last ones: a client that reads these can fetch it."""
    events = job.progress.begin()
    yield b"".join(events)
    async for new in _computed(job):
        events += new
        if job.progress.status not in RUNNING:
            await job.keep(events)
        yield b"".join(new)


async def whole(job: Job) -> Json:
    """Return the response once it is complete.

    Raises: EngineFailed, EngineUnavailable.
    """
    reason = None
    async for piece in job.turn.pieces():
        job.progress.take(piece)
        reason = piece.finish_reason
    await _finish(job, reason)
    await job.keep([])
    return job.progress.reply


async def _computed(job: Job) -> AsyncIterator[list[bytes]]:
    """Yield the events of one engine message after the other; a failure becomes events too."""
    reason = None
    try:
        async for piece in spaced(job.turn.pieces(), job.turn.body.stream_interval):
            new = job.progress.take(piece)
            reason = piece.finish_reason
            if new:
                yield new
        yield await _finish(job, reason)
    except Exception as error:  # the status line has been sent, or no client waits: the response itself reports it
        yield job.progress.fail(error_body(error, job.request_id), job.turn.tally)


async def _finish(job: Job, reason: str | None) -> list[bytes]:
    """Return the last events, of which four repeat the whole text and its log-probabilities."""
    if reason in (None, "abort"):
        ended = EngineFailed("the engine ended this request")
        return job.progress.fail(error_body(ended), job.turn.tally)
    return await written(lambda: job.progress.end(reason, job.turn.tally), job.scored)


@dataclass
class Running:
    """A background job, and the part of it that the store does not have yet."""

    job: Job
    unsaved: list[bytes]  # events not stored yet
    number: int  # sequence number of the first of them
    status: str
    computing: asyncio.Task[None]

    def update(self) -> ResponseUpdate:
        """Return the changes since the last update of the store; call `stored` once they are written."""
        progress = self.job.progress
        if progress.status == self.status:
            return ResponseUpdate(self.job.id, self.number, self.unsaved[:])
        return ResponseUpdate(
            self.job.id, self.number, self.unsaved[:], progress.status, encoder.encode(progress.reply)
        )

    def stored(self, update: ResponseUpdate) -> None:
        """Drop the changes that are now in the store."""
        del self.unsaved[: len(update.events)]
        self.number += len(update.events)
        self.status = update.status or self.status


class Background:
    """The responses that this worker computes in the background. Their changes go to the store together."""

    def __init__(self, store: ResponseStore | None) -> None:
        self._store = store
        self._running: dict[str, Running] = {}
        self._telling: asyncio.Task[None] | None = None

    async def start(self, job: Job) -> None:
        """Start a job in the background; return once its response is stored and can be fetched.

        Raises: InvalidRequest if it is too large for the store.
        """
        assert self._store is not None
        first = job.progress.begin()
        try:
            await self._store.add(job.stored(), job.owner, first)
        except BaseException:
            job.turn.close()
            raise
        unsaved: list[bytes] = []
        computing = asyncio.create_task(_collect(job, unsaved))
        self._running[job.id] = Running(job, unsaved, len(first), job.progress.status, computing)
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._save_updates(self._store))

    async def close(self) -> None:
        """Cancel all jobs, because this worker ends."""
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)
        for response_id in list(self._running):
            await self._end(response_id)

    async def _save_updates(self, store: ResponseStore) -> None:
        """Write changes to the store until all jobs are complete, or cancelled or deleted through any worker."""
        while self._running:
            await asyncio.sleep(_UPDATE_S)
            over = {one.job.id for one in self._running.values() if one.computing.done()}
            updates = {response_id: one.update() for response_id, one in self._running.items()}
            try:
                wanted = await store.update(list(updates.values()))
            except StoreFull as error:
                log.warning("background responses cannot be stored now: %s", error)
                wanted = set(updates)
            else:
                for response_id, update in updates.items():
                    self._running[response_id].stored(update)
            for response_id in set(updates) - wanted | over:
                await self._end(response_id)

    async def _end(self, response_id: str) -> None:
        one = self._running.pop(response_id)
        one.computing.cancel()
        await asyncio.gather(one.computing, return_exceptions=True)
        one.job.turn.close()


async def _collect(job: Job, unsaved: list[bytes]) -> None:
    async for new in _computed(job):
        unsaved += new


async def followed(store: ResponseStore, response_id: str, owner: str, after: int) -> AsyncIterator[bytes]:
    """Yield the events numbered above `after` of a response, which another worker may still be computing.

    Raises: ResponseNotFound if it is deleted meanwhile.
    """
    while True:
        events, more = await store.events(response_id, owner, after)
        if events:
            after += len(events)
            yield b"".join(events)
        elif more:
            await asyncio.sleep(_UPDATE_S)
        else:
            return
