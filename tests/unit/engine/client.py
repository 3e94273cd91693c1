"""A client of an EngineLoop without threads: submits, steps, and gathers what comes out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.history_executor import HistoryExecutor, choose, logits_after

from forearm import wire
from forearm.engine.admission import Terms
from forearm.engine.cache.kv_groups import blocks_for
from forearm.engine.constraints.grammar import Grammars
from forearm.engine.inbox import Received
from forearm.engine.loop import EngineLoop
from forearm.engine.metrics.engine_metrics import Meter
from forearm.engine.metrics.step_trace import StepTrace
from forearm.engine.scheduler import StepLimits
from forearm.engine.sequence import output_seed
from forearm.engine.speculation.speculation import Speculation
from forearm.engine.step import Stepper


@dataclass
class Output:
    """One output so far."""

    token_ids: list[int] = field(default_factory=list)
    messages: list[wire.Tokens] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | None = None


class Client:
    """A client on connection 0 of a loop of its own. `refused`: the last refusal by request."""

    def __init__(
        self,
        executor: HistoryExecutor | None = None,
        limits: StepLimits | None = None,
        grammars: Grammars | None = None,
        speculation: Speculation | None = None,
        *,
        spare_cpu: bool = True,
        trace: StepTrace | None = None,
        **terms: Any,
    ) -> None:
        self.executor = executor or HistoryExecutor()
        agreed = Terms(vocab_size=self.executor.vocab_size, max_model_len=self.executor.max_model_len, **terms)
        self.meter = Meter("m", "0", "float32", self.executor.blocks, agreed.prefix_caching)
        limits = limits or StepLimits(64, 8, 8)
        stepper = Stepper(self.executor, trace or StepTrace(), spare_cpu=spare_cpu)
        self.loop = EngineLoop(stepper, limits, agreed, self.meter, grammars, speculation)
        self.outputs: dict[tuple[str, int], Output] = {}
        self.refused: dict[str, wire.Refused] = {}

    def submit(self, request_id: str, prompt: list[int], *, connection: int = 0, **fields: Any) -> None:
        extra = {name: fields.pop(name) for name in ("priority", "cache_salt", "system_tokens") if name in fields}
        extra["client"] = fields.pop("sender", "")
        params = wire.SamplingParams(**fields)
        submit = wire.Submit(request_id=request_id, prompt_token_ids=prompt, params=params, **extra)
        self.loop.take(Received(connection, submit))
        self.gather()

    def abort(self, request_id: str, index: int | None = None) -> None:
        self.loop.take(Received(0, wire.Abort(request_id=request_id, index=index)))

    def step(self) -> None:
        self.loop.step()
        self.gather()
        check_blocks(self.loop)

    def finish(self) -> None:
        """Step until nothing is left to do."""
        for _ in range(10_000):
            if not self.loop.busy:
                return
            self.step()
        raise AssertionError("somebody starves")

    def gather(self) -> None:
        for _, message in self.loop.outbox:
            if isinstance(message, wire.Refused):
                self.refused[message.request_id] = message
            elif isinstance(message, wire.Tokens):
                output = self.outputs.setdefault((message.request_id, message.index), Output())
                output.token_ids += message.token_ids
                output.messages.append(message)
                output.finish_reason = message.finish_reason
                output.stop_reason = message.stop_reason
        self.loop.outbox = []

    def tokens(self, request_id: str, index: int = 0) -> list[int]:
        return self.outputs[request_id, index].token_ids

    def metric(self, name: str) -> float:
        """The first sample of this name."""
        lines = [line for line in self.meter.text().splitlines() if line.startswith(name)]
        return float(lines[0].rsplit(" ", 1)[1])


def expected(prompt: list[int], count: int, *, temperature: float = 0.0, seed: int = 0, index: int = 0) -> list[int]:
    """Return the right answer of a request, computed without an engine."""
    history = list(prompt)
    for _ in range(count):
        logits = logits_after(history, HistoryExecutor().vocab_size)
        history.append(choose(logits, temperature, output_seed(seed, index), len(history)))
    return history[len(prompt) :]


def check_blocks(loop: EngineLoop) -> None:
    """Check that no block leaks, no waiting sequence holds one, and each holds less than one block too many."""
    pool = loop.scheduler.blocks
    running = loop.scheduler.running
    held = [block for sequence in running for block in sequence.blocks]
    assert pool.used == len(set(held))
    assert pool.available == pool.count - len(set(held))
    assert all(not sequence.blocks for sequence in loop.scheduler.queue.ranked)
    for sequence in running:
        assert len(sequence.blocks) == blocks_for(sequence.computed)
