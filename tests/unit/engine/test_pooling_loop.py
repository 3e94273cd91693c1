"""The loop of a model that pools: which texts share a step, who is refused, what an abort and a broken step do."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from forearm import wire
from forearm.engine.admission import Terms
from forearm.engine.batch import Batch
from forearm.engine.inbox import Disconnected, Drain, Inbox, Outward, Received, Stop
from forearm.engine.loop import MAX_FAILED_STEPS, EngineLoop
from forearm.engine.metrics.engine_metrics import Meter
from forearm.engine.metrics.step_trace import StepTrace
from forearm.engine.pooling import PoolingStepper, PoolingTerms, finish_vector
from forearm.engine.scheduler import StepLimits
from forearm.errors import EngineFailed
from forearm.model.families.encoders.dense import Dense
from forearm.model.pooling.plan import PoolingPlan, Task
from forearm.model.pooling.token_heads import TokenHead

COLUMNS = 3
BROKEN, NAN = 98, 99  # tokens


class TokenSums:
    """Rows are (token, position, type); keeps what each step had. Token BROKEN breaks a step, NAN gives one."""

    def __init__(self) -> None:
        self.blocks, self.states, self.kept_states, self.folder = 4, 0, 0, Path()
        self.steps: list[list[list[int]]] = []
        self._rows = np.zeros((0, COLUMNS), np.float32)

    def forward(self, batch: Batch) -> None:
        tokens, positions, starts, block_starts, blocks, rows, types, _ = batch
        self.steps.append([tokens[a:b].tolist() for a, b in pairwise(starts)])
        assert len(set(blocks.tolist())) == len(blocks) == block_starts[-1]
        if BROKEN in tokens:
            raise RuntimeError("broken")
        kinds = np.zeros_like(tokens) if types is None else types
        all_rows = np.stack([tokens, positions, kinds], axis=1).astype(np.float32)
        all_rows[tokens == NAN] = np.nan
        self._rows = all_rows[rows]

    def copy_state(self, source: int, target: int) -> None:
        raise AssertionError("it keeps no states")

    def merge_page(self) -> bool:
        return False

    def pool(self, starts: Any, head: int) -> Any:
        return np.stack([self._rows[a:b].mean(axis=0) for a, b in pairwise(starts)]) + np.float32(1000 * head)


class Engine:
    """A loop over TokenSums, and what it has said."""

    def __init__(
        self,
        plan: PoolingPlan | None = None,
        queued: int = 2,
        priorities: bool = False,
        trace: StepTrace | None = None,
    ) -> None:
        self.sums = TokenSums()
        plan = plan or PoolingPlan("embed", "mean", "none")
        pooling = PoolingTerms(plan, COLUMNS, token_types=2)
        terms = Terms(100, 8, queued=queued, priorities=priorities, prefix_caching=False, pooling=pooling)
        stepper = PoolingStepper(self.sums, trace or StepTrace(), pooling)
        limits = StepLimits(step_tokens=10, running=3, step_rows=10, whole_prompts=True)
        self.loop = EngineLoop(stepper, limits, terms, Meter("m", "0", "float32", 8, False))
        self.said: list[Outward] = []

    def ask(self, name: str, *texts: list[int], connection: int = 0, task: Any = "embed", **fields: Any) -> None:
        prompts = [wire.PoolingPrompt(ids, fields.pop("second", 0)) for ids in texts]
        embed = wire.Embed(request_id=name, prompts=prompts, task=task, **fields)
        self.loop.take(Received(connection, embed))

    def run(self) -> None:
        while self.loop.busy:
            self.loop.step()

    def vectors(self, name: str) -> list[list[float]]:
        found = {
            m.index: np.frombuffer(m.vector, "<f4").tolist()
            for _, m in self.loop.outbox
            if isinstance(m, wire.Embedded) and m.request_id == name
        }
        return [found[index] for index in sorted(found)]

    def refused(self, name: str) -> wire.Refused:
        return next(m for _, m in self.loop.outbox if isinstance(m, wire.Refused) and m.request_id == name)

    def counted(self, sample: str, **labels: str) -> float:
        families = text_string_to_metric_families(self.loop.meter.text())
        return sum(
            s.value for f in families for s in f.samples if s.name == sample and labels.items() <= s.labels.items()
        )


def test_tasks_with_heads_of_their_own_share_a_step() -> None:
    weights = TokenHead(Dense(COLUMNS, "w", head=2), Path(), "relu", first=7, last=8)
    vectors = TokenHead(Dense(COLUMNS, "v", head=1), Path(), "normalize", first=7)
    heads: dict[Task, TokenHead] = {"token_embed": vectors, "token_classify": weights}
    engine = Engine(PoolingPlan("embed", "mean", "none", token_heads=heads))
    engine.ask("a", [7, 2, 8])
    engine.ask("b", [7, 3, 8], task="token_classify")
    engine.ask("c", [7, 4, 8], task="token_embed", activate=False)

    engine.run()

    assert engine.sums.steps == [[[7, 2, 8], [7, 3, 8], [7, 4, 8]]]
    assert engine.vectors("a") == [[pytest.approx(17 / 3), 1.0, 0.0]]
    assert engine.vectors("b") == [[2003.0]]
    assert engine.vectors("c") == [[1004.0, 1001.0, 1000.0, 1008.0, 1002.0, 1000.0]]


@pytest.mark.parametrize(("size", "sizes"), [(1, [1, 1, 1, 1, 1]), (2, [2, 2, 1]), (5, [5]), (1 << 62, [5])])
def test_late_chunking_gives_the_mean_of_each_chunk(size: int, sizes: list[int]) -> None:
    """A bge-m3's head leaves out the first token, but not of a chunk."""
    vectors = TokenHead(Dense(COLUMNS, "v", head=1), Path(), "normalize", first=7)
    engine = Engine(PoolingPlan("embed", "mean", "none", token_heads={"token_embed": vectors}))
    engine.ask("a", [7, 2, 8, 9, 4], task="token_embed", chunk_tokens=size, activate=False)
    engine.ask("b", [1, 3])

    engine.run()

    assert engine.sums.steps == [[[7, 2, 8, 9, 4], [1, 3]]]
    rows, wanted = np.array([[7, 0, 0], [2, 1, 0], [8, 2, 0], [9, 3, 0], [4, 4, 0]], np.float32), []
    for one in np.split(rows, np.cumsum(sizes)[:-1]):
        wanted.extend((one.mean(axis=0) + 1000).tolist())
    assert engine.vectors("a") == [pytest.approx(wanted)]
    assert engine.vectors("b") == [[2.0, 0.5, 0.0]]


def test_texts_of_several_requests_share_steps_in_order_as_many_as_fit() -> None:
    engine = Engine()
    engine.ask("a", [1, 2, 3, 4], [5, 6, 7], [8] * 8)
    engine.ask("b", [9])

    engine.run()

    assert engine.sums.steps == [[[1, 2, 3, 4], [9], [5, 6, 7]], [[8] * 8]]
    assert engine.vectors("a") == [[2.5, 1.5, 0.0], [6.0, 1.0, 0.0], [8.0, 3.5, 0.0]]
    assert engine.vectors("b") == [[9.0, 0.0, 0.0]]
    assert engine.counted("vllm:request_success_total", finished_reason="stop") == 2
    assert engine.counted("vllm:prompt_tokens_total") == 16


def test_a_step_has_at_most_so_many_texts() -> None:
    engine = Engine()
    engine.ask("a", *([n] for n in range(7)))

    engine.run()

    assert [len(step) for step in engine.sums.steps] == [3, 3, 1]


@pytest.mark.parametrize(("pool", "wanted"), [("cls", [4.0, 0.0, 0.0]), ("last", [6.0, 2.0, 1.0])])
def test_one_row_is_wanted_where_texts_are_not_averaged(pool: Any, wanted: list[float]) -> None:
    engine = Engine(PoolingPlan("embed", pool, "none"))
    engine.ask("a", [4, 5, 6], second=1)

    engine.run()

    assert engine.vectors("a") == [wanted]


def test_tokens_of_a_second_text_have_type_1() -> None:
    engine = Engine()
    engine.ask("a", [4, 5, 6, 7], second=3)

    engine.run()

    assert engine.vectors("a")[0][2] == 0.25


def test_a_vector_for_each_token_stands_beside_pooled_ones() -> None:
    engine = Engine(PoolingPlan("embed", "last", "none"))
    engine.ask("tokens", [4, 5], task="token_embed")
    engine.ask("whole", [6, 7])

    engine.run()

    assert len(engine.sums.steps) == 1
    assert engine.vectors("tokens") == [[4.0, 0.0, 0.0, 5.0, 1.0, 0.0]]
    assert engine.vectors("whole") == [[7.0, 1.0, 0.0]]


@pytest.mark.parametrize(
    ("texts", "fields", "param", "said"),
    [
        ([[]], {}, "input", "no tokens"),
        ([[1] * 9], {}, "input", "8 tokens"),
        ([[100]], {}, "input", "token id 100"),
        ([[-1]], {}, "input", "token id -1"),
        ([[1]], {"dimensions": 4}, "dimensions", "3 values"),
        ([[1]], {"task": "classify"}, "task", "embed and token_embed"),
        ([[1]], {"chunk_tokens": 2}, "late_chunking_params", "needs the task token_embed"),
        ([[1]], {"task": "token_embed", "chunk_tokens": -1}, "late_chunking_params", "from 1 on"),
        ([[1]], {"priority": 1}, "priority", "--scheduling-policy"),
        ([[1]], {"second": 1}, "input", "second is 1"),
        ([], {}, "input", "0 texts"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(
    texts: list[list[int]], fields: dict[str, Any], param: str, said: str
) -> None:
    engine = Engine()
    engine.ask("a", *texts, **fields)

    refused = engine.refused("a")

    assert (refused.error, refused.param) == ("InvalidRequest", param)
    assert said in refused.message
    assert not engine.loop.busy


def test_more_requests_than_may_wait_are_overload() -> None:
    engine = Engine(queued=2)
    for number in range(6):
        engine.ask(str(number), [1])

    assert engine.refused("5").error == "Overloaded"
    engine.run()
    assert engine.vectors("4") == [[1.0, 0.0, 0.0]]


def test_requests_take_turns_so_that_a_query_does_not_wait_for_all_documents() -> None:
    engine = Engine()
    engine.ask("documents", *([1] * 8 for _ in range(5)))
    engine.loop.step()
    engine.ask("query", [2])

    engine.loop.step()

    assert engine.sums.steps[1] == [[1] * 8, [2]]
    engine.run()
    assert len(engine.vectors("documents")) == 5


def test_one_clients_many_requests_do_not_hold_up_another_client() -> None:
    engine = Engine(queued=50)
    for number in range(20):
        engine.ask(str(number), [1] * 8, client="many")
    engine.ask("one", [2] * 8, client="other")

    for _ in range(3):
        engine.loop.step()

    assert engine.sums.steps == [[[1] * 8], [[2] * 8], [[1] * 8]]


def test_the_more_important_goes_first() -> None:
    engine = Engine(priorities=True)
    engine.ask("later", [1] * 8, [1], priority=10)
    engine.ask("sooner", [2] * 4, [2] * 8, [2], priority=-10)

    engine.run()

    assert engine.sums.steps == [[[2] * 4], [[2] * 8, [2]], [[1] * 8, [1]]]


def test_an_abort_or_a_closed_connection_ends_what_is_left() -> None:
    engine = Engine()
    engine.ask("a", [1] * 8, [2] * 8)
    engine.ask("b", [3] * 8, connection=1)
    engine.loop.step()

    engine.loop.take(Received(0, wire.Abort(request_id="a")))
    engine.loop.take(Received(0, wire.Abort(request_id="gone long ago")))
    engine.loop.take(Disconnected(1))

    assert not engine.loop.busy
    assert engine.counted("vllm:request_success_total", finished_reason="abort") == 2


def test_a_nan_ends_its_request_alone() -> None:
    engine = Engine()
    engine.ask("a", [NAN], [1])
    engine.ask("b", [2])

    engine.run()

    assert engine.refused("a").error == "EngineFailed"
    assert engine.vectors("b") == [[2.0, 0.0, 0.0]]
    assert engine.counted("vllm:corrupted_requests_total") == 1


def test_a_broken_step_ends_its_requests_and_three_in_a_row_the_engine() -> None:
    engine = Engine()
    for number in range(MAX_FAILED_STEPS):
        engine.ask(str(number), [BROKEN] * 8)

    for _ in range(MAX_FAILED_STEPS - 1):
        engine.loop.step()
    with pytest.raises(EngineFailed, match="3 steps in a row"):
        engine.loop.step()

    assert "broken" in engine.refused("0").message


def test_a_request_to_generate_is_refused() -> None:
    engine = Engine()
    submit = wire.Submit(request_id="s", prompt_token_ids=[1], params=wire.SamplingParams())

    engine.loop.take(Received(0, submit))

    assert engine.refused("s").error == "InvalidRequest"


def test_draining_finishes_what_is_there_and_stopping_does_not() -> None:
    engine, inbox = Engine(), Inbox(1 << 20)
    engine.ask("a", [1] * 8, [2] * 8)
    for message in (Drain(), Received(0, wire.Embed(request_id="b", prompts=[wire.PoolingPrompt([1])], task="embed"))):
        inbox.put(message)

    engine.loop.run(inbox, engine.said.extend)

    kinds = [type(m).__name__ for _, m in engine.said]
    assert kinds == ["Accepted", "Refused", "Embedded", "Embedded"]
    stopped = Engine()
    stopped.ask("a", [1])
    stopped.loop.take(Stop())
    assert stopped.loop.over
    assert stopped.refused("a").error == "EngineUnavailable"


def test_a_client_knows_that_its_text_is_accepted_before_the_step_that_may_kill_the_engine() -> None:
    """Text that was accepted is sent to no other engine (EngineClient.hand), so it does not kill one after another."""
    engine, inbox = Engine(), Inbox(1 << 20)
    said_before: list[list[str]] = []
    forward = engine.sums.forward

    def watched(batch: Batch) -> None:
        said_before.append([type(message).__name__ for _, message in engine.said])
        forward(batch)

    engine.sums.forward = watched  # type: ignore[method-assign]
    for message in (Received(0, wire.Embed(request_id="a", prompts=[wire.PoolingPrompt([1])], task="embed")), Drain()):
        inbox.put(message)

    engine.loop.run(inbox, engine.said.extend)

    assert said_before == [["Accepted"]]
    assert [type(m).__name__ for _, m in engine.said] == ["Accepted", "Embedded"]


def test_what_stands_behind_the_last_layer() -> None:
    vector = np.array([3.0, 4.0, 12.0], np.float32)

    def made(plan: PoolingPlan, dimensions: int | None = None, activate: bool = True) -> list[float]:
        found: list[float] = finish_vector(vector, plan, plan.finish, dimensions, activate).tolist()
        return found

    unit = PoolingPlan("embed", "mean", "normalize")
    assert made(unit) == pytest.approx([3 / 13, 4 / 13, 12 / 13])
    assert made(unit, 2) == pytest.approx([0.6, 0.8])
    assert made(unit, activate=False) == [3.0, 4.0, 12.0]
    assert made(PoolingPlan("classify", "cls", "sigmoid"))[0] == pytest.approx(1 / (1 + np.exp(-3)))
    assert sum(made(PoolingPlan("classify", "cls", "softmax"))) == pytest.approx(1)
    weighed = PoolingPlan("classify", "last", "sigmoid", from_tokens=("no", "yes"), yes_no=(1, 0))
    assert made(weighed) == pytest.approx([1 / (1 + np.exp(-1))])
