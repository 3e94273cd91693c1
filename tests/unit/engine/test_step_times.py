"""The number of prompt tokens of a step beside decodes, on simulated machines."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from statistics import mean

import pytest

from forearm.engine.admission import Admission, Terms
from forearm.engine.blocks import BlockPool
from forearm.engine.metrics.step_times import LEAST_CHUNK
from forearm.engine.scheduler import Scheduler, StepLimits
from forearm.engine.sequence import Slice
from forearm.engine.speculation.speculation import Speculation
from forearm.wire import SamplingParams, Submit


@dataclass
class Machine:
    """A step takes `decode_s`, and `token_s` for each token of a prompt: twice as much after `doubled_at` tokens of it.

    reading_s: the least time of a step, that of reading weights
    noise: standard deviation of a step's time, relative to it
    steps: seconds and tokens of prompts, of each so far
    """

    decode_s: float
    token_s: float
    target_s: float = 0.15
    doubled_at: float = 1e9
    reading_s: float = 0.0
    noise: float = 0.0
    step_tokens: int = 512
    whole_prompts: bool = False
    steps: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.speculation = Speculation()
        limits = StepLimits(self.step_tokens, 16, 16, whole_prompts=self.whole_prompts, target_itl_s=self.target_s)
        self.scheduler = Scheduler(limits, BlockPool(1024), self.speculation.times)
        self.admission = Admission(Terms(vocab_size=50_000, max_model_len=32_000))
        self.names = 0
        self.random = Random(1)

    def add(self, tokens: int) -> None:
        self.names += 1
        params = SamplingParams(max_tokens=None)
        submit = Submit(request_id=str(self.names), prompt_token_ids=[self.names] * tokens, params=params)
        self.scheduler.add(self.admission.request(0, submit, 0.0))

    def step(self) -> None:
        slices = self.scheduler.schedule()
        prompts = [piece for piece in slices if piece.end - piece.start > 1]
        seconds = max(self.reading_s, self.decode_s + sum(self._seconds(piece) for piece in prompts))
        seconds *= self.random.gauss(1.0, self.noise)
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
def test_a_step_with_prompts_fills_the_target_and_takes_no_longer(token_s: float) -> None:
    steps = Machine(0.01, token_s, doubled_at=4000).beside_a_stream(4000)

    assert max(seconds for seconds, _ in steps) <= 0.15
    assert min(seconds for seconds, tokens in steps[6:-1] if tokens) > 0.13


def test_about_one_of_a_hundred_steps_takes_longer_where_times_vary() -> None:
    machine = Machine(0.01, 0.001, doubled_at=4000, noise=0.03)
    machine.beside_a_stream(2000)
    for _ in range(14):
        machine.add(4000)
        machine.until_computed()
    seconds = [seconds for seconds, tokens in machine.steps if tokens > 60]

    assert sum(one > 0.15 for one in seconds) <= 0.02 * len(seconds)
    assert mean(seconds) > 0.88 * 0.15


def test_a_chunk_at_the_beginning_of_a_prompt_is_larger_than_one_at_its_end() -> None:
    machine = Machine(0.01, 0.001, doubled_at=2000)
    machine.beside_a_stream(6000)
    machine.add(6000)
    steps = machine.until_computed()

    assert steps[1][1] > 2 * steps[-2][1]
    assert max(seconds for seconds, _ in steps) <= 0.15


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

    assert machine.steps[-1][1] == LEAST_CHUNK


def test_a_first_token_is_measured_before_prompts_go_on() -> None:
    """Otherwise a prompt beside the first decode step would take the whole target, and the decode its time besides."""
    machine = Machine(0.1, 0.001)
    machine.add(400)
    machine.step()
    machine.add(4000)

    assert machine.until_computed()[0] == (pytest.approx(0.1), 0)


def test_small_steps_that_mostly_read_weights_do_not_lead_to_long_ones() -> None:
    """The tokens of short prompts seem to cost nothing there: chunks grow from step to step."""
    machine = Machine(0.002, 0.002, reading_s=0.05)
    machine.beside_a_stream(1)
    for _ in range(10):
        machine.add(20)
        machine.until_computed()
    machine.add(4000)
    steps = machine.until_computed()

    assert max(seconds for seconds, _ in steps) <= 0.15
    assert min(seconds for seconds, tokens in steps[6:-1] if tokens) > 0.125


def test_a_delayed_step_without_prompts_does_not_make_steps_with_them_longer() -> None:
    """Twice the time of a step without prompts is asked, and that is 0.36 s."""
    machine = Machine(0.18, 0.007)
    machine.beside_a_stream(500)
    for _ in range(4):
        machine.decode_s = 0.36
        machine.step()
        machine.decode_s = 0.18
        machine.step()
        machine.step()
    machine.add(500)

    assert max(seconds for seconds, _ in machine.until_computed()) <= 0.36


def test_more_streams_than_were_measured_do_not_make_steps_longer() -> None:
    machine = Machine(0.1, 0.002)
    machine.beside_a_stream(100)
    for _ in range(8):
        machine.add(100)
        machine.until_computed()
    machine.add(2000)

    assert max(seconds for seconds, _ in machine.until_computed()) <= 0.2


def test_where_a_step_without_prompts_takes_long_one_with_them_takes_up_to_twice_that() -> None:
    steps = Machine(0.4, 0.002).beside_a_stream(4000)

    assert max(seconds for seconds, _ in steps) <= 0.8
    assert min(seconds for seconds, _ in steps[8:-1]) > 0.7


def test_a_prompt_goes_on_where_not_even_the_least_chunk_keeps_to_the_target() -> None:
    steps = Machine(0.01, 1.0).beside_a_stream(320)

    assert {tokens for _, tokens in steps} <= {0, LEAST_CHUNK}


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
