"""A request gets the same tokens as alone, whatever else the engine does; no request starves; no block leaks.

`Client.step` checks the block pool after every step, HistoryExecutor the arrays of every step.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.history_executor import HistoryExecutor
from tests.unit.engine.client import Client, expected
from tests.unit.engine.teller import told

from forearm.engine.scheduler import StepLimits

MAX_MODEL_LEN = 160


@dataclass(frozen=True)
class Plan:
    """One request: when it comes, what it asks, and when its client leaves."""

    arrives: int
    prompt: list[int]
    max_tokens: int
    temperature: float
    seed: int
    n: int
    priority: int
    salt: str | None
    leaves: int | None
    scored: bool


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    # Prompts begin alike, so that blocks are shared, and differ at the end.
    shared = draw(st.sampled_from([0, 31, 32, 33, 64, 100]))
    temperature = draw(st.sampled_from([0.0, 1.0]))
    return Plan(
        arrives=draw(st.integers(0, 12)),
        prompt=[7] * shared + draw(st.lists(st.integers(0, 3), min_size=1, max_size=20)),
        max_tokens=draw(st.integers(1, 39)),
        temperature=temperature,
        seed=draw(st.integers(0, 2)),
        n=draw(st.integers(1, 3)) if temperature else 1,
        priority=draw(st.integers(-2, 2)),
        salt=draw(st.sampled_from([None, "salt"])),
        leaves=draw(st.none() | st.integers(0, 20)),
        scored=draw(st.booleans()),
    )


@st.composite
def limits(draw: st.DrawFn) -> StepLimits:
    running = draw(st.integers(1, 6))
    return StepLimits(
        step_tokens=draw(st.integers(running, 90)),
        running=running,
        step_rows=draw(st.integers(running, 12)),
        slice_tokens=draw(st.sampled_from([0, 1, 40])),
    )


@settings(max_examples=80, deadline=None)
@given(
    requests=st.lists(plans(), min_size=1, max_size=8),
    limits=limits(),
    blocks=st.integers(5, 24),
    prefix_caching=st.booleans(),
    rightness=st.sampled_from([None, 0.0, 0.6, 0.9, 1.0]),
    states=st.booleans(),
    kept_states=st.integers(0, 9),
)
def test_tokens_depend_on_the_request_alone(
    requests: list[Plan],
    limits: StepLimits,
    blocks: int,
    prefix_caching: bool,
    rightness: float | None,
    states: bool,
    kept_states: int,
) -> None:
    kept, slots = (kept_states, limits.running + 2) if states else (0, 0)
    executor = HistoryExecutor(blocks, MAX_MODEL_LEN, states=slots, kept_states=kept)
    speculation = None if rightness is None else told(rightness)
    client = Client(
        executor, limits, speculation=speculation, prefix_caching=prefix_caching, priorities=True,
        shares_blocks=kept > 0 or not states,
    )  # fmt: skip

    for step in range(40):
        for i, plan in enumerate(requests):
            if plan.arrives == step:
                submit(client, str(i), plan)
            if plan.leaves is not None and plan.leaves == step - plan.arrives:
                client.abort(str(i))
        client.step()
    client.finish()

    assert max(executor.steps, default=0) <= limits.step_tokens
    assert client.loop.scheduler.blocks.used == 0
    assert client.refused == {}
    for i, plan in enumerate(requests):
        for index in range(plan.n):
            check_output(client, str(i), plan, index)


def submit(client: Client, request_id: str, plan: Plan) -> None:
    client.submit(
        request_id,
        plan.prompt,
        max_tokens=plan.max_tokens,
        temperature=plan.temperature,
        seed=plan.seed,
        n=plan.n,
        priority=plan.priority,
        cache_salt=plan.salt,
        logprobs=2,
        prompt_logprobs=1 if plan.scored else None,
    )


def check_output(client: Client, request_id: str, plan: Plan, index: int) -> None:
    """All tokens if the client stayed, else the first ones."""
    right = expected(plan.prompt, plan.max_tokens, temperature=plan.temperature, seed=plan.seed, index=index)
    output = client.outputs.get((request_id, index))
    tokens = output.token_ids if output else []
    assert tokens == right[: len(tokens)]
    if plan.leaves is None:
        assert output is not None
        assert tokens == right
        assert output.finish_reason == "length"
    if output and index == 0 and plan.scored:
        scored = output.messages[0].prompt_logprobs
        assert scored is not None
        assert [entry and entry[0].token_id for entry in scored] == [None, *plan.prompt[1:]]
    found = [entry[0].token_id for message in (output.messages if output else ()) for entry in message.logprobs or ()]
    assert found == tokens
