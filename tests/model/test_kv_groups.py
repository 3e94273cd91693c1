"""Models whose layers, some or all, have a window, through the engine: blocks behind the window are freed, and tokens
are those of a cache that keeps all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.e2e.test_speculation import Eager, drafts_of
from tests.model.transformers_types import VOCABULARY, save_tiny, save_words
from transformers import AutoModelForCausalLM, PreTrainedModel

from forearm import LLM, SamplingParams
from forearm.config.engine_config import EngineConfig
from forearm.engine.cache.kv_groups import ONE_GROUP
from forearm.engine.host.memory_plan import fit
from forearm.engine.host.placement import Memory
from forearm.engine.speculation.draft_length import Gain

BOX = Memory(1 << 33, 1 << 33, "a box")
WINDOW, LENGTH = 40, 1024
# Five layers with a window and two without.
KINDS = ["sliding_attention"] * 3 + ["full_attention"] + ["sliding_attention"] * 2 + ["full_attention"]
_ENTRIES = ["compressed_sparse_attention", "heavily_compressed_attention", "sliding_attention"]
TYPES: dict[str, dict[str, Any]] = {
    "gemma3_text": {},
    "gpt_oss": {},
    # Layers that see all have other heads, and two layers read the keys of earlier ones.
    "gemma4_text": {
        "num_kv_shared_layers": 2,
        "global_head_dim": 64,
        "num_hidden_layers": 9,
        "layer_types": [*KINDS, *KINDS[-2:]],
    },
    "cohere2": {},
    # All layers have the window.
    "mistral": {"layer_types": KINDS[:1] * 7},
    "starcoder2": {"layer_types": KINDS[:1] * 7},
    # Layers keep states, too: others than those that attend, of which all have the window, or some; or the same.
    "recurrent_gemma": {"attention_window_size": WINDOW, "layer_types": None},
    "lfm3": {"layer_types": ["conv", *KINDS[:5], "conv"]},
    "inkling_text": {
        "sliding_window_size": WINDOW,
        "layer_types": ["hybrid_sliding" if kind == KINDS[0] else "hybrid" for kind in KINDS],
        "mlp_layer_types": ["dense"] + ["sparse"] * 6,
    },
    "zaya": {"layer_types": ["hybrid_sliding" if kind == KINDS[0] else "hybrid" for kind in KINDS]},
    # Entries that stand for several tokens lie beside keys of the window.
    "deepseek_v4": {
        "layer_types": [*_ENTRIES, *_ENTRIES, *_ENTRIES[:1]],
        "mlp_layer_types": ["hash_moe"] + ["moe"] * 6,
    },
}


WITH_STATES = ("recurrent_gemma", "lfm3", "inkling_text", "zaya", "deepseek_v4")


def made(model_type: str, folder: Path) -> PreTrainedModel:
    """Write a random model with windows of 40 tokens in all of its layers that attend, or in some of them."""
    changes = {
        "num_hidden_layers": 7,
        "layer_types": KINDS,
        "sliding_window": WINDOW,
        "max_position_embeddings": LENGTH,
    }
    own = changes | TYPES[model_type]
    return save_tiny(model_type, folder, **{name: value for name, value in own.items() if value is not None})


@pytest.fixture(scope="module", params=list(TYPES))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    made(request.param, path)
    save_words(path)
    return path


def tokens_of(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, VOCABULARY - 4, count).tolist()


SHARED = tokens_of(1, 300)
PROMPTS = [
    SHARED + tokens_of(2, 70),
    SHARED + tokens_of(3, 9),
    tokens_of(4, 200),
    SHARED[:150] + tokens_of(5, 100),
    *([word] for word in range(5, 8)),
]


def served(folder: Path, **settings: Any) -> tuple[list[list[int]], LLM]:
    """Two outputs of each prompt, all at once, and again: the second time from the prefix cache where there is one."""
    llm = LLM(str(folder), dtype="float32", max_model_len=LENGTH, **({"threads": 1} | settings))
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=50, n=2, ignore_eos=True, detokenize=False)
    found = []
    for _ in range(2):
        answers = llm.generate([{"prompt_token_ids": one} for one in PROMPTS], params, use_tqdm=False)
        found += [list(one.token_ids) for answer in answers for one in answer.outputs]
    return found, llm


@pytest.fixture(scope="module")
def wanted(folder: Path) -> list[list[int]]:
    """Return the tokens with prompts computed whole, one sequence at a time, from a cache that keeps all."""
    found, llm = served(folder, max_num_seqs=1, enable_chunked_prefill=False, enable_prefix_caching=False)
    assert llm._loop.scheduler.blocks.groups == ONE_GROUP
    return found


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_seqs": 7, "max_num_batched_tokens": 7, "enable_prefix_caching": False},
        {"max_num_seqs": 12, "max_num_batched_tokens": 100, "threads": 2},
        {"max_num_seqs": 12, "max_num_batched_tokens": 64, "speculative_config": {"method": "ngram"}},
        {"max_num_seqs": 12, "max_num_batched_tokens": 64, "threads": 2, "tensor_parallel_size": 2},
    ],
    ids=["in chunks", "together", "drafts", "ranks"],
)
def test_a_window_gives_the_same_tokens(folder: Path, wanted: list[list[int]], settings: dict[str, Any]) -> None:
    found, llm = served(folder, **settings)

    assert found == wanted
    assert llm._loop.scheduler.blocks.groups.reach == WINDOW


@pytest.mark.parametrize("folder", [one for one in TYPES if one not in WITH_STATES], indirect=True)
def test_a_draft_model_as_large_as_the_model_keeps_all(folder: Path, wanted: list[list[int]]) -> None:
    """Each page of a group would have room for its keys, too, which takes more than freed blocks save."""
    drafts = {"model": str(folder), "num_speculative_tokens": 3}

    found, llm = served(folder, max_num_seqs=12, max_num_batched_tokens=32, speculative_config=drafts)

    assert found == wanted
    assert llm._loop.scheduler.blocks.groups == ONE_GROUP


def test_a_draft_model_finds_its_keys_beside_windows(tmp_path: Path) -> None:
    """All layers but one, which has no window, add nothing; this one alone is the draft model, and always right."""
    only = KINDS.index("full_attention")
    model = made("gemma3_text", tmp_path / "model")
    for i, layer in enumerate(model.model.layers):
        if i != only:
            torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
            torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    model.save_pretrained(tmp_path / "model")
    model.config.num_hidden_layers, model.config.layer_types = 1, ["full_attention"]
    small = AutoModelForCausalLM.from_config(model.config).float()
    values = model.state_dict()
    small.load_state_dict({name: values[name.replace("layers.0.", f"layers.{only}.")] for name in small.state_dict()})
    small.save_pretrained(tmp_path / "small")
    for folder in (tmp_path / "model", tmp_path / "small"):
        save_words(folder)
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True, detokenize=False)
    found = []
    for drafts in (None, {"model": str(tmp_path / "small"), "num_speculative_tokens": 3}):
        llm = LLM(
            str(tmp_path / "model"), dtype="float32", max_model_len=LENGTH, threads=1, max_num_seqs=4,
            max_num_batched_tokens=32, speculative_config=drafts,
        )  # fmt: skip
        llm._loop._speculation._gain = Eager()
        answers = [
            llm.generate([{"prompt_token_ids": one} for one in PROMPTS], params, use_tqdm=False) for _ in range(2)
        ]
        found.append([list(one.outputs[0].token_ids) for again in answers for one in again])

    assert found[1] == found[0]
    assert llm._loop.scheduler.blocks.groups.reach == WINDOW
    drafted, accepted = drafts_of(llm._loop)
    assert drafted == accepted > 100


@pytest.mark.parametrize("folder", WITH_STATES, indirect=True)
def test_states_are_taken_back_beside_windows(
    folder: Path, wanted: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Draft in each step, wrongly for the most part: the tokens that followed the last one before."""
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 2}
    monkeypatch.setattr(Gain, "lengths", Eager.lengths)

    found, llm = served(folder, max_num_seqs=12, max_num_batched_tokens=64, speculative_config=drafts)

    assert found == wanted
    assert llm._loop.scheduler.blocks.groups.reach == WINDOW
    drafted, accepted = drafts_of(llm._loop)
    assert drafted > 2 * accepted


def test_preempted_sequences_give_the_same_tokens(folder: Path, wanted: list[list[int]]) -> None:
    """The cache holds the longest sequence and not more."""
    settings = {"max_num_seqs": 8, "max_num_batched_tokens": 64}
    config = EngineConfig(dtype="float32", max_model_len=LENGTH, **settings)
    planned = fit(config, folder, BOX, 2)
    size = planned.limits.groups.blocks(LENGTH) * planned.block_bytes

    found, llm = served(folder, **settings, kv_cache_memory_bytes=size)

    assert found == wanted
    assert llm._loop.scheduler.preemptions > 0


def test_blocks_behind_the_window_are_freed_and_a_prefix_is_found_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = LLM(
        str(folder), dtype="float32", max_model_len=LENGTH, threads=2, max_num_seqs=4, max_num_batched_tokens=32,
        state_cache_slots=64 if folder.name.startswith(WITH_STATES) else None,
    )  # fmt: skip
    blocks = llm._loop.scheduler.blocks
    groups = blocks.groups
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, detokenize=False)
    used: list[int] = []
    step = llm._loop.step
    monkeypatch.setattr(llm._loop, "step", lambda: (step(), used.append(blocks.used)))
    long = tokens_of(9, 900)

    (first,) = llm.generate({"prompt_token_ids": long}, params, use_tqdm=False)
    (again,) = llm.generate({"prompt_token_ids": long[:640] + tokens_of(8, 30)}, params, use_tqdm=False)

    assert first.num_cached_tokens == 0
    assert again.num_cached_tokens == 640
    assert max(used) <= groups.blocks(904) < 0.5 * groups.count * 29


@pytest.mark.parametrize(("model_type", "windowed"), [("gemma3_text", 5), ("mistral", 1), ("starcoder2", 1)])
def test_tokens_are_those_of_transformers(model_type: str, windowed: int, tmp_path: Path) -> None:
    model = made(model_type, tmp_path)
    save_words(tmp_path)
    prompt = tokens_of(6, 330)
    out = model.generate(torch.tensor([prompt]), max_new_tokens=64, do_sample=False, eos_token_id=None, pad_token_id=0)
    params = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True, detokenize=False)

    llm = LLM(
        str(tmp_path), dtype="float32", max_model_len=LENGTH, threads=2, max_num_seqs=4, max_num_batched_tokens=64
    )
    (answer,) = llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)

    assert llm._loop.scheduler.blocks.groups.windowed == windowed
    assert list(answer.outputs[0].token_ids) == out[0, 330:].tolist()
