"""Prefix caching where layers keep states: where copies are made, which prompts go on from them, what evicts them.

HistoryExecutor checks in every step that each state is that of the position before.
"""

from __future__ import annotations

import random

from tests.history_executor import HistoryExecutor
from tests.unit.engine.client import Client, expected
from tests.unit.engine.teller import told

from forearm.engine.cache.blocks import CUT_TOKENS
from forearm.engine.scheduler import StepLimits


def client_of(kept: int, *, blocks: int = 64, step_tokens: int = 256, running: int = 8) -> Client:
    executor = HistoryExecutor(blocks, 512, states=running, kept_states=kept)
    return Client(executor, StepLimits(step_tokens, running, running))


def words(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(50), k=count)


def ask(client: Client, name: str, prompt: list[int], max_tokens: int = 4, n: int = 1, system_tokens: int = 0) -> int:
    """Return how many tokens of the prompt were not computed; the answer is the one of an engine without a cache."""
    client.submit(name, prompt, max_tokens=max_tokens, temperature=1, seed=7, n=n, system_tokens=system_tokens)
    client.finish()
    for index in range(n):
        assert client.tokens(name, index) == expected(prompt, max_tokens, temperature=1, seed=7, index=index)
    return client.outputs[name, 0].messages[0].cached_tokens or 0


def test_a_prompt_is_cut_at_its_last_full_block_where_the_next_one_goes_on() -> None:
    client = client_of(4)

    assert ask(client, "cold", words(1, 100)) == 0
    assert client.executor.steps == [96, 4, 1, 1, 1]
    assert ask(client, "hot", words(1, 100)) == 96

    assert client.executor.steps[5:] == [4, 1, 1, 1]
    assert client.metric("vllm:prefix_cache_queries_total") == 200
    assert client.metric("vllm:prefix_cache_hits_total") == 96


def test_without_slots_for_copies_prompts_are_not_cut() -> None:
    client = client_of(0)

    assert [ask(client, name, words(1, 100)) for name in "ab"] == [0, 0]
    assert client.executor.steps[:2] == [100, 1]
    assert client.executor.copies == []


def test_a_second_turn_goes_on_at_the_end_of_the_first_answer() -> None:
    client, first = client_of(4), words(1, 70)
    ask(client, "first", first, max_tokens=60)

    assert ask(client, "second", first + client.tokens("first") + words(2, 20)) == 128


def test_a_second_turn_that_leaves_the_answer_out_goes_on_at_the_end_of_the_first_prompt() -> None:
    client, first = client_of(4), words(1, 70)
    ask(client, "first", first, max_tokens=60)

    assert ask(client, "second", first + words(2, 40)) == 64


def test_a_decoding_sequence_has_one_copy() -> None:
    client = client_of(8)

    ask(client, "a", words(1, 70), max_tokens=200)

    targets = [target for _, target in client.executor.copies]
    assert len(targets) == 7  # at 64, 96, ..., 256
    assert len(set(targets)) == 2


def test_prompts_that_leave_each_other_at_a_block_let_the_third_go_on_there() -> None:
    client, system = client_of(8), words(1, 130)

    assert [ask(client, str(i), system + words(2 + i, 40)) for i in range(4)] == [0, 0, 128, 128]
    assert client.executor.steps[:2] == [160, 10]
    assert 128 in client.executor.steps


def test_the_second_chat_goes_on_at_the_end_of_their_system_prompt() -> None:
    client, system = client_of(8), words(1, 130)

    found = [ask(client, str(i), system + words(2 + i, 90), system_tokens=130) for i in range(3)]

    assert found == [0, 128, 128]
    assert client.executor.steps[:3] == [128, 64, 28]
    assert client.executor.steps.count(128) == 1


def test_chats_that_arrive_together_compute_their_system_prompt_once() -> None:
    client, system = client_of(8, step_tokens=400), words(1, 130)
    prompts = [system + words(2 + i, 40) for i in range(6)]
    for i, prompt in enumerate(prompts):
        client.submit(str(i), prompt, max_tokens=1, temperature=0, system_tokens=130)
    client.finish()

    assert sum(client.executor.steps) == 128 + 6 * 42
    for i, prompt in enumerate(prompts):
        assert client.tokens(str(i)) == expected(prompt, 1)


def test_a_long_system_prompt_is_waited_for_over_several_steps() -> None:
    client, system = client_of(2, step_tokens=64), words(1, 250)
    for i in range(3):
        client.submit(str(i), system + words(2 + i, 40), max_tokens=1, temperature=0, system_tokens=250)
    client.finish()

    assert sum(client.executor.steps) == 224 + 3 * (290 - 224)


def test_a_copy_at_the_end_of_a_system_prompt_evicts_the_one_used_least_recently() -> None:
    client, system = client_of(2), words(1, 130)
    for seed in (5, 6):
        ask(client, f"other {seed}", words(seed, 100))

    assert [ask(client, str(i), system + words(2 + i, 50), system_tokens=130) for i in range(2)] == [0, 128]


def test_a_short_system_prompt_cuts_no_prompt() -> None:
    client = client_of(8)

    assert ask(client, "a", words(1, 100), system_tokens=CUT_TOKENS - 1) == 0

    assert client.executor.steps[:2] == [96, 4]


def test_a_system_prompt_that_is_the_whole_prompt_is_cut_at_the_last_full_block() -> None:
    client = client_of(8)

    assert [ask(client, name, words(1, 128), system_tokens=128) for name in "ab"] == [0, 96]


def test_a_beginning_of_prompts_that_arrive_together_is_computed_twice() -> None:
    client, system = client_of(8, step_tokens=400), words(1, 130)
    prompts = [system + words(2 + i, 40) for i in range(6)]
    for i, prompt in enumerate(prompts):
        client.submit(str(i), prompt, max_tokens=1, temperature=0)
    client.finish()

    assert sum(client.executor.steps) == 2 * 128 + 6 * 42
    for i, prompt in enumerate(prompts):
        assert client.tokens(str(i)) == expected(prompt, 1)


def test_short_common_beginnings_delay_no_prompt_by_more_than_a_step() -> None:
    client = client_of(8, step_tokens=400)
    for i in range(6):
        client.submit(str(i), words(1, 40) + words(2 + i, 20), max_tokens=1, temperature=0)
    client.finish()

    assert client.executor.steps == [60, 300]


def test_ends_of_steps_get_a_copy_only_while_a_slot_is_free() -> None:
    client = client_of(3, step_tokens=70)
    ask(client, "long", words(1, 230))

    assert client.executor.steps[:4] == [64, 64, 64, 38]
    assert ask(client, "branch", words(1, 150) + words(2, 20)) == 128
    assert ask(client, "other", words(3, 230)) == 0  # evicts the least recently used states, as many as its end needs
    assert ask(client, "again", words(1, 150) + words(2, 20)) > 0


def test_the_copy_used_least_recently_is_evicted_first() -> None:
    client = client_of(2)
    for name, seed in (("a", 1), ("b", 2)):
        ask(client, name, words(seed, 100))
    assert ask(client, "a again", words(1, 100)) == 96

    ask(client, "c", words(3, 100))

    assert ask(client, "a, third", words(1, 100)) == 96
    assert ask(client, "b again", words(2, 100)) == 0


def test_copies_leave_with_their_blocks() -> None:
    client = client_of(9, blocks=16)
    ask(client, "a", words(1, 100))
    for seed in range(2, 12):
        ask(client, str(seed), words(seed, 200))

    assert ask(client, "a again", words(1, 100)) == 0


def test_forgotten_prefixes_free_their_slots() -> None:
    client = client_of(2)
    ask(client, "a", words(1, 100))
    client.loop.scheduler.blocks.forget_prefixes()

    assert ask(client, "a again", words(1, 100)) == 0
    assert ask(client, "a, third", words(1, 100)) == 96


def test_further_outputs_of_a_prompt_go_on_at_its_last_full_block() -> None:
    client = client_of(4)

    ask(client, "a", words(1, 100), n=3)

    assert client.executor.steps[:3] == [96, 4, 1 + 4 + 4]


def test_a_preempted_sequence_goes_on_at_its_last_full_block() -> None:
    client = client_of(8, blocks=22, running=4)
    prompts = [words(i, 100) for i in range(4)]
    for i, prompt in enumerate(prompts):
        client.submit(str(i), prompt, max_tokens=80, temperature=0)
    client.finish()

    assert client.loop.scheduler.preemptions > 0
    assert sum(client.executor.steps) < sum(len(p) + 80 for p in prompts) + client.loop.scheduler.preemptions * 100
    for i, prompt in enumerate(prompts):
        assert client.tokens(str(i)) == expected(prompt, 80)


def test_wrong_drafts_take_states_back_and_right_ones_are_computed_again_with_the_next_token() -> None:
    prompt, plain = words(1, 40), StepLimits(64, 1, 8)
    executor = HistoryExecutor(16, 256, states=2, kept_states=0)
    client = Client(executor, plain, speculation=told(0.7), shares_blocks=False, prefix_caching=False)
    client.submit("a", prompt, max_tokens=100, temperature=0)
    client.finish()

    assert client.tokens("a") == expected(prompt, 100)
    assert client.metric("vllm:spec_decode_num_accepted_tokens_total") > 30
    assert len(executor.steps) < 80, "a token a step without drafts"
    assert max(executor.steps[1:]) <= 5, "either drafts or tokens once more, not both"
    saved, restored = executor.copies[0]
    assert {slot for copy in executor.copies for slot in copy} == {saved, restored} == {0, 1}


def test_without_a_slot_for_the_states_before_them_no_draft_is_computed() -> None:
    prompt = words(1, 40)
    executor = HistoryExecutor(16, 256, states=1, kept_states=0)
    client = Client(executor, StepLimits(64, 1, 8), speculation=told(1.0), shares_blocks=False, prefix_caching=False)
    client.submit("a", prompt, max_tokens=20, temperature=0)
    client.finish()

    assert client.tokens("a") == expected(prompt, 20)
    assert executor.steps == [40] + [1] * 19
