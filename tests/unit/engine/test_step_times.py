"""The number of prompt tokens of a step beside decodes, on simulated machines."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from forearm.engine.admission import Admission, Terms
from forearm.engine.cache.blocks import BlockPool
from forearm.engine.metrics.step_times import PROMPT_TILE
from forearm.engine.scheduler import Scheduler, StepLimits
from forearm.engine.sequence import Slice
from forearm.engine.speculation.speculation import Speculation
from forearm.wire import SamplingParams, Submit


@dataclass
class Machine:
    """A step takes `decode_s`, and `token_s` for each token of a prompt: twice as much after `doubled_at` tokens of it.

    steps: seconds and tokens of prompts, of each so far
    """

    decode_s: float
    token_s: float
    target_s: float = 0.15
    doubled_at: float = 1e9
    step_tokens: int = 512
    whole_prompts: bool = False
    steps: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.speculation = Speculation()
        limits = StepLimits(self.step_tokens, 16, 16, whole_prompts=self.whole_prompts, target_itl_s=self.target_s)
        self.scheduler = Scheduler(limits, BlockPool(1024), self.speculation.times)
        self.admission = Admission(Terms(vocab_size=50_000, max_model_len=32_000))
        self.names = 0

    def add(self, tokens: int) -> None:
        self.names += 1
        params = SamplingParams(max_tokens=None)
        submit = Submit(request_id=str(self.names), prompt_token_ids=[self.names] * tokens, params=params)
        self.scheduler.add(self.admission.request(0, submit, 0.0))

    def step(self) -> None:
        slices = self.scheduler.schedule()
        prompts = [piece for piece in slices if piece.end - piece.start > 1]
        seconds = self.decode_s + sum(self._seconds(piece) for piece in prompts)
        for piece in slices:
            piece.sequence.computed = piece.end
            if piece.samples:
                piece.sequence.append(1)
        self.speculation.measured(slices, seconds)
        self.steps.append((seconds, sum(piece.end - piece.start for piece in prompts)))

    def _seconds(self, piece: Slice) -> float:
        return self.token_s * (piece.end - piece.start) * (1 + piece.start / self.doubled_at)

    def beside_a_stream(self, prompt: int, plain: int = 5) -> list[tuple[float, int]]:
        """The steps from when a prompt joins a stream until it is computed."""
        self.add(8)
        for _ in range(1 + plain):
            self.step()
        self.add(prompt)
        return self.until_computed()

    def until_computed(self) -> list[tuple[float, int]]:
        """The steps until no prompt is left."""
        before = len(self.steps)
        for _ in range(1000):
            self.step()
            if all(sequence.grows for sequence in self.scheduler.running):
                return self.steps[before:]
        raise AssertionError("a prompt starves")


@pytest.mark.parametrize("token_s", [0.0005, 0.001, 0.004])
def test_a_step_with_prompts_takes_no_longer_than_the_target_once_they_are_measured(token_s: float) -> None:
    steps = Machine(0.01, token_s, doubled_at=4000).beside_a_stream(4000)

    assert max(seconds for seconds, _ in steps) <= 0.15
    assert max(seconds for seconds, _ in steps[4:-2]) > 0.1  # and uses it
    assert all((1 + tokens) % PROMPT_TILE == 0 or tokens in (0, PROMPT_TILE) for _, tokens in steps[1:-1])


def test_steps_fill_the_target_from_the_second_prompt_on_whatever_the_context() -> None:
    """A token costs three times as much at the end of each prompt as at its beginning."""
    machine = Machine(0.01, 0.0005, doubled_at=2000)
    machine.beside_a_stream(4000)
    steps = []
    for _ in range(3):
        machine.add(4000)
        steps += machine.until_computed()[:-1]  # without the rest of the prompt

    assert min(seconds for seconds, tokens in steps if tokens) > 0.1
    assert max(seconds for seconds, _ in steps) <= 0.15


@pytest.mark.parametrize("outputs", [1, 4])
@pytest.mark.parametrize("decode_s", [0.01, 0.05])
def test_a_delayed_first_decode_does_not_lengthen_steps_with_prompts(decode_s: float, outputs: int) -> None:
    """The first decode takes 20 times as long as the next, as when pages of weights are read for the first time."""
    machine = Machine(20 * decode_s, 0.002)
    machine.add(8)
    machine.step()
    machine.step()
    machine.decode_s = decode_s
    for _ in range(outputs - 1):
        machine.add(1)
    machine.step()
    for prompt in (1000, 2000):
        machine.add(prompt)
        steps = machine.until_computed()

        assert max(seconds for seconds, _ in steps) <= max(0.15, 2 * decode_s)


def test_a_machine_that_gets_faster_is_soon_used() -> None:
    machine = Machine(0.01, 0.004)
    machine.beside_a_stream(4000)
    machine.token_s = 0.0005
    machine.add(4000)
    machine.until_computed()
    machine.add(4000)

    assert min(seconds for seconds, tokens in machine.until_computed()[:-1] if tokens) > 0.1


def test_without_a_target_prompts_take_the_whole_budget() -> None:
    steps = Machine(0.01, 0.001, target_s=0.0).beside_a_stream(4000)

    assert [tokens for _, tokens in steps[:3]] == [511, 511, 511]


def test_a_prompt_alone_takes_the_whole_budget() -> None:
    machine = Machine(0.01, 0.001)
    machine.add(4000)
    for _ in range(3):
        machine.step()

    assert [tokens for _, tokens in machine.steps] == [512, 512, 512]


def test_before_anything_is_measured_the_first_chunk_is_small() -> None:
    machine = Machine(0.5, 0.1, target_s=1.0)
    machine.add(1)
    machine.step()
    machine.add(400)
    machine.step()

    assert machine.steps[-1][1] == 32


def test_where_a_step_without_prompts_takes_long_one_with_them_takes_up_to_twice_that() -> None:
    steps = Machine(0.4, 0.002).beside_a_stream(4000)

    assert max(seconds for seconds, _ in steps) <= 0.8
    assert max(seconds for seconds, _ in steps[4:-2]) > 0.6


def test_a_prompt_goes_on_where_not_even_one_tile_keeps_to_the_target() -> None:
    steps = Machine(0.01, 1.0).beside_a_stream(320)

    assert {tokens for _, tokens in steps} <= {0, 32, PROMPT_TILE}


def test_outputs_that_take_longer_meanwhile_do_not_starve_prompts() -> None:
    """Contexts of outputs grow while prompts never end: steps without prompts are measured again now and then."""
    machine = Machine(0.01, 0.001)
    machine.beside_a_stream(1000)
    machine.decode_s = 1.0
    for _ in range(10):
        machine.add(2000)
        machine.until_computed()

    assert min(tokens for _, tokens in machine.steps[-8:-2] if tokens) > 300


def test_whole_prompts_stay_whole() -> None:
    steps = Machine(0.01, 0.001, whole_prompts=True, step_tokens=2048).beside_a_stream(2000)

    assert [tokens for _, tokens in steps] == [2000]
