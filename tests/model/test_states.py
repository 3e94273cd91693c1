"""Models whose layers keep states, through the engine: transformers' tokens in chunks, in company, after preemption,
and from the prefix cache.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.model.rwkv_models import save_rwkv
from tests.model.test_transformers_executor import prompt_of
from tests.model.transformers_types import reference_tokens, save_tiny, save_words

from forearm import LLM, SamplingParams, _native
from forearm.config.engine_config import EngineConfig
from forearm.engine.host.memory_plan import fit
from forearm.engine.host.placement import Memory
from forearm.engine.speculation.draft_length import Gain
from forearm.engine.speculation.speculation import Speculation
from forearm.errors import ConfigError
from forearm.model.checkpoint.checkpoint import open_checkpoint
from forearm.model.families.config import Attention, Layer, ModelConfig
from forearm.model.families.recurrences import (
    CompressedAttention,
    GatedDelta,
    Lightning,
    RgLru,
    SelectiveScan,
    ShortConv,
)
from forearm.model.families.recurrent.time_mixing import Rwkv7

BOX = Memory(1 << 33, 1 << 33, "a box")
SEEDS = range(6)


@pytest.fixture(
    scope="module",
    params=[
        "lfm2",
        "granitemoehybrid",
        "falcon_h1",
        "nemotron_h",
        "mamba2",
        "falcon_mamba",
        "jamba",
        "recurrent_gemma",
        "inkling_text",
        "zamba2",
        "qwen3_next",
        "qwen3_5_text",
        "kimi_linear",
        "deepseek_v4",
        "minimax",
        "bailing_hybrid",
        "qwen4_exp_text",
        "zaya",
        "rwkv7",
    ],
)
def model_type(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(model_type: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tokenizer."""
    made = tmp_path_factory.mktemp(model_type)
    generating(model_type, made)
    save_words(made)
    return made


def generating(model_type: str, folder: Path) -> Callable[[list[int]], list[int]]:
    """Write a tiny model; return what generates its tokens greedily: transformers, or the reference of RWKV-7."""
    if model_type == "rwkv7":
        return save_rwkv(folder)
    model = save_tiny(model_type, folder)
    return lambda prompt: reference_tokens(model, prompt)


@pytest.fixture(scope="module")
def wanted(model_type: str, folder: Path) -> list[list[int]]:
    """Return what transformers generates for the prompts, greedily."""
    generate = generating(model_type, folder)
    return [generate(prompt_of(seed)) for seed in SEEDS]


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


def chat(folder: Path, **settings: Any) -> tuple[list[list[int]], list[int | None]]:
    """Two conversations of three turns, answered together. Returns: all answers, and the cached tokens of each turn."""
    llm = LLM(str(folder), dtype="float32", max_model_len=256, **settings)
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=40, ignore_eos=True, detokenize=False, n=2)
    histories = [prompt_of(seed) * 4 for seed in (1, 2)]
    answers: list[list[int]] = []
    cached: list[int | None] = []
    for turn in range(3):
        outputs = llm.generate([{"prompt_token_ids": one} for one in histories], params, use_tqdm=False)
        answers += [list(one.token_ids) for output in outputs for one in output.outputs]
        cached += [output.num_cached_tokens for output in outputs]
        histories = [
            history + list(output.outputs[turn % 2].token_ids) + prompt_of(10 + turn)
            for history, output in zip(histories, outputs, strict=True)
        ]
    return answers, cached


def test_the_second_chat_goes_on_at_the_end_of_their_system_prompt(folder: Path) -> None:
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=8, ignore_eos=True, detokenize=False)
    system = {"role": "system", "content": in_words(prompt_of(1) * 5)}
    chats = [[system, {"role": "user", "content": in_words(prompt_of(seed))}] for seed in (2, 3)]
    template = "{% for message in messages %}{{ message.content }} {% endfor %}"

    def answered(**settings: Any) -> tuple[list[list[int]], list[int | None]]:
        llm = LLM(str(folder), dtype="float32", max_model_len=256, chat_template=template, threads=1, **settings)
        outputs = [llm.chat(one, params, use_tqdm=False)[0] for one in chats]
        return [list(one.outputs[0].token_ids) for one in outputs], [one.num_cached_tokens for one in outputs]

    answers, cached = answered(state_cache_slots=20)

    assert cached == [0, 96]  # of 105 tokens, 3 blocks
    assert answers == answered(enable_prefix_caching=False)[0]


def in_words(tokens: list[int]) -> str:
    return " ".join(f"w{token}" for token in tokens)


@pytest.fixture(scope="module", params=["none", "int8"])
def cold(request: pytest.FixtureRequest, folder: Path) -> tuple[str, list[list[int]]]:
    """Return a quantization, and the answers without a prefix cache."""
    answers, cached = chat(folder, max_num_seqs=4, threads=1, enable_prefix_caching=False, quantization=request.param)
    assert not any(cached)
    return request.param, answers


@pytest.mark.parametrize(
    ("settings", "hits"),
    [
        ({"max_num_seqs": 4, "threads": 1, "state_cache_slots": 20}, 4),
        ({"max_num_seqs": 1, "threads": 2, "state_cache_slots": 20}, 1),
        ({"max_num_seqs": 4, "threads": 2, "state_cache_slots": 20, "max_num_batched_tokens": 50}, 4),
        ({"max_num_seqs": 4, "threads": 1, "state_cache_slots": 20, "max_num_batched_tokens": 7}, 4),
        ({"max_num_seqs": 4, "threads": 1, "state_cache_slots": 5}, 1),
        ({"max_num_seqs": 4, "threads": 1, "state_cache_slots": 1}, 0),
        ({"max_num_seqs": 4, "threads": 1, "state_cache_slots": 0}, 0),
    ],
    ids=["together", "in turns", "chunks", "small chunks", "evicted", "one slot", "no slot"],
)
def test_later_turns_go_on_from_copies_of_states(
    folder: Path, cold: tuple[str, list[list[int]]], settings: dict[str, Any], hits: int
) -> None:
    quantization, answers = cold

    warm, cached = chat(folder, quantization=quantization, **settings)

    assert warm == answers
    found = [tokens for tokens in cached[2:] if tokens]  # for the second and third turns of two conversations
    assert len(found) >= hits
    assert all(tokens % 32 == 0 and tokens >= 64 for tokens in found)
    if settings["state_cache_slots"] == 0:
        assert not any(cached)


def test_preempted_sequences_go_on_from_copies_of_states(folder: Path, cold: tuple[str, list[list[int]]]) -> None:
    quantization, answers = cold
    block = _native.kv_block_bytes(open_checkpoint(folder).config, "float32")

    state = _native.state_bytes(open_checkpoint(folder).config)
    settings = {"max_num_seqs": 4, "threads": 2, "state_cache_slots": 6}
    warm, _ = chat(folder, quantization=quantization, kv_cache_memory_bytes=14 * block + 6 * state, **settings)

    assert warm == answers


def test_the_log_says_why_prefixes_are_not_cached(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "forearm")
    served(folder, max_num_seqs=2, threads=1, state_cache_slots=0)

    assert "prefix caching: off (no memory for copies of states)" in caplog.text


DRAFTING = {
    "together": {"max_num_seqs": 4, "threads": 1},
    "in turns": {"max_num_seqs": 1, "threads": 2, "enable_prefix_caching": False},
    "chunks": {"max_num_seqs": 4, "threads": 2, "max_num_batched_tokens": 9, "state_cache_slots": 3},
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Draft in all ways by both methods with --whole; else in each way by one of them."""
    if "method" not in metafunc.fixturenames:
        return
    asked = [("together", "draft_model"), ("in turns", "ngram"), ("chunks", "draft_model")]
    if metafunc.config.getoption("--whole"):
        asked = list(product(DRAFTING, ["ngram", "draft_model"]))
    metafunc.parametrize(
        ("settings", "method"), [(DRAFTING[way], method) for way, method in asked], ids=["-".join(one) for one in asked]
    )


def test_drafts_change_no_token(
    folder: Path,
    cold: tuple[str, list[list[int]]],
    settings: dict[str, Any],
    method: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quantization, answers = cold
    drafts = {"method": method, "num_speculative_tokens": 4}
    if method == "draft_model":
        save_tiny("llama", tmp_path)
        drafts["model"] = str(tmp_path)
    else:
        drafts |= {"prompt_lookup_min": 1, "prompt_lookup_max": 2}  # the repeated prompts then have many blocks
    monkeypatch.setattr(Gain, "lengths", lambda self, tokens, shares, available, round_s: list(available))
    drafted: list[tuple[int, int]] = []
    monkeypatch.setattr(Speculation, "verified", lambda self, piece, right: drafted.append((len(piece.drafts), right)))

    found, _ = chat(folder, quantization=quantization, speculative_config=drafts, **settings)

    assert found == answers
    assert sum(right < count for count, right in drafted) > 10, "states were taken back"


def test_a_draft_model_that_keeps_states_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="keep states, which a draft model can't take back"):
        LLM(str(folder), threads=1, speculative_config={"model": str(folder), "num_speculative_tokens": 3})


@pytest.mark.parametrize("quantization", ["int8", "int4", "fp8"])
def test_weights_are_quantized_while_loading(folder: Path, quantization: str) -> None:
    found, _ = served(folder, max_num_seqs=4, threads=2, quantization=quantization)

    assert found[::2] == found[1::2]


def test_states_are_in_the_memory_plan_and_attention_alone_has_blocks(folder: Path) -> None:
    planned = fit(EngineConfig(max_num_seqs=5, dtype="float32", state_cache_slots=3), folder, BOX, 1)
    config = planned.checkpoint.config

    mixers = [type(layer.mixer).__name__ for layer in config.layers]
    rows = 2 * mixers.count("Attention") + mixers.count("LatentAttention")  # keys and values, or a latent
    rows = rows or 2  # without attention there is room for one layer that is never written
    values = rows * 32 * config.kv_heads * -(-config.head_dim // 16) * 16
    compressed = [layer.mixer for layer in config.layers if isinstance(layer.mixer, CompressedAttention)]
    if compressed:  # a key a token, and the entries of a block's tokens with the keys that they are chosen by
        values = sum(32 * 32 + 32 // one.ratio * (32 + one.index_dim) if one.ratio else 32 * 32 for one in compressed)
    for layer in config.layers:
        if isinstance(layer.mixer, Attention) and (blocks := layer.mixer.blocks):  # means of keys of complete blocks
            values += 32 // blocks.block * blocks.head_dim
    assert planned.block_bytes == values * 4
    assert planned.kept_states == 3
    assert planned.state_bytes == 32 * sum(state_floats(layer, config) for layer in config.layers) > 0


def state_floats(layer: Layer, config: ModelConfig) -> int:
    """Floats of a tiny model's state: the last rows of a convolution, and heads' matrices with a row of scales."""
    if isinstance(layer.mixer, ShortConv):
        return (layer.mixer.taps - 1) * config.hidden
    if isinstance(layer.mixer, Attention) and config.conv_taps:  # of keys, values and both halves
        _, kv_heads, head_dim = config.heads_of(layer.mixer)
        return (config.conv_taps - 1) * 2 * (kv_heads * head_dim + config.hidden)
    if isinstance(layer.mixer, CompressedAttention):  # maximum, sum and weighted sum of each series
        return 3 * layer.mixer.series * (config.head_dim + layer.mixer.index_dim) if layer.mixer.ratio else 0
    if isinstance(layer.mixer, Attention) and layer.mixer.blocks:  # the sum of keys, in a piece of 128 bytes
        return -(-layer.mixer.blocks.head_dim // 32) * 32
    if isinstance(layer.mixer, GatedDelta):
        delta, ngrams, streams = layer.mixer, layer.ngrams, config.hyper_connections
        more = 0
        if ngrams and streams:  # tokens and rows before
            tokens = len(ngrams.multipliers)
            more = -(-(tokens - 1 + (ngrams.taps - 1) * tokens * streams.streams * config.hidden) // 32) * 32
        return (delta.taps - 1) * delta.channels + delta.value_heads * (delta.key_dim + 1) * delta.value_dim + more
    if isinstance(layer.mixer, SelectiveScan):
        return (layer.mixer.taps - 1 + layer.mixer.state_dim) * layer.mixer.inner
    if isinstance(layer.mixer, Rwkv7):  # a row of each half, and heads' matrices
        return 2 * config.hidden + layer.mixer.heads * layer.mixer.head_dim**2
    if isinstance(layer.mixer, RgLru):
        return layer.mixer.taps * layer.mixer.inner
    if isinstance(layer.mixer, Lightning):
        return layer.mixer.heads * (layer.mixer.head_dim + 1) * layer.mixer.head_dim
    if isinstance(layer.mixer, Attention) and layer.mixer.convolved:  # rows of both convolutions, and half the values
        rows = layer.mixer.convolved.taps + layer.mixer.convolved.head_taps - 2
        floats = rows * (config.heads + config.kv_heads) * config.head_dim + config.kv_heads * config.head_dim // 2
        return -(-floats // 32) * 32  # a layer's state begins at 128 bytes
    own = layer.mamba2
    return (own.taps - 1) * own.channels + own.heads * (own.state_dim + 1) * own.head_dim if own else 0


def test_copies_of_states_take_an_eighth_of_the_kv_cache(folder: Path) -> None:
    checkpoint = open_checkpoint(folder, dtype="float32")
    block, state = _native.kv_block_bytes(checkpoint.config, "float32"), _native.state_bytes(checkpoint.config)

    def planned(blocks: int, **settings: Any) -> tuple[int, int]:
        asked = EngineConfig(max_num_seqs=64, dtype="float32", max_model_len=256, **settings)
        found = fit(replace(asked, kv_cache_memory_bytes=blocks * block), folder, BOX, 1)
        return found.blocks, found.kept_states

    some = 16 + 8 * 5 * state // block
    few = some * block // 8 // state
    assert 5 <= few < 64
    assert planned(some) == (some - -(-few * state // block), few)
    assert planned(8) == (8, 0)  # one sequence needs all blocks
    assert planned(some, enable_prefix_caching=False) == (some, 0)
    assert planned(8 * 300 * state // block)[1] == 4 * 64
    single = fit(EngineConfig(max_num_seqs=1, dtype="float32", max_model_len=256), folder, BOX, 1)
    assert (single.blocks, single.kept_states) == (8, 8 * block // 8 // state)
    with pytest.raises(ConfigError, match=r"--state-cache-slots 1000, .* 256 tokens the KV cache has room for \d+"):
        planned(some, state_cache_slots=1000)
