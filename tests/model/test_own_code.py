"""Families with code of their own compute what models of transformers do whose weights say the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.model.gguf_converter import Conversion, convert
from tests.model.own_code import FAMILIES as OTHERS
from tests.model.own_code import HEADS, OwnCode
from tests.model.reference import Rounding, load_weights, logits, tolerance
from tests.model.run_native import Run, Stepper, compute
from tests.model.small_thinker import SMALL_THINKERS

from forearm.errors import ConfigError
from forearm.model.families.own_code.families import OWN_CODE

FAMILIES = [*OTHERS, *SMALL_THINKERS]


def _torch(model: Any, tokens: list[int], **others: Any) -> np.ndarray:
    with torch.no_grad():
        found: np.ndarray = model(torch.tensor([tokens]), **others).logits[0].numpy()
    return found


def _near(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Sums of float32, in another order: a few units in the last place of the largest logit for each of the layers."""
    np.testing.assert_allclose(ours, theirs, atol=4e-5 * float(np.abs(theirs).max()), rtol=0)


@pytest.mark.parametrize("own", FAMILIES, ids=lambda own: own.case.name)
def test_a_published_checkpoint_computes_what_its_equivalent_does(
    own: OwnCode, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, _, ours = own.made(tmp_path)

    _near(logits(*load_weights(ours, dtype="float32"), own.case.tokens()), _torch(model, own.case.tokens()))
    assert "does not know" not in caplog.text


@pytest.mark.parametrize("own", FAMILIES, ids=lambda own: own.case.name)
def test_a_converted_file_computes_what_its_equivalent_does(
    own: OwnCode, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, theirs, ours = own.made(tmp_path)
    path = convert(theirs if own.of_case else ours, own.conversion)

    _near(logits(*load_weights(path, dtype="float32"), own.case.tokens()), _torch(model, own.case.tokens()))
    assert not caplog.messages


@pytest.mark.parametrize("own", FAMILIES, ids=lambda own: own.case.name)
def test_the_executor_computes_it(own: OwnCode, tmp_path: Path) -> None:
    model, theirs, folder = own.made(tmp_path)
    for place in (folder, convert(theirs if own.of_case else folder, own.conversion)):
        ours, chosen = compute(Run(str(place), own.case.tokens(), 6, "float32", "float32"))

        tokens = [*own.case.tokens(), *chosen.tolist()]
        allowed = 2 * tolerance(*load_weights(place, dtype="float32"), tokens, Rounding(sums=2.0**-24))
        difference = float(np.abs(ours - _torch(model, tokens)).max())
        assert difference <= allowed + 4e-5 * float(np.abs(ours).max())
        assert allowed < 0.02 * np.abs(ours).max()


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_experts_chosen_ahead_are_the_same_in_a_chunk_for_some_rows_and_alone(
    quantization: str, tmp_path: Path
) -> None:
    """The last layer's attention leaves the rows that need logits: its experts were chosen before."""
    own = SMALL_THINKERS[0]
    _, _, folder = own.made(tmp_path)
    run = Run(str(folder), own.case.tokens()[:33], 0, "bfloat16", quantization=quantization)
    whole = Stepper(run).step(run.prompt)

    assert np.array_equal(Stepper(run).step(run.prompt, [3, 17, 32]), whole[[3, 17, 32]])
    alone = Stepper(run)
    assert np.array_equal(np.concatenate([alone.step([token]) for token in run.prompt]), whole)


def test_every_family_with_code_of_its_own_has_a_case() -> None:
    others = {"deci", "rwkv7"}  # the second is like no model of transformers: test_rwkv.py
    assert set(OWN_CODE) == {own.case.name.partition("-biases")[0] for own in FAMILIES} | others


def test_baichuan_13b_and_refact_have_slopes_instead_of_angles(tmp_path: Path) -> None:
    """Both by what config.json lacks and by the 40 layers of a file; a file of Refact has them always."""
    own = next(own for own in FAMILIES if own.case.name == "baichuan")
    own.case.settings["num_hidden_layers"] = 40
    try:
        model, theirs, ours = own.made(tmp_path)
    finally:
        del own.case.settings["num_hidden_layers"]
    config = json.loads((ours / "config.json").read_text())
    config["model_max_length"] = config.pop("max_position_embeddings")
    (ours / "config.json").write_text(json.dumps(config))
    refact = convert(theirs, Conversion("refact")).rename(tmp_path / "refact.gguf")
    path = convert(theirs, own.conversion)
    tokens = own.case.tokens()[:20]
    # Positions of zero turn nothing, and the mask may have numbers of each head: -slope for each token in between.
    slopes = np.array([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3])
    assert len(slopes) == HEADS
    away = np.arange(20)[:, None] - np.arange(20)
    mask = np.where(away >= 0, -slopes[:, None, None] * away, np.finfo(np.float32).min)
    how = {"position_ids": torch.zeros(1, 20, dtype=torch.long), "attention_mask": torch.tensor(mask[None]).float()}
    wanted = _torch(model, tokens, **how)

    for place in (ours, path, refact):
        config, weights = load_weights(place, dtype="float32")
        assert not config.ropes
        np.testing.assert_allclose(
            logits(config, weights, tokens), wanted, atol=2e-4 * float(np.abs(wanted).max()), rtol=0
        )


def test_a_file_of_deci_whose_layers_have_other_numbers_of_heads_is_refused(tmp_path: Path) -> None:
    own = next(own for own in FAMILIES if own.case.name == "nemotron-nas")
    _, _, ours = own.made(tmp_path)
    wrong = {"attention.head_count": [HEADS, 2 * HEADS, *[HEADS] * 4]}
    path = convert(ours, replace(own.conversion, keys=lambda config: own.conversion.keys(config) | wrong))

    with pytest.raises(ConfigError, match="it should be a number that all layers with attention share"):
        load_weights(path)


def _refused(tmp_path: Path, name: str, **changes: Any) -> str:
    own = next(own for own in FAMILIES if own.case.name == name)
    _, _, ours = own.made(tmp_path)
    config = json.loads((ours / "config.json").read_text())
    (ours / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ConfigError) as problem:
        load_weights(ours)
    return str(problem.value)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("baichuan", {"vocab_size": 125696}, "serve a GGUF file"),
        ("bailing_moe", {"norm_head": True}, "norm_head = true; it should be false"),
        ("bailing_moe", {"score_function": "tanh"}, 'score_function = "tanh"; it should be softmax or sigmoid'),
        ("internlm2", {"num_key_value_heads": 4}, "num_key_value_heads = 4; it should be a divisor"),
        ("smallthinker", {"rope_layout": [1, 0]}, "rope_layout = [1, 0]; it should be a list of 5 times 0 or 1"),
        ("smallthinker", {"sliding_window_layout": [2] * 5}, "it should be a list of 5 times 0 or 1"),
        ("smallthinker", {"hidden_act": "silu"}, 'hidden_act = "silu"; it should be relu'),
        (
            "smallthinker",
            {"moe_num_active_primary_experts": 9},
            "active_primary_experts = 9; it should be 1 to",
        ),
        ("qwen", {"no_bias": False}, "no_bias = false; it should be true"),
        ("deepseek", {"scoring_func": "sigmoid"}, "scoring_func"),
        ("nemotron-nas", {"block_configs": [{}]}, "it should be a list of 6 objects"),
        (
            "nemotron-nas",
            {"block_configs": [{"attention": {"replace_with_linear": True}}] * 6},
            "replace_with_linear = true; it should be false",
        ),
        ("nemotron-nas", {"block_configs": [{"attention": {"n_heads_in_group": 4}}] * 6}, "n_heads_in_group = 4"),
        ("nemotron-nas", {"block_configs": [{"ffn": {"ffn_mult": 5.0}}] * 6}, "a list in which a layer attends"),
    ],
)
def test_what_is_not_computed_is_refused(name: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert message in _refused(tmp_path, name, **changes)
