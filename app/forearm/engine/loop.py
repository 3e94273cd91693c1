"""The engine's loop: take in, schedule, compute, sample or pool, publish. One thread owns all state below.

Messages come in through a queue and go out in one list a step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, wait

from forearm import wire
from forearm.engine import replies
from forearm.engine.admission import Admission, Terms
from forearm.engine.advance import Growth, grow, nothing_to_choose
from forearm.engine.blocks import BlockPool, blocks_for
from forearm.engine.constraints.grammar import Grammars
from forearm.engine.constraints.output_constraint import Constraint
from forearm.engine.inbox import Drain, From, Gone, Inbox, Inward, Outward, Profiling, Snapshot
from forearm.engine.metrics.engine_metrics import Meter
from forearm.engine.pooling import PoolingStepper
from forearm.engine.request_queue import RequestQueue
from forearm.engine.scheduler import Scheduler, StepLimits
from forearm.engine.sequence import Request, Sequence, Slice, prefills
from forearm.engine.speculation.speculation import Speculation
from forearm.engine.step import SliceOutcome, Stepper
from forearm.errors import ConstraintFailed, EngineFailed, EngineUnavailable, ForearmError, InvalidRequest

# One broken step may be its requests' fault; three in a row are the engine's, and a fresh process is the remedy.
MAX_FAILED_STEPS = 3
_COMPILING_S = 0.01  # that a step waits for a grammar where there is nothing else to do; messages are taken in between

log = logging.getLogger(__name__)


class EngineLoop:
    """State and step of one engine.

    stepper: computes steps, of a model that generates or of one that pools.
    outbox: messages to connections since the outbox was last emptied.
    over: the loop was told to end at once. draining: it takes in nothing new.
    grammars: None: requests with a grammar are refused. speculation: None: no drafts.
    """

    def __init__(
        self,
        stepper: Stepper | PoolingStepper,
        limits: StepLimits,
        terms: Terms,
        meter: Meter,
        grammars: Grammars | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        blocks = stepper.executor.blocks
        assert blocks >= blocks_for(terms.max_model_len), "one sequence of full length must fit"
        self._stepper, self._speculation, self.trace = stepper, speculation or Speculation(), stepper.trace
        self.scheduler = Scheduler(limits, BlockPool(blocks), self._speculation.times)
        self.meter, self._grammars = meter, grammars
        self.outbox: list[Outward] = []
        self.over = self.draining = False
        self.terms, self._admission = terms, Admission(terms)
        self._pools = terms.pooling is not None
        self._compiling: list[Request] = []
        self._requests: dict[tuple[int, str], Request] = {}
        self._queue = RequestQueue(terms.queued, limits.running)
        self._failed_steps = 0
        self.look()

    @property
    def busy(self) -> bool:
        return bool(self._requests)

    def run(self, inbox: Inbox, publish: Callable[[list[Outward]], None]) -> None:
        """Step until told to end and, if drained, until all is finished. With nothing to do, sleep in the queue.

        Raises: EngineFailed after MAX_FAILED_STEPS broken steps in a row.
        """

        def publish_outbox() -> None:
            if self.outbox:
                publish(self.outbox)
                self.outbox = []

        try:
            while not (self.over or (self.draining and not self.busy)):
                taken = 0
                while not inbox.empty() or not (taken or self.busy or self.draining):  # no other thread takes from it
                    self.take(inbox.get())
                    taken += 1
                if taken:
                    self.look()  # of several workers each sees in time what the others have filled
                publish_outbox()  # a client learns that it was taken in before a step that may be long
                self.step()
                publish_outbox()
        finally:
            self.trace.close()

    def take(self, inward: Inward) -> None:
        """Take in one message."""
        if isinstance(inward, From):
            if isinstance(inward.message, wire.Submit | wire.Embed):
                self._submit(inward.connection, inward.message)
            elif isinstance(inward.message, wire.ForgetPrefixes):
                self.scheduler.blocks.forget_prefixes()
            elif request := self._requests.get((inward.connection, inward.message.request_id)):  # else it has ended
                self._abort(request, inward.message.index)
        elif isinstance(inward, Profiling):
            self.outbox.append((inward.connection, self.trace.answer(inward.message)))
        elif isinstance(inward, Gone):
            for request in [r for r in self._requests.values() if r.connection == inward.connection]:
                self._end(request, "abort")
        elif isinstance(inward, Drain):
            self.draining = True
        else:
            self.over = True
            for request in list(self._requests.values()):
                if self._pools:
                    self._refuse(*request.name, EngineUnavailable("the server is shutting down"))
                else:
                    self.outbox += [(request.connection, one) for one in replies.aborted(request)]
                self._end(request, "abort")

    def step(self) -> None:
        """Compute one step, if there is anything to compute."""
        self._take_grammars()
        self.trace.begin("schedule")
        slices = self.scheduler.schedule()
        if slices:
            self.look()
            now_s = time.monotonic()
            for piece in slices:
                if piece.sequence.request.scheduled_s is None:
                    piece.sequence.request.scheduled_s = now_s
                    self._queue.begin()
            try:
                self._compute(slices)
                self._failed_steps = 0
            except Exception as error:
                self._step_failed(slices, error)
            self.meter.step(sum([piece.end - piece.start for piece in slices]))
        elif self.busy:
            grammars = [request.compiling for request in self._compiling if request.compiling is not None]
            assert grammars, "only a grammar that is being compiled keeps a request from going on"
            wait(grammars, _COMPILING_S, FIRST_COMPLETED)
        self.look()

    def look(self) -> None:
        """Show other threads how full the engine is. A model that pools keeps nothing in its KV cache."""
        running, waiting = len(self.scheduler.running), self.scheduler.waiting
        kv_usage, load = self.scheduler.blocks.used / self.scheduler.blocks.count, self._queue.load(running)
        if self._pools:  # requests, which may have thousands of texts; a text gives its place back with the step
            waiting = self._queue.length
            running, kv_usage, load = len(self._requests) - waiting, 0.0, self._queue.load(0)
        self.meter.load(running, waiting, kv_usage, self.scheduler.preemptions)
        step_s = time.monotonic() if self.busy else None
        self.snapshot = Snapshot(running, waiting, load, kv_usage, step_s, self.draining)

    # --- in

    def _submit(self, connection: int, submit: wire.Submit | wire.Embed) -> None:
        """Take in a request, or refuse it: while draining, for its name, for want of room, for what it asks."""
        try:
            if self.draining:
                raise EngineUnavailable("the server is shutting down")
            if (connection, submit.request_id) in self._requests:
                raise InvalidRequest(f"request_id {submit.request_id} is in use", "request_id")
            if isinstance(submit, wire.Submit):
                self._queue.check(submit.params.n, len(self.scheduler.running), self.scheduler.waiting)
            else:
                self._queue.check(1, 0, self._queue.length)
            request = self._admission.request(connection, submit, time.monotonic(), self.scheduler.turn)
            if (grammar := request.params.grammar) is not None:
                if self._grammars is None:
                    raise InvalidRequest("structured output needs a model with a tokenizer", "structured_outputs")
                request.compiling = self._grammars.start(grammar)
                self._compiling.append(request)
        except ForearmError as error:
            self.meter.rejected(type(error).__name__)
            self._refuse(connection, submit.request_id, error)
            return
        self._requests[request.name] = request
        self._queue.enter()
        self.scheduler.add(request)
        if request.compiling is None:
            self.outbox.append((connection, wire.Accepted(request_id=request.request_id)))

    def _take_grammars(self) -> None:
        """Accept or refuse requests whose grammar is compiled, or can't be. Nothing was chosen for them yet."""
        done = [one for one in self._compiling if one.compiling is None or one.compiling.done()]
        if done:
            self._compiling = [one for one in self._compiling if one.compiling and not one.compiling.done()]
        for request in done:
            compiled, request.compiling = request.compiling, None
            if compiled is None or not request.open_outputs:
                continue
            try:
                request.matcher = compiled.result()
            except ForearmError as error:
                self.meter.rejected(type(error).__name__)
                self._refuse(request.connection, request.request_id, error)
                self._end(request, "error")
                continue
            for sequence in request.open:
                sequence.constraint = Constraint(request.params, request.matcher)
            self.outbox.append((request.connection, wire.Accepted(request_id=request.request_id)))

    def _abort(self, request: Request, index: int | None) -> None:
        """End output `index`, or None: all of them. One that has ended meanwhile stays as it is."""
        if index is None or self._pools:
            self._end(request, "abort")
        elif (sequence := request.made(index)) is None:
            self.scheduler.drop(request, index)
        elif sequence.finish_reason is None:
            self._end_output(sequence, "abort")

    # --- compute

    def _compute(self, slices: list[Slice]) -> None:
        """Compute the step. State moves on only after the executor's last call: a broken step changes nothing."""
        start_s = time.monotonic()
        self.trace.part("draft")
        slices = self._speculation.plan(slices, self.scheduler.limits, self.scheduler.blocks)
        outcomes = self._stepper.compute(slices)
        self.trace.part("advance")
        prompt_tokens = prefills(slices)
        self.meter.prefilled_tokens += prompt_tokens
        now_s = time.monotonic()
        for outcome in outcomes:
            sequence = outcome.piece.sequence
            if sequence.finish_reason is not None:
                continue  # another output of its request met a NaN
            if not self._pools:
                self._advance(outcome, now_s)
            elif outcome.failed is not None:
                self._broken(sequence, outcome.failed)
            elif outcome.vector is not None:
                self.outbox.append((sequence.request.connection, replies.embedded(sequence, outcome.vector)))
                self._end_output(sequence, "stop")
        self._speculation.measured(slices, time.monotonic() - start_s)
        if self.trace.on:
            counts = {"texts" if self._pools else "sequences": len(slices), "waiting": self.scheduler.waiting}
            self.trace.end(tokens=sum(one.computes for one in slices), prompt_tokens=prompt_tokens, **counts)

    def _advance(self, outcome: SliceOutcome, now_s: float) -> None:
        """Append what a slice gave to its output and tell the client; share the blocks that are full now."""
        piece, sequence = outcome.piece, outcome.piece.sequence
        request = sequence.request
        if outcome.prompt_logprobs is None:
            self._broken(sequence, nothing_to_choose(sequence))
            return
        request.prompt_logprobs.extend(outcome.prompt_logprobs)
        growth = grow(outcome) if piece.samples else Growth()
        sequence.computed = piece.end + growth.accepted
        self.scheduler.blocks.publish(sequence, piece.start)
        self.scheduler.blocks.trim(sequence)
        drafted = 0 if piece.certain else len(piece.drafts)
        if drafted:
            self.meter.drafted(drafted, growth.accepted)
            self._speculation.verified(piece, growth.accepted)
        if growth.token_ids:
            self.meter.tokens(sequence, len(growth.token_ids), now_s)
            sequence.last_token_s = now_s
            self.outbox.append((request.connection, replies.tokens(sequence, growth, drafted)))
            request.first_token_s = request.first_token_s or now_s
        if growth.failed is not None:
            self._broken(sequence, growth.failed)
        elif growth.over:
            self.outbox.append((request.connection, replies.end(request, sequence.index, "stop")))
            self._end_output(sequence, "stop")
        elif growth.finish_reason is not None:
            self._end_output(sequence, growth.finish_reason)

    # --- out

    def _end_output(self, sequence: Sequence, reason: str) -> None:
        """Free the output's place and blocks for the next step; the request ends with its last output."""
        sequence.finish_reason = reason
        self.scheduler.remove(sequence)
        request = sequence.request
        if not request.open_outputs:
            self._queue.leave(begun=request.scheduled_s is not None)
            if not self.terms.prefix_caching:
                # No request can find its blocks; the next ones take them before memory that was never touched: six
                # rounds of bench/compare.py's requests to the 0.5B shape, int4, leave the process at 573 MiB, not 847.
                for one in request.sequences:
                    self.scheduler.blocks.forget(one)
            del self._requests[request.name]
            self.meter.request_over(request, reason, time.monotonic())

    def _end(self, request: Request, reason: str) -> None:
        self.scheduler.drop(request)
        for sequence in request.open:
            self._end_output(sequence, reason)

    def _refuse(self, connection: int, request_id: str, error: ForearmError) -> None:
        self.outbox.append((connection, replies.refusal(request_id, error)))

    def _broken(self, sequence: Sequence, error: ForearmError) -> None:
        """End this request alone. Blocks are shared no more, unless it failed only for what it asks."""
        request = sequence.request
        if not isinstance(error, ConstraintFailed):
            log.error("%s", error)
            self.meter.corrupted()
            for one in request.open:
                self.scheduler.blocks.discard(one)
        self._refuse(request.connection, request.request_id, error)
        self._end(request, "error")

    def _step_failed(self, slices: list[Slice], error: Exception) -> None:
        """End the requests of this step; the others go on, unless steps fail again and again."""
        self._failed_steps += 1
        log.error("a step of %d sequences failed", len(slices), exc_info=error)
        for request in {id(piece.sequence.request): piece.sequence.request for piece in slices}.values():
            failed = EngineFailed(f"request {request.request_id}: the engine failed to compute it: {error}")
            self._refuse(request.connection, request.request_id, failed)
            self._end(request, "error")
        if self._failed_steps == MAX_FAILED_STEPS:
            raise EngineFailed(f"{MAX_FAILED_STEPS} steps in a row failed; the last one: {error}") from error
