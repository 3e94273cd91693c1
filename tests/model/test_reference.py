"""The numpy reference computes what transformers computes, for every family: so families.py and names.py are right."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.model.cases import CASES, HALF_CASES, Case
from tests.model.made_cases import make
from tests.model.reference import Rounding, load_weights, logits, tolerance

FLOAT32 = Rounding(sums=2.0**-24)
BY_NAME = {case.name: case for case in CASES}


@pytest.mark.parametrize("case", [*CASES, *HALF_CASES], ids=lambda case: case.name)
def test_the_reference_agrees_with_transformers_in_float32(
    case: Case, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = make(case, tmp_path)
    tokens = case.tokens()

    with torch.no_grad():
        theirs = model(torch.tensor([tokens])).logits[0].double().numpy()
    config, weights = load_weights(tmp_path, dtype="float32", max_model_len=case.max_model_len)
    ours = logits(config, weights, tokens)

    allowed = tolerance(config, weights, tokens, FLOAT32, ours)
    assert np.abs(ours - theirs).max() <= allowed, f"{case.name}: allowed {allowed:.2g}"
    assert allowed < 1e-2 * np.abs(ours).max(), "a tolerance this wide would pass anything"
    warned = [record.getMessage() for record in caplog.records if record.name.startswith("forearm")]
    assert not warned, "every key of config.json and every tensor is accounted for"


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_a_text_model_inside_a_multimodal_one_is_the_same_model(prefix: str, tmp_path: Path) -> None:
    plain, wrapped = tmp_path / "plain", tmp_path / "wrapped"
    make(BY_NAME["gemma3"], plain)
    text = json.loads((plain / "config.json").read_text())
    wrapped.mkdir()
    (wrapped / "config.json").write_text(
        json.dumps(
            {
                "model_type": "gemma3",
                "architectures": ["Gemma3ForConditionalGeneration"],
                "text_config": text,
                "vision_config": {"hidden_size": 8},
            }
        )
    )
    tensors = {name.replace("model.", prefix, 1): t for name, t in load_file(plain / "model.safetensors").items()}
    save_file(tensors | {"vision_tower.patch.weight": torch.ones(2, 2)}, wrapped / "model.safetensors")

    config, weights = load_weights(plain)
    other_config, other_weights = load_weights(wrapped)

    tokens = BY_NAME["gemma3"].tokens()
    assert (logits(config, weights, tokens) == logits(other_config, other_weights, tokens)).all()
