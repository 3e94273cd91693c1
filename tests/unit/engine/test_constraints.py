"""Outputs keep to their grammar and to their budget of thinking, with drafts and without."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.history_executor import HistoryExecutor
from tests.unit.engine import letters
from tests.unit.engine.client import Client
from tests.unit.engine.letters import END, VOCAB, ids
from tests.unit.engine.teller import Eager, Teller

from forearm.engine.constraints.grammar import Grammars, Matcher
from forearm.engine.constraints.output_constraint import Constraint, Mark
from forearm.engine.inbox import Drain, Received
from forearm.engine.scheduler import StepLimits
from forearm.engine.speculation.speculation import Speculation
from forearm.wire import Abort, Accepted, RepetitionDetection, SamplingParams, Submit

PROMPT = [1, 2, 3]
WIDE = StepLimits(64, 8, 40)
LIST = 'start: "[" item ("," item)* "]"\nitem: "true" | "false" | "null" | /[a-z]{1,4}/'
WORD = 'start: "abcdefghijklmnop"'


@pytest.fixture(scope="module")
def grammars(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grammars]:
    folder = tmp_path_factory.mktemp("letters")
    letters.save(folder)
    made = Grammars(folder, VOCAB, [END])
    yield made
    made.close()


def client_of(
    grammars: Grammars, rightness: float | None = None, limits: StepLimits = WIDE, *, spare_cpu: bool = True
) -> Client:
    speculation = None if rightness is None else Speculation(LettersTeller(rightness), 4, Eager())
    executor = HistoryExecutor(vocab_size=VOCAB)
    return Client(executor, limits, grammars, speculation, spare_cpu=spare_cpu, eos_token_ids=(END,))


class LettersTeller(Teller):
    """Guesses what the grammar alone would choose."""

    vocab = VOCAB


def finish(client: Client) -> None:
    """Also where a step waits for a grammar."""
    for _ in range(2000):
        if not client.loop.busy:
            return
        client.step()
    raise AssertionError("somebody starves")


class _CompiledMeanwhile(Future[Matcher]):
    """A future that is done when it is looked at for the second time."""

    looks = 0

    def done(self) -> bool:
        self.looks += 1
        return self.looks > 1


def test_a_grammar_that_is_compiled_while_another_is_taken_is_taken_with_the_next(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, late = grammars.start(WORD), _CompiledMeanwhile()
    late.set_result(grammars.start(WORD).result(20))
    first.result(20)
    compiling = iter([first, late])
    monkeypatch.setattr(grammars, "start", lambda _: next(compiling))
    client = client_of(grammars)
    client.submit("first", PROMPT, max_tokens=4, grammar=WORD)
    client.submit("late", PROMPT, max_tokens=4, grammar=WORD)

    finish(client)

    assert client.tokens("first") == client.tokens("late") == ids("abcd")


@pytest.mark.parametrize("rightness", [None, 0.0, 0.7, 1.0])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("logprobs", [None, 2])
@pytest.mark.parametrize("spare_cpu", [False, True])
def test_an_output_is_what_its_grammars_masks_alone_would_give(
    grammars: Grammars, rightness: float | None, temperature: float, logprobs: int | None, spare_cpu: bool
) -> None:
    client = client_of(grammars, rightness, spare_cpu=spare_cpu)
    for seed in range(6):
        client.submit(
            str(seed), PROMPT, max_tokens=30, temperature=temperature, seed=seed, grammar=LIST, logprobs=logprobs
        )
    finish(client)

    for seed in range(6):
        right = letters.masked(grammars.start(LIST).result(20), PROMPT, 30, temperature=temperature, seed=seed)
        output = client.outputs[str(seed), 0]
        assert output.token_ids == right
        assert output.finish_reason == ("length" if len(right) == 30 else "stop")
        entries = [entry for message in output.messages for entry in message.logprobs or ()]
        assert [entry[0].token_id for entry in entries] == (right if logprobs is not None else [])


def test_what_the_grammar_forces_takes_no_forward(grammars: Grammars) -> None:
    client = client_of(grammars)
    client.submit("a", PROMPT, max_tokens=30, grammar=WORD)
    finish(client)

    output = client.outputs["a", 0]
    assert letters.text(output.token_ids) == "abcdefghijklmnop"
    assert (output.finish_reason, output.stop_reason) == ("stop", None)
    # the prompt, possibly in two steps
    assert len(client.executor.steps) == 1 + (client.executor.steps[0] < len(PROMPT))
    assert output.messages[-1].token_ids == []  # the end of the answer is no token, so none was sampled for it


def test_with_log_probabilities_what_is_forced_is_computed_in_one_step(grammars: Grammars) -> None:
    client = client_of(grammars)
    client.submit("a", PROMPT, max_tokens=30, grammar=WORD, logprobs=0)
    finish(client)

    output = client.outputs["a", 0]
    assert letters.text(output.token_ids) == "abcdefghijklmnop"
    assert len(client.executor.steps) <= 3
    assert client.metric("vllm:spec_decode_num_drafts_total{") == 0  # no drafts


def test_max_tokens_cuts_what_is_forced(grammars: Grammars) -> None:
    client = client_of(grammars)
    client.submit("a", PROMPT, max_tokens=5, grammar=WORD)
    client.submit("b", PROMPT, max_tokens=16, grammar=WORD)
    finish(client)

    assert letters.text(client.tokens("a")) == "abcde"
    assert client.outputs["a", 0].finish_reason == "length"
    assert client.outputs["b", 0].finish_reason == "length"  # as if the end were a token that is still to come


def test_each_output_of_a_request_has_its_own_place_in_the_grammar(grammars: Grammars) -> None:
    client = client_of(grammars, rightness=0.7)
    client.submit("a", PROMPT, max_tokens=20, n=4, seed=9, grammar=LIST)
    finish(client)

    for index in range(4):
        right = letters.masked(grammars.start(LIST).result(20), PROMPT, 20, temperature=1.0, seed=9, index=index)
        assert client.tokens("a", index) == right
    assert len({tuple(client.tokens("a", index)) for index in range(4)}) > 1


def test_constrained_and_free_outputs_share_steps_and_preemption_changes_nothing(grammars: Grammars) -> None:
    client = Client(
        HistoryExecutor(blocks=8, vocab_size=VOCAB, max_model_len=160), WIDE, grammars=grammars, eos_token_ids=(END,)
    )
    for name in "abcdef":
        grammar = LIST if name in "ace" else None
        client.submit(name, [ord(name)] * 30, max_tokens=40, temperature=0, grammar=grammar, ignore_eos=not grammar)
    finish(client)

    assert client.loop.scheduler.preemptions > 0
    for name in "ace":
        assert client.tokens(name) == letters.masked(grammars.start(LIST).result(20), [ord(name)] * 30, 40)
    for name in "bdf":
        assert len(client.tokens(name)) == 40


def test_a_grammar_may_begin_after_what_was_thought(grammars: Grammars) -> None:
    mark = tuple(ids("</t>"))
    client = client_of(grammars, rightness=0.7)
    fields: dict[str, Any] = {
        "max_tokens": 60,
        "grammar": WORD,
        "grammar_after": mark,
        "logit_bias": dict.fromkeys(mark, 100.0),
    }
    for seed in range(4):
        client.submit(str(seed), PROMPT, seed=seed, thinking_token_budget=12, thinking_end=mark, **fields)
    finish(client)

    for seed in range(4):
        said = letters.text(client.tokens(str(seed)))
        thought, _, answer = said.partition("</t>")
        assert answer == "abcdefghijklmnop"
        assert len(ids(thought)) <= 12


@pytest.mark.parametrize("rightness", [None, 1.0])
@pytest.mark.parametrize("logprobs", [None, 0])
def test_thinking_ends_when_its_budget_is_used_up(
    grammars: Grammars, rightness: float | None, logprobs: int | None
) -> None:
    mark = tuple(ids("</t>"))
    client = client_of(grammars, rightness)
    client.submit("free", PROMPT, max_tokens=40, temperature=0, ignore_eos=True)
    for budget in (0, 1, 10):
        client.submit(
            str(budget), PROMPT, max_tokens=40, temperature=0, ignore_eos=True, logprobs=logprobs,
            thinking_token_budget=budget, thinking_end=mark, bad_words_token_ids=(mark,),
        )  # fmt: skip
    finish(client)

    for budget in (0, 1, 10):
        tokens = client.tokens(str(budget))
        assert tokens[:budget] == client.tokens("free")[:budget]
        assert tuple(tokens[budget : budget + len(mark)]) == mark
        assert len(tokens) == 40


def test_thinking_that_ends_by_itself_is_not_ended_again(grammars: Grammars) -> None:
    client = client_of(grammars)
    client.submit("free", PROMPT, max_tokens=40, temperature=0, ignore_eos=True)
    finish(client)
    said = client.tokens("free")

    budget: dict[str, Any] = {"thinking_token_budget": 10, "thinking_end": tuple(said[4:6])}
    client.submit("a", PROMPT, max_tokens=40, temperature=0, ignore_eos=True, **budget)
    finish(client)

    assert client.tokens("a") == said


def test_a_bad_grammar_refuses_its_request_alone_before_it_is_accepted(grammars: Grammars) -> None:
    client = client_of(grammars)
    client.submit("good", PROMPT, max_tokens=4, temperature=0)
    client.loop.take(Received(0, submit("bad", grammar='start: "a')))
    accepted = [message.request_id for _, message in client.loop.outbox if isinstance(message, Accepted)]
    finish(client)

    assert accepted == []
    assert client.refused["bad"].error == "InvalidRequest"
    assert "lexer error" in client.refused["bad"].message
    assert len(client.tokens("good")) == 4
    assert ("bad", 0) not in client.outputs
    assert client.loop.scheduler.blocks.used == 0


class SlowGrammars(Grammars):
    """Compiles when it is told to."""

    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars
        self.waiting: list[tuple[str, Future[Matcher]]] = []

    def start(self, source: str) -> Future[Matcher]:
        future: Future[Matcher] = Future()
        self.waiting.append((source, future))
        return future

    def go_on(self) -> None:
        for source, future in self.waiting:
            if future.set_running_or_notify_cancel():
                future.set_result(self._grammars.start(source).result(20))
        self.waiting = []


def test_a_prompt_is_computed_while_its_grammar_compiles_and_others_go_on(grammars: Grammars) -> None:
    slow = SlowGrammars(grammars)
    client = Client(HistoryExecutor(vocab_size=VOCAB), WIDE, grammars=slow, eos_token_ids=(END,))
    client.submit("free", PROMPT, max_tokens=8, temperature=0, ignore_eos=True)
    client.submit("bound", [5] * 40, max_tokens=30, temperature=0, grammar=LIST)
    client.submit("short", [6], max_tokens=30, temperature=0, grammar=LIST)

    for _ in range(12):
        client.step()
    computed = sum(client.executor.steps)
    bound = [one for one in client.loop.scheduler.running if one.request.request_id == "bound"]

    assert len(client.tokens("free")) == 8
    assert [one.computed for one in bound] == [39]
    assert computed == 3 + 7 + 39
    slow.go_on()
    finish(client)
    for name, prompt in (("bound", [5] * 40), ("short", [6])):
        assert client.tokens(name) == letters.masked(grammars.start(LIST).result(20), prompt, 30)


def test_a_request_that_leaves_while_its_grammar_compiles_leaves_nothing(grammars: Grammars) -> None:
    slow = SlowGrammars(grammars)
    client = Client(HistoryExecutor(vocab_size=VOCAB), WIDE, grammars=slow, eos_token_ids=(END,))
    client.submit("a", [5] * 40, grammar=LIST)
    client.step()
    client.loop.take(Received(0, Abort(request_id="a")))
    client.step()

    assert not client.loop.busy
    assert client.loop.scheduler.blocks.used == 0
    slow.go_on()
    client.step()
    assert client.outputs == {}


def test_draining_waits_for_a_grammar(grammars: Grammars) -> None:
    slow = SlowGrammars(grammars)
    client = Client(HistoryExecutor(vocab_size=VOCAB), WIDE, grammars=slow, eos_token_ids=(END,))
    client.submit("a", PROMPT, grammar=WORD, max_tokens=30)
    client.loop.take(Drain())
    threading.Timer(0.05, slow.go_on).start()
    finish(client)

    assert letters.text(client.tokens("a")) == "abcdefghijklmnop"


def test_without_a_tokenizer_a_grammar_is_refused_by_field() -> None:
    client = Client()
    client.submit("a", PROMPT, grammar=WORD)

    assert client.refused["a"].param == "structured_outputs"


@pytest.mark.parametrize(("size", "count"), [(1, 4), (2, 3), (3, 2)])
def test_an_output_that_goes_round_in_circles_ends(size: int, count: int) -> None:
    client = Client()
    pattern = [10, 11, 12][:size]
    sought = RepetitionDetection(max_pattern_size=4, min_pattern_size=size, min_count=count)
    right = {*pairwise(pattern), (pattern[-1], pattern[0])}
    words = tuple((a, b) for a in pattern for b in pattern if (a, b) not in right)
    client.submit(
        "a", PROMPT, max_tokens=50, temperature=0, allowed_token_ids=pattern, repetition_detection=sought,
        bad_words_token_ids=words if size > 1 else (), logit_bias={10: 20.0} if size > 1 else None,
    )  # fmt: skip
    client.finish()

    output = client.outputs["a", 0]
    assert output.finish_reason == "repetition"
    assert output.token_ids[-size * count :] == output.token_ids[-size:] * count
    assert output.token_ids[-size * count - 1 : -1] != output.token_ids[-size - 1 : -1] * count  # and no earlier


def test_a_mark_is_seen_however_it_overlaps_itself() -> None:
    mark = Mark([1, 1, 2])
    for token in (1, 1, 1, 2):
        assert not mark.seen
        mark.take(token)

    assert mark.seen


def test_drafts_are_cut_where_a_grammar_begins(grammars: Grammars) -> None:
    params = SamplingParams(grammar=WORD, grammar_after=(7, 8))
    constraint = Constraint(params, grammars.start(WORD).result(20))

    assert constraint.cut([5, 7, 8, 9]) == [5, 7, 8]
    for token in (5, 7, 8):
        constraint.take(token)
    assert constraint.cut([*ids("abx")]) == ids("ab")


def submit(request_id: str, **fields: Any) -> Submit:
    return Submit(request_id=request_id, prompt_token_ids=PROMPT, params=SamplingParams(**fields))


def test_here_is_a_tokenizer(tmp_path: Path) -> None:
    letters.save(tmp_path)
    assert (tmp_path / "tokenizer.json").is_file()
    assert letters.text(ids("true")) == "true"
    assert len(ids("true")) == 1
