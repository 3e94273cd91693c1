"""Models whose layers keep states, through the engine: transformers' tokens in chunks, in company, after preemption."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from tests.model.test_transformers_executor import prompt_of
from tests.model.transformers_types import VOCABULARY, reference_tokens, save_tiny
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from forearm import LLM, SamplingParams, _native
from forearm.config.engine_config import EngineConfig
from forearm.engine.host.memory_plan import fit
from forearm.engine.host.placement import Memory
from forearm.errors import ConfigError
from forearm.model.checkpoint.checkpoint import open_checkpoint
from forearm.model.families.config import Mamba2, Mixer, ShortConv

BOX = Memory(1 << 33, 1 << 33, "a box")
SEEDS = range(6)


@pytest.fixture(scope="module", params=["lfm2", "granitemoehybrid"])
def model_type(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(model_type: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tokenizer."""
    made = tmp_path_factory.mktemp(model_type)
    save_tiny(model_type, made)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w3"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w2").save_pretrained(made)
    return made


@pytest.fixture(scope="module")
def wanted(model_type: str, folder: Path) -> list[list[int]]:
    """Return what transformers generates for the prompts, greedily."""
    model = save_tiny(model_type, folder)
    return [reference_tokens(model, prompt_of(seed)) for seed in SEEDS]


def served(folder: Path, **settings: Any) -> tuple[list[list[int]], LLM]:
    """Two outputs of each prompt, all at once."""
    llm = LLM(str(folder), dtype="float32", max_model_len=128, **settings)
    count = len(SEEDS)
    params = SamplingParams(temperature=1.0, top_k=1, max_tokens=16, n=2, ignore_eos=True, detokenize=False)
    answers = llm.generate([{"prompt_token_ids": prompt_of(seed)} for seed in SEEDS], params, use_tqdm=False)
    assert len(answers) == count
    return [list(one.token_ids) for answer in answers for one in answer.outputs], llm


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_seqs": 4, "threads": 1},
        {"max_num_seqs": 3, "threads": 2, "max_num_batched_tokens": 7},
        {"max_num_seqs": 12, "threads": 2, "enable_prefix_caching": True},
    ],
    ids=["in turns", "in chunks", "together"],
)
def test_an_engine_gives_the_tokens_of_generate(
    folder: Path, wanted: list[list[int]], settings: dict[str, Any]
) -> None:
    found, _ = served(folder, **settings)

    assert found == [tokens[:16] for tokens in wanted for _ in range(2)]


def test_a_preempted_sequence_begins_its_state_anew(folder: Path, wanted: list[list[int]]) -> None:
    block = _native.kv_block_bytes(open_checkpoint(folder).config, "float32")

    found, llm = served(folder, max_num_seqs=6, threads=1, kv_cache_memory_bytes=4 * block)

    assert found == [tokens[:16] for tokens in wanted for _ in range(2)]
    assert llm._loop.scheduler.preemptions > 0


def test_the_log_says_that_prefixes_are_not_kept(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "forearm")
    served(folder, max_num_seqs=2, threads=1, enable_prefix_caching=True)

    assert "prefix caching: off, because the model's layers keep a state at one position alone" in caplog.text


def test_speculation_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="keep states, which can't take drafts back"):
        LLM(str(folder), threads=1, speculative_config={"method": "ngram", "num_speculative_tokens": 3})


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_weights_are_quantized_while_loading(folder: Path, quantization: str) -> None:
    found, _ = served(folder, max_num_seqs=4, threads=2, quantization=quantization)

    assert found[::2] == found[1::2]


def test_states_are_in_the_memory_plan_and_attention_alone_has_blocks(folder: Path) -> None:
    planned = fit(EngineConfig(max_num_seqs=5, dtype="float32"), folder, BOX, 1)
    config = planned.checkpoint.config

    kinds = [type(layer.mixer).__name__ for layer in config.layers]
    attention = kinds.count("Attention")
    assert 0 < attention < len(kinds)
    assert planned.block_bytes == attention * 32 * 2 * config.kv_heads * -(-config.head_dim // 16) * 16 * 4
    assert planned.state_bytes == 20 * sum(state_floats(layer.mixer, config.hidden) for layer in config.layers)


def state_floats(mixer: Mixer, hidden: int) -> int:
    """Floats of a tiny model's state: the last rows of a convolution, and the matrices of heads."""
    if isinstance(mixer, ShortConv):
        return (mixer.taps - 1) * hidden
    if isinstance(mixer, Mamba2):
        return (mixer.taps - 1) * mixer.channels + mixer.heads * mixer.head_dim * mixer.state_dim
    return 0
