"""The waiting queue: constant work for any number of requests, and fair turns between clients."""

from __future__ import annotations

import time

import pytest
from tests.unit.engine.client import Client, expected
from tests.unit.engine.test_scheduler import Line

from forearm.engine.inbox import Stop
from forearm.engine.scheduler import PRIORITY_HEAD_START_S, StepLimits

MOST = 16384


def many(prompt: int = 40) -> Client:
    """A client that has asked for as many outputs as can be asked for."""
    client = Client(limits=StepLimits(64, 8, 8), queued=MOST)
    client.submit("many", [1] * prompt, n=MOST, max_tokens=3, seed=7)
    return client


def test_sixteen_thousand_outputs_are_taken_in_and_aborted_in_no_time() -> None:
    begun_s = time.perf_counter()
    client = many()
    for _ in range(4):
        client.step()
    assert client.metric("vllm:num_requests_waiting{") > MOST - 100

    aborted_s = time.perf_counter()
    client.abort("many")
    took_s = time.perf_counter() - aborted_s

    # 0.3 ms each, measured on two cores of an EPYC; it was 3 s when every output looked at all others.
    assert took_s < 0.05
    assert aborted_s - begun_s < 1.0
    assert not client.loop.busy
    assert client.loop.scheduler.waiting == client.loop.scheduler.open_outputs == 0
    assert client.loop.scheduler.blocks.used == 0


def test_outputs_are_made_when_their_turn_comes_and_are_what_their_seeds_say() -> None:
    client = Client(limits=StepLimits(64, 2, 2))
    client.submit("a", [1] * 40, n=5, max_tokens=3, seed=7)
    (request,) = client.loop._requests.values()
    assert len(request.sequences) == 1

    client.finish()

    for index in range(5):
        assert client.tokens("a", index) == expected([1] * 40, 3, temperature=1.0, seed=7, index=index)


@pytest.mark.parametrize("index", [2, 3, 4])
def test_an_output_can_be_aborted_before_it_is_made(index: int) -> None:
    client = Client(limits=StepLimits(64, 2, 2))
    client.submit("a", [1] * 40, n=5, max_tokens=3, seed=7)
    client.step()

    client.abort("a", index=index)
    client.abort("a", index=index)
    client.abort("a", index=99)
    assert client.loop.scheduler.open_outputs == 4
    client.finish()

    assert {number for _, number in client.outputs} == set(range(5)) - {index}
    assert client.metric('vllm:request_success_total{engine="0",finished_reason="length"') == 1


def test_stopping_tells_of_the_outputs_that_were_never_made() -> None:
    client = Client(limits=StepLimits(64, 2, 2))
    client.submit("a", [1], n=5, max_tokens=3)
    client.step()

    client.loop.take(Stop())
    client.gather()

    assert [client.outputs["a", index].finish_reason for index in range(5)] == ["abort"] * 5


def one_by_one(line: Line, count: int) -> list[str]:
    """The next requests, each computed whole and ended before the next."""
    ran: list[str] = []
    for _ in range(count):
        ran += line.step()
        line.scheduler.remove(line.scheduler.running[0])
    return ran


def test_a_client_with_one_request_need_not_wait_for_all_of_another() -> None:
    line = Line(step_tokens=8, running=1)
    for number in range(20):
        line.add(f"flood {number}", 8, client="flood")
    one_by_one(line, 3)

    line.add("one", 8, client="other")

    assert one_by_one(line, 3) == ["flood 3", "one", "flood 4"]


def test_tokens_count_not_requests() -> None:
    """One client's prompts are four times as long: it gets one in for four of the other."""
    line = Line(step_tokens=16, running=1)
    for number in range(12):
        line.add(f"long {number}", 16, client="long")
        line.add(f"short {number}", 4, client="short")

    ran = one_by_one(line, 10)

    assert [name.split()[0] for name in ran] == (["long"] + ["short"] * 4) * 2


def test_newcomers_do_not_overtake_without_end() -> None:
    line = Line(step_tokens=8, running=1)
    for number in range(3):
        line.add(f"patient {number}", 8, client="patient")
    ran: list[str] = []

    for number in range(10):
        line.add(f"new {number}", 8, now_s=1.0 + number, client=f"client {number}")
        ran += one_by_one(line, 1)

    assert [name for name in ran if name.startswith("patient")] == ["patient 0", "patient 1", "patient 2"]


def test_priority_goes_before_shares_and_waiting_before_priority() -> None:
    line = Line(step_tokens=8, running=1)
    for number in range(3):
        line.add(f"urgent {number}", 8, client="served much", priority=-1)
    line.add("patient", 8, client="not served", priority=0)
    line.add("late", 8, now_s=PRIORITY_HEAD_START_S + 1, client="served much", priority=-1)

    assert one_by_one(line, 5) == ["urgent 0", "urgent 1", "urgent 2", "patient", "late"]


def test_a_client_with_all_places_gives_one_to_a_client_without_and_resumes_where_it_was() -> None:
    client = Client(limits=StepLimits(64, 4, 4))
    prompts = [[number] * 40 for number in range(9)]
    for number, prompt in enumerate(prompts[:8]):
        client.submit(str(number), prompt, max_tokens=30, temperature=0, sender="flood")
    for _ in range(5):
        client.step()

    client.submit("8", prompts[8], max_tokens=5, temperature=0, sender="other")
    for _ in range(8):
        client.step()

    assert client.outputs["8", 0].finish_reason == "length"
    client.finish()
    assert client.metric("vllm:num_preemptions_total{") == 1
    for number, prompt in enumerate(prompts):
        assert client.tokens(str(number)) == expected(prompt, 5 if number == 8 else 30)


def test_clients_that_have_one_place_each_keep_it() -> None:
    client = Client(limits=StepLimits(64, 2, 2))
    for name in "abc":
        client.submit(name, [1], max_tokens=30, sender=name)

    client.finish()

    assert client.metric("vllm:num_preemptions_total{") == 0
