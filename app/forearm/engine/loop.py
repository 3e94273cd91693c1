"""The engine's loop: take in, schedule, compute, sample, publish. One thread owns all state below.

Messages come in through a queue and go out in one list a step. With nothing to do the thread sleeps in the queue.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from queue import SimpleQueue

import numpy as np

from forearm import wire
from forearm.engine.admission import Admission, Terms
from forearm.engine.batch import Sampled, Scored, pack
from forearm.engine.blocks import BlockPool, blocks_for
from forearm.engine.executor import Executor
from forearm.engine.messages import Drain, From, Gone, Inward, Outward, Snapshot
from forearm.engine.meter import Meter
from forearm.engine.sampling import MAX_OUTPUTS, alternatives, columns, finish, sampled_logprobs, scored_logprobs
from forearm.engine.scheduler import Limits, Scheduler
from forearm.engine.sequence import Request, Sequence, Slice
from forearm.errors import EngineFailed, EngineUnavailable, ForearmError, InvalidRequest, Overloaded

# One broken step may be its requests' fault; three in a row are the engine's, and a fresh process is the remedy.
MAX_FAILED_STEPS = 3

log = logging.getLogger(__name__)


class EngineLoop:
    """State and step of one engine.

    outbox: what the last step has to say, and to whom; the caller takes it and empties it.
    """

    def __init__(self, executor: Executor, limits: Limits, terms: Terms, meter: Meter) -> None:
        assert executor.blocks >= blocks_for(terms.max_model_len), "one sequence of full length must fit"
        self.executor = executor
        self.scheduler = Scheduler(limits, BlockPool(executor.blocks))
        self.meter = meter
        self.outbox: list[Outward] = []
        self.over = False
        self._admission = Admission(terms)
        self._requests: dict[tuple[int, str], Request] = {}
        self._draining = False
        self._failed_steps = 0
        self._look()

    @property
    def busy(self) -> bool:
        return bool(self._requests)

    def run(self, inbox: SimpleQueue[Inward], publish: Callable[[list[Outward]], None]) -> None:
        """Step until told to end and, if drained, until all is finished.

        Raises: EngineFailed after MAX_FAILED_STEPS broken steps in a row.
        """
        while True:
            self._take_all(inbox)
            self._publish(publish)  # a client learns that it was taken in before a step that may be long
            self.step()
            self._publish(publish)
            if self.over or (self._draining and not self.busy):
                return

    def take(self, inward: Inward) -> None:
        """One message in."""
        if isinstance(inward, From):
            if isinstance(inward.message, wire.Submit):
                self._submit(inward.connection, inward.message)
            else:
                self._abort(inward.connection, inward.message)
        elif isinstance(inward, Gone):
            for request in [r for r in self._requests.values() if r.connection == inward.connection]:
                self._end(request, "abort")
        elif isinstance(inward, Drain):
            self._draining = True
        else:
            self._stop()

    def step(self) -> None:
        """Compute one step, if there is anything to compute."""
        slices = self.scheduler.schedule()
        assert slices or not self.busy, "whoever is there can go on"
        if slices:
            self._look()
            now_s = time.monotonic()
            for piece in slices:
                request = piece.sequence.request
                request.scheduled_s = request.scheduled_s or now_s
            try:
                self._compute(slices)
                self._failed_steps = 0
            except Exception as error:
                self._step_failed(slices, error)
            self.meter.step(sum(piece.end - piece.start for piece in slices))
        self._look()

    # --- in

    def _take_all(self, inbox: SimpleQueue[Inward]) -> None:
        if not self.busy and not self._draining:
            self.take(inbox.get())
        while not inbox.empty():  # this thread alone takes from it
            self.take(inbox.get())

    def _submit(self, connection: int, submit: wire.Submit) -> None:
        try:
            self._check_open(connection, submit)
            request = self._admission.request(connection, submit, time.monotonic())
        except ForearmError as error:
            self.meter.rejected(type(error).__name__)
            self._refuse(connection, submit.request_id, error)
            return
        self._requests[request.name] = request
        self.scheduler.add(request)
        self.outbox.append((connection, wire.Accepted(request_id=submit.request_id)))

    def _check_open(self, connection: int, submit: wire.Submit) -> None:
        """Raises: why nothing more, or not this, is taken in."""
        if self._draining:
            raise EngineUnavailable("the server is shutting down")
        if (connection, submit.request_id) in self._requests:
            raise InvalidRequest(f"request_id {submit.request_id} is in use", "request_id")
        queued = sum(request.scheduled_s is None for request in self._requests.values())
        limit = self._admission.terms.queued
        places = self.scheduler.limits.running - len(self.scheduler.running)
        if queued >= limit + places:
            raise Overloaded(f"{queued} requests are waiting; the limit is {limit}")
        waiting, most = len(self.scheduler.waiting), max(limit, MAX_OUTPUTS)
        if waiting + submit.params.n > most:
            raise Overloaded(
                f"{waiting} outputs are waiting, {submit.params.n} more are asked for; the limit is {most}"
            )

    def _abort(self, connection: int, abort: wire.Abort) -> None:
        """The client may abort what has just finished: then there is nothing to do."""
        request = self._requests.get((connection, abort.request_id))
        if request is None:
            return
        for sequence in request.open:
            if abort.index in (None, sequence.index):
                self._end_output(sequence, "abort")

    def _stop(self) -> None:
        self.over = True
        for request in list(self._requests.values()):
            for sequence in request.open:
                last = wire.Tokens(
                    request_id=request.request_id, index=sequence.index, token_ids=[], finish_reason="abort"
                )
                self.outbox.append((request.connection, last))
            self._end(request, "abort")

    # --- compute, sample

    def _compute(self, slices: list[Slice]) -> None:
        """The whole step. State moves on only after the executor's last call: a broken step changes nothing."""
        self.executor.forward(pack(slices))
        lines: list[tuple[int, Sequence]] = []
        scored: list[Scored | None] = []
        row = 0
        for piece in slices:
            scored.append(self._score(piece, row) if piece.scores else None)
            row += len(piece.scores)
            if piece.samples:
                lines.append((row, piece.sequence))
                row += 1
        sampled = self.executor.sample(columns(lines, self.executor.vocab_size)) if lines else None

        for piece, found in zip(slices, scored, strict=True):
            self._advance(piece, found)
        now_s = time.monotonic()
        for line, (_, sequence) in enumerate(lines):
            if sequence.finish_reason is None:  # else another output of its request met a NaN
                assert sampled is not None
                self._append(sequence, sampled, line, now_s)

    def _score(self, piece: Slice, row: int) -> Scored:
        """Log-probabilities of the prompt tokens after the positions `piece.scores`, whose logits start at `row`."""
        params = piece.sequence.request.params
        assert params.prompt_logprobs is not None
        rows = np.arange(row, row + len(piece.scores), dtype=np.int32)
        tokens = np.array(piece.sequence.tokens[piece.scores.start + 1 : piece.scores.stop + 1], dtype=np.int32)
        return self.executor.score(rows, tokens, alternatives(params.prompt_logprobs, self.executor.vocab_size))

    def _advance(self, piece: Slice, scored: Scored | None) -> None:
        """The slice is computed; its full blocks can be shared and its prompt's log-probabilities are known."""
        sequence = piece.sequence
        request = sequence.request
        sequence.computed = piece.end
        if scored is None:
            self.scheduler.blocks.publish(sequence, piece.start)
            return
        if np.isnan(scored.logprob).any():
            self._corrupted(sequence)
            return
        self.scheduler.blocks.publish(sequence, piece.start)
        count = alternatives(request.params.prompt_logprobs or 0, self.executor.vocab_size)
        for line, position in enumerate(piece.scores):
            token = sequence.tokens[position + 1]
            request.prompt_logprobs.append(scored_logprobs(scored, line, token, count))

    def _append(self, sequence: Sequence, sampled: Sampled, line: int, now_s: float) -> None:
        """The output goes on with the token of this line, or ends with it."""
        if sampled.nan[line]:
            self._corrupted(sequence)
            return
        sequence.append(int(sampled.token[line]))
        self.meter.token(sequence, now_s)
        sequence.last_token_s = now_s
        logprobs = None
        if sequence.request.params.logprobs is not None:
            count = alternatives(sequence.request.params.logprobs, self.executor.vocab_size)
            logprobs = [sampled_logprobs(sampled, line, count)]
        finish_reason, stop_reason = finish(sequence)
        self._tell(sequence, logprobs, finish_reason, stop_reason)
        sequence.request.first_token_s = sequence.request.first_token_s or now_s
        if finish_reason is not None:
            self._end_output(sequence, finish_reason)

    # --- out

    def _publish(self, publish: Callable[[list[Outward]], None]) -> None:
        if self.outbox:
            publish(self.outbox)
            self.outbox = []

    def _tell(
        self,
        sequence: Sequence,
        logprobs: list[wire.PositionLogprobs] | None,
        finish_reason: str | None,
        stop_reason: int | None,
    ) -> None:
        """The newest token of an output, to its client."""
        request = sequence.request
        first = sequence.index == 0 and sequence.output_length == 1
        scored = first and request.params.prompt_logprobs is not None
        message = wire.Tokens(
            request_id=request.request_id,
            index=sequence.index,
            token_ids=[sequence.tokens[-1]],
            logprobs=logprobs,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            cached_tokens=sequence.cached_tokens if first else None,
            queue_s=(request.scheduled_s or request.arrived_s) - request.arrived_s if first else None,
            prompt_logprobs=request.prompt_logprobs if scored else None,
        )
        self.outbox.append((request.connection, message))

    def _end_output(self, sequence: Sequence, reason: str) -> None:
        """Its place and blocks are free from the next step on; the request ends with its last output."""
        sequence.finish_reason = reason
        self.scheduler.remove(sequence)
        request = sequence.request
        if not request.open:
            del self._requests[request.name]
            self.meter.request_over(request, reason, time.monotonic())

    def _end(self, request: Request, reason: str) -> None:
        for sequence in request.open:
            self._end_output(sequence, reason)

    def _refuse(self, connection: int, request_id: str, error: ForearmError) -> None:
        message = wire.Refused(
            request_id=request_id,
            error=type(error).__name__,
            message=str(error),
            param=getattr(error, "param", None),
            retry_after_s=getattr(error, "retry_after_s", 1),
        )
        self.outbox.append((connection, message))

    def _corrupted(self, sequence: Sequence) -> None:
        """Only this request ends; what it has computed is shared with nobody any more."""
        request = sequence.request
        error = EngineFailed(
            f"request {request.request_id}: the model's logits after token {len(sequence.tokens)} have a NaN, "
            "or every token is forbidden; nothing can be chosen"
        )
        log.error("%s", error)
        self.meter.corrupted()
        for one in request.open:
            self.scheduler.blocks.discard(one)
        self._refuse(request.connection, request.request_id, error)
        self._end(request, "error")

    def _step_failed(self, slices: list[Slice], error: Exception) -> None:
        """The requests of this step end; the others go on, unless it happens again and again."""
        self._failed_steps += 1
        log.error("a step of %d sequences failed", len(slices), exc_info=error)
        for request in {id(piece.sequence.request): piece.sequence.request for piece in slices}.values():
            failed = EngineFailed(f"request {request.request_id}: the engine failed to compute it: {error}")
            self._refuse(request.connection, request.request_id, failed)
            self._end(request, "error")
        if self._failed_steps == MAX_FAILED_STEPS:
            raise EngineFailed(f"{MAX_FAILED_STEPS} steps in a row failed; the last one: {error}") from error

    def _look(self) -> None:
        """Show the outside how full the engine is."""
        self.meter.load(self.scheduler)
        blocks = self.scheduler.blocks
        self.snapshot = Snapshot(
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            kv_usage=blocks.used / blocks.count,
            step_s=time.monotonic() if self.busy else None,
            draining=self._draining,
        )
