"""The real executor on the demo model: whatever else goes on, a request gives the same tokens and log-probabilities,
bit for bit, as it gives alone.

What it is compared with: each request alone, its prompt in one piece, one thread, nothing cached.
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from typing import Any

import pytest

from forearm import wire
from forearm.config import engine_config
from forearm.engine.blocks import blocks_for
from forearm.engine.loop import EngineLoop
from forearm.engine.messages import From
from forearm.engine.start import start

MAX_MODEL_LEN = 192
REQUESTS = 33
MAX_TOKENS = 12
# Around the edges of blocks (32) and of attention's chunks.
PROMPT_LENGTHS = (1, 2, 5, 31, 32, 33, 63, 64, 65, 100, 129, 150)

# All that a client gets of an output, floats too, by message: token ids, logprobs, prompt_logprobs, finish_reason.
Answer = list[tuple[Any, ...]]
Answers = dict[tuple[str, int], Answer]


def engine(threads: int = 2, **settings: Any) -> EngineLoop:
    """A fresh engine on the demo model."""
    config = engine_config(max_model_len=MAX_MODEL_LEN, **{"max_num_seqs": REQUESTS, **settings})
    return start(replace(config, threads=threads), queued=sys.maxsize, progress=False)


def requests(vocab_size: int) -> list[wire.Submit]:
    """Greedy and seeded ones, with penalties, several outputs and log-probabilities; some begin alike."""
    draw = random.Random(0)
    common = [draw.randrange(vocab_size) for _ in range(max(PROMPT_LENGTHS))]
    made = []
    for i in range(REQUESTS):
        length = PROMPT_LENGTHS[i % len(PROMPT_LENGTHS)]
        shared = draw.choice([0, length // 2, length - 1])
        prompt = common[:shared] + [draw.randrange(vocab_size) for _ in range(length - shared)]
        params = wire.SamplingParams(
            n=2 if i % 7 == 1 else 1,
            max_tokens=MAX_TOKENS,
            ignore_eos=True,
            temperature=0.9 if i % 2 or i % 7 == 1 else 0.0,
            top_p=0.95 if i % 4 == 1 else 1.0,
            top_k=20 if i % 3 == 1 else 0,
            seed=i,
            presence_penalty=0.5 if i % 5 == 0 else 0.0,
            repetition_penalty=1.2 if i % 6 == 0 else 1.0,
            logprobs=3,
            prompt_logprobs=1 if i % 8 == 0 else None,
        )
        made.append(wire.Submit(request_id=str(i), prompt_token_ids=prompt, params=params))
    return made


def answers(loop: EngineLoop, submits: list[wire.Submit]) -> Answers:
    """Everything at once, stepped to the end."""
    for submit in submits:
        loop.take(From(0, submit))
    found: Answers = {}
    while loop.busy:
        loop.step()
        for _, message in loop.outbox:
            assert not isinstance(message, wire.Refused), message.message
            if isinstance(message, wire.Tokens):
                got = (message.token_ids, message.logprobs, message.prompt_logprobs, message.finish_reason)
                found.setdefault((message.request_id, message.index), []).append(got)
        loop.outbox = []
    assert loop.scheduler.blocks.used == 0
    return found


@pytest.fixture(scope="module")
def submits() -> list[wire.Submit]:
    return requests(engine().executor.vocab_size)


@pytest.fixture(scope="module")
def alone(submits: list[wire.Submit]) -> Answers:
    """What each request gives by itself."""
    loop = engine(threads=1, enable_prefix_caching=False)
    found: Answers = {}
    for submit in submits:
        found.update(answers(loop, [submit]))
    assert len(found) == sum(submit.params.n for submit in submits)
    assert all(len(answer) == MAX_TOKENS for answer in found.values())
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


def test_put_out_and_resumed(submits: list[wire.Submit], alone: Answers) -> None:
    block_bytes = engine().executor.block_bytes  # type: ignore[attr-defined]
    few = blocks_for(MAX_MODEL_LEN)
    loop = engine(kv_cache_memory_bytes=few * block_bytes)

    assert answers(loop, submits) == alone
    assert loop.executor.blocks == few
    assert loop.scheduler.preemptions >= 3


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_in_other_dtypes_too(dtype: str, submits: list[wire.Submit]) -> None:
    assert_in_company_as_alone(submits, dtype=dtype)


@pytest.mark.parametrize("kv_cache_dtype", ["int8", "fp8", "fp8_e5m2"])
def test_with_a_kv_cache_of_8_bits_too(kv_cache_dtype: str, submits: list[wire.Submit], alone: Answers) -> None:
    assert assert_in_company_as_alone(submits, kv_cache_dtype=kv_cache_dtype) != alone  # else it was not 8 bits


def assert_in_company_as_alone(submits: list[wire.Submit], **settings: str) -> Answers:
    loop = engine(threads=1, enable_prefix_caching=False, **settings)
    alone: Answers = {}
    for submit in submits:
        alone.update(answers(loop, [submit]))

    together = answers(engine(max_num_batched_tokens=50, **settings), submits)

    assert together == alone
    return alone
