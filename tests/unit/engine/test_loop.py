"""One step after another: what clients are told, and what the engine keeps."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from tests.history_executor import HistoryExecutor, log_softmax, logits_after
from tests.unit.engine.client import Client, expected

from forearm.engine.inbox import Disconnected, Drain, Inbox, Outward, Received, Stop
from forearm.engine.loop import MAX_FAILED_STEPS
from forearm.engine.scheduler import StepLimits
from forearm.errors import EngineFailed
from forearm.wire import SamplingParams, Submit, Tokens


def test_a_request_is_accepted_before_anything_is_computed() -> None:
    client = Client()

    client.loop.take(Received(0, submit("a", [1, 2])))

    (connection, message), *rest = client.loop.outbox
    assert (connection, type(message).__name__, rest) == (0, "Accepted", [])


def test_tokens_come_one_a_step_and_end_with_length() -> None:
    client = Client()
    client.submit("a", [1, 2, 3], max_tokens=3, temperature=0)

    client.finish()

    messages = client.outputs["a", 0].messages
    assert [message.token_ids for message in messages] == [[token] for token in expected([1, 2, 3], 3)]
    assert [message.finish_reason for message in messages] == [None, None, "length"]
    assert [message.cached_tokens for message in messages] == [0, None, None]


def test_the_models_end_token_stops_the_output_and_is_its_last_token() -> None:
    right = expected([1, 2, 3], 6)
    client = Client(eos_token_ids=(right[2],))
    client.submit("a", [1, 2, 3], max_tokens=6, temperature=0)

    client.finish()

    output = client.outputs["a", 0]
    assert (output.token_ids, output.finish_reason, output.stop_reason) == (right[:3], "stop", None)


def test_ignore_eos_goes_on() -> None:
    right = expected([1, 2, 3], 6)
    client = Client(eos_token_ids=(right[2],))
    client.submit("a", [1, 2, 3], max_tokens=6, temperature=0, ignore_eos=True)

    client.finish()

    assert client.tokens("a") == right


def test_a_stop_token_id_stops_the_output_and_is_its_stop_reason() -> None:
    right = expected([1, 2, 3], 6)
    client = Client()
    client.submit("a", [1, 2, 3], max_tokens=6, temperature=0, stop_token_ids=[right[1]])

    client.finish()

    output = client.outputs["a", 0]
    assert (output.token_ids, output.finish_reason, output.stop_reason) == (right[:2], "stop", right[1])


def test_min_tokens_forbids_every_end_until_then() -> None:
    ends = list(range(25, 50))
    client = Client(eos_token_ids=tuple(ends[:5]))
    client.submit("a", [1, 2, 3], max_tokens=60, min_tokens=20, temperature=0, stop_token_ids=ends[5:])

    client.finish()

    tokens = client.tokens("a")
    assert not set(tokens[:20]) & set(ends)
    assert tokens[-1] in ends  # half of the vocabulary are end tokens, so it ends soon after


def test_logit_bias_is_clamped_and_added() -> None:
    client = Client()
    client.submit("a", [1], max_tokens=4, temperature=0, logit_bias={9: 1000.0})

    client.finish()

    assert client.tokens("a") == [9, 9, 9, 9]


def test_allowed_token_ids_forbid_all_others() -> None:
    client = Client()
    client.submit("a", [1], max_tokens=30, temperature=0, allowed_token_ids=[4, 5])

    client.finish()

    assert set(client.tokens("a")) == {4, 5}


def test_a_bad_word_is_never_completed() -> None:
    first, second = expected([1, 2, 3], 2)
    client = Client()
    client.submit("a", [1, 2, 3], max_tokens=40, temperature=0, bad_words_token_ids=((first, second), (17,)))

    client.finish()

    tokens = client.tokens("a")
    assert tokens[0] == first
    assert (first, second) not in list(pairwise(tokens))
    assert 17 not in tokens


def test_logprobs_are_of_the_raw_logits_and_alternatives_come_best_first() -> None:
    client = Client()
    client.submit("a", [1, 2], max_tokens=1, temperature=0, logprobs=3, logit_bias={0: 100.0})

    client.finish()

    (message,) = client.outputs["a", 0].messages
    assert message.logprobs is not None
    chosen, *others = message.logprobs[0]
    right = log_softmax(logits_after([1, 2], 50))
    assert chosen.token_id == 0
    assert chosen.logprob == pytest.approx(float(right[0]))
    assert [one.token_id for one in others] == np.argsort(-right)[:3].tolist()
    assert [one.rank for one in others] == [1, 2, 3]


def test_prompt_logprobs_are_the_same_in_one_piece_in_chunks_and_with_a_hot_cache() -> None:
    prompt = list(range(40)) + [3] * 40
    found = []
    for limits in (StepLimits(128, 2, 128), StepLimits(16, 2, 7)):
        client = Client(limits=limits)
        for name in ("cold", "hot"):
            client.submit(name, prompt, max_tokens=2, temperature=0, prompt_logprobs=2)
            client.finish()
            found.append(client.outputs[name, 0].messages[0].prompt_logprobs)

    first = found[0]
    assert first is not None
    assert first[0] is None
    assert [entry[0].token_id for entry in first[1:] if entry] == prompt[1:]
    for position, entry in enumerate(first[1:], start=1):
        right = log_softmax(logits_after(prompt[:position], 50))
        assert entry is not None
        assert entry[0].logprob == pytest.approx(float(right[prompt[position]]))
    assert found == [first] * 4


def test_the_whole_vocabulary_can_be_asked_for_where_there_is_no_limit() -> None:
    client = Client(alternatives=-1)
    client.submit("a", [1, 2], max_tokens=1, logprobs=-1, prompt_logprobs=-1)

    client.finish()

    (message,) = client.outputs["a", 0].messages
    assert message.logprobs is not None
    assert message.prompt_logprobs is not None
    assert len(message.logprobs[0]) == len(message.prompt_logprobs[1] or ()) == 1 + 50


def test_a_second_request_finds_the_prompt_in_the_cache_and_answers_the_same() -> None:
    prompt = [5] * 100
    client = Client()
    client.submit("cold", prompt, max_tokens=4, temperature=0)
    client.finish()

    client.submit("hot", prompt, max_tokens=4, temperature=0)
    client.finish()

    assert client.tokens("hot") == client.tokens("cold")
    assert client.outputs["hot", 0].messages[0].cached_tokens == 96
    assert client.metric("vllm:prefix_cache_queries_total") == 200
    assert client.metric("vllm:prefix_cache_hits_total") == 96


def test_the_last_token_of_a_prompt_is_computed_even_if_all_of_it_is_known() -> None:
    client = Client()
    for name in ("cold", "hot"):
        client.submit(name, [5] * 64, max_tokens=2, temperature=0)
        client.finish()

    assert client.outputs["hot", 0].messages[0].cached_tokens == 32
    assert client.tokens("hot") == expected([5] * 64, 2)


def test_a_running_sequences_full_blocks_are_shared_before_it_ends() -> None:
    client = Client(limits=StepLimits(32, 4, 4))
    client.submit("first", [5] * 100, max_tokens=4, temperature=0)
    client.step()
    client.step()

    client.submit("second", [5] * 100, max_tokens=4, temperature=0)
    client.finish()

    # 100 computed for the first and 4 for the second, and three of each one's own tokens.
    assert sum(client.executor.steps) == 100 + 4 + 2 * 3


def test_different_salts_and_switched_off_caching_share_nothing() -> None:
    salted = Client()
    salted.submit("a", [5] * 100, max_tokens=1, cache_salt="one")
    salted.finish()
    salted.submit("b", [5] * 100, max_tokens=1, cache_salt="two")
    salted.finish()
    off = Client(prefix_caching=False)
    for name in "ab":
        off.submit(name, [5] * 100, max_tokens=1)
        off.finish()

    assert salted.outputs["b", 0].messages[0].cached_tokens == 0
    assert off.outputs["b", 0].messages[0].cached_tokens == 0
    assert off.metric("vllm:prefix_cache_queries_total") == 0


def test_without_caching_ended_requests_leave_their_blocks_to_the_next_ones() -> None:
    client = Client(prefix_caching=False)
    taken = set[int]()
    for name in "abc":
        client.submit(name, [5] * 70, max_tokens=40, n=2)
        while client.loop.busy:
            client.step()
            taken.update(block for sequence in client.loop.scheduler.running for block in sequence.blocks)

    # Two blocks of the prompt for both, two more of each one's own.
    assert taken == set(range(6))


def test_outputs_of_one_request_differ_and_each_is_what_its_seed_says() -> None:
    client = Client(prefix_caching=False)
    client.submit("a", [5] * 70, max_tokens=5, n=3, seed=11)

    client.finish()

    for index in range(3):
        assert client.tokens("a", index) == expected([5] * 70, 5, temperature=1.0, seed=11, index=index)
    # The prompt once, for the other outputs its last six tokens, and four of each one's own.
    assert sum(client.executor.steps) == 70 + 2 * 6 + 3 * 4
    assert len({tuple(client.tokens("a", index)) for index in range(3)}) == 3


def test_an_abort_frees_the_blocks_before_the_next_step() -> None:
    client = Client()
    client.submit("stays", [1] * 40, max_tokens=50, temperature=0)
    client.submit("leaves", [2] * 40, max_tokens=50, temperature=0)
    client.step()

    client.abort("leaves")

    assert client.loop.scheduler.blocks.used == 2
    client.step()
    assert client.executor.steps[-1] == 1
    client.finish()
    assert client.tokens("stays") == expected([1] * 40, 50)


def test_one_output_can_be_aborted_alone_also_the_first_before_its_prompt_is_done() -> None:
    client = Client(limits=StepLimits(16, 4, 4))
    client.submit("a", [1] * 40, max_tokens=3, n=3, seed=5)
    client.step()

    client.abort("a", index=0)
    client.finish()

    assert ("a", 0) not in client.outputs
    for index in (1, 2):
        assert client.tokens("a", index) == expected([1] * 40, 3, temperature=1.0, seed=5, index=index)


def test_a_closed_connection_aborts_all_that_was_its_and_nothing_else() -> None:
    client = Client()
    client.submit("a", [1], connection=1, max_tokens=9)
    client.submit("b", [1], connection=1, max_tokens=9)
    client.submit("a", [1], connection=2, max_tokens=9)
    client.step()

    client.loop.take(Disconnected(1))

    assert len(client.loop.scheduler.running) == 1
    assert client.metric('vllm:request_success_total{engine="0",finished_reason="abort"') == 2


def test_a_nan_ends_the_request_it_befell_by_name_and_no_other() -> None:
    client = Client(HistoryExecutor())
    client.executor.nan_after = 7
    client.submit("sound", [1, 2], max_tokens=5, temperature=0, allowed_token_ids=[1, 2, 3])
    client.submit("broken", [7] * 40, max_tokens=5)

    client.finish()

    assert client.refused["broken"].error == "EngineFailed"
    assert "request broken: the model's logits after token 40 have a NaN" in client.refused["broken"].message
    assert len(client.tokens("sound")) == 5
    assert client.metric("vllm:corrupted_requests_total") == 1


def test_what_a_broken_request_computed_is_not_shared() -> None:
    client = Client()
    client.executor.nan_after = 7
    client.submit("broken", [1] * 64 + [7], max_tokens=5)
    client.finish()
    client.executor.nan_after = None

    client.submit("next", [1] * 64 + [7], max_tokens=5, temperature=0)
    client.finish()

    assert client.outputs["next", 0].messages[0].cached_tokens == 0


def test_a_failed_step_ends_its_requests_with_the_reason_and_the_engine_goes_on() -> None:
    client = Client()
    client.executor.failures = [RuntimeError("out of luck")]
    client.submit("unlucky", [1], max_tokens=5)

    client.step()
    client.submit("next", [1], max_tokens=5, temperature=0)
    client.finish()

    assert client.refused["unlucky"].error == "EngineFailed"
    assert "request unlucky: the engine failed to compute it: out of luck" in client.refused["unlucky"].message
    assert client.tokens("next") == expected([1], 5)
    assert client.loop.scheduler.blocks.used == 0


def test_failures_in_a_row_end_the_engine() -> None:
    client = Client()
    client.executor.failures = [RuntimeError("broken")] * MAX_FAILED_STEPS
    for i in range(MAX_FAILED_STEPS - 1):
        client.submit(str(i), [1])
        client.step()
    client.submit("last", [1])

    with pytest.raises(EngineFailed, match="3 steps in a row failed; the last one: broken"):
        client.step()


def test_draining_finishes_what_is_open_and_takes_nothing_new() -> None:
    client = Client()
    client.submit("open", [1], max_tokens=5, temperature=0)

    client.loop.take(Drain())
    client.submit("new", [1])
    client.finish()

    assert client.refused["new"].error == "EngineUnavailable"
    assert client.tokens("open") == expected([1], 5)
    assert client.loop.snapshot.draining


class _SmallPages(HistoryExecutor):
    """Has three small pages left, and keeps how many steps there were when it made each huge."""

    def __init__(self) -> None:
        super().__init__()
        self.merged: list[int] = []

    def merge_page(self) -> bool:
        if len(self.merged) == 3:
            return False
        self.merged.append(len(self.steps))
        return True


def test_small_pages_are_made_huge_once_nothing_is_left_to_do() -> None:
    executor, inbox = _SmallPages(), Inbox(1 << 20)
    client = Client(executor)
    params = SamplingParams(temperature=0.0, max_tokens=4)
    inbox.put(Received(0, Submit(request_id="a", prompt_token_ids=[1], params=params)))

    def publish(messages: list[Outward]) -> None:
        if any(isinstance(one, Tokens) and one.finish_reason for _, one in messages):
            assert not executor.merged, "the answer waited for it"
            client.loop.draining = True  # ends the loop without a message, which would come first

    client.loop.run(inbox, publish)

    assert executor.merged == [4, 4, 4]


def test_stopping_tells_every_open_output_that_it_was_aborted() -> None:
    client = Client()
    client.submit("a", [1], max_tokens=5, n=2)
    client.step()

    client.loop.take(Stop())
    client.gather()

    assert client.outputs["a", 0].finish_reason == client.outputs["a", 1].finish_reason == "abort"
    assert not client.loop.busy


def test_requests_without_a_seed_draw_different_ones_and_an_engine_seed_fixes_them() -> None:
    answers = []
    for engine_seed in (1, 1, 2):
        client = Client(seed=engine_seed)
        for name in "ab":
            client.submit(name, [1], max_tokens=8)
        client.finish()
        answers.append((client.tokens("a"), client.tokens("b")))

    assert answers[0] == answers[1] != answers[2]
    assert answers[0][0] != answers[0][1]


def test_metrics_tell_of_every_token_and_request() -> None:
    client = Client()
    client.submit("a", [1, 2, 3], max_tokens=4, temperature=0)
    client.submit("b", [1, 2], max_tokens=2, temperature=0)
    client.step()
    running = client.metric("vllm:num_requests_running{")
    usage = client.metric("vllm:kv_cache_usage_perc{")

    client.finish()

    assert (running, usage) == (2, 2 / 64)
    assert client.metric("vllm:gpu_cache_usage_perc{") == client.metric("vllm:kv_cache_usage_perc{") == 0
    assert client.metric("vllm:prompt_tokens_total{") == 5
    assert client.metric("vllm:generation_tokens_total{") == 6
    assert client.metric('vllm:request_success_total{engine="0",finished_reason="length"') == 2
    for name, count in {
        "time_to_first_token_seconds": 2,
        "inter_token_latency_seconds": 4,
        "time_per_output_token_seconds": 4,
        "request_time_per_output_token_seconds": 2,
        "e2e_request_latency_seconds": 2,
        "request_queue_time_seconds": 2,
        "request_prefill_time_seconds": 2,
        "request_decode_time_seconds": 2,
        "request_inference_time_seconds": 2,
        "request_prompt_tokens": 2,
        "request_generation_tokens": 2,
        "request_params_n": 2,
        "request_params_max_tokens": 2,
        "iteration_tokens_total": 4,
    }.items():
        assert client.metric(f"vllm:{name}_count{{") == count, name
    shape = 'block_size="32",cache_dtype="float32",enable_prefix_caching="True"'
    assert "vllm:cache_config_info{" + shape in client.meter.text()


def test_a_prompt_counts_for_the_rate_as_it_is_computed_and_for_the_metrics_when_it_is_done() -> None:
    client = Client(limits=StepLimits(16, 2, 2))
    client.submit("a", [1] * 40, max_tokens=2)

    rates = []
    while client.loop.busy:
        client.step()
        rates.append((client.meter.prefilled_tokens, client.metric("vllm:prompt_tokens_total{")))

    assert rates == [(16, 0), (32, 0), (40, 40), (40, 40)]


def submit(request_id: str, prompt: list[int]) -> Submit:
    return Submit(request_id=request_id, prompt_token_ids=prompt, params=SamplingParams())
