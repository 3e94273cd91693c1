"""The real executor with drafts: the same tokens and log-probabilities, bit for bit, as without; and fewer steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.e2e.company import REQUESTS, Answers, answers, engine, requests
from tests.model.cases import Case
from tests.model.made_cases import make

import forearm
from forearm import wire
from forearm.engine.cache.blocks import BlockPool
from forearm.engine.loop import EngineLoop
from forearm.engine.sequence import Sequence
from forearm.engine.speculation.draft_length import Gain
from forearm.engine.speculation.ngrams import Ngrams
from forearm.engine.speculation.speculation import Speculation
from forearm.errors import ConfigError
from forearm.model.checkpoint.hub import find_model

DEMO = find_model("")
SMALLER = {"method": "draft_model", "model": str(DEMO), "quantization": "int4", "num_speculative_tokens": 4}


class Eager(Gain):
    """Speculation that takes every available draft, whatever it costs."""

    def lengths(self, tokens: int, shares: Any, available: Any, round_s: float) -> list[int]:
        return list(available)


class Knowing:
    """A drafter that knows the answer, and is wrong at every `errs`-th position."""

    round_s = 0.0

    def __init__(self, said: dict[tuple[str, int], list[int]], errs: int) -> None:
        self._said, self._errs = said, errs

    def available(self, sequence: Sequence, most: int) -> int:
        return most

    def draft(self, wanted: Any, blocks: BlockPool) -> list[list[int]]:
        return [self._after(sequence)[:count] for sequence, count in wanted]

    def _after(self, sequence: Sequence) -> list[int]:
        said = self._said[sequence.request.request_id, sequence.index]
        return [token + (i % self._errs == 0) for i, token in enumerate(said)][sequence.output_length :]


def eager(loop: EngineLoop, drafter: Any, tokens: int = 5) -> EngineLoop:
    """Return the engine with this drafter, all of whose drafts are taken."""
    loop._speculation = Speculation(drafter, tokens, Eager())
    return loop


def speculating(**settings: Any) -> EngineLoop:
    """An engine with rows of logits for drafts."""
    return engine(**{"speculative_config": {"method": "ngram", "num_speculative_tokens": 5}, **settings})


@pytest.fixture(scope="module")
def submits() -> list[wire.Submit]:
    return requests(engine()._stepper.executor.vocab_size)


@pytest.fixture(scope="module")
def plain(submits: list[wire.Submit]) -> Answers:
    """Return the answers without drafts."""
    return answers(engine(enable_prefix_caching=False), submits)


@pytest.fixture(scope="module")
def said(plain: Answers) -> dict[tuple[str, int], list[int]]:
    return spoken(plain)


def spoken(found: Answers) -> dict[tuple[str, int], list[int]]:
    """Return the tokens alone."""
    return {key: [one[0] for one in answer if isinstance(one[0], int)] for key, answer in found.items()}


def drafts_of(loop: EngineLoop) -> tuple[float, float]:
    """Return the number of drafted tokens and of accepted ones."""
    name = "vllm:spec_decode_num_{}_tokens_total"
    lines = [line for line in loop.meter.text().splitlines() if "spec_decode" in line]
    drafted, accepted = (
        next(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name.format(which)))
        for which in ("draft", "accepted")
    )
    return drafted, accepted


@pytest.mark.parametrize("errs", [1000, 3, 1])
@pytest.mark.parametrize(
    "settings", [{}, {"max_num_seqs": 3, "max_num_batched_tokens": 33}, {"kv_cache_dtype": "int8"}]
)
def test_drafts_right_and_wrong_change_nothing(
    errs: int, settings: dict[str, Any], submits: list[wire.Submit], plain: Answers
) -> None:
    right = plain
    if "kv_cache_dtype" in settings:
        right = answers(engine(enable_prefix_caching=False, **settings), submits)
    loop = eager(speculating(**settings), Knowing(spoken(right), errs))

    assert answers(loop, submits) == right
    drafted, accepted = drafts_of(loop)
    assert drafted > 100
    assert (accepted > 0) == (errs > 1)


@pytest.mark.parametrize("batch", [1, 2, 5, 8, 16, 32])
def test_in_any_batch(
    batch: int, submits: list[wire.Submit], plain: Answers, said: dict[tuple[str, int], list[int]]
) -> None:
    loop = eager(speculating(), Knowing(said, 4))
    for first in range(0, REQUESTS, batch):
        for key, answer in answers(loop, submits[first : first + batch]).items():
            assert answer == plain[key], key


def test_looked_up_drafts_too(submits: list[wire.Submit], plain: Answers) -> None:
    loop = eager(speculating(), Ngrams(1, 3))

    cold, hot = answers(loop, submits), answers(loop, submits)

    assert cold == hot == plain
    assert drafts_of(loop)[0] > 100


def test_preempted_and_resumed(
    submits: list[wire.Submit], plain: Answers, said: dict[tuple[str, int], list[int]]
) -> None:
    block_bytes = engine()._stepper.executor.block_bytes  # type: ignore[attr-defined]
    loop = eager(speculating(kv_cache_memory_bytes=6 * block_bytes), Knowing(said, 3))

    assert answers(loop, submits) == plain
    assert loop.scheduler.preemptions >= 3


def test_a_smaller_model_drafts(submits: list[wire.Submit], plain: Answers) -> None:
    loop = engine(speculative_config=SMALLER)
    loop._speculation._gain = Eager()

    cold, hot = answers(loop, submits), answers(loop, submits)

    assert cold == hot == plain
    drafted, accepted = drafts_of(loop)
    assert drafted > 500
    assert accepted > 0.2 * drafted  # four bits of the same weights


def test_a_smaller_model_whose_outputs_are_preempted(submits: list[wire.Submit], plain: Answers) -> None:
    block_bytes = engine()._stepper.executor.block_bytes  # type: ignore[attr-defined]
    loop = engine(speculative_config=SMALLER, kv_cache_memory_bytes=12 * block_bytes, max_num_batched_tokens=64)
    loop._speculation._gain = Eager()

    assert answers(loop, submits) == plain
    assert loop.scheduler.preemptions >= 3
    assert drafts_of(loop)[1] > 0


def test_the_model_itself_as_its_draft_model_is_right_wherever_it_is_greedy() -> None:
    loop = engine(speculative_config={"model": str(DEMO), "num_speculative_tokens": 4}, max_model_len=512)
    loop._speculation._gain = Eager()
    params = wire.SamplingParams(temperature=0.0, max_tokens=101, ignore_eos=True)

    answers(loop, [wire.Submit(request_id="a", prompt_token_ids=list(range(300)), params=params)])

    drafted, accepted = drafts_of(loop)
    assert drafted == accepted == 80  # in 20 steps, with the prompt's token


def test_a_draft_model_of_another_vocabulary_is_refused_by_name(tmp_path: Path) -> None:
    make(Case("small", "LlamaConfig"), tmp_path)

    with pytest.raises(ConfigError, match=r"has a vocabulary of \d+ tokens, the model one of"):
        engine(speculative_config={"model": str(tmp_path)})


def test_its_memory_is_counted() -> None:
    plain_engine, drafting = (
        engine(kv_cache_memory_bytes=1 << 24),
        engine(kv_cache_memory_bytes=1 << 24, speculative_config=SMALLER),
    )

    blocks = [loop._stepper.executor.blocks for loop in (drafting, plain_engine)]
    assert blocks[0] == blocks[1] // 2  # the same shape, so as many bytes again


def test_offline_answers_are_the_same(tmp_path: Path) -> None:
    prompts = ["a river, a lake, a river, a lake, a river,", "red and blue and red and blue and"]
    params = forearm.SamplingParams(temperature=0.0, max_tokens=60, stop=["lake"], logprobs=1, ignore_eos=True)
    found = []
    for speculative in (None, {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3}):
        llm = forearm.LLM(max_model_len=512, speculative_config=speculative, kv_cache_memory_bytes=1 << 24)
        if speculative:
            llm._loop._speculation._gain = Eager()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        found.append([(one.outputs[0].token_ids, one.outputs[0].text, one.outputs[0].logprobs) for one in outputs])

    assert found[0] == found[1]
