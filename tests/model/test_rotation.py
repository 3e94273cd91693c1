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
from forearm.model.families.config import Experts
from forearm.model.families.matrices import uniform_formats
from forearm.model.quantization.quantization import Asked

TOKENS = np.arange(1, 40, dtype=np.int32)
ROTATED = {
    "ArceeConfig", "Ernie4_5Config", "GemmaConfig", "GlmConfig", "GraniteConfig", "HeliumConfig", "InternLM3Config",
    "LlamaConfig", "MinistralConfig", "Mistral3Config", "MistralConfig", "Phi3Config", "Qwen2Config", "Qwen2VLConfig",
    "Qwen2_5_VLConfig", "Qwen3Config", "Qwen3VLConfig", "SeedOssConfig", "SmolLM3Config",
}  # fmt: skip
WITH_EXPERTS = {
    "AriaConfig", "AriaTextConfig", "DeepseekOcr2Config", "Dots1Config", "Ernie4_5_MoeConfig", "ExaoneMoeConfig",
    "FlintConfig", "Glm4MoeConfig", "Glm4vMoeConfig", "GptOssConfig", "GraniteMoeConfig", "GraniteMoeSWAConfig",
    "GraniteMoeSharedConfig", "HYV3Config", "HunYuanMoEV1Config", "LagunaConfig", "MellumConfig", "MiniMaxM2Config",
    "MixtralConfig", "OlmoeConfig", "Qwen2MoeConfig", "Qwen3MoeConfig", "Qwen3OmniMoeThinkerConfig",
    "Qwen3VLMoeConfig", "SolarOpenConfig",
}  # fmt: skip


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
    assert opened.rotated or case.config not in ROTATED | WITH_EXPERTS or "mistral4" in case.name  # latent attention
    assert opened.config.centred == opened.rotated
    if not opened.rotated:
        assert opened.config.tied_head == stored.config.tied_head
        return

    assert not opened.config.tied_head
    expected = in_float32(stored).logits(TOKENS)
    has_experts = any(isinstance(layer.feed_forward, Experts) for layer in stored.config.layers)
    for asked in (Asked("int8"), Asked("fp8", "none"), Asked("int8", portable=True)):  # the last has another stream
        one = open_checkpoint(tmp_path, dtype="float32", max_model_len=case.max_model_len, quantization=asked)
        assert one.rotated != (asked.portable and has_experts)
        assert one.config.centred != asked.portable
        # Of this one, transformers' logits in float32 and float64 are 2.1e-5 apart.
        bound = 5e-5 if case.name == "granitemoe_swa" else 2e-5
        assert np.abs(in_float32(one).logits(TOKENS) - expected).max() <= bound * np.abs(expected).max()
