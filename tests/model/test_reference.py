"""The numpy reference computes what transformers computes, for every family: so families.py and names.py are right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.model.cases import CASES, HALF_CASES, Case, make
from tests.model.reference import Rounding, load_weights, logits, tolerance

FLOAT32 = Rounding(sums=2.0**-24)


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

    allowed = tolerance(config, weights, tokens, FLOAT32)
    assert np.abs(ours - theirs).max() <= allowed, f"{case.name}: allowed {allowed:.2g}"
    assert allowed < 1e-2 * np.abs(ours).max(), "a tolerance this wide would pass anything"
    warned = [record.getMessage() for record in caplog.records if record.name.startswith("forearm")]
    assert not warned, "every key of config.json and every tensor is accounted for"
