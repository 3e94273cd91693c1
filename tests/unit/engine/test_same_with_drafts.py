"""Any mixture of requests gets the same tokens with drafts: constrained, cut, preempted, aborted or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.history_executor import HistoryExecutor
from tests.unit.engine import letters
from tests.unit.engine.client import Client
from tests.unit.engine.letters import END, VOCAB, ids
from tests.unit.engine.teller import Eager, Teller

from forearm.engine.constraints.grammar import Grammars
from forearm.engine.scheduler import StepLimits
from forearm.engine.speculation.draft_model import DraftModel
from forearm.engine.speculation.ngrams import Ngrams
from forearm.engine.speculation.speculation import Drafter, Speculation
from forearm.wire import RepetitionDetection

MAX_MODEL_LEN = 160
LIST = 'start: "[" item ("," item)* "]"\nitem: "true" | "false" | "null" | /[a-z]{1,4}/'
MARK = tuple(ids("</t>"))


@pytest.fixture(scope="module")
def grammars(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grammars]:
    folder = tmp_path_factory.mktemp("letters")
    letters.save(folder)
    made = Grammars(folder, VOCAB, [END])
    made.start(LIST).result(60)
    yield made
    made.close()


class LettersTeller(Teller):
    vocab = VOCAB


@st.composite
def fields(draw: st.DrawFn) -> dict[str, Any]:
    temperature = draw(st.sampled_from([0.0, 1.0]))
    made: dict[str, Any] = {
        "temperature": temperature,
        "seed": draw(st.integers(0, 3)),
        "n": draw(st.integers(1, 3)) if temperature else 1,
        "max_tokens": draw(st.integers(1, 50)),
        "ignore_eos": draw(st.booleans()),
        "logprobs": draw(st.sampled_from([None, 0, 2])),
        "prompt_logprobs": draw(st.sampled_from([None, 1])),
    }
    made["min_tokens"] = draw(st.integers(0, made["max_tokens"]))
    kind = draw(st.sampled_from(["free", "grammar", "after", "thinking", "repetition", "few"]))
    if kind in ("grammar", "after"):
        made["grammar"] = LIST
    if kind == "after":
        made["grammar_after"] = MARK
    if kind in ("after", "thinking"):
        made |= {"thinking_token_budget": draw(st.integers(0, 20)), "thinking_end": MARK}
    if kind == "repetition":
        made["repetition_detection"] = RepetitionDetection(
            max_pattern_size=draw(st.integers(1, 5)), min_count=draw(st.integers(2, 4))
        )
    if kind in ("repetition", "few"):
        made["allowed_token_ids"] = [70, 71, 72]
    if made["logprobs"] is not None and draw(st.booleans()):
        made["logprob_token_ids"] = [1, 70]
    return made


def run(
    grammars: Grammars, speculation: Speculation | None, requests: list[tuple[list[int], dict[str, Any]]]
) -> Client:
    """All of them, in few blocks."""
    client = Client(
        HistoryExecutor(14, MAX_MODEL_LEN, VOCAB), StepLimits(40, 5, 16), grammars, speculation, eos_token_ids=(END,)
    )
    for i, (prompt, chosen) in enumerate(requests):
        client.submit(str(i), prompt, **chosen)
    client.finish()
    return client


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    requests=st.lists(
        st.tuples(
            st.builds(lambda shared, last: [7] * shared + [last], st.sampled_from([0, 5, 32, 64]), st.integers(0, 3)),
            fields(),
        ),
        min_size=1,
        max_size=6,
    ),
    drafter=st.sampled_from(["told", "wrong", "ngrams", "model"]),
    tokens=st.integers(1, 8),
)
def test_any_mixture(
    grammars: Grammars, requests: list[tuple[list[int], dict[str, Any]]], drafter: str, tokens: int
) -> None:
    makers: dict[str, Callable[[], Drafter]] = {
        "told": lambda: LettersTeller(0.8),
        "wrong": lambda: LettersTeller(0.0),
        "ngrams": lambda: Ngrams(1, 3),
        "model": lambda: DraftModel(HistoryExecutor(14, MAX_MODEL_LEN, VOCAB), 40),
    }

    plain = run(grammars, None, requests)
    drafted = run(grammars, Speculation(makers[drafter](), tokens, Eager()), requests)

    assert drafted.refused == plain.refused
    assert drafted.outputs.keys() == plain.outputs.keys()
    for key, output in plain.outputs.items():
        other = drafted.outputs[key]
        assert (other.token_ids, other.finish_reason, other.stop_reason) == (
            output.token_ids, output.finish_reason, output.stop_reason,
        ), key  # fmt: skip
        assert entries(other) == entries(output)


def entries(output: Any) -> list[Any]:
    return [entry for message in output.messages for entry in message.logprobs or ()]
