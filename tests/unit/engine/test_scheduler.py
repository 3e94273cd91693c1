"""The choice of sequences for a step, and of the number of tokens of each."""

from __future__ import annotations

from typing import Any

import pytest

from forearm.engine.admission import Admission, Terms
from forearm.engine.cache.blocks import BlockPool
from forearm.engine.scheduler import PRIORITY_HEAD_START_S, PRIORITY_LEVELS, Scheduler, StepLimits
from forearm.engine.sequence import Request, Slice
from forearm.errors import ConfigError
from forearm.wire import SamplingParams, Submit


class Line:
    """A scheduler with its sequences; a step computes slices and gives a token to each slice that samples."""

    def __init__(self, step_tokens: int = 8, running: int = 4, blocks: int = 64, **limits: Any) -> None:
        rows = limits.pop("step_rows", running)
        self.scheduler = Scheduler(StepLimits(step_tokens, running, rows, **limits), BlockPool(blocks))
        self.names: dict[str, int] = {}
        self.admission = Admission(Terms(vocab_size=100, max_model_len=32 * blocks, priorities=True))

    def add(
        self, name: str, tokens: int, *, now_s: float = 0.0, priority: int = 0, client: str = "", **params: Any
    ) -> Request:
        # Each name is a different prompt, so that nothing is shared unless a test wants it.
        prompt = [self.names.setdefault(name, len(self.names)) % 100] * tokens
        submit = Submit(
            request_id=name,
            prompt_token_ids=prompt,
            params=SamplingParams(max_tokens=None, **params),
            priority=priority,
            client=client,
        )
        request = self.admission.request(0, submit, now_s)
        self.scheduler.add(request)
        return request

    def step(self) -> dict[str, int]:
        """Tokens by request."""
        slices = self.scheduler.schedule()
        for piece in slices:
            self._compute(piece)
        return {piece.sequence.request.request_id: piece.end - piece.start for piece in slices}

    def _compute(self, piece: Slice) -> None:
        piece.sequence.computed = piece.end
        self.scheduler.blocks.publish(piece.sequence, piece.start)
        if piece.samples:
            piece.sequence.append(1)

    def waiting(self) -> list[str]:
        return [sequence.request.request_id for sequence in self.scheduler.queue.ranked]

    def running(self) -> list[str]:
        return [sequence.request.request_id for sequence in self.scheduler.running]


def test_a_long_prompt_does_not_hold_up_an_open_stream() -> None:
    line = Line(step_tokens=8)
    line.add("stream", 2)
    line.step()

    line.add("prompt", 20)

    assert [line.step() for _ in range(4)] == [
        {"stream": 1, "prompt": 7},
        {"stream": 1, "prompt": 7},
        {"stream": 1, "prompt": 6},
        {"stream": 1, "prompt": 1},
    ]


def test_a_stream_that_came_after_a_long_prompt_still_gets_its_token_every_step() -> None:
    line = Line(step_tokens=8)
    line.add("prompt", 40)
    line.add("stream", 1)
    line.step()

    steps = [line.step() for _ in range(3)]

    assert steps == [{"prompt": 8}, {"prompt": 8}, {"prompt": 8}]  # not admitted while the budget is used up
    line = Line(step_tokens=8, slice_tokens=4)
    line.add("prompt", 40)
    line.add("stream", 1)
    assert [line.step() for _ in range(3)] == [{"prompt": 4, "stream": 1}] * 3


def test_sequences_are_admitted_in_order_of_arrival_and_none_overtakes_one_that_does_not_fit() -> None:
    line = Line(step_tokens=256, blocks=4)
    line.add("first", 33)
    line.step()
    line.add("large", 90)
    line.add("small", 3)

    step = line.step()

    assert step == {"first": 1}
    assert line.waiting() == ["large", "small"]


def test_no_more_run_than_max_num_seqs() -> None:
    line = Line(running=2)
    for name in "abc":
        line.add(name, 1)

    assert line.step() == {"a": 1, "b": 1}
    assert line.waiting() == ["c"]


def test_when_blocks_run_out_the_last_sequence_waits_again_in_front_with_all_tokens_pending() -> None:
    line = Line(step_tokens=128, blocks=3)
    line.add("first", 32)
    line.add("second", 32)
    line.step()
    line.add("third", 1)

    step = line.step()

    assert step == {"first": 1}
    assert line.waiting() == ["second", "third"]
    assert line.scheduler.queue.ranked[0].pending == 33
    assert line.scheduler.preemptions == 1


def test_a_preempted_sequence_resumes_when_there_is_room_again() -> None:
    line = Line(step_tokens=128, blocks=3)
    first = line.add("first", 32)
    line.add("second", 32)
    line.step()
    line.step()

    line.scheduler.remove(first.sequences[0])

    assert line.step() == {"second": 1}  # its full block was still in the prefix cache


def test_priority_lets_the_urgent_in_first() -> None:
    line = Line(running=1)
    line.add("patient", 1, priority=1)
    line.add("urgent", 1, now_s=0.5, priority=-1)

    assert line.step() == {"urgent": 1}


def test_a_level_of_priority_is_worth_so_much_waiting_and_no_more() -> None:
    line = Line(running=1)
    line.add("patient", 1, now_s=0.0, priority=2)
    line.add("late", 1, now_s=2 * PRIORITY_HEAD_START_S + 1, priority=0)

    assert line.step() == {"patient": 1}


def test_a_stream_of_urgent_requests_does_not_starve_waiting_ones() -> None:
    line = Line(running=1)
    line.add("patient", 1, now_s=0.0, priority=3)
    ran = []

    for second in range(200):
        urgent = line.add(f"urgent {second}", 1, now_s=float(second), priority=0)
        ran += line.step()
        line.scheduler.remove(line.scheduler.running[0])
        if "patient" in ran:
            break
        assert urgent.sequences[0] not in line.scheduler.queue.ranked

    # Requests that arrived within the first 3 levels of waiting time ran first, and none that arrived later.
    assert ran == [f"urgent {second}" for second in range(int(3 * PRIORITY_HEAD_START_S))] + ["patient"]


def test_no_priority_puts_others_off_for_longer_than_the_bound() -> None:
    line = Line(running=1)
    line.add("patient", 1, now_s=0.0, priority=10**9)
    line.add("pushy", 1, now_s=2 * PRIORITY_LEVELS * PRIORITY_HEAD_START_S + 1, priority=-(10**9))

    assert line.step() == {"patient": 1}


def test_the_last_in_rank_is_preempted_not_the_last_to_arrive() -> None:
    line = Line(step_tokens=128, blocks=3)
    line.add("patient", 32, now_s=0.0, priority=5)
    line.step()
    line.add("urgent", 32, now_s=1.0, priority=0)
    line.step()

    line.step()

    assert line.running() == ["urgent"]
    assert line.waiting() == ["patient"]


def test_an_urgent_request_preempts_none_while_blocks_suffice() -> None:
    line = Line(running=1)
    line.add("patient", 1, priority=5)
    line.step()
    line.add("urgent", 1, priority=-5)

    assert line.step() == {"patient": 1}


def test_outputs_of_one_request_wait_for_their_prompt_and_share_its_full_blocks() -> None:
    line = Line(step_tokens=40, running=4)
    request = line.add("three", 70, n=3)

    pieces = [line.scheduler.schedule()]
    assert [(p.sequence.index, p.end - p.start) for p in pieces[0]] == [(0, 40)]
    line._compute(pieces[0][0])
    second = line.scheduler.schedule()
    line._compute(second[0])
    third = line.scheduler.schedule()

    assert [(p.sequence.index, p.start, p.end) for p in third] == [(0, 70, 71), (1, 64, 70), (2, 64, 70)]
    assert {tuple(sequence.blocks[:2]) for sequence in request.sequences} == {tuple(request.sequences[0].blocks[:2])}
    assert len({sequence.blocks[2] for sequence in request.sequences}) == 3


def test_prompts_that_begin_alike_and_come_together_compute_the_beginning_once() -> None:
    line = Line(step_tokens=256, running=8)
    for name in ("a", "a", "a"):
        line.add(name, 70)
    line.add("other", 70)

    steps = [line.scheduler.schedule()]
    for piece in steps[0]:
        line._compute(piece)
    steps.append(line.scheduler.schedule())

    assert [(p.sequence.request.request_id, p.end - p.start) for p in steps[0]] == [("a", 70), ("other", 70)]
    assert [(p.sequence.request.request_id, p.end - p.start) for p in steps[1]] == [
        ("a", 1),
        ("other", 1),
        ("a", 6),
        ("a", 6),
    ]


def test_a_sequence_that_waits_for_a_block_computes_it_when_the_other_leaves() -> None:
    line = Line(step_tokens=32, running=8)
    first = line.add("same", 96)
    line.add("same", 96)
    assert len(line.scheduler.schedule()) == 1

    line.scheduler.remove(first.sequences[0])

    assert line.step() == {"same": 32}


def test_a_prompt_that_is_scored_stays_within_the_rows_of_a_step() -> None:
    line = Line(step_tokens=64, running=4, step_rows=6)
    line.add("stream", 1)
    line.step()
    line.add("scored", 20, prompt_logprobs=0)

    assert line.step() == {"stream": 1, "scored": 5}


def test_whole_prompts_wait_for_a_step_that_holds_them() -> None:
    line = Line(step_tokens=32, whole_prompts=True)
    line.add("first", 20)
    line.add("second", 20)

    assert [line.step() for _ in range(2)] == [{"first": 20}, {"first": 1, "second": 20}]


def test_budgets_too_small_for_the_running_sequences_are_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match="--max-num-batched-tokens 4 is less than --max-num-seqs 5"):
        StepLimits(step_tokens=4, running=5, step_rows=5)
