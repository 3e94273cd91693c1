"""The engine's loop: receive, schedule, compute, sample or pool, publish. One thread owns all of this state.

Messages arrive through a queue and leave as one list per step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, wait

from forearm import wire
from forearm.engine import replies
from forearm.engine.admission import Admission, Terms
from forearm.engine.advance import NewTokens, append_tokens, nothing_to_choose
from forearm.engine.cache.blocks import BlockPool
from forearm.engine.cache.prefix_cache import StateSlots
from forearm.engine.constraints.grammar import Grammars
from forearm.engine.constraints.output_constraint import Constraint
from forearm.engine.inbox import Disconnected, Drain, Inbox, Inward, Outward, Profiling, Received, Snapshot
from forearm.engine.metrics.engine_metrics import Meter
from forearm.engine.pooling import PoolingStepper
from forearm.engine.request_queue import RequestQueue
from forearm.engine.scheduler import Scheduler, StepLimits
from forearm.engine.sequence import Request, Sequence, Slice
from forearm.engine.speculation.speculation import Speculation
from forearm.engine.step import SliceOutcome, Stepper
from forearm.errors import ConstraintFailed, EngineFailed, EngineUnavailable, ForearmError, InvalidRequest

# One failed step may be due to its requests; after three in a row the engine is at fault and restarts.
MAX_FAILED_STEPS = 3
_COMPILING_S = 0.01  # one wait for a grammar's compilation in an idle loop, which then reads messages

log = logging.getLogger(__name__)


class EngineLoop:
    """State and step of one engine.

    stepper: computes steps of a generative or a pooling model.
    outbox: messages to connections since it was last emptied.
    over: the loop was told to end at once. draining: new requests are refused.
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
        executor, blocks = stepper.executor, stepper.executor.blocks
        assert blocks >= limits.groups.blocks(terms.max_model_len), "one sequence of full length must fit"
        self._stepper, self._speculation, self.trace = stepper, speculation or Speculation(), stepper.trace
        self.merge_page = executor.merge_page
        states = StateSlots(executor.states, executor.kept_states, executor.copy_state) if executor.states else None
        self.scheduler = Scheduler(limits, BlockPool(blocks, states, limits.groups), self._speculation.times)
        self.meter, self._grammars, self._failed_steps = meter, grammars, 0
        self.outbox: list[Outward] = []
        self.over = self.draining = False
        self.terms, self._admission, self._pools = terms, Admission(terms), terms.pooling is not None
        self._compiling: list[Request] = []
        self._requests: dict[tuple[int, str], Request] = {}
        self._queue = RequestQueue(terms.queued, limits.running)
        self.update_snapshot()

    @property
    def busy(self) -> bool:
        return bool(self._requests)

    def run(self, inbox: Inbox, publish: Callable[[list[Outward]], None]) -> None:
        """Compute steps until told to end or, when draining, until all requests have ended. Idle, wait for messages.

        Raises: EngineFailed after MAX_FAILED_STEPS failed steps in a row.
        """

        def publish_outbox() -> None:
            publish(self.outbox)
            self.outbox = []

        try:
            while not (self.over or (self.draining and not self.busy)):
                taken = 0
                while not inbox.empty() or not (taken or self.busy or self.draining):  # no other thread reads it
                    self.take(inbox.get())
                    taken += 1
                if taken:
                    self.update_snapshot()  # so that each worker learns in time how many places are taken
                    publish_outbox()  # before a step that may be long; even nothing, since aborts make room silently
                self.step()
                if self.outbox:
                    publish_outbox()
                while not self.busy and inbox.empty() and self.merge_page():
                    pass  # the first answers do not wait for it
        finally:
            self.trace.close()

    def take(self, inward: Inward) -> None:
        """Handle one message."""
        if isinstance(inward, Received):
            if isinstance(inward.message, wire.Submit | wire.Embed):
                self._submit(inward.connection, inward.message)
            elif isinstance(inward.message, wire.ForgetPrefixes):
                self.scheduler.blocks.forget_prefixes()
            elif request := self._requests.get((inward.connection, inward.message.request_id)):  # else it has ended
                index = inward.message.index
                if index is None or self._pools:
                    self._end(request, "abort")
                elif (sequence := request.made(index)) is None:
                    self.scheduler.drop(request, index)
                elif sequence.finish_reason is None:
                    self._end_output(sequence, "abort")
        elif isinstance(inward, Profiling):
            self.outbox.append((inward.connection, self.trace.answer(inward.message)))
        elif isinstance(inward, Disconnected):
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
                    ends = [replies.end(request, index, "abort") for index in request.open_indexes]
                    self.outbox += [(request.connection, one) for one in ends]
                self._end(request, "abort")

    def step(self) -> None:
        """Compute one step, if there is anything to compute."""
        self._take_grammars()
        self.trace.begin("schedule")
        slices = self.scheduler.schedule()
        if slices:
            self.update_snapshot()
            now_s = time.monotonic()
            for piece in slices:
                if piece.sequence.request.scheduled_s is None:
                    piece.sequence.request.scheduled_s = now_s
                    self._queue.begin()
            try:
                self._compute(slices)
                self._failed_steps = 0
            except Exception as error:  # the step's requests end; others go on, unless several steps in a row fail
                self._failed_steps += 1
                log.error("a step of %d sequences failed", len(slices), exc_info=error)
                for request in {id(piece.sequence.request): piece.sequence.request for piece in slices}.values():
                    failed = EngineFailed(f"request {request.request_id}: the engine failed to compute it: {error}")
                    self._refuse(request.connection, request.request_id, failed)
                    self._end(request, "error")
                if self._failed_steps == MAX_FAILED_STEPS:
                    raise EngineFailed(f"{MAX_FAILED_STEPS} steps in a row failed; the last one: {error}") from error
            self.meter.step(sum([piece.end - piece.start for piece in slices]))
        elif self.busy:
            assert self._compiling, "only a grammar that is being compiled keeps a request from going on"
            wait([one.compiling for one in self._compiling if one.compiling is not None], _COMPILING_S, FIRST_COMPLETED)
        self.update_snapshot()

    def update_snapshot(self) -> None:
        """Update the snapshot of the load for other threads. A pooling model's KV cache holds nothing between steps."""
        running, waiting = len(self.scheduler.running), self.scheduler.waiting
        kv_usage, load = self.scheduler.blocks.used / self.scheduler.blocks.count, self._queue.load(running)
        if self._pools:  # count requests, which may have thousands of texts: a text frees its place after one step
            waiting = self._queue.length
            running, kv_usage, load = len(self._requests) - waiting, 0.0, self._queue.load(0)
        self.meter.load(running, waiting, kv_usage, self.scheduler.preemptions)
        step_s = time.monotonic() if self.busy else None
        self.snapshot = Snapshot(running, waiting, load, kv_usage, step_s, self.draining)

    # --- requests

    def _submit(self, connection: int, submit: wire.Submit | wire.Embed) -> None:
        """Accept a request or refuse it: while draining, for a name in use, a full queue or invalid parameters."""
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
        """Accept requests whose grammar is compiled, refuse those whose grammar is invalid; neither has output yet."""
        done = [one for one in self._compiling if one.compiling is None or one.compiling.done()]
        self._compiling = [one for one in self._compiling if one not in done]
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

    # --- compute

    def _compute(self, slices: list[Slice]) -> None:
        """Compute the step. State changes only after the executor's last call, so a failed step changes nothing."""
        start_s = time.monotonic()
        self.trace.part("draft")
        slices = self._speculation.plan(slices, self.scheduler.limits, self.scheduler.blocks)
        outcomes = self._stepper.compute(slices)
        self._speculation.computed(outcomes)
        self.trace.part("advance")
        prompts = [(piece, len(piece.sequence.prompt)) for piece in slices if piece.start < len(piece.sequence.prompt)]
        prompt_tokens = sum([min(piece.end, length) - piece.start for piece, length in prompts])
        self.meter.prefilled_tokens += prompt_tokens
        now_s = time.monotonic()
        for outcome in outcomes:
            sequence = outcome.piece.sequence
            if sequence.finish_reason is not None:
                continue  # another output of its request had a NaN
            if not self._pools:
                self._advance(outcome, now_s)
            elif outcome.failed is not None:
                self._fail_request(sequence, outcome.failed)
            elif outcome.vector is not None:
                self.outbox.append((sequence.request.connection, replies.embedded(sequence, outcome.vector)))
                self._end_output(sequence, "stop")
        if not self._pools:
            self._speculation.measured(slices, time.monotonic() - start_s)
        if self.trace.on:
            counts = {"texts" if self._pools else "sequences": len(slices), "waiting": self.scheduler.waiting}
            self.trace.end(tokens=sum(one.computes for one in slices), prompt_tokens=prompt_tokens, **counts)

    def _advance(self, outcome: SliceOutcome, now_s: float) -> None:
        """Append a slice's tokens to its output and send them; publish blocks that have become full."""
        piece, sequence = outcome.piece, outcome.piece.sequence
        request = sequence.request
        if outcome.prompt_logprobs is None:
            self._fail_request(sequence, nothing_to_choose(sequence))
            return
        request.prompt_logprobs.extend(outcome.prompt_logprobs)
        new = append_tokens(outcome) if piece.samples else NewTokens()
        if sequence.saved is None:
            sequence.computed = piece.end + new.accepted
        else:
            self.scheduler.blocks.settle(piece, new.accepted)
        self.scheduler.blocks.publish(sequence, piece.start)
        self.scheduler.blocks.trim(sequence)
        drafted = 0 if piece.certain else len(piece.drafts)
        if drafted:
            self.meter.drafted(drafted, new.accepted)
            self._speculation.verified(piece, new.accepted)
        if new.token_ids:
            self.meter.tokens(sequence, len(new.token_ids), now_s)
            sequence.last_token_s = now_s
            self.outbox.append((request.connection, replies.tokens(sequence, new, drafted)))
            request.first_token_s = request.first_token_s or now_s
        if new.failed is not None:
            self._fail_request(sequence, new.failed)
        elif new.over:
            self.outbox.append((request.connection, replies.end(request, sequence.index, "stop")))
            self._end_output(sequence, "stop")
        elif new.finish_reason is not None:
            self._end_output(sequence, new.finish_reason)

    # --- outputs

    def _end_output(self, sequence: Sequence, reason: str) -> None:
        """End an output: free its place and blocks for the next step. The request ends with its last output."""
        sequence.finish_reason = reason
        self.scheduler.remove(sequence)
        request = sequence.request
        if not request.open_outputs:
            self._queue.leave(begun=request.scheduled_s is not None)
            if not self.terms.prefix_caching:
                # No request can find its blocks, so they are reused before untouched memory: after six rounds of
                # bench/compare.py's requests to the 0.5B shape in 4 bits, the process has 573 MiB instead of 847.
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

    def _fail_request(self, sequence: Sequence, error: ForearmError) -> None:
        """End this request with an error. Its blocks leave the prefix cache, unless the request itself is at fault."""
        request = sequence.request
        if not isinstance(error, ConstraintFailed):
            log.error("%s", error)
            self.meter.corrupted()
            for one in request.open:
                self.scheduler.blocks.discard(one)
        self._refuse(request.connection, request.request_id, error)
        self._end(request, "error")
