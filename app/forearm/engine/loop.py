"""The engine's loop: take in, schedule, compute, sample, publish. One thread owns all state below.

Messages come in through a queue and go out in one list a step (run_loop.py).
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import FIRST_COMPLETED, wait

from forearm import wire
from forearm.engine import replies
from forearm.engine.admission import Admission, Terms
from forearm.engine.advance import Growth, grow, nothing_to_choose
from forearm.engine.blocks import BlockPool, blocks_for
from forearm.engine.constraints.grammar import Grammars
from forearm.engine.constraints.output_constraint import Constraint
from forearm.engine.executor import Executor
from forearm.engine.messages import Drain, From, Gone, Inward, Outward, Profiling, Snapshot
from forearm.engine.metrics.engine_metrics import Meter
from forearm.engine.metrics.step_trace import StepTrace
from forearm.engine.request_queue import RequestQueue
from forearm.engine.run_loop import MAX_FAILED_STEPS
from forearm.engine.scheduler import Limits, Scheduler
from forearm.engine.sequence import Request, Sequence, Slice, prefills
from forearm.engine.speculation.speculation import Speculation
from forearm.engine.step import Outcome, Stepper
from forearm.errors import (
    ConstraintFailed,
    EngineFailed,
    EngineUnavailable,
    ForearmError,
    InvalidRequest,
)

_COMPILING_S = 0.01  # that a step waits for a grammar where there is nothing else to do; messages are taken in between

log = logging.getLogger(__name__)


class EngineLoop:
    """State and step of one engine.

    outbox: what the last step has to say, and to whom; run_loop.py takes it and empties it.
    grammars: None: requests with a grammar are refused. speculation: guesses ahead; None: nobody does.
    spare_cpu: there is a CPU beside those that compute. trace: of its steps; None: nothing is recorded.
    """

    def __init__(
        self,
        executor: Executor,
        limits: Limits,
        terms: Terms,
        meter: Meter,
        grammars: Grammars | None = None,
        speculation: Speculation | None = None,
        *,
        spare_cpu: bool = True,
        trace: StepTrace | None = None,
    ) -> None:
        assert executor.blocks >= blocks_for(terms.max_model_len), "one sequence of full length must fit"
        self.executor = executor
        self._speculation = speculation or Speculation()
        self.scheduler = Scheduler(limits, BlockPool(executor.blocks), self._speculation.times)
        self.meter = meter
        self.outbox: list[Outward] = []
        self.over = False
        self.terms, self._admission = terms, Admission(terms)
        self.trace = trace or StepTrace()
        self._stepper = Stepper(executor, self.trace, spare_cpu=spare_cpu)
        self._grammars = grammars
        self._compiling: list[Request] = []
        self._requests: dict[tuple[int, str], Request] = {}
        self._queue = RequestQueue(terms.queued, limits.running)
        self.draining = False
        self._failed_steps = 0
        self.look()

    @property
    def busy(self) -> bool:
        return bool(self._requests)

    def take(self, inward: Inward) -> None:
        """One message in."""
        if isinstance(inward, From):
            if isinstance(inward.message, wire.Submit):
                self._submit(inward.connection, inward.message)
            elif isinstance(inward.message, wire.ForgetPrefixes):
                self.scheduler.blocks.forget_prefixes()
            else:
                self._abort(inward.connection, inward.message)
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
            assert grammars, "whoever is there can go on"
            wait(grammars, _COMPILING_S, FIRST_COMPLETED)
        self.look()

    # --- in

    def _submit(self, connection: int, submit: wire.Submit) -> None:
        try:
            self._check_open(connection, submit)
            request = self._admission.request(connection, submit, time.monotonic())
            self._compile(request)
        except ForearmError as error:
            self.meter.rejected(type(error).__name__)
            self._refuse(connection, submit.request_id, error)
            return
        self._requests[request.name] = request
        self._queue.enter()
        self.scheduler.add(request)
        if request.compiling is None:
            self._accept(request)
        else:
            self._compiling.append(request)

    def _accept(self, request: Request) -> None:
        self.outbox.append((request.connection, wire.Accepted(request_id=request.request_id)))

    def _take_grammars(self) -> None:
        """Requests whose grammar is compiled, or can't be, are accepted or refused. Nothing was chosen for them yet."""
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
            self._accept(request)

    def _compile(self, request: Request) -> None:
        """Raises: InvalidRequest if there is nothing to compile a grammar with."""
        grammar = request.params.grammar
        if grammar is None:
            return
        if self._grammars is None:
            raise InvalidRequest("structured output needs a model with a tokenizer", "structured_outputs")
        request.compiling = self._grammars.start(grammar)

    def _check_open(self, connection: int, submit: wire.Submit) -> None:
        """Raises: why nothing more, or not this, is taken in."""
        if self.draining:
            raise EngineUnavailable("the server is shutting down")
        if (connection, submit.request_id) in self._requests:
            raise InvalidRequest(f"request_id {submit.request_id} is in use", "request_id")
        self._queue.check(submit.params.n, len(self.scheduler.running), self.scheduler.waiting)

    def _abort(self, connection: int, abort: wire.Abort) -> None:
        """The client may abort what has just finished: then there is nothing to do."""
        request = self._requests.get((connection, abort.request_id))
        if request is None:
            return
        if abort.index is None:
            self._end(request, "abort")
            return
        sequence = request.made(abort.index)
        if sequence is None:
            self.scheduler.drop(request, abort.index)
        elif sequence.finish_reason is None:
            self._end_output(sequence, "abort")

    def _stop(self) -> None:
        self.over = True
        for request in list(self._requests.values()):
            for index in request.open_indexes:
                self.outbox.append((request.connection, replies.end(request, index, "abort")))
            self._end(request, "abort")

    # --- compute, sample

    def _compute(self, slices: list[Slice]) -> None:
        """The whole step. State moves on only after the executor's last call: a broken step changes nothing."""
        start_s = time.monotonic()
        self.trace.part("draft")
        slices = self._speculation.plan(slices, self.scheduler.limits, self.scheduler.blocks)
        outcomes = self._stepper.compute(slices)
        self.trace.part("advance")
        prompt_tokens = prefills(slices)
        self.meter.prefilled_tokens += prompt_tokens
        now_s = time.monotonic()
        for outcome in outcomes:
            if outcome.piece.sequence.finish_reason is None:  # else another output of its request met a NaN
                self._advance(outcome, now_s)
        self._speculation.measured(slices, time.monotonic() - start_s)
        if self.trace.on:
            tokens, waiting = sum(piece.computes for piece in slices), self.scheduler.waiting
            self.trace.end(tokens=tokens, prompt_tokens=prompt_tokens, sequences=len(slices), waiting=waiting)

    def _advance(self, outcome: Outcome, now_s: float) -> None:
        """The slice is computed: its output goes on, its full blocks can be shared."""
        piece, sequence = outcome.piece, outcome.piece.sequence
        if outcome.prompt_logprobs is None:
            self._broken(sequence, nothing_to_choose(sequence))
            return
        sequence.request.prompt_logprobs.extend(outcome.prompt_logprobs)
        growth = grow(outcome) if piece.samples else Growth()
        sequence.computed = piece.end + growth.accepted
        self.scheduler.blocks.publish(sequence, piece.start)
        self.scheduler.blocks.trim(sequence)
        drafted = 0 if piece.certain else len(piece.drafts)
        if drafted:
            self.meter.drafted(drafted, growth.accepted)
            self._speculation.verified(piece, growth.accepted)
        if growth.token_ids:
            self._tell(sequence, growth, drafted, now_s)
        if growth.failed is not None:
            self._broken(sequence, growth.failed)
        elif growth.over:
            self.outbox.append((sequence.request.connection, replies.end(sequence.request, sequence.index, "stop")))
            self._end_output(sequence, "stop")
        elif growth.finish_reason is not None:
            self._end_output(sequence, growth.finish_reason)

    # --- out

    def _tell(self, sequence: Sequence, growth: Growth, drafted: int, now_s: float) -> None:
        """The newest tokens of an output, to its client."""
        request = sequence.request
        self.meter.tokens(sequence, len(growth.token_ids), now_s)
        sequence.last_token_s = now_s
        self.outbox.append((request.connection, replies.tokens(sequence, growth, drafted)))
        request.first_token_s = request.first_token_s or now_s

    def _end_output(self, sequence: Sequence, reason: str) -> None:
        """Its place and blocks are free from the next step on; the request ends with its last output."""
        sequence.finish_reason = reason
        self.scheduler.remove(sequence)
        request = sequence.request
        if not request.open_outputs:
            self._queue.leave(begun=request.scheduled_s is not None)
            if not self._admission.terms.prefix_caching:
                # Nobody can find its blocks; the next requests take them before memory that was never touched: six
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
        """Only this request ends; what is broken in it, not by what it asks for, is shared with nobody any more."""
        request = sequence.request
        if not isinstance(error, ConstraintFailed):
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

    def look(self) -> None:
        """Show the outside how full the engine is."""
        self.meter.load(self.scheduler)
        self.snapshot = Snapshot(
            running=len(self.scheduler.running),
            waiting=self.scheduler.waiting,
            load=self._queue.load(len(self.scheduler.running)),
            kv_usage=self.scheduler.blocks.used / self.scheduler.blocks.count,
            step_s=time.monotonic() if self.busy else None,
            draining=self.draining,
        )
