"""The loop of a pooling model: take in, choose texts, compute, publish. One thread owns all state below.

Each text is computed whole, in one step, with as many others as the step's budget holds. Nothing is kept between steps.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque

from forearm import wire
from forearm.engine.messages import Drain, From, Gone, Inward, Outward, Profiling, Snapshot, Texts
from forearm.engine.metrics.step_trace import StepTrace
from forearm.engine.pooling.executor import Pooler
from forearm.engine.pooling.metrics import PoolingMeter
from forearm.engine.pooling.requests import PoolingAdmission, PoolingRequest, Text
from forearm.engine.request_queue import RequestQueue
from forearm.engine.run_loop import MAX_FAILED_STEPS
from forearm.engine.waiting import Served
from forearm.errors import EngineFailed, EngineUnavailable, ForearmError, InvalidRequest, Overloaded

log = logging.getLogger(__name__)


class PoolingLoop:
    """State and step of one engine.

    step_tokens, step_texts: most of one step. outbox: what the last step has to say, and to whom. trace: of its steps;
    None: nothing is recorded.
    """

    def __init__(
        self,
        executor: Pooler,
        step_tokens: int,
        step_texts: int,
        meter: PoolingMeter,
        trace: StepTrace | None = None,
    ) -> None:
        assert step_tokens >= executor.max_model_len, "one text of full length must fit a step"
        self.executor = executor
        self.meter, self.trace = meter, trace or StepTrace()
        self.outbox: list[Outward] = []
        self.over = False
        self._step_tokens, self._step_texts = step_tokens, step_texts
        self._admission = PoolingAdmission(executor.terms)
        self._requests: dict[tuple[int, str], PoolingRequest] = {}
        self._queue = RequestQueue(executor.terms.queued, step_texts)
        self._served = Served()
        self.draining = False
        self._failed_steps = 0
        self.look()

    @property
    def busy(self) -> bool:
        return bool(self._requests)

    def take(self, inward: Inward) -> None:
        """One message in."""
        if isinstance(inward, Texts):
            self._embed(inward.connection, inward.message)
        elif isinstance(inward, From):
            self._take_message(inward.connection, inward.message)
        elif isinstance(inward, Profiling):
            self.outbox.append((inward.connection, self.trace.answer(inward.message)))
        elif isinstance(inward, Gone):
            for request in [r for r in self._requests.values() if r.connection == inward.connection]:
                self._end(request, "abort")
        elif isinstance(inward, Drain):
            self.draining = True
        else:
            self._stop()

    def step(self) -> None:
        """Compute one step, if there is anything to compute."""
        self.trace.begin("schedule")
        texts = self._choose()
        if texts:
            self.look()
            try:
                self._compute(texts)
                self._failed_steps = 0
            except Exception as error:
                self._step_failed(texts, error)
            tokens = sum(len(text.prompt.token_ids) for text in texts)
            self.meter.step(tokens)
            self.trace.end(tokens=tokens, texts=len(texts))
        self.look()

    # --- in

    def _take_message(self, connection: int, message: wire.Submit | wire.Abort | wire.ForgetPrefixes) -> None:
        if isinstance(message, wire.ForgetPrefixes):
            return  # it keeps none
        if isinstance(message, wire.Submit):
            error = InvalidRequest("this model makes vectors of texts; it generates none")
            self._refuse(connection, message.request_id, error)
        elif (request := self._requests.get((connection, message.request_id))) is not None:
            self._end(request, "abort")

    def _embed(self, connection: int, embed: wire.Embed) -> None:
        try:
            self._check_open(connection, embed)
            request = self._admission.request(connection, embed, time.monotonic())
        except ForearmError as error:
            self.meter.rejected(type(error).__name__)
            self._refuse(connection, embed.request_id, error)
            return
        self._requests[request.name] = request
        self._queue.enter()
        self._served.enter(embed.client, self._served.least)
        self.outbox.append((connection, wire.Accepted(request_id=embed.request_id)))

    def _check_open(self, connection: int, embed: wire.Embed) -> None:
        """Raises: why nothing more, or not this, is taken in."""
        if self.draining:
            raise EngineUnavailable("the server is shutting down")
        if (connection, embed.request_id) in self._requests:
            raise InvalidRequest(f"request_id {embed.request_id} is in use", "request_id")
        if (load := self._queue.load(0)).room <= 0:
            waiting, limit = self._queue.length, self.executor.terms.queued
            raise Overloaded(f"{waiting} requests are waiting; the limit is {limit}", load.retry_after_s)

    def _stop(self) -> None:
        self.over = True
        for request in list(self._requests.values()):
            self._refuse(*request.name, EngineUnavailable("the server is shutting down"))
            self._end(request, "abort")

    # --- compute

    def _choose(self) -> list[Text]:
        """Texts of the next step, as many as it holds.

        Requests take turns, a text each: a query is not held up by thousands of documents. The first one of each client
        goes before the second of any, and of these the one whose client got least. Where priorities count, the first
        request's texts go first.
        """
        room, texts, now_s = self._step_tokens, list[Text](), time.monotonic()
        ranked = sorted(self._requests.values(), key=lambda one: one.rank)
        in_turn = not self.executor.terms.priorities
        if in_turn:
            ranked = self._in_turns(ranked)
        turns = deque((request, request.next) for request in ranked)
        while turns and len(texts) < self._step_texts:
            request, index = turns.popleft()
            count = len(request.embed.prompts[index].token_ids)
            if count > room:
                if in_turn:
                    continue  # it is the first of a later step
                break
            if request.scheduled_s is None:
                request.scheduled_s = now_s
                self._queue.begin()
            texts.append(Text(request, index))
            self._served.add(request.embed.client, count)
            room -= count
            if index + 1 < len(request.embed.prompts):
                (turns.append if in_turn else turns.appendleft)((request, index + 1))
        return texts

    def _in_turns(self, ranked: list[PoolingRequest]) -> list[PoolingRequest]:
        """The first request of each client, then the second ones, and so on; each time who got least before others."""
        seen: Counter[str] = Counter()
        keys: list[tuple[int, int]] = []
        for request in ranked:
            client = request.embed.client
            keys.append((seen[client], self._served[client]))
            seen[client] += 1
        return [ranked[at] for at in sorted(range(len(ranked)), key=keys.__getitem__)]

    def _compute(self, texts: list[Text]) -> None:
        self.trace.part("forward")
        vectors = self.executor.compute(texts)
        self.trace.part("advance")
        for text, vector in zip(texts, vectors, strict=True):
            request = text.request
            if isinstance(vector, EngineFailed):
                if request.name in self._requests:
                    self._corrupted(request, vector)
                continue
            rows = vector.shape[0] if vector.ndim == 2 else 1
            message = wire.Embedded(
                request_id=request.embed.request_id, index=text.index, vector=vector.tobytes(), rows=rows
            )
            if request.name in self._requests:
                self.outbox.append((request.connection, message))
                request.next = text.index + 1
                if request.next == len(request.embed.prompts):
                    self._end(request, "stop")

    # --- out

    def _end(self, request: PoolingRequest, reason: str) -> None:
        del self._requests[request.name]
        self._queue.leave(begun=request.scheduled_s is not None)
        self._served.leave(request.embed.client)
        self.meter.request_ended(request, reason, time.monotonic())

    def _refuse(self, connection: int, request_id: str, error: ForearmError) -> None:
        message = wire.Refused(
            request_id=request_id,
            error=type(error).__name__,
            message=str(error),
            param=getattr(error, "param", None),
            retry_after_s=getattr(error, "retry_after_s", 1),
        )
        self.outbox.append((connection, message))

    def _corrupted(self, request: PoolingRequest, error: EngineFailed) -> None:
        """Only this request ends."""
        failed = EngineFailed(f"request {request.embed.request_id}: {error}")
        log.error("%s", failed)
        self.meter.corrupted()
        self._refuse(*request.name, failed)
        self._end(request, "error")

    def _step_failed(self, texts: list[Text], error: Exception) -> None:
        """The requests of this step end; the others go on, unless it happens again and again."""
        self._failed_steps += 1
        log.error("a step of %d texts failed", len(texts), exc_info=error)
        for request in {id(text.request): text.request for text in texts}.values():
            if request.name in self._requests:
                failed = EngineFailed(f"request {request.embed.request_id}: the engine failed to compute it: {error}")
                self._refuse(*request.name, failed)
                self._end(request, "error")
        if self._failed_steps == MAX_FAILED_STEPS:
            raise EngineFailed(f"{MAX_FAILED_STEPS} steps in a row failed; the last one: {error}") from error

    def look(self) -> None:
        """Show the outside how full the engine is."""
        waiting = self._queue.length
        self.meter.filled(len(self._requests) - waiting, waiting)
        self.snapshot = Snapshot(
            running=len(self._requests) - waiting,
            waiting=waiting,
            load=self._queue.load(0),
            kv_usage=0.0,
            step_s=time.monotonic() if self.busy else None,
            draining=self.draining,
        )
