"""A model that is rotated, or smoothed and less the means of its activations, has the same logits in float32."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.model.cases import CASES, Case
from tests.model.made_cases import make

from forearm.config.number_formats import WeightFormat
from forearm.model.checkpoint import weights
from forearm.model.checkpoint.checkpoint import Checkpoint, open_checkpoint
from forearm.model.checkpoint.quality_report import TextModel
from forearm.model.families.matrices import uniform_formats
from forearm.model.quantization.quantization import Asked
from forearm.model.quantization.rotation import obstacle

TOKENS = np.arange(1, 40, dtype=np.int32)
# Whose int8 weights are calibrated, and whose stream is rotated for other engines.
ROTATED = {
    "ArceeConfig", "Ernie4_5Config", "GemmaConfig", "GlmConfig", "GraniteConfig", "HeliumConfig", "InternLM3Config",
    "LlamaConfig", "MinistralConfig", "Mistral3Config", "MistralConfig", "Phi3Config", "Qwen2Config", "Qwen2VLConfig",
    "Qwen2_5_VLConfig", "Qwen3Config", "Qwen3VLConfig", "SeedOssConfig", "SmolLM3Config",
}  # fmt: skip
NOT_CALIBRATED = {
    "its layers cannot be computed one by one": (
        "gemma4", "gemma3n", "glm_moe_dsa", "deepseek_v4", "hy_v4", "longcat_flash", "zamba2", "qwen4_exp", "zaya",
    ),
    "norms stand before the last matrix of each half of its layers": ("bitnet",),
    "its norms have gates": ("axk2",),
    "its norms replace the residual stream": ("modernbert-decoder", "minimax"),
}  # fmt: skip
# Of models that transformers computes alike in float32 and float64 but for 2.1e-5 and 4.1e-5 of the largest logit.
BOUNDS = {"granitemoe_swa": 5e-5, "qwen3.5-moe": 1e-4}


def in_float32(checkpoint: Checkpoint) -> TextModel:
    exact = uniform_formats(checkpoint.config, WeightFormat("float32"))
    return TextModel(replace(checkpoint, formats=exact, kv_dtype="float32"), 2)


@pytest.fixture(autouse=True)
def calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibrate on tokens, since the models of cases have no tokenizers."""
    monkeypatch.setattr(weights, "calibration_tokens", lambda tokenizer, vocab_size: np.arange(1, 70, dtype=np.int32))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_model_is_rotated_without_changing_a_logit_or_left_as_it_is_stored(
    case: Case, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Values go through two more orthogonal products a matrix, each exact to a few units of 2^-24 of their norm."""
    make(case, tmp_path)
    stored = open_checkpoint(tmp_path, dtype="float32", max_model_len=case.max_model_len)
    with caplog.at_level("INFO"):
        opened = open_checkpoint(
            tmp_path, dtype="float32", max_model_len=case.max_model_len, quantization=Asked("int8")
        )
    assert opened.rotated != ("is not calibrated" in caplog.text)
    assert opened.config.centred == opened.rotated
    if not opened.rotated:
        families = NOT_CALIBRATED[obstacle(stored.config, portable=False)]
        assert case.name.startswith(families)
        assert opened.config.tied_head == stored.config.tied_head
        return

    assert not opened.config.tied_head
    expected = in_float32(stored).logits(TOKENS)
    asked = [Asked("int8")]
    if case.config in ROTATED and "mistral4" not in case.name:  # latent attention
        asked += [Asked("fp8", "none"), Asked("int8", portable=True)]  # the last has another stream
    for one in asked:
        found = open_checkpoint(tmp_path, dtype="float32", max_model_len=case.max_model_len, quantization=one)
        assert found.rotated
        assert found.config.centred != one.portable
        bound = BOUNDS.get(case.name, 2e-5)
        assert np.abs(in_float32(found).logits(TOKENS) - expected).max() <= bound * np.abs(expected).max()
