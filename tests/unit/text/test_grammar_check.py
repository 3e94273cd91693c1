"""Grammars are checked in a separate process: a slow or crashing one delays no other request."""

from __future__ import annotations

import gc
import time
from concurrent.futures import Future
from typing import Any

import psutil
import pytest

from forearm.errors import EngineUnavailable, InvalidRequest, Overloaded
from forearm.model.checkpoint.hub import DEMO_MODEL
from forearm.text.grammars.constraints import ConstraintRequest
from forearm.text.grammars.grammar_check import GrammarCheck
from forearm.text.grammars.grammar_tokens import COMPILE_S
from forearm.text.sandbox.fork_server import FORKS, SLOW_S, WAITING
from forearm.text.tokenizer.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(DEMO_MODEL)


@pytest.fixture
def check(tokenizer: Tokenizer) -> GrammarCheck:
    made = GrammarCheck(tokenizer)
    made.start(plain(0)).result(60)
    return made


def plain(number: int) -> ConstraintRequest:
    schema = {"type": "object", "properties": {f"a{number}": {"type": "string"}}}
    return ConstraintRequest("json", schema, "response_format")


def endless(number: int) -> ConstraintRequest:
    """Lark whose first mask takes about ten seconds of a free fast core, if nothing limits it."""
    text = f"// {number}\nstart: {'x* ' * 20_000}\n" + 'x: "a" | "b" x\n'
    return ConstraintRequest("grammar", text, "structured_outputs")


def its_process() -> psutil.Process:
    """The check's: that which began last, as other tests in this process may have checks of their own."""
    gc.collect()
    found = [one for one in psutil.Process().children() if "forearm.text.grammars.grammar_process" in one.cmdline()]
    return max(found, key=lambda one: one.create_time())


def ended(answer: Future[str]) -> Any:
    return answer.exception(COMPILE_S + 20)


def test_an_endless_grammar_is_refused_at_the_limit_and_delays_no_other(check: GrammarCheck) -> None:
    begun_s = time.monotonic()
    bombs = [check.start(endless(number)) for number in range(4)]
    time.sleep(2 * SLOW_S)
    for number in range(1, 6):
        asked_s = time.monotonic()
        check.start(plain(number)).result(5)
        assert time.monotonic() - asked_s < 2

    errors = [ended(bomb) for bomb in bombs]

    assert time.monotonic() - begun_s < COMPILE_S + 5
    assert {type(error) for error in errors} == {InvalidRequest}
    assert {error.param for error in errors} == {"structured_outputs"}
    # A fast machine reaches a memory limit, or llguidance's own limit, first.
    limits = (f"longer than {COMPILE_S:g} s", "more than 1024 MB", "Too many items")
    assert all(any(limit in str(error) for limit in limits) for error in errors), errors
    assert psutil.wait_procs(its_process().children(), 10)[1] == []


def test_the_slow_give_way_where_others_wait(check: GrammarCheck) -> None:
    bombs = [check.start(endless(number)) for number in range(3 * FORKS)]
    last = check.start(plain(9))

    assert last.result(20)
    gave_way = [bomb for bomb in bombs if bomb.done()]
    assert len(gave_way) >= 2 * FORKS
    assert all("others wait" in str(ended(bomb)) for bomb in gave_way)


def test_more_than_can_wait_are_turned_away(check: GrammarCheck) -> None:
    bombs = [check.start(endless(number)) for number in range(FORKS + WAITING + 20)]

    assert {type(ended(bomb)) for bomb in bombs[-20:]} == {Overloaded}


def test_a_fork_that_is_killed_fails_alone(check: GrammarCheck) -> None:
    process, broken = its_process(), check.start(endless(0))
    while not process.children():
        time.sleep(0.01)
    process.children()[0].kill()

    with pytest.raises(InvalidRequest, match="ended early"):
        broken.result(5)
    assert check.start(plain(1)).result(5)
    assert its_process() == process


def test_a_process_that_is_killed_is_started_again(check: GrammarCheck) -> None:
    waiting = check.start(endless(0))
    forks = its_process().children()
    its_process().kill()

    with pytest.raises(EngineUnavailable):
        waiting.result(5)
    assert check.start(plain(1)).result(30)
    assert psutil.wait_procs(forks, 10)[1] == []


def test_nothing_is_left_of_a_check_that_is_gone(tokenizer: Tokenizer) -> None:
    check = GrammarCheck(tokenizer)
    check.start(plain(0)).result(60)
    check.start(endless(0))
    process = its_process()
    while not process.children():
        time.sleep(0.01)
    forks = process.children()

    del check
    gc.collect()

    assert psutil.wait_procs([process, *forks], 5)[1] == []


def test_a_grammar_that_is_known_needs_no_process(check: GrammarCheck) -> None:
    first = check.start(plain(1)).result(5)
    its_process().suspend()
    try:
        assert check.start(plain(1)).result(1) == first
    finally:
        its_process().resume()
