"""Models in .gguf files against transformers: every architecture's config and names in float64, every type natively."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.model.cases import CASES, Case, make
from tests.model.gguf_models import write_model
from tests.model.reference import load_weights, logits

_BY_NAME = {case.name: case for case in CASES}
_BIASED = replace(_BY_NAME["llama-gqa"], name="llama-biases", settings={"attention_bias": True, "mlp_bias": True})
ARCHITECTURES: list[Case] = [
    _BIASED,
    *(
        _BY_NAME[name]
        for name in (
            "llama-gqa", "llama-sharded-mqa-tied", "llama-head-96", "llama-rope-linear", "llama-rope-llama3",
            "llama-rope-yarn", "mistral-window", "mistral-nemo", "qwen2", "qwen2-yarn", "qwen3", "phi3",
            "phi3-window-tied", "phi3-partial", "phi3-longrope-short", "phi3-longrope-long", "gemma2", "gemma3",
            "gemma3-mqa", "olmo2", "smollm3", "granite", "ernie-interleaved",
        )
    ),
]  # fmt: skip


def expected(model: torch.nn.Module, tokens: list[int]) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(model(torch.tensor([tokens])).logits[0].numpy())


@pytest.mark.parametrize("case", ARCHITECTURES, ids=lambda case: case.name)
def test_a_float32_file_computes_what_the_model_does(case: Case, tmp_path: Path) -> None:
    model = make(case, tmp_path)
    path = write_model(model, tmp_path / "model.gguf")

    config, weights = load_weights(path, dtype="float32", max_model_len=case.max_model_len)
    ours = logits(config, weights, case.tokens())

    theirs = expected(model, case.tokens())
    np.testing.assert_allclose(ours, theirs, atol=2e-5 * float(np.abs(theirs).max()), rtol=0)
    assert config.eos_token_ids == (2, 3)
