"""Every architecture of .gguf files, written by the converter's rules, computes what its checkpoint does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.model.cases import Case, make
from tests.model.gguf_conversions import STATES
from tests.model.gguf_conversions_dense import OTHERS
from tests.model.gguf_conversions_mixtures import MIXTURES
from tests.model.gguf_converter import Config, Conversion, convert
from tests.model.gguf_models import numbers
from tests.model.reference import Rounding, load_weights, logits, tolerance
from tests.model.run_native import Run, compute
from tests.unit.model.gguf_files import random_blocks

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
    assert not caplog.messages, "a key or a tensor is not known"
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
    found = []
    for stored in (
        {name: ("Q8_0", values) for name, values in blocks.items()},
        {name: numbers("Q8_0", values, 64).astype(np.float32) for name, values in blocks.items()},
    ):
        path = convert(tmp_path, replace(conversion, extra=lambda config, stored=stored: stored))
        found.append(compute(Run(str(path), case.tokens(), 0, "float32", "float32", activations="float"))[0])

    np.testing.assert_allclose(found[0], found[1], atol=1e-4 * float(np.abs(found[1]).max()), rtol=0)


# value heads in the file's order, one or three to a key head; vectors and matrices that are stored in another form
_NATIVE = (
    "qwen3.5-text", "qwen3.5-tied", "qwen3-next", "granite-h", "falcon-h1", "deepseek-v3", "minicpm3",
    "kimi-linear", "gemma3n-text", "gemma4-per-layer", "gemma4-experts", "apertus", "apertus-biases", "afmoe",
    "falcon-grouped", "glm_moe_dsa",
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
