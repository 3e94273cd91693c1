"""A draft model over the same blocks: what it has of them stays right, whatever becomes of them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.history_executor import HistoryExecutor
from tests.unit.engine.client import Client, expected
from tests.unit.engine.teller import Eager

from forearm.engine.scheduler import StepLimits
from forearm.engine.speculation.draft_model import DraftModel
from forearm.engine.speculation.speculation import Speculation

MAX_MODEL_LEN = 160


def client_of(
    blocks: int, limits: StepLimits, tokens: int, *, step_tokens: int = 64, draft_len: int = MAX_MODEL_LEN
) -> Client:
    """An engine whose draft model is the same model: all it says greedily is right, if its keys and values are."""
    draft = DraftModel(HistoryExecutor(blocks, draft_len), step_tokens)
    return Client(HistoryExecutor(blocks, MAX_MODEL_LEN), limits, speculation=Speculation(draft, tokens, Eager()))


@settings(max_examples=60, deadline=None)
@given(
    prompts=st.lists(
        st.tuples(st.integers(0, 10), st.sampled_from([0, 31, 32, 33, 64]), st.integers(0, 3), st.integers(1, 60)),
        min_size=1,
        max_size=8,
    ),
    step_tokens=st.integers(8, 90),
    draft_tokens=st.integers(3, 90),
    blocks=st.integers(5, 24),
    tokens=st.integers(1, 9),
)
def test_its_drafts_are_right_whatever_becomes_of_blocks(
    prompts: list[tuple[int, int, int, int]], step_tokens: int, draft_tokens: int, blocks: int, tokens: int
) -> None:
    client = client_of(blocks, StepLimits(step_tokens, 4, 24), tokens, step_tokens=draft_tokens)
    for step in range(12):
        for i, (arrives, shared, last, count) in enumerate(prompts):
            if arrives == step:
                client.submit(str(i), [7] * shared + [last], max_tokens=count, temperature=0)
        client.step()
    client.finish()

    for i, (_, shared, last, count) in enumerate(prompts):
        assert client.tokens(str(i)) == expected([7] * shared + [last], count)
    drafted = client.metric("vllm:spec_decode_num_draft_tokens_total{")
    assert client.metric("vllm:spec_decode_num_accepted_tokens_total{") == drafted


def test_a_prompt_that_is_long_for_it_is_computed_over_several_steps() -> None:
    client = client_of(16, StepLimits(128, 4, 24), 3, step_tokens=20)
    client.submit("a", [7] * 70, max_tokens=12, temperature=0)
    client.finish()

    lengths = [len(message.token_ids) for message in client.outputs["a", 0].messages]
    assert client.tokens("a") == expected([7] * 70, 12)
    assert lengths == [1, 1, 1, 1, 4, 4]  # no drafts in the prompt's step; then 20 tokens of the prompt a step


def test_beyond_its_own_context_it_says_nothing() -> None:
    client = client_of(16, StepLimits(128, 4, 24), 4, draft_len=40)
    client.submit("a", [7] * 30, max_tokens=40, temperature=0)
    client.finish()

    lengths = [len(message.token_ids) for message in client.outputs["a", 0].messages]
    assert client.tokens("a") == expected([7] * 30, 40)
    assert lengths[:2] == [5, 5]
    assert set(lengths[3:]) == {1}
