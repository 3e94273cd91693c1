"""Every architecture of .gguf files, written by the converter's rules, computes what its checkpoint does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.model.cases import Case
from tests.model.gguf_conversions import STATES
from tests.model.gguf_conversions_dense import OTHERS
from tests.model.gguf_conversions_mixtures import MIXTURES
from tests.model.gguf_converter import Config, Conversion, convert
from tests.model.gguf_models import numbers
from tests.model.made_cases import make
from tests.model.reference import Rounding, load_weights, logits, tolerance, weights_of
from tests.model.run_native import Run, compute
from tests.unit.model.gguf_files import random_blocks

from forearm.errors import ConfigError
from forearm.model.checkpoint.checkpoint import open_checkpoint
from forearm.model.families.keys import read_json

ALL = [*STATES, *OTHERS, *MIXTURES]


@pytest.mark.parametrize(("case", "conversion"), ALL, ids=[case.name for case, _ in ALL])
def test_a_converted_file_computes_what_the_checkpoint_does(
    case: Case, conversion: Conversion, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(case, tmp_path)
    theirs = logits(*load_weights(tmp_path, dtype="float32"), case.tokens())
    caplog.clear()

    config, weights = load_weights(convert(tmp_path, conversion), dtype="float32")
    ours = logits(config, weights, case.tokens())

    # -exp(a_log) and multiplied weights are rounded to float32 once, and states sum that up over the prompt.
    np.testing.assert_allclose(ours, theirs, atol=1e-5 * float(np.abs(theirs).max()), rtol=0)
    told = [conversion.told in message for message in caplog.messages]
    assert told == ([True] if conversion.told else []), f"a key or a tensor is not known: {caplog.messages}"
    assert config.eos_token_ids == (2, 3)


def test_layers_that_predict_further_tokens_are_left_out(tmp_path: Path) -> None:
    case, conversion = next(row for row in ALL if row[0].name == "qwen3.5-text")
    make(case, tmp_path)
    plain = logits(*load_weights(convert(tmp_path, conversion), dtype="float32"), case.tokens())

    def keys(config: Config) -> Config:
        return conversion.keys(config) | {"block_count": config["num_hidden_layers"] + 1, "nextn_predict_layers": 1}

    names = ("attn_norm", "nextn.enorm", "post_attention_norm")
    more = {f"blk.5.{name}.weight": np.ones(72, np.float32) for name in names}
    path = convert(tmp_path, replace(conversion, keys=keys, extra=lambda config: more))

    assert np.array_equal(logits(*load_weights(path, dtype="float32"), case.tokens()), plain)


def test_layers_without_an_indexer_share_a_choice_in_files_that_do_not_say_so(tmp_path: Path) -> None:
    """llama.cpp's converter writes the layer that predicts a further token, with an indexer, behind the others."""
    case, conversion = next(row for row in ALL if row[0].name == "glm_moe_dsa")
    make(case, tmp_path)
    plain = logits(*load_weights(convert(tmp_path, conversion), dtype="float32"), case.tokens())

    def keys(config: Config) -> Config:
        more = {"block_count": config["num_hidden_layers"] + 1, "nextn_predict_layers": 1}
        return conversion.keys(config) | more | {"attention.indexer.types": None}

    names = ("attn_norm", "nextn.enorm", "indexer.k_norm")
    more = {f"blk.4.{name}.weight": np.ones(72, np.float32) for name in names}
    path = convert(tmp_path, replace(conversion, keys=keys, extra=lambda config: more))

    config, weights = load_weights(path, dtype="float32")
    assert np.array_equal(logits(config, weights, case.tokens()), plain)
    assert [layer.mixer.indexer.shared for layer in config.layers] == [False, False, True, True]


def _mistral4(folder: Path, architecture: str, **keys: float) -> tuple[Path, Case]:
    """A checkpoint of Mistral Small 4, and the file of it in one of its two forms, with other keys."""
    rows = {row[1].architecture: row for row in ALL if row[0].name == "mistral4"}
    conversion, case = rows[architecture][1], rows["deepseek2"][0]  # of which queries grow
    make(case, folder)
    own = conversion.keys
    return convert(folder, replace(conversion, keys=lambda config: own(config) | keys)), case


def test_queries_grow_where_the_rope_parameters_say_so_that_a_file_of_mistral4_lacks(tmp_path: Path) -> None:
    path, case = _mistral4(tmp_path, "mistral4")
    theirs = logits(*load_weights(tmp_path, dtype="float32"), case.tokens())
    allowed = 1e-5 * float(np.abs(theirs).max())
    rope = read_json(tmp_path / "config.json").values["text_config"]["rope_parameters"]
    first = rope["original_max_position_embeddings"]

    off = np.abs(logits(*load_weights(path, dtype="float32"), case.tokens()) - theirs).max(axis=1)
    assert off[:first].max() <= allowed < off[first:].min(), "as llama.cpp computes it"

    told = weights_of(open_checkpoint(path, dtype="float32", rope={"rope_parameters": rope}))
    np.testing.assert_allclose(logits(*told, case.tokens()), theirs, atol=allowed, rtol=0)


@pytest.mark.parametrize(
    ("architecture", "keys", "message"),
    [
        ("mistral4", {"expert_gating_func": 2}, r"mistral4\.expert_gating_func = 2; it should be 1 \(softmax\)"),
        ("mistral4", {"attention.temperature_scale": 0.1}, r"temperature_length is missing; it should be at least 1"),
        ("deepseek2", {"attention.temperature_length": 0}, r"temperature_length = 0; it should be at least 1 beside"),
        ("deepseek2", {"attention.temperature_length": 32}, r"= 32; it should be that of .*original_context_length"),
    ],
)  # fmt: skip
def test_keys_of_mistral4_that_do_not_fit_are_refused(
    architecture: str, keys: dict[str, float], message: str, tmp_path: Path
) -> None:
    path, _ = _mistral4(tmp_path, architecture, **keys)

    with pytest.raises(ConfigError, match=message):
        load_weights(path)


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("mellum", {"rope.dimension_count": 8}, r"dimension_count = 8; it should be that of .*key_length \(16\)"),
        ("mellum", {"expert_used_count": None}, r"mellum\.expert_used_count is missing"),
        ("mellum", {"attention.sliding_window_pattern": [True]}, r"it should be a list of 4 values"),
        ("laguna", {"expert_weights_norm": False}, r"laguna\.expert_weights_norm = false; it should be true"),
        ("laguna", {"expert_gating_func": 1}, r"laguna\.expert_gating_func = 1; it should be 2 \(sigmoid\)"),
        ("laguna", {"attention.head_count": [4, 8]}, r"head_count = \[4, 8\]; it should be a list of 5 values"),
        ("laguna", {"attention.head_count": [4, 8, 2, 4, 3]}, r"it should be of multiples of num_key_value_heads"),
        ("laguna", {"attention.head_count": ["4"] * 5}, r"it should be a whole number"),
        ("laguna", {"attention.head_count": [4, 8, 2, 4, 4]}, r"blk\.4\..*shape"),
        ("laguna", {"attention.sliding_window_pattern": 0}, r"sliding_window_pattern = 0; it should be at least 1"),
        ("laguna", {"expert_shared_feed_forward_length": None}, r"expert_shared_feed_forward_length is missing"),
        ("step3p7", {"expert_weights_norm": None}, r"expert_weights_norm is missing; it should be true"),
        ("step3p7", {"expert_gating_func": 1}, r"step35\.expert_gating_func = 1; it should be 2 \(sigmoid\)"),
        ("step3p7", {"attention.head_count": [6, 8, 4, 6, 8]}, r"head_count = .*; it should be one number for layers"),
        ("step3p7", {"attention.head_count": [6, 8]}, r"head_count = \[6, 8\]; it should be a list of 5 values"),
        ("step3p7", {"attention.head_count_kv": [2, 2, 2, 2, 1]}, r"head_count_kv = .*; it should be a whole number"),
        ("step3p7", {"rope.dimension_count": 8}, r"short_factor = .*; it should be a list of 2 numbers"),
        ("step3p7", {"swiglu_clamp_exp": [0.5, 1.0]}, r"swiglu_limits = .*; it should be a list of 5 numbers"),
        ("step3p7", {"swiglu_clamp_shexp": -1.0}, r"swiglu_limits_shared = .*; it should be of numbers"),
        ("step3p7", {"expert_shared_feed_forward_length": None}, r"expert_shared_feed_forward_length is missing"),
        ("cohere2_moe", {"expert_weights_scale": 2.5}, r"expert_weights_scale = 2\.5; it should be 1 or absent"),
        ("cohere2_moe", {"expert_shared_feed_forward_length": 56}, r"= 56; it should be 100: that of all shared"),
        ("cohere2_moe", {"logit_scale": None}, r"cohere2moe\.logit_scale is missing"),
        ("deepseek_ocr2", {"expert_gating_func": 2}, r"ocr\.expert_gating_func = 2; it should be 1 \(softmax\)"),
        ("deepseek_ocr2", {"expert_weights_norm": True}, r"expert_weights_norm = true; it should be false or absent"),
        ("deepseek_ocr2", {"attention.sliding_window": 128}, r"attention\.sliding_window = 128; it should be 0: more"),
        ("deepseek_v4-long", {"expert_gating_func": 2}, r"gating_func = 2; it should be 4 \(square root of softplus\)"),
        ("deepseek_v4-long", {"attention.compress_ratios": [0, 8, 4]}, r"compress_ratios = \[0, 8, 4\]; it should be"),
        ("deepseek_v4-long", {"attention.compress_ratios": [0, 4]}, r"it should be a list of 3 values"),
        ("deepseek_v4-long", {"swiglu_clamp_exp": [1.0, 2.0, 1.0]}, r"it should be a list of one number, more than 0"),
        ("deepseek_v4-long", {"swiglu_clamp_exp": None}, r"deepseek4\.swiglu_clamp_exp is missing"),
        ("deepseek_v4-long", {"hyper_connection.count": None}, r"hyper_connection\.count is missing"),
        ("deepseek_v4-long", {"hyper_connection.count": 9}, r"hc_mult = 9; it should be 1 to 8"),
        ("deepseek_v4-long", {"expert_weights_norm": False}, r"norm_topk_prob = false; it should be True"),
        ("hunyuan_vl", {"rope.scaling.alpha": -1.0}, r"alpha = -1\.0; it should be more than 0"),
        ("gptj", {"rope.dimension_count": 5}, r"rotary_dim = 5; it should be an even number of at most"),
        ("xverse", {"rope.dimension_count": 0}, r"xverse\.rope\.dimension_count = 0; it should be at least 1"),
        ("hy_v3", {"expert_shared_feed_forward_length": 41}, r"= 41; it should be a multiple of .*length \(40\)"),
        ("hy_v3", {"expert_feed_forward_length": 0}, r"expert_feed_forward_length = 0; it should be at least 1"),
    ],
)  # fmt: skip
def test_keys_that_do_not_fit_are_refused(name: str, keys: dict[str, object], message: str, tmp_path: Path) -> None:
    case, conversion = next(row for row in ALL if row[0].name == name)
    make(case, tmp_path)
    path = convert(tmp_path, replace(conversion, keys=lambda config: conversion.keys(config) | keys))

    with pytest.raises(ConfigError, match=message):
        load_weights(path)


def test_windows_of_mellum_are_of_three_layers_of_four_where_no_key_lists_them(tmp_path: Path) -> None:
    case, conversion = next(row for row in ALL if row[0].name == "mellum")
    make(case, tmp_path)
    for every, windows in ((None, [16, 16, 16, 0]), (2, [16, 0, 16, 0])):
        own = {"attention.sliding_window_pattern": every}
        path = convert(tmp_path, replace(conversion, keys=lambda config, own=own: conversion.keys(config) | own))

        config, _ = load_weights(path)
        assert [layer.mixer.window for layer in config.layers] == windows


def test_the_matrices_of_an_indexer_may_be_blocks(tmp_path: Path) -> None:
    """Queries are then made in another form than those of the heads, which are floats, of the same latent."""
    case, conversion = next(row for row in ALL if row[0].name == "glm_moe_dsa")
    case = replace(case, settings=case.settings | {"hidden_size": 64, "q_lora_rank": 64, "index_topk": 20})
    make(case, tmp_path)
    rows = {"attn_k": 16, "proj": 18, "attn_q_b": 18 * 16}
    blocks = {
        f"blk.{layer}.indexer.{name}.weight": random_blocks("Q8_0", count, 64, size=0.1, seed=layer + count)
        for layer in (0, 1)
        for name, count in rows.items()
    }
    _same_as_numbers(case, conversion, tmp_path, blocks, 64)


def test_gates_and_ups_of_all_experts_in_one_tensor_may_be_blocks(tmp_path: Path) -> None:
    case, conversion = next(row for row in ALL if row[0].name == "mistral4")
    text = case.settings["text_config"] | {"hidden_size": 64, "moe_intermediate_size": 24}
    case = replace(case, settings=case.settings | {"text_config": text})
    make(case, tmp_path)
    rows = random_blocks("Q4_0", 8 * 2 * 24, 64, size=0.1, seed=1).reshape(8, 2 * 24, -1)

    _same_as_numbers(case, conversion, tmp_path, {"blk.1.ffn_gate_up_exps.weight": rows}, 64, "Q4_0")


@pytest.mark.parametrize(
    ("dtype", "names"),
    [
        ("MXFP4", ("ffn_gate_exps", "ffn_up_exps")),
        ("Q8_0", ("attn_compressor_kv", "attn_compressor_gate")),
    ],
)
def test_experts_and_entries_of_deepseek4_may_be_blocks(dtype: str, names: tuple[str, ...], tmp_path: Path) -> None:
    case, conversion = next(row for row in ALL if row[0].name == "deepseek_v4-long")
    sizes = {"hidden_size": 64, "moe_intermediate_size": 32, "intermediate_size": 32}
    case = replace(case, settings=case.settings | sizes, prompt=60)
    make(case, tmp_path)
    rows = {"ffn": (10, 32), "attn": (2 * 48,)}  # of experts, and of the two series of entries of 4 tokens
    blocks = {}
    for seed, name in enumerate(names):
        shape = rows[name.partition("_")[0]]
        stored = random_blocks(dtype, int(np.prod(shape)), 64, size=0.1, seed=seed)
        blocks[f"blk.1.{name}.weight"] = stored.reshape(*shape, -1)

    _same_as_numbers(case, conversion, tmp_path, blocks, 64, dtype)


@pytest.mark.parametrize("dtype", ["Q8_0", "Q4_K"])
def test_the_rows_that_get_their_order_back_may_be_blocks(dtype: str, tmp_path: Path) -> None:
    case, conversion = next(row for row in ALL if row[0].name == "bamba")
    case = replace(case, settings=case.settings | {"hidden_size": 256, "mamba_n_heads": 16, "mamba_d_head": 32,
        "num_attention_heads": 8, "attn_rotary_emb": 16,
    })  # fmt: skip
    make(case, tmp_path)
    blocks = {
        f"blk.1.attn_{name}.weight": random_blocks(dtype, rows, 256, size=0.1, seed=rows)
        for name, rows in (("q", 8 * 32), ("k", 2 * 32), ("v", 2 * 32))
    }

    _same_as_numbers(case, conversion, tmp_path, blocks, 256, dtype)


def _same_as_numbers(
    case: Case, conversion: Conversion, folder: Path, blocks: dict[str, np.ndarray], k: int, dtype: str = "Q8_0"
) -> None:
    """Check that the executor computes the same of tensors of blocks, rows of k values, as of their numbers."""
    found = []
    for stored in (
        {name: (dtype, values) for name, values in blocks.items()},
        {
            name: numbers(dtype, values.reshape(-1, values.shape[-1]), k).reshape(*values.shape[:-1], k).astype("f4")
            for name, values in blocks.items()
        },
    ):
        path = convert(folder, replace(conversion, extra=lambda config, stored=stored: stored))
        found.append(compute(Run(str(path), case.tokens(), 0, "float32", "float32", activations="float"))[0])

    np.testing.assert_allclose(found[0], found[1], atol=1e-4 * float(np.abs(found[1]).max()), rtol=0)


# value heads in the file's order, one or three to a key head; vectors and matrices that are stored in another form
_NATIVE = (
    "qwen3.5-text", "qwen3.5-tied", "qwen3-next", "granite-h", "bamba", "falcon-h1", "deepseek-v3", "minicpm3",
    "kimi-linear", "gemma3n-text", "gemma4-per-layer", "gemma4-experts", "apertus", "apertus-biases", "afmoe",
    "falcon-grouped", "glm_moe_dsa", "mistral4", "mellum", "laguna", "cohere2_moe", "hy_v3", "step3p7",
)  # fmt: skip


@pytest.mark.parametrize("name", _NATIVE)
def test_the_executor_computes_what_the_file_says(name: str, tmp_path: Path) -> None:
    case, conversion = next(row for row in ALL if row[0].name == name)
    make(case, tmp_path)
    path = convert(tmp_path, conversion)

    ours, chosen = compute(Run(str(path), case.tokens(), 6, "float32", "float32"))

    tokens = [*case.tokens(), *chosen.tolist()]
    theirs = logits(*load_weights(tmp_path, dtype="float32"), tokens)
    allowed = 2 * tolerance(*load_weights(path, dtype="float32"), tokens, Rounding(sums=2.0**-24))
    assert float(np.abs(ours - theirs).max()) <= allowed < 0.02 * np.abs(theirs).max()


# whose rows the converter leaves in their order
_UNCHANGED = (
    "deepseek_v4-long", "mellum", "laguna-per-element", "cohere2_moe", "hy_v3", "deepseek_ocr2", "paddleocr_vl",
    "pangu-embedded", "stablelm", "hunyuan_vl", "step3p7", "step3p7-yarn",
)  # fmt: skip


@pytest.mark.parametrize("name", _UNCHANGED)
def test_a_file_gives_the_bits_and_tokens_of_its_checkpoint(name: str, tmp_path: Path) -> None:
    case, conversion = [row for row in ALL if row[0].name == name][-1]
    make(case, tmp_path)

    file, folder = (
        compute(Run(str(at), case.tokens(), 16, "float32", "float32"))
        for at in (convert(tmp_path, conversion), tmp_path)
    )

    assert np.array_equal(file[1], folder[1])
    assert np.array_equal(file[0], folder[0])
