"""The real executor on the demo model: whatever else goes on, a request gives the same tokens and log-probabilities,
bit for bit, as it gives alone.

What it is compared with: each request alone, its prompt in one piece, one thread, nothing cached.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.e2e.company import MAX_MODEL_LEN, MAX_TOKENS, REQUESTS, Answers, answers, engine, requests

from forearm import wire
from forearm.engine.cache.kv_groups import blocks_for
from forearm.engine.loop import EngineLoop


@pytest.fixture(scope="module")
def submits() -> list[wire.Submit]:
    return requests(engine()._stepper.executor.vocab_size)


@pytest.fixture(scope="module")
def alone(submits: list[wire.Submit]) -> Answers:
    """Return the answer of each request by itself."""
    loop = engine(threads=1, enable_prefix_caching=False)
    found: Answers = {}
    for submit in submits:
        found.update(answers(loop, [submit]))
    assert len(found) == sum(submit.params.n for submit in submits)
    tokens = [[one for one in answer if isinstance(one[0], int)] for answer in found.values()]
    assert all(len(answer) == MAX_TOKENS for answer in tokens)
    return found


@pytest.fixture(scope="module")
def shared_engine() -> EngineLoop:
    return engine(enable_prefix_caching=False)


@pytest.mark.parametrize("batch", range(1, REQUESTS + 1))
def test_in_any_batch(batch: int, submits: list[wire.Submit], alone: Answers, shared_engine: EngineLoop) -> None:
    first = random.Random(batch).randrange(REQUESTS)
    chosen = [submits[(first + i) % REQUESTS] for i in range(batch)]

    for key, answer in answers(shared_engine, chosen).items():
        assert answer == alone[key], key


@pytest.mark.parametrize("budget", [3, 16, 33, 100, 1000])
def test_however_its_prompt_is_cut(budget: int, submits: list[wire.Submit], alone: Answers) -> None:
    loop = engine(max_num_seqs=3, max_num_batched_tokens=budget)

    assert answers(loop, submits) == alone


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_on_any_number_of_threads(threads: int, submits: list[wire.Submit], alone: Answers) -> None:
    assert answers(engine(threads=threads), submits) == alone


def test_with_the_prefix_cache_cold_and_hot(submits: list[wire.Submit], alone: Answers) -> None:
    loop = engine()

    cold = answers(loop, submits)
    before = loop.meter.prompt_tokens_cached
    hot = answers(loop, submits)

    assert cold == alone
    assert hot == alone
    assert loop.meter.prompt_tokens_cached > before  # else the cache was not hot


def test_preempted_and_resumed(submits: list[wire.Submit], alone: Answers) -> None:
    block_bytes = engine()._stepper.executor.block_bytes  # type: ignore[attr-defined]
    few = blocks_for(MAX_MODEL_LEN)
    loop = engine(kv_cache_memory_bytes=few * block_bytes)

    assert answers(loop, submits) == alone
    assert loop._stepper.executor.blocks == few
    assert loop.scheduler.preemptions >= 3


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_in_other_dtypes_too(dtype: str, submits: list[wire.Submit]) -> None:
    assert_in_company_as_alone(submits, dtype=dtype)


@pytest.mark.parametrize("kv_cache_dtype", ["int8", "fp8", "fp8_e5m2"])
def test_with_a_kv_cache_of_8_bits_too(kv_cache_dtype: str, submits: list[wire.Submit], alone: Answers) -> None:
    assert assert_in_company_as_alone(submits, kv_cache_dtype=kv_cache_dtype) != alone  # else it was not 8 bits


def assert_in_company_as_alone(submits: list[wire.Submit], **settings: Any) -> Answers:
    loop = engine(threads=1, enable_prefix_caching=False, **settings)
    alone: Answers = {}
    for submit in submits:
        alone.update(answers(loop, [submit]))

    together = answers(engine(max_num_batched_tokens=50, **settings), submits)

    assert together == alone
    return alone
